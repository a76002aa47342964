"""Groups packed along M, or along K for the gradient of a weight, written for Hopper in CuTe DSL.

``form``: the products of a kernel; ``config``: tiles, clusters, stages, and their validity. ``scheduler``: the tile of
a number. ``dynamic_order``: the next number of a cluster. ``ragged_descriptor``: descriptors that end where a group
ends. ``stages``: the ring in shared memory; ``loads``: warps fill it; ``mainloop``: warp groups multiply from it;
``blockwise``: the same with ``block_scales``. ``epilogues``: from the accumulators to the group's result only.
``kernel``: all roles together; ``compilation``: for a target. Only ``form`` and ``config`` can be imported without the
``cutlass`` extra.
"""
