"""Handwritten digits with oracles that cost: a teacher who sells answers, and an attacker."""
