"""The engine that launches every family of grouped products.

``product``: a product in parts. ``plans``: from a call to a launch, with a cache of plans. ``backend_choice``: the
choice of the backend. ``triton_launch`` and ``triton_arguments``: the Triton kernels. ``hopper``: the kernel in CuTe
DSL. ``torch_loop``: torch alone. ``tuning``: the expected times of configurations, and the choice of one.
"""
