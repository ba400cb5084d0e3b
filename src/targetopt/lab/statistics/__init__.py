"""What many runs say together: aligned curves, aggregates with intervals, profiles, verdicts."""
