"""The rows that kernels read: products, batches renumbered to their columns, several gathered at once."""
