"""One inner problem in kernels: the quadratic, its solvers, and a call for a single one."""
