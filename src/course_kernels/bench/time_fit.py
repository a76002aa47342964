"""Fit the constants of ``packed.tuning.time_model`` to measured times, and judge the choices made with them.

A constant of the model is positive, so its logarithm is fitted, by damped least squares of the logarithms of times. A
weak pull towards usual values keeps those apart that a configuration's rows do not tell apart. The correction is fitted
afterwards, by ridge regression, to what is left.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from course_kernels.bench.candidates import KIND_OF_PASS, by_name
from course_kernels.config import GemmConfig
from course_kernels.kernels.cute_sm90.config import CuteConfig
from course_kernels.packed.tuning import time_model as model

__all__ = ["Regret", "Sample", "fit", "leave_one_out", "predicted", "regret", "samples", "summary"]

# Usual values, as the fit sees them, and how hard it is pulled there: logarithms of µs, of shares, of power - 1; the
# fourth is the logit of a share.
_USUAL = (math.log(0.3), math.log(0.5), 0.0, math.log(0.85), math.log(2.0), math.log(6.0))
_PULL = (0.02, 0.04, 0.05, 0.08, 0.05, 0.05)
_RIDGE = 10.0
STEPS = 40  # of least squares, at most
_FEWEST = 12  # rows of a configuration, below which nothing is fitted to it

Config = CuteConfig | GemmConfig


class Sample(NamedTuple):
    """The times of one product: its model (or row) and name, its kind, M, N, K, G as ``time_model`` takes them, and µs
    by the name of a configuration."""

    source: str
    name: str
    kind: str
    extents: tuple[float, int, float, int]
    us: dict[str, float]


class Regret(NamedTuple):
    """A choice against the best configuration measured: its time over the best one's."""

    times: float
    name: str
    kind: str
    chosen: str
    best: str


def samples(rows: Mapping[str, Mapping], source_of: Mapping[str, str]) -> list[Sample]:
    """The products of ``candidates.measure``; ``source_of``: row → published model, or its own name."""
    found = []
    for name, entry in rows.items():
        total, groups = sum(entry["sizes"]), len(entry["sizes"])
        for pass_name, kind in KIND_OF_PASS.items():
            us = entry.get(pass_name, {}).get("us")
            if not us:
                continue
            N, K = (entry["N"], entry["K"]) if pass_name == "forward" else (entry["K"], entry["N"])
            extents = (total / groups, N, K, groups)
            if pass_name == "dB":
                extents = (entry["N"], entry["K"], total / groups, groups)
            found.append(Sample(source_of.get(name, name), f"{name} {pass_name}", kind, extents, us))
    return found


class _Rows(NamedTuple):
    """A configuration's products as tensors: work of each group (rows, groups of the spread) three times, functions of
    the correction (rows, 15), measured µs (rows,)."""

    tiles: Tensor
    blocks: Tensor
    bytes: Tensor
    smooth: Tensor
    us: Tensor


def rows_of(config: Config, name: str, of_kind: Sequence[Sample]) -> _Rows:
    """The products that were measured with a configuration."""
    mine = [sample for sample in of_kind if name in sample.us]
    parts = [model.work(config, sample.kind, *sample.extents) for sample in mine]
    tables = [torch.tensor([[part[i] for part in each] for each in parts], dtype=torch.float64) for i in range(3)]
    functions = torch.tensor([model.smooth(each.kind, *each.extents) for each in mine], dtype=torch.float64)
    return _Rows(*tables, functions, torch.tensor([each.us[name] for each in mine], dtype=torch.float64))


def positive(free: Tensor) -> tuple[Tensor, ...]:
    """The constants of ``time_model.seconds`` from the numbers that are fitted."""
    block, tile, waited, reached, power, launch = free
    return block.exp(), tile.exp(), waited.sigmoid(), reached.exp(), 1 + power.exp(), launch.exp()


def predicted(free: Tensor, rows: _Rows, places: int, bandwidth: float) -> Tensor:
    """``time_model.seconds`` of many products at once; a test holds the two together."""
    block, tile, waited, reached, power, launch = positive(free)
    each = block * rows.blocks + tile
    work, memory = rows.tiles / places * each, rows.bytes / (bandwidth * 1e6 * reached)
    longer = torch.maximum(work, memory) + 1e-9
    total = (longer * ((work / longer) ** power + (memory / longer) ** power) ** (1 / power)).sum(1)
    tiles = rows.tiles.sum(1)
    turns, busy = tiles / places, (rows.tiles * each).sum(1)
    missing = torch.where(turns < 1, 1 - turns, waited * ((turns - 1e-9).ceil() - turns))
    return total + missing * busy / tiles.clamp(min=1e-9) + launch


