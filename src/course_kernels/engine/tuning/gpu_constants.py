"""The constants of the time model: a file for each measured GPU, which may serve other GPUs.

``bench.tuning`` fits them to measured times; `course tune` does it for the GPU at hand. A GPU without constants takes
those of the most similar one of its family (``Gpu.distance``); of two equal ones, the newest. They are scaled:
arithmetic times by the ratio of the clocks. SMs and bandwidth are always the GPU's own.
"""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from course_kernels.config import GemmConfig
from course_kernels.engine.tuning.gpu_distance import Gpu
from course_kernels.engine.tuning.kinds import KINDS, Kind
from course_kernels.kernels.cute_sm90.config import CuteConfig

CONSTANTS = Path(__file__).parent / "constants"
CORRECTIONS = 15  # weights of ``time_model.smooth``


class Constants(NamedTuple):
    """The constants of a configuration's time.

    Attributes:
        block_us: µs of a block of K.
        tile_us: µs of a tile beside its blocks.
        tail_fraction: how much of the empty part of the last wave counts.
        bandwidth_share: the share of the memory's bandwidth that is reached.
        overlap_exponent: how well tiles and bytes overlap: with 1 their times add up, with many the longer one counts.
        launch_us: µs of a launch.
    """

    block_us: float
    tile_us: float
    tail_fraction: float
    bandwidth_share: float
    overlap_exponent: float
    launch_us: float


class Candidate(NamedTuple):
    """A configuration of a backend, "cute" or "triton", with its constants and the weights of its correction."""

    backend: str
    config: CuteConfig | GemmConfig
    constants: Constants
    correction: tuple[float, ...]


class Measured(NamedTuple):
    """A file of constants.

    Attributes:
        name, date: torch's name of the measured GPU; the time of the measurement.
        gpu: the measured GPU.
        candidates: by kind.
    """

    name: str
    date: str
    gpu: Gpu
    candidates: Mapping[Kind, tuple[Candidate, ...]]


class Source(NamedTuple):
    """Candidates for a kind of products on a GPU, and the file and kind that they are from."""

    candidates: tuple[Candidate, ...]
    measured: Measured | None = None
    kind: Kind | None = None


def file_of(gpu_name: str) -> Path:
    """The file of a GPU's constants, from torch's name of the GPU: "h100-pcie.json" for "NVIDIA H100 PCIe"."""
    words = re.findall("[a-z0-9]+", gpu_name.lower())
    return CONSTANTS / f"{'-'.join(word for word in words if word != 'nvidia')}.json"


@functools.lru_cache(maxsize=256)
def source_for(gpu: Gpu, kind: Kind) -> Source:
    """The candidates for a kind of products on a GPU; none if no GPU of its family was measured with such products.
    A kind without constants takes those of its ``stand_in``."""
    for asked in dict.fromkeys((kind, kind.stand_in)):
        suited = [
            (each, found)
            for each in _measured()
            if each.gpu.family == gpu.family and (found := _that_run(each, asked, kind, gpu))
        ]
        if suited:
            measured, found = min(suited, key=lambda pair: gpu.distance(pair[0].gpu))
            return Source(tuple(_scaled(each, measured.gpu, gpu) for each in found), measured, asked)
    return Source(())


def _that_run(measured: Measured, asked: Kind, kind: Kind, gpu: Gpu) -> list[Candidate]:
    """The candidates of a file that run on a GPU and fit into its shared memory. The kernel in CuTe DSL computes no
    batches, and needs the measured architecture. Empty if no remaining Triton tile has 64 rows: then low tiles would
    be chosen for large groups. Products that a layer of experts fuses are those of the kernel in CuTe DSL alone."""
    limits = dict(capability=gpu.capability, shared_limit=gpu.shared_limit, uses_tma=gpu.uses_tma)
    found = [
        each
        for each in measured.candidates.get(asked, ())
        if (
            each.config.valid_for(kind.kernel, kind.element_bytes, **limits) is None
            if isinstance(each.config, GemmConfig)
            else measured.gpu.arch == gpu.arch and kind.along != "batch"
        )
    ]
    heights = [each.config.block_m for each in found if isinstance(each.config, GemmConfig)]
    return found if asked.fused or max(heights, default=0) >= 64 else []


def _scaled(candidate: Candidate, measured: Gpu, gpu: Gpu) -> Candidate:
    """Scale a candidate's constants to another GPU's clock."""
    if not (measured.clock and gpu.clock) or measured.clock == gpu.clock:
        return candidate
    times, of = measured.clock / gpu.clock, candidate.constants
    return candidate._replace(constants=of._replace(block_us=times * of.block_us, tile_us=times * of.tile_us))


@functools.cache
def _measured() -> list[Measured]:
    """All files of constants, the newest first."""
    return sorted(map(read, sorted(CONSTANTS.glob("*.json"))), key=lambda each: each.date, reverse=True)


def read(path: Path) -> Measured:
    """Read a file of constants. ValueError, with the path, for a damaged one."""
    try:
        content = json.loads(path.read_text())
        found = {Kind.parse(kind): tuple(map(_candidate, rows)) for kind, rows in content["candidates"].items()}
        if lacking := [str(kind) for kind in KINDS if kind not in found]:
            raise ValueError(f"it lacks {', '.join(lacking)}")
        gpu, about = Gpu(**content["gpu"]), content.get("provenance", {})
        if not (gpu.sms > 0 and 0 < gpu.bandwidth < math.inf):
            raise ValueError(f"its GPU has {gpu.sms} SMs and {gpu.bandwidth} TB/s")
        return Measured(about.get("gpu", path.stem), about.get("date", ""), gpu, found)
    except (AttributeError, json.JSONDecodeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} holds no constants of the time model: {type(error).__name__}: {error}") from None


def _candidate(row: dict) -> Candidate:
    config = {"cute": CuteConfig, "triton": GemmConfig}[row["backend"]](**row["config"])
    constants = Constants(*_numbers(row, "constants", len(Constants._fields), negative=False))
    return Candidate(row["backend"], config, constants, _numbers(row, "correction", CORRECTIONS, negative=True))


def _numbers(row: dict, name: str, count: int, negative: bool) -> tuple[float, ...]:
    """Read ``count`` finite numbers of a row; ``negative``: they may be negative."""
    found = tuple(map(float, row[name]))
    if len(found) != count or not all(map(math.isfinite, found)) or (min(found) < 0 and not negative):
        sign = "" if negative else " from 0 on"
        raise ValueError(f"{name} must be {count} finite numbers{sign}, got {found} for {row['config']}")
    return found


def forget() -> None:
    """Read the files again at the next choice. Products that have run keep their configurations."""
    _measured.cache_clear()
    source_for.cache_clear()
