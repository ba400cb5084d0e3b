"""How kernels are compiled, each by a process of its own, and kept on disk."""
