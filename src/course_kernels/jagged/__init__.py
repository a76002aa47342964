"""Groups of rows that share one B, packed in one tensor: Triton kernels, Helion kernels, and adapters for TritonBench.

``api`` has the public functions, ``packing`` makes their arguments from lists, ``triton_kernels`` and
``helion_kernels`` are the two implementations, and ``tuned`` chooses a configuration for the second.
"""
