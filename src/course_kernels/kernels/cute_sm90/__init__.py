"""Groups packed along M, or along K for the gradient of a weight, written for Hopper in CuTe DSL.

``config``: tiles, clusters, stages, and what is valid. ``scheduler``: which tile has a number. ``tickets``: which
number a cluster takes next. ``window``: descriptors that end where a group ends. ``mainloop``: one warp fills a ring of
stages, warp groups multiply; ``blockwise``: with ``factors`` of blocks. ``epilogue``: from the accumulators to the
group's result, and nowhere else. ``kernel``: the roles put together; ``compilation``: for a target. Only ``config`` can
be imported without the ``cutlass`` extra.
"""
