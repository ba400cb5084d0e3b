"""The expensive-oracle study: which method needs the fewest calls, on which problem, and at which price it pays."""
