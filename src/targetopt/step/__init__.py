"""What makes a step: its question and its parts, checked, and all that makes it atomic and deterministic."""
