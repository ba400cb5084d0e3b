"""Decision-focused learning: a network predicts costs, and the oracle solves a problem for each instance."""
