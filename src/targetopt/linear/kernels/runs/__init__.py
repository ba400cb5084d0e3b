"""Whole runs in one call: SSO, its rivals, and rules that remember every example."""
