"""Fit the constants of ``engine.tuning.time_model`` to measured times, and judge the choices made with them.

The constants are positive, so their logarithms are fitted, by damped least squares of the logarithms of times. A weak
prior of typical values decides between constants that a configuration's rows cannot separate. The correction is fitted
afterwards to the residual, by ridge regression. Times are compared within a product: see ``fit``.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from course_kernels.bench.tuning.config_times import KIND_OF_PASS
from course_kernels.engine.tuning import Extents, Gpu, Kind
from course_kernels.engine.tuning import time_model as model
from course_kernels.engine.tuning.configs_by_kind import Config, by_name
from course_kernels.engine.tuning.gpu_constants import Candidate, Constants
from course_kernels.engine.tuning.kinds import KINDS
from course_kernels.kernels.cute_sm90.config import CuteConfig

__all__ = [
    "Regret",
    "Sample",
    "fit",
    "leave_one_out",
    "predicted",
    "regret",
    "samples",
    "summary",
]

# Typical values in the fitted form, and the weights of the prior that holds constants near them: logarithms of µs and
# of shares, the logit of the tail's fraction, the logarithm of the exponent less 1.
_TYPICAL = (math.log(0.3), math.log(0.5), 0.0, math.log(0.85), math.log(2.0), math.log(6.0))
_PRIOR = (0.02, 0.04, 0.05, 0.08, 0.05, 0.05)
# The weight that holds the correction near zero. With 10, choices for left-out models whose extents are beyond those of
# all others are up to 22 % slower (7 % with 60); between 25 and 60 little changes.
_RIDGE = 60.0
STEPS = 40  # of least squares, at most
_NEARNESS = 3  # weight: (best time / time) to this power, so twice the time counts an eighth
_ROUNDS = 5  # rounds of fitting the correction and the common residual
FEWEST = 12  # least number of products of a configuration for a fit


def _left_out(config: Config) -> bool:
    """Whether a configuration is left out: narrow tiles in a fixed order. They won few products, by little, and were
    chosen for others, which lost up to 30 %. Choices among fewer configurations lose less."""
    return isinstance(config, CuteConfig) and bool(config.last_tile_n) and not config.dynamic


class Sample(NamedTuple):
    """The times of one product: its model (or row) and name, its kind, its extents for ``time_model``, and µs by name
    of a configuration."""

    source: str
    name: str
    kind: Kind
    extents: Extents
    us: dict[str, float]


class Regret(NamedTuple):
    """A choice compared with the best measured configuration: its time over the best time."""

    times: float
    name: str
    kind: Kind
    chosen: str
    best: str


def samples(rows: Mapping[str, Mapping], source_of: Mapping[str, str]) -> list[Sample]:
    """The products of rows of ``config_times.measure``; ``source_of``: row → published model; by default the row's own
    name."""
    found = []
    for name, entry in rows.items():
        total, groups = sum(entry["sizes"]), len(entry["sizes"])
        for pass_name, kind in KIND_OF_PASS.items():
            us = entry.get(pass_name, {}).get("us")
            if not us:
                continue
            N, K = (entry["N"], entry["K"]) if pass_name.startswith("forward") else (entry["K"], entry["N"])
            extents = Extents(total / groups, N, K, groups)
            if pass_name.startswith("dB"):
                extents = Extents(entry["N"], entry["K"], total / groups, groups)
            found.append(Sample(source_of.get(name, name), f"{name} {pass_name}", kind, extents, us))
    return found


class _Rows(NamedTuple):
    """A configuration's products as tensors: their places in the list of all products (rows,), the work of each group
    of each spread (3, spreads, rows, groups), functions of the correction (rows, 15), logarithms of measured µs
    (rows,), and weights of the products (rows,)."""

    places: Tensor
    parts: Tensor
    smooth: Tensor
    logs: Tensor
    weights: Tensor


def rows_of(config: Config, name: str, of_kind: Sequence[Sample]) -> _Rows:
    """The products that were measured with a configuration."""
    mine = [(place, sample) for place, sample in enumerate(of_kind) if name in sample.us]

    def table(numbers: list) -> Tensor:
        return torch.tensor(numbers, dtype=torch.float64, device="cpu")

    parts = [[model.work(config, each.kind, each.extents, spread) for _, each in mine] for spread in model.SPREADS]
    us, best = table([each.us[name] for _, each in mine]), table([min(each.us.values()) for _, each in mine])
    return _Rows(
        torch.tensor([place for place, _ in mine], dtype=torch.int64, device="cpu"),
        table(parts).permute(3, 0, 1, 2),
        table([model.smooth(each.kind, each.extents) for _, each in mine]),
        us.log(),
        (best / us) ** _NEARNESS,
    )


def positive(free: Tensor) -> tuple[Tensor, ...]:
    """Turn fitted numbers, in the last dimension, into the constants of ``time_model.seconds``."""
    block, tile, tail, share, exponent, launch = free.unbind(-1)
    return block.exp(), tile.exp(), tail.sigmoid(), share.exp(), 1 + exponent.exp(), launch.exp()


def predicted(free: Tensor, rows: _Rows, places: int, bandwidth: float) -> Tensor:
    """``time_model.seconds`` of many products at once, the mean over the spreads; a test compares the two.

    Args:
        free: (..., 6); each set of numbers gives a row of times.
    """
    tiles, blocks, bytes_ = rows.parts
    block_us, tile_us, tail, share, exponent, launch_us = (each[..., None, None] for each in positive(free))
    each = block_us[..., None] * blocks + tile_us[..., None]
    count = tiles.sum(-1)
    together = count.clamp(1e-9, places)[..., None]
    work, memory = tiles / together * each, bytes_ / (bandwidth * 1e6 * share[..., None])
    longer, exponent = torch.maximum(work, memory) + 1e-9, exponent[..., None]
    total = (longer * ((work / longer) ** exponent + (memory / longer) ** exponent) ** (1 / exponent)).sum(-1)
    waves = (count / places).clamp(min=1)
    missing = (waves - 1e-9).ceil() - waves
    busy = (tiles * each).sum(-1)
    return (total + tail * missing * busy / count.clamp(min=1e-9) + launch_us).mean(-2)


def _constants(rows: _Rows, logs: Tensor, places: int, bandwidth: float, start: Tensor) -> Tensor:
    """Fit the numbers with which the model comes nearest to measured times; ``start``: the first guess."""
    typical, prior = (torch.tensor(each, dtype=torch.float64, device="cpu") for each in (_TYPICAL, _PRIOR))
    counts = rows.weights.sqrt()

    def residual(free: Tensor) -> Tensor:
        of_times = counts * (predicted(free, rows, places, bandwidth).log() - logs)
        return torch.cat([of_times, prior * (free - typical)], -1)

    free, damping, nudge = start, 1e-2, 1e-4 * torch.eye(len(_TYPICAL), dtype=torch.float64, device="cpu")
    current = residual(free)
    for _ in range(STEPS):
        slopes = (residual(free + nudge) - current).T / 1e-4
        normal, gradient, better = slopes.T @ slopes, slopes.T @ current, False
        for _ in range(8):
            damped = normal + damping * torch.diag(normal.diagonal() + 1e-9)
            trial = free - torch.linalg.solve(damped, gradient)
            after = residual(trial)
            gain = current.square().sum() - after.square().sum()
            if gain > 0:
                free, current, damping, better = trial, after, max(damping / 3, 1e-8), True
                break
            damping *= 4
        if not better or gain < 1e-7:
            break
    return free


def _correction(rows: _Rows, residual: Tensor) -> Tensor:
    """Fit the weights of ``time_model.smooth`` to a residual; they are kept small."""
    counted = rows.smooth.T * rows.weights
    held = _RIDGE * torch.eye(rows.smooth.shape[1], dtype=torch.float64, device="cpu")
    return torch.linalg.solve(counted @ rows.smooth + held, counted @ residual)


def _common(known: Mapping[str, _Rows], residuals: Mapping[str, Tensor], products: int) -> Tensor:
    """The residual that all configurations of a product share: their weighted mean, (products,)."""
    total, weight = torch.zeros(2, products, dtype=torch.float64, device="cpu")
    for name, rows in known.items():
        total[rows.places] += rows.weights * residuals[name]
        weight[rows.places] += rows.weights
    return total / weight.clamp(min=1e-9)


def fit(found: Sequence[Sample], gpu: Gpu, kinds: Sequence[Kind] = KINDS) -> dict[Kind, tuple[Candidate, ...]]:
    """Fit candidates by kind for ``time_model``. A configuration needs times of at least ``FEWEST`` products.

    A choice between configurations does not depend on a residual that all of them share, nor on slow configurations.
    So a second fit uses times without the common residual of the first, and a configuration has the more weight the
    nearer it is to the fastest.

    Args:
        found: measured products.
        gpu: the GPU that they were measured on.
        kinds: of ``kinds.KINDS`` or ``KINDS_8_BIT``.
    """
    fitted: dict[Kind, tuple[Candidate, ...]] = {}
    for kind in kinds:
        configs = {name: config for name, config in by_name(kind).items() if not _left_out(config)}
        of_kind = [sample for sample in found if sample.kind == kind]
        names = sorted({name for sample in of_kind for name in sample.us} & configs.keys())
        known = {name: rows_of(configs[name], name, of_kind) for name in names}
        known = {name: rows for name, rows in known.items() if len(rows.logs) >= FEWEST}
        places = {name: gpu.sms * model.slots(configs[name]) for name in known}
        free = dict.fromkeys(known, torch.tensor(_TYPICAL, dtype=torch.float64, device="cpu"))
        common = torch.zeros(len(of_kind), dtype=torch.float64, device="cpu")
        for _ in range(2):
            for name, rows in known.items():
                logs = rows.logs - common[rows.places]
                free[name] = _constants(rows, logs, places[name], gpu.bandwidth, free[name])
            residuals = {
                name: rows.logs - predicted(free[name], rows, places[name], gpu.bandwidth).log()
                for name, rows in known.items()
            }
            common = _common(known, residuals, len(of_kind))
        for _ in range(_ROUNDS):
            weights = {name: _correction(rows, residuals[name] - common[rows.places]) for name, rows in known.items()}
            rest = {name: residuals[name] - rows.smooth @ weights[name] for name, rows in known.items()}
            common = _common(known, rest, len(of_kind))
        fitted[kind] = tuple(
            Candidate(
                "cute" if isinstance(configs[name], CuteConfig) else "triton",
                configs[name],
                Constants(*(float(f"{value.item():.5g}") for value in positive(free[name]))),
                tuple(round(weight, 5) for weight in weights[name].tolist()),
            )
            for name in known
        )
    return fitted


def regret(found: Iterable[Sample], fitted: Mapping[Kind, Sequence[Candidate]], gpu: Gpu) -> list[Regret]:
    """Compare the model's choice for each product with the best configuration that was measured for it."""
    judged = []
    for sample in found:
        names = {config: name for name, config in by_name(sample.kind).items()}
        asked = [each for each in fitted[sample.kind] if names[each.config] in sample.us]
        if not asked:
            continue
        times = {names[each.config]: model.estimate(each, sample.kind, sample.extents, gpu) for each in asked}
        chosen, best = min(times, key=times.get), min(sample.us, key=sample.us.get)
        ratio = round(sample.us[chosen] / sample.us[best], 4)
        judged.append(Regret(ratio, sample.name, sample.kind, chosen, best))
    return judged


def summary(judged: Sequence[Regret]) -> str:
    """Summarise the quality of choices in words: geometric mean, 95th percentile, worst."""
    times = sorted(each.times for each in judged)
    mean = math.exp(math.fsum(map(math.log, times)) / len(times))
    most = times[int(0.95 * len(times))]
    return f"{len(times)} products, mean {mean:.4f}, 95 % within {most:.3f}, worst {times[-1]:.3f}"


def leave_one_out(found: Sequence[Sample], gpu: Gpu) -> list[Regret]:
    """``regret`` of each source's products, with constants fitted to all other sources' products. Random rows are in
    every fit and are not judged."""
    by_source: dict[str, list[Sample]] = defaultdict(list)
    for sample in found:
        by_source[sample.source].append(sample)
    judged: list[Regret] = []
    for source, mine in by_source.items():
        if not source.startswith("random"):
            others = [sample for sample in found if sample.source != source]
            judged += regret(mine, fit(others, gpu, sorted({sample.kind for sample in mine})), gpu)
    return judged
