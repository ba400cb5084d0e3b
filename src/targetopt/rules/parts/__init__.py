"""What several rules share, and no user types."""
