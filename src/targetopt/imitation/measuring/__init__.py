"""What a policy is worth: returns, held-out losses, the best that its class can do, and films."""
