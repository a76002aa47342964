"""The problems that the benchmarks run, each with the name that records and notebooks use."""

from __future__ import annotations

import random

SQUARES = (128, 256, 512, 1024, 2048)


def group_gemm_rows() -> dict[str, list[tuple[int, int, int]]]:
    """Rows for the list API: four equal problems of N³, and 64 problems of random sizes.

    Random extents are multiples of 64 between 64 and 2048: the tutorial's kernel needs whole blocks of K.
    """
    rows = {f"4 x {n}^3": [(n, n, n)] * 4 for n in SQUARES}
    draw = random.Random(0)
    rows["64 random 64-2048"] = [tuple(64 * draw.randint(1, 32) for _ in range(3)) for _ in range(64)]
    return rows
