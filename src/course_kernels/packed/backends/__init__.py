"""The ways to compute a packed product: Triton kernels, the kernel in CuTe DSL, torch."""
