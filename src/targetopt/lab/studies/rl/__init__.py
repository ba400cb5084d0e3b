"""The study of reinforcement learning: registered in ``docs/rl-study.md`` before its runs."""
