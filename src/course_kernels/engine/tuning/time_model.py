"""A model of the time of a configuration for a product, with measured constants, and the ranking made from it.

The host knows the extents of a product and the rows of an average group, not the rows of each. So the model takes the
mean of two times: one with groups of nearly equal size, and one with groups as in a layer of experts of unequal load.
For each of the two it counts:

- the tiles of a configuration, those at ragged ends included, and the blocks of K of each;
- the waves in which the SMs take them, at least one; the last of several may be partly empty;
- the bytes of both operands and of the result, each once, and the time in which the memory moves them.

Tiles and bytes overlap, so the model adds only a part of the shorter time to the longer one. A configuration has the
six ``Constants`` of ``measured``. A smooth function of the extents, with fifteen more constants, corrects the result.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

from course_kernels.config import GemmConfig
from course_kernels.engine.tuning import gpu_constants
from course_kernels.engine.tuning.fallback_rules import FEW_ROWS, rows_class
from course_kernels.engine.tuning.gpu_constants import Candidate, Constants
from course_kernels.engine.tuning.gpu_distance import Gpu
from course_kernels.engine.tuning.kinds import Extents, Kind
from course_kernels.kernels.cute_sm90.config import CuteConfig

# TB/s, read and written, of torch's copy of 8-bit weights that makes their depth contiguous (record "block_scaled" of
# an H200). The copy is far slower than memory, so we assume this rate on every GPU.
COPY_RATE = 0.34
# Rows of eight equally likely groups over the average, for two distributions: normal and gamma, whose deviations are
# 0.08 and 0.9 of the mean. Measured layers have about 0.05 (even routing, 64 rows or more) and 1.1 (Zipf's law).
SPREADS = (
    (0.88, 0.93, 0.96, 0.99, 1.01, 1.04, 1.07, 1.12),
    (0.098, 0.265, 0.439, 0.637, 0.874, 1.184, 1.652, 2.851),
)
# The measured ranges: binary logarithms of rows (or depth) of a group, N, K (or M) and the number of groups.
_MEASURED = ((-1.0, 15.0), (8.5, 14.5), (8.5, 14.5), (0.0, 8.0))
_CENTRE = (8.0, 11.0, 11.0, 5.0)
# Elements that a product writes, or reads beside A and B, for each of its own, with a gate.
_BESIDE = {"gated": 0.5, "gated_pre": 1.5, "gated_backward": 5.0}


class Estimate(NamedTuple):
    """A candidate and the time that the model expects, in µs."""

    us: float
    backend: str
    config: CuteConfig | GemmConfig


class Work(NamedTuple):
    """The work of the groups of one size of a spread: tiles, blocks of K per tile, bytes."""

    tiles: float
    blocks: float
    bytes: float


def height(config: CuteConfig | GemmConfig) -> int:
    """Rows of a configuration's tiles."""
    return config.tile_m if isinstance(config, CuteConfig) else config.block_m


def slots(config: CuteConfig | GemmConfig) -> int:
    """Tiles that an SM computes at a time."""
    return config.programs_per_sm if isinstance(config, GemmConfig) else 1


def suits(config: CuteConfig | GemmConfig, kind: Kind, rows: float) -> bool:
    """Whether the model judges a configuration for groups of ``rows`` rows. It does not if the tiles would be nearly
    empty (tiles of 128 rows start at 14 rows), or if a group has dozens of low tiles: the sweep measures neither, so
    there are no times to fit. Batches and masked groups of few rows take the tile that holds them: they have no larger
    groups beside them, unlike the measured products."""
    tall = height(config)
    if kind.along in ("batch", "masked") and rows <= FEW_ROWS and isinstance(config, GemmConfig):
        return tall == rows_class(math.ceil(rows))
    return kind.along == "k" or (tall / 6 <= rows + 8 and (tall >= 128 or rows <= 24 * tall))


