"""How long a configuration takes for a product: a model whose constants were measured, and the choice made from it.

The host knows the extents of a product and the rows of an average group, not the rows of each. So the model takes the
mean of two times: with groups nearly as large as one another, and with groups as in a layer of experts of unequal load.
For either it counts:

- the tiles of a configuration, those at ragged ends included, and the blocks of K of each;
- the waves in which the SMs take them, at least one; the last of several may be partly empty;
- the bytes of both operands and of the result, each once, and the time in which the memory moves them.

Tiles and bytes overlap, so the longer time counts, and a part of the other. A configuration has six constants, those of
`Candidate`. What is then left of its measured times is a smooth function of the extents, another fifteen constants.
`bench.time_fit` fits them to measured times.

There is a file of constants for each GPU that was measured; `course tune` writes one. Another GPU of the same
architecture takes those of the one whose memory is nearest in speed, with its own SMs and its own memory's rate.
"""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Sequence
from numbers import Real
from pathlib import Path
from typing import NamedTuple

import torch

from course_kernels.config import GemmConfig
from course_kernels.engine.tuning.defaults import ONE_TILE, ONE_TILE_DEPTH
from course_kernels.engine.tuning.lookup import describe
from course_kernels.kernels.cute_sm90.config import CuteConfig
from course_kernels.runtime import Device

CONSTANTS = Path(__file__).parent / "constants"
# Kinds of products: the extent that the groups share out, and the contiguous dimension of B. Then 8-bit operands with
# factors of rows and columns, or of blocks.
KINDS = ("m,k", "m,n", "k,n")
KINDS_8_BIT = tuple(f"m,{major} fp8{blocks}" for major in "kn" for blocks in ("", " blocks"))
_PASSES = {"m,k": "forward", "m,n": "gradient of the rows", "k,n": "gradient of the weights"}
# TB/s, read and written, of torch's copy of 8-bit weights that makes their depth contiguous (record "block_scaled" of
# an H200). That is far below the memory's rate, so it is taken to be the same for other memory.
COPY_RATE = 0.34
UNKNOWN_BANDWIDTH = 4.0  # TB/s, where torch does not tell
# Rows of eight equally likely groups over the average, twice: a normal and a gamma distribution, whose deviations are
# 0.08 and 0.9 of the mean. Measured layers have about 0.05 (even routing, 64 rows or more) and 1.1 (Zipf's law).
SPREADS = (
    (0.88, 0.93, 0.96, 0.99, 1.01, 1.04, 1.07, 1.12),
    (0.098, 0.265, 0.439, 0.637, 0.874, 1.184, 1.652, 2.851),
)
# Where extents are measured: binary logarithms of rows (or depth) of a group, N, K (or M) and the number of groups.
_MEASURED = ((-1.0, 15.0), (8.5, 14.5), (8.5, 14.5), (0.0, 8.0))
_CENTRE = (8.0, 11.0, 11.0, 5.0)


class Gpu(NamedTuple):
    """What the model knows of a GPU: its architecture ("sm_90"), SMs, and its memory's rate in TB/s."""

    arch: str
    sms: int
    bandwidth: float

    @classmethod
    def of(cls, device: Device) -> Gpu | None:
        """The GPU of a device; None if the device is not an NVIDIA GPU."""
        if device.capability is None or device.num_sms is None:
            return None
        return cls("sm_{}{}".format(*device.capability), device.num_sms, device.bandwidth or UNKNOWN_BANDWIDTH)


class Candidate(NamedTuple):
    """A configuration of a backend with its constants.

    Attributes:
        backend: "cute" or "triton".
        constants: of ``seconds``: the time of a block of K, and of a tile beside its blocks; how much of a partly empty
            wave counts; the share of the memory's rate; how well tiles and bytes overlap; the time of a launch.
        correction: of ``smooth``.
    """

    backend: str
    config: CuteConfig | GemmConfig
    constants: tuple[float, ...]
    correction: tuple[float, ...]


class Estimate(NamedTuple):
    """A candidate and the time that the model expects, in µs."""

    us: float
    backend: str
    config: CuteConfig | GemmConfig


class Work(NamedTuple):
    """What one of the groups of a spread adds: tiles, blocks of K of each, bytes."""

    tiles: float
    blocks: float
    bytes: float


def kind_of_8_bit(b_major: str, blocks: bool) -> str:
    """The kind of a product of 8-bit operands with scales, of ``KINDS_8_BIT``."""
    return f"m,{b_major} fp8{' blocks' * blocks}"


def height(config: CuteConfig | GemmConfig) -> int:
    """Rows of a configuration's tiles."""
    return config.tile_m if isinstance(config, CuteConfig) else config.block_m


def slots(config: CuteConfig | GemmConfig) -> int:
    """Tiles that an SM has at a time."""
    return config.programs_per_sm if isinstance(config, GemmConfig) else 1


