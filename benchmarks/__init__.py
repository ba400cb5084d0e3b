"""Performance claims, measured: ``make bench`` or ``python -m benchmarks [name ...]``."""