def work(config: CuteConfig | GemmConfig, kind: Kind, extents: Extents, spread: Sequence[float]) -> list[Work]:
    """The work of a configuration for a product whose groups have the sizes of a spread of ``SPREADS``, times the
    average. In a batch, and with masked groups, all groups have the average size."""
    M, N, K, G = extents
    cute, size = isinstance(config, CuteConfig), kind.element_bytes
    of_result = max(2, size) * _BESIDE.get(kind.fused, 1)
    tile_m, tile_n, tile_k = (config.tile_m, config.tile_n, config.tile_k) if cute else config.block
    paired = cute and config.cluster == 2
    columns = -(-N // tile_n)
    beside = 2 * math.ceil(columns / 2 - 1e-9)  # tiles in a row of tiles without a partner in its cluster
    flat_n = config.tail_tile_n if cute else 0
    # A group's flat tiles, 64×256 for 128×192: they load as many bytes, and take as long where few rows are multiplied.
    flat = config.cluster * math.ceil(N / (config.cluster * flat_n)) if flat_n else 0
    share, found = G / len(spread), []
    for times in spread if G > 1 and kind.along in ("m", "k") else (1.0,) * len(spread):
        flat_tiles = 0.0
        if kind.along == "k":
            rows, depth = float(math.ceil(M / tile_m)), times * K
            bytes_ = of_result * M * N + size * depth * (M + N)
        else:
            rows, depth = times * M, K
            there = 1 - math.exp(-rows) if M < 8 else 1.0  # with few rows on average, some groups are empty
            bytes_ = size * (there * N * K + rows * K) + of_result * rows * N
            whole, rest = divmod(rows, tile_m)
            if flat_n and 0 < rest <= tile_m / 2:
                flat_tiles, rest = there * flat, 0.0
            rows = there * (whole + (rest > 0))
        tiles = rows * columns
        if paired:
            pairs = rows // 2
            tiles = 2 * pairs * columns + (rows - 2 * pairs) * beside
        found.append(Work(share * (tiles + flat_tiles), math.ceil(depth / tile_k), share * bytes_))
    return found


def seconds(constants: Constants, parts: list[Work], places: int, bandwidth: float) -> float:
    """The modelled time in µs: at most ``places`` tiles run at a time, and the memory moves ``bandwidth`` TB/s."""
    block_us, tile_us, tail_fraction, bandwidth_share, overlap_exponent, launch_us = constants
    tiles = math.fsum(part.tiles for part in parts)
    together = max(1e-9, min(tiles, places))
    total = busy = 0.0
    for part in parts:
        each_us = block_us * part.blocks + tile_us
        work_us, memory_us = part.tiles / together * each_us, part.bytes / (bandwidth * 1e6 * bandwidth_share)
        longer = max(work_us, memory_us) + 1e-9
        overlapped = (work_us / longer) ** overlap_exponent + (memory_us / longer) ** overlap_exponent
        total += longer * overlapped ** (1 / overlap_exponent)
        busy += part.tiles * each_us
    waves = max(1.0, tiles / places)
    missing = math.ceil(waves - 1e-9) - waves
    return total + tail_fraction * missing * busy / max(tiles, 1e-9) + launch_us


def smooth(kind: Kind, extents: Extents) -> tuple[float, ...]:
    """The functions of the extents that a correction weighs: a constant, and first and second powers of their
    logarithms."""
    M, N, K, G = extents
    ragged, columns, other = (K, N, M) if kind.along == "k" else (M, N, K)
    logs = []
    for extent, (least, most), centre in zip((ragged, columns, other, G), _MEASURED, _CENTRE):
        logs.append(min(max(math.log2(max(extent, 0.5)), least), most) - centre)
    products = [logs[i] * logs[j] / 3 for i in range(4) for j in range(i, 4)]
    return 1.0, *logs, *products


def estimate(candidate: Candidate, kind: Kind, extents: Extents, gpu: Gpu) -> float:
    """The expected time of a candidate, in µs."""
    places = gpu.sms * slots(candidate.config)
    parts = (work(candidate.config, kind, extents, spread) for spread in SPREADS)
    expected = math.fsum(seconds(candidate.constants, each, places, gpu.bandwidth) for each in parts) / len(SPREADS)
    correction = sum(weight * value for weight, value in zip(candidate.correction, smooth(kind, extents)))
    return expected * math.exp(correction)


def is_copied(kind: Kind) -> bool:
    """Whether the kernel in CuTe DSL computes a kind on a copy of B, whose depth is contiguous."""
    return kind.along == "m" and kind.b_major == "n" and kind.element_bytes == 1


@functools.lru_cache(maxsize=4096)
def ranking(kind: Kind, extents: Extents, gpu: Gpu | None) -> tuple[Estimate, ...]:
    """Every candidate that suits a product, the fastest first; empty if no GPU like this one was measured, and for an
    empty product. If the columns of an 8-bit B are contiguous, the kernel in CuTe DSL copies B, and its estimates
    include the copy."""
    if gpu is None or extents.is_empty:
        return ()
    candidates = gpu_constants.source_for(gpu, kind).candidates
    found = [
        Estimate(estimate(each, kind, extents, gpu), each.backend, each.config)
        for each in candidates
        if suits(each.config, kind, extents.M)
    ]
    if candidates and is_copied(kind):
        copied = copy_us(extents)
        with_a_copy = ranking(kind._replace(b_major="k"), extents, gpu)
        found += [each._replace(us=each.us + copied) for each in with_a_copy if each.backend == "cute"]
    return tuple(sorted(found, key=lambda each: each.us))


def copy_us(extents: Extents) -> float:
    """The time of a copy of 8-bit weights, in µs."""
    return 2 * extents.G * extents.N * extents.K / (COPY_RATE * 1e6)


def fastest(kind: Kind, extents: Extents, gpu: Gpu | None, backend: str | None = None) -> Estimate | None:
    """The fastest of ``ranking``, or the fastest of one backend; None if there is none."""
    return next((each for each in ranking(kind, extents, gpu) if backend in (None, each.backend)), None)


def forget() -> None:
    """Read the constants again at the next choice."""
    gpu_constants.forget()
    ranking.cache_clear()
