"""How methods are shown: the name of the figure that every method is in, and how colours are written."""

import re

MAIN = "main"
"""The figure with every method that no further panel is about."""

COLOUR = re.compile(r"#[0-9a-fA-F]{6}|oklch\((?:0|1|0?\.\d+) \d*\.?\d+ \d*\.?\d+\)")
"""How ``colour`` in the table of a method may be written."""
