"""Groups packed along M, or along K for the gradient of a weight, written for Hopper in CuTe DSL.

``form``: what a kernel is built for; ``config``: tiles, clusters, stages, and what is valid. ``scheduler``: which tile
has a number. ``dynamic_order``: which number a cluster takes next. ``ragged_descriptor``: descriptors that end where a
group ends. ``stages``: the ring in shared memory; ``loads``: warps fill it; ``mainloop``: warp groups multiply from it;
``blockwise``: with ``block_scales``. ``epilogues``: from the accumulators to the group's result, and nowhere else.
``kernel``: the roles put together; ``compilation``: for a target. Only ``form`` and ``config`` can be imported without
the ``cutlass`` extra.
"""