def suits(config: CuteConfig | GemmConfig, kind: str, rows: float) -> bool:
    """Whether a configuration is asked about groups of so many rows: not where its tiles would be nearly empty (those
    of 128 rows are asked from 14 rows on), or where a group has dozens of low ones. The sweep measures none of these,
    so there is no time to fit a constant to."""
    tall = height(config)
    return kind == "k,n" or (tall / 6 <= rows + 8 and (tall >= 128 or rows <= 24 * tall))


def work(
    config: CuteConfig | GemmConfig, kind: str, M: float, N: int, K: float, G: int, spread: Sequence[float]
) -> list[Work]:
    """What a configuration has to do for G groups of M×N×K; the ragged extent, M or K, is the average group's, and
    ``spread``, of ``SPREADS``, has those of others over it."""
    cute, size = isinstance(config, CuteConfig), 1 if "fp8" in kind else 2  # bytes of an operand's element
    tile_m, tile_n, tile_k = (config.tile_m, config.tile_n, config.tile_k) if cute else config.block
    paired = cute and config.cluster == 2
    columns = -(-N // tile_n)
    beside = 2 * math.ceil(columns / 2 - 1e-9)  # tiles of a row of tiles that has no partner
    flat_n = config.tail_tile_n if cute else 0
    # A group's flat tiles, 64×256 for 128×192: they load as many bytes, and take as long where few rows are multiplied.
    flat = config.cluster * math.ceil(N / (config.cluster * flat_n)) if flat_n else 0
    share, found = G / len(spread), []
    for times in spread if G > 1 else (1.0,) * len(spread):
        flat_tiles = 0.0
        if kind == "k,n":
            rows, depth = float(math.ceil(M / tile_m)), times * K
            bytes_ = 2 * (M * N + depth * (M + N))
        else:
            rows, depth = times * M, K
            there = 1 - math.exp(-rows) if M < 8 else 1.0  # of groups of few rows some are empty
            bytes_ = size * (there * N * K + rows * K) + 2 * rows * N
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


def seconds(constants: tuple[float, ...], parts: list[Work], places: int, bandwidth: float) -> float:
    """The model, in µs: at most ``places`` tiles run at a time, and the memory moves ``bandwidth`` TB/s."""
    of_block, of_tile, waited, reached, power, launch = constants
    tiles = math.fsum(part.tiles for part in parts)
    together = max(1e-9, min(tiles, places))
    total = busy = 0.0
    for part in parts:
        each = of_block * part.blocks + of_tile
        work_us, memory_us = part.tiles / together * each, part.bytes / (bandwidth * 1e6 * reached)
        longer = max(work_us, memory_us) + 1e-9
        total += longer * ((work_us / longer) ** power + (memory_us / longer) ** power) ** (1 / power)
        busy += part.tiles * each
    waves = max(1.0, tiles / places)
    missing = math.ceil(waves - 1e-9) - waves
    return total + waited * missing * busy / max(tiles, 1e-9) + launch


def smooth(kind: str, M: float, N: int, K: float, G: int) -> tuple[float, ...]:
    """The functions of the extents, a constant and first and second powers of their logarithms, that a correction
    weighs."""
    ragged, columns, other = (K, N, M) if kind == "k,n" else (M, N, K)
    logs = []
    for extent, (least, most), centre in zip((ragged, columns, other, G), _MEASURED, _CENTRE):
        logs.append(min(max(math.log2(max(extent, 0.5)), least), most) - centre)
    products = [logs[i] * logs[j] / 3 for i in range(4) for j in range(i, 4)]
    return 1.0, *logs, *products


def estimate(candidate: Candidate, kind: str, M: float, N: int, K: float, G: int, gpu: Gpu) -> float:
    """Time of a candidate in µs."""
    places = gpu.sms * slots(candidate.config)
    parts = (work(candidate.config, kind, M, N, K, G, spread) for spread in SPREADS)
    expected = math.fsum(seconds(candidate.constants, each, places, gpu.bandwidth) for each in parts) / len(SPREADS)
    left = sum(weight * value for weight, value in zip(candidate.correction, smooth(kind, M, N, K, G)))
    return expected * math.exp(left)


@functools.lru_cache(maxsize=4096)
def ranking(kind: str, M: float, N: int, K: float, G: int, gpu: Gpu | None) -> tuple[Estimate, ...]:
    """Every candidate that suits G groups of M×N×K, the fastest first; empty where no GPU like this one was measured.
    In kinds "m,n fp8" the kernel in CuTe DSL computes "m,k fp8", and its estimates include the copy of B.

    Args:
        kind: of ``KINDS`` or ``KINDS_8_BIT``.
        M, N, K: extents of the average group's product; the ragged one, M or K, is an average.
        G: number of groups.
        gpu: None if unknown.
    """
    measured = constants_for(gpu, kind) if gpu else ()
    if not (gpu and measured and N and K and G and M):
        return ()
    found = [
        Estimate(estimate(each, kind, M, N, K, G, gpu), each.backend, each.config)
        for each in measured
        if suits(each.config, kind, M)
    ]
    if kind.startswith("m,n fp8"):
        with_a_copy = ranking(kind.replace("m,n", "m,k"), M, N, K, G, gpu)
        copied = copy_us(N, K, G)
        found += [each._replace(us=each.us + copied) for each in with_a_copy if each.backend == "cute"]
    return tuple(sorted(found, key=lambda each: each.us))


def copy_us(N: int, K: float, G: int) -> float:
    """Time of a copy of 8-bit weights in µs."""
    return 2 * G * N * K / (COPY_RATE * 1e6)


def fastest(
    kind: str, M: float, N: int, K: float, G: int, gpu: Gpu | None, backend: str | None = None
) -> Estimate | None:
    """The first of ``ranking``, or of a backend's in it; None where there is none."""
    return next((each for each in ranking(kind, M, N, K, G, gpu) if backend in (None, each.backend)), None)


def explain(kind: str, M: float, N: int, K: float, G: int, gpu: Gpu, others: int = 2) -> str:
    """Why a product gets its backend and configuration: what they have to do, the time that is expected, and the
    runners-up.

    Args:
        kind, M, N, K, G: as for ``ranking``.
        gpu: where it runs; ``read`` has those that were measured.
        others: how many runners-up are listed, each with what it would lose.

    Returns:
        Lines of text. Where the model has no answer, the last one says why.

    Raises:
        ValueError: an unknown kind, or an extent that is negative or no number.
    """
    if kind not in (*KINDS, *KINDS_8_BIT):
        raise ValueError(f"kind must be one of {(*KINDS, *KINDS_8_BIT)}, got {kind!r}")
    for name, extent in dict(M=M, N=N, K=K, G=G).items():
        if not (isinstance(extent, Real) and 0 <= extent < math.inf):
            raise ValueError(f"{name} must be a number from 0 on, got {extent!r}")
    form, _, scales = kind.partition(" ")
    lines = [
        f"{' '.join([_PASSES[form], scales]).strip()}, {G:,} × (M {M:,.4g}, N {N:,}, K {K:,.4g}) on average; "
        f"{gpu.arch}, {gpu.sms} SMs, {gpu.bandwidth:g} TB/s"
    ]
    if not (N and K and G and M):
        return "\n".join([*lines, "  an empty product: nothing is multiplied"])
    found = ranking(kind, M, N, K, G, gpu)
    if not found:
        return "\n".join([*lines, f"  no GPU of {gpu.arch} was measured with such products: see lookup.get_config"])
    best = found[0]
    parts = [part for spread in SPREADS for part in work(best.config, kind, M, N, K, G, spread)]
    of_parts = zip(*((part.tiles, part.tiles * part.blocks, part.bytes) for part in parts))
    tiles, depth, moved = (math.fsum(each) / len(SPREADS) for each in of_parts)
    places = gpu.sms * slots(best.config)
    lines += [
        f"  {best.us:,.0f} µs expected: {best.backend} {_in_words(best.config)}",
        f"    {tiles:,.0f} tiles, {places} at a time: {tiles / places:.1f} waves of {depth / tiles:.1f} blocks of K",
        f"    {moved / 1e6:,.0f} MB, which the memory moves in {moved / (gpu.bandwidth * 1e6):,.0f} µs at best",
    ]
    if best.backend == "cute" and kind.startswith("m,n fp8"):
        lines.append(f"    B is copied first, which takes {copy_us(N, K, G):,.0f} µs")
    for each in found[1 : others + 1]:
        lines.append(f"  {each.us / best.us - 1:+.1%}: {each.backend} {_in_words(each.config)}")
    return "\n".join(lines)


def _in_words(config: CuteConfig | GemmConfig) -> str:
    """A configuration in words; of the kernel in CuTe DSL, what is not usual comes last."""
    if isinstance(config, GemmConfig):
        return describe(config)
    words = [f"{config.tile_m}×{config.tile_n}×{config.tile_k}", config.schedule, f"{config.stages} stages"]
    words += [f"strips of {config.swizzle_size}"] + ["clusters of 2"] * (config.cluster == 2)
    words += [f"narrow tiles of {config.last_tile_n} columns"] * bool(config.last_tile_n)
    words += [f"flat tiles of {config.tail_tile_n} columns"] * bool(config.tail_tile_n)
    words += ["last wave in halves"] * config.split_last_wave + ["dynamic order"] * config.dynamic
    small = " small" if config.store_row_bytes < 128 else ""
    words += [f"{config.most_stores}{small} blocks for stores"] * (config.most_stores != 2)
    return ", ".join(words)


def for_triton(
    op: str,
    M: int,
    K: int,
    N: int,
    G: int,
    dtype: torch.dtype,
    gpu: Gpu | None,
    b_major: str = "k",
    blocks: bool = False,
    programs: int | None = None,
) -> GemmConfig | None:
    """The configuration of the Triton kernels for a product through TMA descriptors. None where the table decides: for
    operands of 32 bits, batches, 8-bit gradients of weights, and what was measured on no GPU like this one.

    Args:
        op, M, K, N, G: as for ``lookup.get_config``; the ragged extent is the total.
        gpu: None if the device is not an NVIDIA GPU.
        b_major: the contiguous dimension of B, "k" or "n".
        blocks: whether 8-bit operands have scales of blocks.
        programs: how many are asked for. None for persistent programs, to which the model was fitted. If each tile
            along K has a program of its own, the answer is ``defaults.ONE_TILE``, except for deep groups.
    """
    if gpu is None or dtype.itemsize > 2 or op not in ("grouped_mm", "grouped_mm_k"):
        return None
    if op == "grouped_mm_k":
        if dtype.itemsize == 1:
            return None
        asked = "k,n", M, N, K / max(1, G), G
        shallow = K < ONE_TILE_DEPTH * G
        if shallow and programs is not None and programs >= G * ONE_TILE.tiles(M, N) and constants_for(gpu, "k,n"):
            return ONE_TILE
    else:
        kind = kind_of_8_bit(b_major, blocks) if dtype.itemsize == 1 else f"m,{b_major}"
        asked = kind, M / max(1, G), N, K, G
    estimate = fastest(*asked, gpu, "triton")
    return estimate.config if estimate else None


def constants_for(gpu: Gpu, kind: str) -> tuple[Candidate, ...]:
    """Candidates of a kind: those of the measured GPU of the same architecture whose memory is nearest in speed; of
    two, the one that was measured last."""
    same = [(measured, found[kind]) for measured, found in _measured() if measured.arch == gpu.arch and found.get(kind)]
    return min(same, key=lambda each: abs(math.log(each[0].bandwidth / gpu.bandwidth)), default=(None, ()))[1]


def file_of(gpu_name: str) -> Path:
    """Where the constants of a GPU are, by the name that torch gives it: of "NVIDIA H100 PCIe", in "h100-pcie.json"."""
    words = re.findall("[a-z0-9]+", gpu_name.lower())
    return CONSTANTS / f"{'-'.join(word for word in words if word != 'nvidia')}.json"


@functools.cache
def _measured() -> list[tuple[Gpu, dict[str, tuple[Candidate, ...]]]]:
    """What each file holds, the newest first."""
    found = [(path, read(path)) for path in sorted(CONSTANTS.glob("*.json"))]
    return [each for path, each in sorted(found, key=lambda pair: _date(pair[0]), reverse=True)]


def _date(path: Path) -> str:
    return json.loads(path.read_text()).get("provenance", {}).get("date", "")


def read(path: Path) -> tuple[Gpu, dict[str, tuple[Candidate, ...]]]:
    """A file of constants. ValueError, which says where, for a damaged one."""
    try:
        content = json.loads(path.read_text())
        found = {
            kind: tuple(
                Candidate(
                    row["backend"],
                    {"cute": CuteConfig, "triton": GemmConfig}[row["backend"]](**row["config"]),
                    _numbers(row, "constants", 6, negative=False),
                    _numbers(row, "correction", len(smooth("m,k", 1, 1, 1, 1)), negative=True),
                )
                for row in content["candidates"][kind]
            )
            for kind in (*KINDS, *KINDS_8_BIT)
            if kind in KINDS or kind in content["candidates"]
        }
        gpu = Gpu(**content["gpu"])
        if not (gpu.sms > 0 and 0 < gpu.bandwidth < math.inf):
            raise ValueError(f"its GPU has {gpu.sms} SMs and {gpu.bandwidth} TB/s")
        return gpu, found
    except (json.JSONDecodeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} holds no constants of the time model: {type(error).__name__}: {error}") from None


def _numbers(row: dict, name: str, count: int, negative: bool) -> tuple[float, ...]:
    """So many finite numbers of a row, which may be negative or not."""
    found = tuple(map(float, row[name]))
    if len(found) != count or not all(map(math.isfinite, found)) or (min(found) < 0 and not negative):
        sign = "" if negative else " from 0 on"
        raise ValueError(f"{name} must be {count} finite numbers{sign}, got {found} for {row['config']}")
    return found


def forget() -> None:
    """Read the constants again at the next choice. Products that have run keep their configurations."""
    _measured.cache_clear()
    ranking.cache_clear()