def _fit_one(rows: _Rows, places: int, bandwidth: float) -> tuple[tuple[float, ...], Tensor]:
    """Constants, and the correction's weights."""
    usual, pull = torch.tensor(_USUAL, dtype=torch.float64), torch.tensor(_PULL, dtype=torch.float64)
    logs = rows.us.log()

    def left(free: Tensor) -> Tensor:
        return torch.cat([predicted(free, rows, places, bandwidth).log() - logs, pull * (free - usual)])

    free, damping, nudge = usual.clone(), 1e-2, 1e-4 * torch.eye(len(_USUAL), dtype=torch.float64)
    now = left(free)
    for _ in range(STEPS):
        slopes = torch.stack([(left(free + each) - now) / 1e-4 for each in nudge], 1)
        normal, gradient, better = slopes.T @ slopes, slopes.T @ now, False
        for _ in range(8):
            damped = normal + damping * torch.diag(normal.diagonal() + 1e-9)
            trial = free - torch.linalg.solve(damped, gradient)
            after = left(trial)
            gain = now.square().sum() - after.square().sum()
            if gain > 0:
                free, now, damping, better = trial, after, max(damping / 3, 1e-8), True
                break
            damping *= 4
        if not better or gain < 1e-7:
            break
    rest = logs - predicted(free, rows, places, bandwidth).log()
    ridge = _RIDGE * torch.eye(rows.smooth.shape[1], dtype=torch.float64)
    weights = torch.linalg.solve(rows.smooth.T @ rows.smooth + ridge, rows.smooth.T @ rest)
    return tuple(value.item() for value in positive(free)), weights


def fit(
    found: Sequence[Sample], gpu: model.Gpu, kinds: Sequence[str] = model.KINDS
) -> dict[str, tuple[model.Candidate, ...]]:
    """Candidates by kind, for ``time_model``: those that at least ``_FEWEST`` products were measured with.

    Args:
        found: measured products.
        gpu: where they were measured.
        kinds: of ``time_model.KINDS``.
    """
    fitted: dict[str, tuple[model.Candidate, ...]] = {}
    for kind in kinds:
        configs = by_name(kind)
        of_kind, candidates = [sample for sample in found if sample.kind == kind], []
        for name in sorted({name for sample in of_kind for name in sample.us} & configs.keys()):
            config = configs[name]
            rows = rows_of(config, name, of_kind)
            if len(rows.us) >= _FEWEST:
                constants, weights = _fit_one(rows, gpu.sms * model.slots(config), gpu.bandwidth)
                backend = "cute" if isinstance(config, CuteConfig) else "triton"
                rounded = tuple(float(f"{value:.5g}") for value in constants)
                candidate = model.Candidate(backend, config, rounded, tuple(round(w, 5) for w in weights.tolist()))
                candidates.append(candidate)
        fitted[kind] = tuple(candidates)
    return fitted


def regret(found: Iterable[Sample], fitted: Mapping[str, Sequence[model.Candidate]], gpu: model.Gpu) -> list[Regret]:
    """What the model would choose for products, against the best configuration that was measured for each."""
    judged = []
    for sample in found:
        names = {config: name for name, config in by_name(sample.kind).items()}
        asked = [each for each in fitted[sample.kind] if names[each.config] in sample.us]
        if not asked:
            continue
        times = {names[each.config]: model.estimate(each, sample.kind, *sample.extents, gpu) for each in asked}
        chosen, best = min(times, key=times.get), min(sample.us, key=sample.us.get)
        ratio = round(sample.us[chosen] / sample.us[best], 4)
        judged.append(Regret(ratio, sample.name, sample.kind, chosen, best))
    return judged


def summary(judged: Sequence[Regret]) -> str:
    """How good choices are, in words: geometric mean, what 95 in 100 are within, the worst."""
    times = sorted(each.times for each in judged)
    mean = math.exp(math.fsum(map(math.log, times)) / len(times))
    most = times[int(0.95 * len(times))]
    return f"{len(times)} products, mean {mean:.4f}, 95 % within {most:.3f}, worst {times[-1]:.3f}"


def leave_one_out(found: Sequence[Sample], gpu: model.Gpu) -> list[Regret]:
    """``regret`` of each source's products, with constants fitted to all other sources' products. A random row is in
    every fit, and not judged."""
    by_source: dict[str, list[Sample]] = defaultdict(list)
    for sample in found:
        by_source[sample.source].append(sample)
    judged: list[Regret] = []
    for source, mine in by_source.items():
        if not source.startswith("random"):
            others = [sample for sample in found if sample.source != source]
            judged += regret(mine, fit(others, gpu, sorted({sample.kind for sample in mine})), gpu)
    return judged
