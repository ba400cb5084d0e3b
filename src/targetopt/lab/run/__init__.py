"""How runs are done: one run from start to end, many of them on this machine or on a Ray cluster."""
