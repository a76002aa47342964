"""Configurations of the packed products known by hand: what is used where nothing was measured, and what is measured.

The 16-bit ones come from sweeps on an H200, in which 128×256×64 with 8 warps and 128×128×64 with 4 warps and two
programs per SM were within 2 to 5 % of each other on large groups. 256×128, blocks of 128 along K with tiles 128 wide,
and two 64×256 programs per SM were clearly worse and are not tried again.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

from course_kernels.config import GemmConfig

_LARGEST = 2**20
_ROWS_OF_A_GROUP = ("grouped_mm_batch", "masked", "masked_block")  # ops whose M is not the total over the groups


class Bucket(NamedTuple):
    """Shapes that share a configuration: the average group's product and the number of groups, rounded.

    The ragged extent is M, or K where the depth is ragged. Every extent is the nearest power of two by ratio (the edge
    between 1024 and 2048 is 1024·√2, so sizes that jitter around a power of two stay in one bucket), except that few
    rows are rounded up to what holds them: 16, 32 or 64 rows, since a tile should hold a group; from 65 rows on, 128
    and more. Extents below 16 and above 2**20 count as these; groups from 1 to 4096.
    """

    M: int
    N: int
    K: int
    G: int

    @classmethod
    def of(cls, op: str, M: int, K: int, N: int, G: int) -> Bucket:
        """The bucket of a product; ``M`` or ``K`` is the total over all groups, as for ``lookup.get_config``."""
        groups = _nearest(max(G, 1), 1, 4096)
        if op == "grouped_mm_k":
            return cls(_nearest(M), _nearest(N), _nearest(K, over=max(G, 1)), groups)
        return cls(_rows(M, 1 if op in _ROWS_OF_A_GROUP else max(G, 1)), _nearest(N), _nearest(K), groups)

    def __str__(self) -> str:
        return f"{self.G} groups of {self.M}×{self.N}×{self.K} (M×N×K) each"


def _nearest(extent: int, least: int = 16, most: int = _LARGEST, over: int = 1) -> int:
    """The power of two that ``extent / over`` is nearest to by ratio: k where 2k - 1 <= log2(x²) < 2k + 1, in whole
    numbers, so that no rounding decides at an edge."""
    squared = extent * extent // (over * over)
    return min(max(1 << (squared.bit_length() // 2), least), most)


def _rows(total: int, groups: int) -> int:
    for few in (16, 32, 64):
        if total <= few * groups:
            return few
    return _nearest(total, 128, over=groups)


def _table(*rows) -> tuple[GemmConfig, ...]:
    return tuple(GemmConfig(*row) for row in rows)


# GemmConfig: block_m, n, k, warps, stages, group_m, programs/SM, store parts. Rows of a group → configuration; the
# last serves all larger groups.
_DESCRIBED = {
    "16-bit": dict(zip((16, 32, 64, 128), _table(
        (16, 128, 128, 4, 4, 1, 1, 1), (32, 128, 128, 4, 4, 1, 1, 1), (64, 128, 128, 4, 3, 1, 1, 1),
        (128, 256, 64, 8, 4, 8, 1, 2),
    ))),
    "fp8": dict(zip((16, 32, 64, 128), _table(
        (16, 128, 128, 4, 5, 1, 1, 1), (32, 128, 128, 4, 4, 1, 1, 1), (64, 128, 128, 4, 4, 1, 1, 1),
        (128, 128, 128, 4, 3, 8, 2, 2),
    ))),
    "tf32": dict(zip((16, 32, 64, 128), _table(
        (16, 128, 64, 4, 3, 1, 1, 1), (32, 128, 64, 4, 3, 1, 1, 1), (64, 128, 32, 4, 4, 8, 1, 1),
        (128, 256, 32, 8, 3, 8, 1, 2),
    ))),
    "ieee": dict(zip((32, 128), _table((32, 32, 32, 8, 3, 8, 2, 1), (128, 64, 16, 8, 3, 8, 1, 1)))),
}  # fmt: skip
# Where an operand or the result has no descriptor, its addresses are held in registers, which tiles with 128
# accumulators a thread have none left for.
_POINTERS = {
    "16-bit": dict(zip((16, 32, 64, 128), _table(
        (16, 64, 128, 4, 3, 1, 2, 1), (32, 64, 64, 4, 3, 1, 2, 1), (64, 64, 64, 4, 3, 8, 2, 1),
        (128, 128, 64, 8, 3, 8, 1, 1),
    ))),
    "fp8": dict(zip((16, 32, 64, 128), _table(
        (16, 64, 128, 4, 3, 1, 2, 1), (32, 64, 128, 4, 3, 1, 2, 1), (64, 64, 64, 8, 3, 8, 2, 1),
        (128, 128, 64, 8, 3, 8, 1, 1),
    ))),
    "tf32": dict(zip((16, 32, 64, 128), _table(
        (16, 64, 64, 4, 3, 1, 2, 1), (32, 64, 32, 4, 3, 1, 2, 1), (64, 64, 32, 4, 3, 8, 2, 1),
        (128, 128, 32, 8, 3, 8, 1, 1),
    ))),
    "ieee": dict(zip((32, 64), _table((32, 32, 32, 4, 3, 8, 2, 1), (64, 64, 32, 8, 2, 8, 2, 1)))),
}  # fmt: skip
# With block scales a thread holds its accumulators twice, and a block of K lies within 128.
_BLOCK_SCALED = {
    True: dict(zip((16, 32, 64, 128), _table(
        (16, 128, 128, 4, 5, 1, 1, 1), (32, 128, 128, 4, 4, 1, 1, 1), (64, 128, 128, 4, 4, 1, 1, 1),
        (128, 128, 128, 8, 3, 8, 1, 1),
    ))),
    False: dict(zip((16, 32, 64, 128), _table(
        (16, 64, 128, 4, 3, 1, 2, 1), (32, 64, 128, 4, 3, 1, 2, 1), (64, 64, 64, 8, 3, 8, 2, 1),
        (128, 64, 64, 8, 3, 8, 1, 1),
    ))),
}  # fmt: skip
_TWO_PER_SM = GemmConfig(128, 128, 64, 4, 3, 8, 2, 2)
_SHORT_DEPTH = GemmConfig(128, 128, 64, 4, 3, 4, 2, 2)
# Where neither the chosen configuration nor fewer of its stages fit into the shared memory.
_SMALLER = _table((128, 128, 32, 8, 3, 8, 1, 1), (64, 64, 32, 8, 2, 8, 2, 1), (32, 32, 32, 4, 2, 8, 2, 1))
# For products along K in which every program has one tile. Such a program loads nothing while it stores. So three share
# an SM of a Hopper GPU: each takes 64 KiB of shared memory and has 128 accumulators a thread. In a trial on an H200,
# this configuration with strips of 4 was on average 1.4 % behind the fastest of 50 on 14 layers; strips of 8 were 0.8 %
# faster on others. Groups of 1,024 rows or more gain nothing over the configurations of persistent programs.
ONE_TILE = GemmConfig(128, 128, 32, 4, 3, 8, 3, 2)
ONE_TILE_DEPTH = 1024
# Without tensor cores all others spill; it serves GPUs that nobody has tried, too.
NARROW = GemmConfig(64, 64, 32, 8, 2, 8, 2, 1)
INTERPRETER = GemmConfig(32, 32, 32)


def _kind(dtype: str) -> str:
    return {"float8_e4m3fn": "fp8", "float32": "ieee", "tf32": "tf32"}.get(dtype, "16-bit")


def defaults(op: str, bucket: Bucket, dtype: str, uses_tma: bool) -> tuple[GemmConfig, ...]:
    """Configurations that are right where none was measured, the best first; the others are for less shared memory.

    Args:
        op: one of ``lookup.OPS``.
        dtype: one of ``dtypes.TYPE_BYTES``.
        uses_tma: operands and result go through descriptors.
    """
    kind = _kind(dtype)
    by_rows = (_DESCRIBED if uses_tma else _POINTERS)[kind]
    if op == "masked_block" and kind == "fp8":
        by_rows = _BLOCK_SCALED[uses_tma]
    config = next((by_rows[rows] for rows in by_rows if bucket.M <= rows), list(by_rows.values())[-1])
    if kind == "16-bit" and uses_tma:
        if op == "grouped_mm_k" and bucket.M >= 128 and bucket.K <= 1024:
            config = _SHORT_DEPTH
        elif op != "grouped_mm_k" and bucket.M >= 128 and bucket.M * bucket.N * bucket.K * bucket.G >= 2**39:
            config = _TWO_PER_SM
    return (config, *_SMALLER)


def with_block_scales(config: GemmConfig) -> GemmConfig:
    """A configuration for 8-bit operands, changed for scales of blocks: blocks of at most 128 along K, and room in the
    registers for the sums of a block beside those of the tile."""
    config = dataclasses.replace(config, block_k=min(config.block_k, 128))
    if config.block_m * config.block_n > 64 * 32 * config.num_warps:
        config = dataclasses.replace(config, block_n=min(config.block_n, 128), num_warps=8, programs_per_sm=1)
    return config


_FEW_ROWS_16 = {
    16: _table(
        (16, 128, 128, 4, 4, 1, 1, 1), (16, 128, 128, 4, 3, 1, 1, 1), (16, 256, 64, 4, 5, 1, 1, 1),
        (16, 64, 128, 4, 5, 1, 2, 1), (16, 128, 64, 4, 6, 1, 1, 1), (16, 128, 64, 4, 4, 1, 2, 1),
    ),
    32: _table(
        (32, 128, 128, 4, 4, 1, 1, 1), (32, 128, 64, 4, 5, 1, 1, 1), (32, 256, 64, 4, 4, 1, 1, 1),
        (32, 128, 64, 4, 4, 1, 2, 1), (64, 128, 128, 4, 4, 1, 1, 1),
    ),
    64: _table(
        (64, 128, 128, 4, 3, 1, 1, 1), (64, 128, 128, 4, 4, 1, 1, 1), (64, 256, 64, 4, 4, 1, 1, 1),
        (64, 128, 64, 4, 4, 1, 1, 1), (64, 128, 64, 4, 3, 1, 2, 2),
    ),
}  # fmt: skip
_MANY_ROWS_16 = _table(
    (128, 256, 64, 8, 4, 8, 1, 2), (128, 256, 64, 8, 4, 4, 1, 2), (128, 256, 64, 8, 3, 8, 1, 1),
    (128, 128, 64, 4, 3, 8, 2, 2), (128, 128, 64, 4, 3, 4, 2, 2), (64, 256, 64, 4, 4, 8, 1, 2),
    (64, 128, 64, 4, 3, 8, 2, 2),
)  # fmt: skip
_RAGGED_DEPTH_16 = _table(
    (128, 256, 64, 8, 4, 8, 1, 2), (128, 256, 64, 8, 4, 4, 1, 2), (128, 128, 64, 4, 3, 8, 2, 2),
    (128, 128, 64, 4, 3, 4, 2, 2), (128, 128, 32, 4, 4, 4, 2, 2), (64, 128, 64, 4, 3, 4, 2, 2),
)  # fmt: skip
# Few rows, many rows; what was measured least is tried over a wider range of tiles.
_OTHERS = {
    "fp8": (
        _table((16, 128, 256, 4, 3, 1, 1, 1), (32, 128, 256, 4, 3, 1, 1, 1), (64, 64, 128, 4, 4, 1, 2, 1)),
        _table((128, 128, 128, 8, 3, 8, 1, 1), (128, 128, 128, 4, 3, 4, 2, 2), (64, 128, 128, 4, 4, 8, 1, 2)),
    ),
    "fp8 in blocks": (
        _table((16, 64, 128, 4, 5, 1, 2, 1), (32, 64, 128, 4, 5, 1, 2, 1), (64, 64, 128, 4, 4, 1, 2, 1)),
        _table((128, 128, 128, 8, 4, 8, 1, 1), (64, 128, 128, 4, 4, 8, 1, 1), (128, 64, 128, 4, 4, 8, 1, 1)),
    ),
    "tf32": (
        _table((16, 128, 32, 4, 5, 1, 1, 1), (32, 128, 32, 4, 5, 1, 1, 1), (64, 64, 32, 4, 4, 1, 2, 1)),
        _table((128, 128, 32, 4, 2, 8, 2, 2), (128, 128, 32, 8, 3, 8, 1, 1), (64, 128, 32, 4, 4, 8, 1, 1)),
    ),
    "ieee": (
        _table((32, 64, 32, 8, 3, 8, 1, 1), (32, 32, 32, 4, 3, 8, 2, 1)),
        _table((64, 64, 32, 8, 2, 8, 2, 1), (64, 64, 16, 8, 3, 8, 2, 1)),
    ),
}  # fmt: skip


def candidates(op: str, bucket: Bucket, dtype: str) -> tuple[GemmConfig, ...]:
    """Configurations worth measuring where all goes through descriptors, the default first.

    Each compiles for sm_90 without spilling registers, except those that the tests list.
    """
    kind, few = _kind(dtype), op != "grouped_mm_k" and bucket.M <= 64
    if op == "masked_block" and kind == "fp8":
        kind = "fp8 in blocks"
    if kind == "16-bit":
        found = _RAGGED_DEPTH_16 if op == "grouped_mm_k" else _FEW_ROWS_16.get(bucket.M, _MANY_ROWS_16)
    else:
        found = _OTHERS[kind][not few]
        if few:
            found = tuple(config for config in found if config.block_m in (bucket.M, 2 * bucket.M) or kind == "ieee")
    return tuple(dict.fromkeys((defaults(op, bucket, dtype, uses_tma=True)[0], *found)))
