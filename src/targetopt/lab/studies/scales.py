"""The three sizes in which every figure can be made."""

from typing import Literal

ScaleName = Literal["smoke", "quick", "paper"]
"""Seconds, minutes, and the paper's own."""
