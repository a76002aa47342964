"""What every family of grouped products is launched through.

``product``: what is asked for, in parts. ``plans``: from a call to a launch, and the plans that earlier calls left.
``offers``: which backend computes it. ``launch`` and ``arguments``: the Triton kernels. ``hopper``: the kernel in CuTe
DSL. ``torch_loop``: torch alone. ``tuning``: how long a configuration takes, and the choice made from that.
"""
