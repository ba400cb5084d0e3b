"""What a reader sees: one HTML page, figures and tables of a result directory."""
