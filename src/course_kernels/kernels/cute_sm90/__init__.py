"""Groups packed along M, written for Hopper in CuTe DSL.

``config``: tiles, clusters, stages, and what is valid. ``scheduler``: which tile is next. ``mainloop``: one warp fills
a ring of stages, warp groups multiply. ``epilogue``: from registers to the group's rows, and no others. ``kernel``: the
roles put together, and its compilation. Only ``config`` can be imported without the ``cutlass`` extra.
"""
