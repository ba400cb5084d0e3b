"""Several networks of one shape side by side: fewer and longer operations, and the same numbers."""

from targetopt.rl.stack.acting import acting
from targetopt.rl.stack.meeting import Meeting
from targetopt.rl.stack.perceptrons import Perceptrons
from targetopt.rl.stack.rows import Rows
from targetopt.rl.stack.solver import Task, solve

__all__ = ["Meeting", "Perceptrons", "Rows", "Task", "acting", "solve"]
