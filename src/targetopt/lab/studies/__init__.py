"""The studies this project publishes: the paper's figures, imitation, theory, and the demo."""
