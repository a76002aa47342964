"""What each program of a grouped GEMM computes, and when: tile orders and a simulator, in plain Python.

`tiles` and `walk` say what the kernels do, tile by tile; `simulate` adds a cost model and gives a timeline;
`bytes_moved` adds a cache and gives the traffic. Nothing here needs a GPU, torch or Triton.
"""

from .tiles import DEFAULT_BLOCK, ORDERS, STATIC_ORDERS, Tile, tile_counts, tiles, walk

__all__ = [
    "DEFAULT_BLOCK",
    "ORDERS",
    "STATIC_ORDERS",
    "Tile",
    "tile_counts",
    "tiles",
    "walk",
]
