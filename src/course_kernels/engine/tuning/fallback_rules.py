"""Rules by hand: the configurations for products without constants of the time model.

They serve the interpreter, launches where not everything goes through a descriptor although the GPU has them, 32-bit
operands, and GPUs of whose family none was measured. The 16-bit ones come from sweeps on an H200; those for AMD's GPUs
were never measured.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from course_kernels import targets
from course_kernels.config import GemmConfig
from course_kernels.engine.tuning.gpu_distance import Gpu
from course_kernels.engine.tuning.kinds import Extents, Kind
from course_kernels.kernels.codes import Scales

FEW_ROWS = 64  # up to here, one tile holds a group


def rows_class(rows: int) -> int:
    """Round the rows of a group to 16, 32, 64, or the nearest power of two by ratio, up to 2**20. The edge between 1024
    and 2048 is 1024·√2, so numbers that jitter around a power of two are in one class."""
    few = next((few for few in (16, 32, FEW_ROWS) if rows <= few), None)
    return few or min(max(1 << ((rows * rows).bit_length() // 2), 128), 2**20)


def _by_rows(*configs: tuple[int, ...]) -> dict[int, GemmConfig]:
    """Make configurations, each for groups of up to BLOCK_M rows; the last one serves all larger groups."""
    return {config[0]: GemmConfig(*config) for config in configs}


# Numbers of a GemmConfig: block_m, n, k, warps, stages, group_m, programs/SM, store parts.
_DESCRIBED = {
    "16-bit": _by_rows(
        (16, 128, 128, 4, 4, 1, 1, 1), (32, 128, 128, 4, 4, 1, 1, 1), (64, 128, 128, 4, 3, 1, 1, 1),
        (128, 256, 64, 8, 4, 8, 1, 2),
    ),
    "fp8": _by_rows(
        (16, 128, 128, 4, 5, 1, 1, 1), (32, 128, 128, 4, 4, 1, 1, 1), (64, 128, 128, 4, 4, 1, 1, 1),
        (128, 128, 128, 4, 3, 8, 2, 2),
    ),
    "tf32": _by_rows(
        (16, 128, 64, 4, 3, 1, 1, 1), (32, 128, 64, 4, 3, 1, 1, 1), (64, 128, 32, 4, 4, 8, 1, 1),
        (128, 256, 32, 8, 3, 8, 1, 2),
    ),
    "ieee": _by_rows((32, 32, 32, 8, 3, 8, 2, 1), (128, 64, 16, 8, 3, 8, 1, 1)),
}  # fmt: skip
# For a layer's products of up to 16 rows a group, whose rows are gathered and whose weights are read through pointers,
# 16 bytes at a time: on an H200 0.74 to 0.8 of the time of the rule below, for Qwen3-30B-A3B, Mixtral and DeepSeek-V3.
FEW_GATHERED = GemmConfig(16, 128, 128, 4, 5)
# For launches where an operand or the result has no descriptor. Its addresses take registers, and tiles with 128
# accumulators per thread have none left.
_POINTERS = {
    "16-bit": _by_rows(
        (16, 64, 128, 4, 3, 1, 2, 1), (32, 64, 64, 4, 3, 1, 2, 1), (64, 64, 64, 4, 3, 8, 2, 1),
        (128, 128, 64, 8, 3, 8, 1, 1),
    ),
    "fp8": _by_rows(
        (16, 64, 128, 4, 3, 1, 2, 1), (32, 64, 128, 4, 3, 1, 2, 1), (64, 64, 64, 8, 3, 8, 2, 1),
        (128, 128, 64, 8, 3, 8, 1, 1),
    ),
    "tf32": _by_rows(
        (16, 64, 64, 4, 3, 1, 2, 1), (32, 64, 32, 4, 3, 1, 2, 1), (64, 64, 32, 4, 3, 8, 2, 1),
        (128, 128, 32, 8, 3, 8, 1, 1),
    ),
    "ieee": _by_rows((32, 32, 32, 4, 3, 8, 2, 1), (64, 64, 32, 8, 2, 8, 2, 1)),
}  # fmt: skip
# For the masked kernel with block scales and pointers: a thread holds two sets of accumulators, and addresses.
_MASKED_BLOCKS = _POINTERS["fp8"] | _by_rows((128, 64, 64, 8, 3, 8, 1, 1))
# For GPUs whose shared memory does not hold the chosen configuration, even with fewer stages.
_SMALLER = tuple(
    GemmConfig(*config)
    for config in ((128, 128, 32, 8, 3, 8, 1, 1), (64, 64, 32, 8, 2, 8, 2, 1), (32, 32, 32, 4, 2, 8, 2, 1))
)
# For products along K where every program has one tile. Such a program loads nothing while it stores. So three share
# an SM of a Hopper GPU: each takes 64 KiB of shared memory and has 128 accumulators a thread. In a trial on an H200,
# this configuration with strips of 4 was on average 1.4 % behind the fastest of 50 on 14 layers; strips of 8 were 0.8 %
# faster on others. Groups of 1,024 rows or more gain nothing over the configurations of persistent programs.
ONE_TILE = GemmConfig(128, 128, 32, 4, 3, 8, 3, 2)
ONE_TILE_DEPTH = 1024
# For GPUs without tensor cores, where all others spill, and for GPUs that nobody has tried.
NARROW = GemmConfig(64, 64, 32, 8, 2, 8, 2, 1)
INTERPRETER = GemmConfig(32, 32, 32)

# Tiles for 16-bit operands on AMD's GPUs, which compile without spilling and fit into the LDS: rows of a group → tiles
# from large to small; the last row serves all larger groups. Columns: block_m, n, k, warps, programs per SM.
_AMD_TILES = {
    "gfx942": {
        16: ((16, 128, 128, 4, 1), (16, 64, 128, 4, 2)), 32: ((32, 128, 64, 4, 2), (32, 64, 128, 4, 2)),
        64: ((64, 128, 64, 4, 1), (64, 64, 64, 4, 2)),
        128: ((256, 256, 32, 8, 1), (128, 256, 32, 8, 1), (128, 128, 64, 8, 1), (64, 128, 64, 4, 1),
              (64, 64, 64, 4, 2)),
    },
    "gfx950": {
        16: ((16, 128, 128, 4, 2), (16, 64, 128, 4, 2)), 32: ((32, 128, 128, 4, 2), (32, 64, 128, 4, 2)),
        64: ((64, 128, 64, 4, 2), (64, 64, 64, 4, 2)),
        128: ((128, 256, 64, 8, 1), (64, 128, 64, 4, 2), (64, 64, 64, 4, 2)),
    },
}  # fmt: skip
_CHIPLETS = 8


def amd_configs(arch: str, along: str) -> Mapping[int, tuple[GemmConfig, ...]]:
    """The configurations of an AMD GPU for 16-bit operands, by rows of a group, the largest tiles first; empty for an
    architecture that nobody has tried. None is 256×256 along "k": it spills when it is added to a result."""
    return {
        rows: tuple(
            GemmConfig(m, n, k, warps, 2, 1 if rows <= FEW_ROWS else 4, programs, num_xcds=_CHIPLETS)
            for m, n, k, warps, programs in tiles
            if not (along == "k" and m == 256)
        )
        for rows, tiles in _AMD_TILES.get(arch, {}).items()
    }


def _amd(kind: Kind, extents: Extents, arch: str, sms: int) -> GemmConfig | None:
    """The largest tile that is no higher than a group and gives each place of the compute units a tile; else the
    smallest. Large tiles read less; small ones give every compute unit work."""
    by_rows = amd_configs(arch, kind.along)
    if not by_rows or kind.element_bytes != 2:
        return None
    M = round(extents.M) if kind.along == "k" else rows_class(round(extents.M))
    few = min(rows for rows in by_rows if rows >= min(M, max(by_rows)))
    configs = by_rows[max(by_rows) if kind.along == "k" else few]
    for config in configs:
        if config.block_m <= max(M, 16) and extents.G * config.tiles(M, extents.N) >= sms * config.programs_per_sm:
            return config
    return configs[-1]


def by_hand(kind: Kind, extents: Extents, gpu: Gpu | None, uses_tma: bool) -> tuple[GemmConfig, ...]:
    """The configurations by rule, the best first; the others are for less shared memory. ``uses_tma``: operands and
    result go through descriptors."""
    if gpu is None:
        return (INTERPRETER,)
    if targets.is_amd(gpu.arch) and (config := _amd(kind, extents, gpu.arch, gpu.sms)):
        return (config, *_halved(config))
    if not targets.has_tensor_cores(gpu.arch):
        return (NARROW,)
    by_rows = _by_rows(kind, uses_tma)
    config = next((by_rows[rows] for rows in by_rows if extents.M <= rows), list(by_rows.values())[-1])
    return (config, *_SMALLER)


def _by_rows(kind: Kind, uses_tma: bool) -> Mapping[int, GemmConfig]:
    if kind.along == "masked" and kind.scaling == Scales.BLOCKS and not uses_tma:
        return _MASKED_BLOCKS
    return (_DESCRIBED if uses_tma else _POINTERS)[kind.numbers]


def all_by_hand(kind: Kind, gpu: Gpu | None, uses_tma: bool) -> tuple[GemmConfig, ...]:
    """Every possible first configuration of ``by_hand`` for a kind, a GPU and launches with or without descriptors."""
    if gpu is None:
        return (INTERPRETER,)
    if targets.is_amd(gpu.arch) and kind.element_bytes == 2 and (by_rows := amd_configs(gpu.arch, kind.along)):
        return tuple(dict.fromkeys(config for configs in by_rows.values() for config in configs))
    return tuple(_by_rows(kind, uses_tma).values()) if targets.has_tensor_cores(gpu.arch) else (NARROW,)


def _halved(config: GemmConfig) -> tuple[GemmConfig, ...]:
    """Smaller and smaller tiles, each with the wider side halved. They leave room in the LDS for the result of a
    product that is added."""
    found: list[GemmConfig] = []
    while config.block_m * config.block_n > 64 * 64:
        wider = "block_n" if config.block_n >= config.block_m else "block_m"
        config = dataclasses.replace(config, **{wider: getattr(config, wider) // 2})
        found.append(config)
    return tuple(found)


def with_block_scales(config: GemmConfig) -> GemmConfig:
    """Change a configuration for 8-bit operands to one for scales of blocks: block_k of at most 128, and registers for
    the sums of a block beside those of the tile."""
    config = dataclasses.replace(config, block_k=min(config.block_k, 128))
    if config.block_m * config.block_n > 64 * 32 * config.num_warps:
        config = dataclasses.replace(config, block_n=min(config.block_n, 128), num_warps=8, programs_per_sm=1)
    return config
