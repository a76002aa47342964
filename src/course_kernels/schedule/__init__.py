"""What each program of a grouped GEMM computes, and when: tile orders and a simulator, in plain Python.

`tiles` and `walk` say what the kernels do, tile by tile; `simulate` adds a cost model and gives a timeline;
`bytes_moved` adds a cache and gives the traffic. `tile_counts` is the number of tiles of each problem, and
`one_launch_per_problem` the timeline that grouping saves. Problems are (M, N, K) in plain numbers. The defaults of
`CostModel` are those of an H200, in microseconds; it says which of them are measured. Use a timeline to see the waves
and the idle tail of an order of tiles, and the traffic to see what it reuses, before writing the kernel.

`layer_time` predicts a layer whose experts are spread over GPUs: the bytes of each link, the slowest rank, and what
overlap hides. `exchange` counts the rows that travel.

Nothing here computes with torch or Triton, or needs a GPU; importing the package loads torch all the same.
"""

from course_kernels.schedule.expert_parallel import (
    Cluster,
    Exchange,
    ExpertLayer,
    LayerSpan,
    LayerTime,
    Link,
    exchange,
    layer_time,
    owners,
)
from course_kernels.schedule.orders import (
    DEFAULT_BLOCK,
    ORDERS,
    STATIC_ORDERS,
    Tile,
    problem_starts,
    tile_counts,
    tiles,
    walk,
    xcd_tile,
)
from course_kernels.schedule.simulate import CostModel, LowerBounds, Span, Timeline, one_launch_per_problem, simulate
from course_kernels.schedule.traffic import H200_L2_BYTES, Traffic, bytes_moved

__all__ = [
    "DEFAULT_BLOCK",
    "H200_L2_BYTES",
    "ORDERS",
    "STATIC_ORDERS",
    "Cluster",
    "CostModel",
    "Exchange",
    "ExpertLayer",
    "LayerSpan",
    "LayerTime",
    "Link",
    "LowerBounds",
    "Span",
    "Tile",
    "Timeline",
    "Traffic",
    "bytes_moved",
    "exchange",
    "layer_time",
    "one_launch_per_problem",
    "owners",
    "problem_starts",
    "simulate",
    "tile_counts",
    "tiles",
    "walk",
    "xcd_tile",
]
