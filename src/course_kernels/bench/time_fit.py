"""Fit the constants of ``engine.tuning.time_model`` to measured times, judge the choices made with them, and write both
to a file that the library reads. ``tune`` does all of it, from the measurement on.

A constant of the model is positive, so its logarithm is fitted, by damped least squares of the logarithms of times. A
weak pull towards usual values keeps those apart that a configuration's rows do not tell apart. The correction is fitted
afterwards, by ridge regression, to what is left. Times are compared within a product: see ``fit``.
"""

from __future__ import annotations

import dataclasses
import json
import math
import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from course_kernels.bench import candidates, zoo
from course_kernels.bench.candidates import KIND_OF_PASS, by_name
from course_kernels.bench.record import rows_on_lines
from course_kernels.bench.rows import Row
from course_kernels.config import GemmConfig
from course_kernels.engine.tuning import time_model as model
from course_kernels.files import write_atomically
from course_kernels.kernels.cute_sm90.config import CuteConfig

__all__ = [
    "Regret",
    "Sample",
    "compact_rows",
    "constants",
    "fit",
    "leave_one_out",
    "predicted",
    "regret",
    "samples",
    "sources",
    "summary",
    "tune",
    "write",
]

Config = CuteConfig | GemmConfig
# Usual values, as the fit sees them, and how hard it is pulled there: logarithms of µs, of shares, of power - 1; the
# fourth is the logit of a share.
_USUAL = (math.log(0.3), math.log(0.5), 0.0, math.log(0.85), math.log(2.0), math.log(6.0))
_PULL = (0.02, 0.04, 0.05, 0.08, 0.05, 0.05)
# How strongly the correction is held near zero. With 10, choices for models left out are up to 22 % behind where their
# extents are beyond those of all others (7 % with 60); between 25 and 60 little changes.
_RIDGE = 60.0
STEPS = 40  # of least squares, at most
MOST_FLOPS = 4.2e12  # of a product that is measured
_NEARNESS = 3  # the power of best over time: twice the time counts an eighth
_ROUNDS = 5  # of the correction and of what is in common
_FEWEST = 12  # rows of a configuration, below which nothing is fitted to it


def _left_out(config: Config) -> bool:
    """Narrow tiles in a fixed order: they won few products, by little, and were chosen for others, which lost up to
    30 % by it. Choices among fewer configurations lose less."""
    return isinstance(config, CuteConfig) and bool(config.last_tile_n) and not config.dynamic


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
            N, K = (entry["N"], entry["K"]) if pass_name.startswith("forward") else (entry["K"], entry["N"])
            extents = (total / groups, N, K, groups)
            if pass_name == "dB":
                extents = (entry["N"], entry["K"], total / groups, groups)
            found.append(Sample(source_of.get(name, name), f"{name} {pass_name}", kind, extents, us))
    return found


class _Rows(NamedTuple):
    """A configuration's products as tensors: their places in the list that they are from (rows,), what each group of
    each spread adds (3, spreads, rows, groups), functions of the correction (rows, 15), logarithms of measured µs
    (rows,), and how much a product counts (rows,)."""

    places: Tensor
    parts: Tensor
    smooth: Tensor
    logs: Tensor
    weights: Tensor


def rows_of(config: Config, name: str, of_kind: Sequence[Sample]) -> _Rows:
    """The products that were measured with a configuration."""
    mine = [(place, sample) for place, sample in enumerate(of_kind) if name in sample.us]

    def table(numbers: list) -> Tensor:
        return torch.tensor(numbers, dtype=torch.float64)

    parts = [[model.work(config, each.kind, *each.extents, spread) for _, each in mine] for spread in model.SPREADS]
    us, best = table([each.us[name] for _, each in mine]), table([min(each.us.values()) for _, each in mine])
    return _Rows(
        torch.tensor([place for place, _ in mine]),
        table(parts).permute(3, 0, 1, 2),
        table([model.smooth(each.kind, *each.extents) for _, each in mine]),
        us.log(),
        (best / us) ** _NEARNESS,
    )


def positive(free: Tensor) -> tuple[Tensor, ...]:
    """The constants of ``time_model.seconds`` from the numbers that are fitted, the last dimension."""
    block, tile, waited, reached, power, launch = free.unbind(-1)
    return block.exp(), tile.exp(), waited.sigmoid(), reached.exp(), 1 + power.exp(), launch.exp()


def predicted(free: Tensor, rows: _Rows, places: int, bandwidth: float) -> Tensor:
    """``time_model.seconds`` of many products at once, the mean over the spreads; a test holds the two together.

    Args:
        free: (..., 6); each set of numbers gives a row of times.
    """
    tiles, blocks, bytes_ = rows.parts
    block, tile, waited, reached, power, launch = (each[..., None, None] for each in positive(free))
    each = block[..., None] * blocks + tile[..., None]
    count = tiles.sum(-1)
    together = count.clamp(1e-9, places)[..., None]
    work, memory = tiles / together * each, bytes_ / (bandwidth * 1e6 * reached[..., None])
    longer, power = torch.maximum(work, memory) + 1e-9, power[..., None]
    total = (longer * ((work / longer) ** power + (memory / longer) ** power) ** (1 / power)).sum(-1)
    waves = (count / places).clamp(min=1)
    missing = (waves - 1e-9).ceil() - waves
    busy = (tiles * each).sum(-1)
    return (total + waited * missing * busy / count.clamp(min=1e-9) + launch).mean(-2)


def _constants(rows: _Rows, logs: Tensor, places: int, bandwidth: float, start: Tensor) -> Tensor:
    """The numbers with which the model comes nearest to times, from others on."""
    usual, pull = torch.tensor(_USUAL, dtype=torch.float64), torch.tensor(_PULL, dtype=torch.float64)
    counts = rows.weights.sqrt()

    def left(free: Tensor) -> Tensor:
        return torch.cat([counts * (predicted(free, rows, places, bandwidth).log() - logs), pull * (free - usual)], -1)

    free, damping, nudge = start, 1e-2, 1e-4 * torch.eye(len(_USUAL), dtype=torch.float64)
    now = left(free)
    for _ in range(STEPS):
        slopes = (left(free + nudge) - now).T / 1e-4
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
    return free


def _correction(rows: _Rows, left: Tensor) -> Tensor:
    """Weights of ``time_model.smooth`` for what is left, kept small."""
    counted = rows.smooth.T * rows.weights
    held = _RIDGE * torch.eye(rows.smooth.shape[1], dtype=torch.float64)
    return torch.linalg.solve(counted @ rows.smooth + held, counted @ left)


def _common(known: Mapping[str, _Rows], left: Mapping[str, Tensor], products: int) -> Tensor:
    """What all configurations of a product have in common of what is left: their weighted mean, (products,)."""
    total, weight = torch.zeros(2, products, dtype=torch.float64)
    for name, rows in known.items():
        total[rows.places] += rows.weights * left[name]
        weight[rows.places] += rows.weights
    return total / weight.clamp(min=1e-9)


def fit(
    found: Sequence[Sample], gpu: model.Gpu, kinds: Sequence[str] = model.KINDS
) -> dict[str, tuple[model.Candidate, ...]]:
    """Candidates by kind, for ``time_model``: those that at least ``_FEWEST`` products were measured with.

    What the configurations of a product have in common does not matter to a choice between them, nor do those that are
    far behind. So each fit is followed by another one, of times without what the first one left in common, in which a
    configuration counts by how near it is to the fastest.

    Args:
        found: measured products.
        gpu: where they were measured.
        kinds: of ``time_model.KINDS`` or ``KINDS_8_BIT``.
    """
    fitted: dict[str, tuple[model.Candidate, ...]] = {}
    for kind in kinds:
        configs = {name: config for name, config in by_name(kind).items() if not _left_out(config)}
        of_kind = [sample for sample in found if sample.kind == kind]
        names = sorted({name for sample in of_kind for name in sample.us} & configs.keys())
        known = {name: rows_of(configs[name], name, of_kind) for name in names}
        known = {name: rows for name, rows in known.items() if len(rows.logs) >= _FEWEST}
        places = {name: gpu.sms * model.slots(configs[name]) for name in known}
        free = dict.fromkeys(known, torch.tensor(_USUAL, dtype=torch.float64))
        common = torch.zeros(len(of_kind), dtype=torch.float64)
        for _ in range(2):
            for name, rows in known.items():
                logs = rows.logs - common[rows.places]
                free[name] = _constants(rows, logs, places[name], gpu.bandwidth, free[name])
            left = {
                name: rows.logs - predicted(free[name], rows, places[name], gpu.bandwidth).log()
                for name, rows in known.items()
            }
            common = _common(known, left, len(of_kind))
        for _ in range(_ROUNDS):
            weights = {name: _correction(rows, left[name] - common[rows.places]) for name, rows in known.items()}
            rest = {name: left[name] - rows.smooth @ weights[name] for name, rows in known.items()}
            common = _common(known, rest, len(of_kind))
        fitted[kind] = tuple(
            model.Candidate(
                "cute" if isinstance(configs[name], CuteConfig) else "triton",
                configs[name],
                tuple(float(f"{value.item():.5g}") for value in positive(free[name])),
                tuple(round(weight, 5) for weight in weights[name].tolist()),
            )
            for name in known
        )
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


# ---- from a measurement to a file

SECONDS = 150.0  # of ``tune``, after compiling
_RANDOM_ROWS, _FEW_GROUPS = 36, 8
_TOKENS = (64, 1024, 8192)


def sources(names: Iterable[str]) -> dict[str, str]:
    """Row → the model that it is of, so that all of a model's rows are left out at a time."""
    known = sorted((each.name for each in zoo.MODELS), key=len, reverse=True)
    return {name: next((each for each in known if name.startswith(each)), name) for name in names}


def compact_rows() -> list[Row]:
    """What ``tune`` measures, in a drawn order: random shapes, and layers of five models that judge the choices."""
    models = sorted({sources([row.name])[row.name] for row in zoo.compact()})
    found = candidates.random_rows(_RANDOM_ROWS) + zoo.rows(models, _TOKENS, ("zipf",))
    found += candidates.random_rows(_FEW_GROUPS, most_flops=MOST_FLOPS, few_groups=True)
    found = [row for row in found if row.flops <= MOST_FLOPS]
    random.Random(1).shuffle(found)
    return found


def constants(
    rows: Mapping[str, Mapping], gpu: model.Gpu, provenance: Mapping, tell: Callable[[str], object] = print
) -> dict:
    """Constants fitted to rows of ``candidates.measure``, in the form that ``time_model.read`` takes.

    Args:
        rows: by name.
        gpu, provenance: of the measurement.
        tell: gets a line about how good the choices are, for each kind.
    """
    found = samples(rows, sources(rows))
    kinds = [kind for kind in (*model.KINDS, *model.KINDS_8_BIT) if any(each.kind == kind for each in found)]
    fitted = fit(found, gpu, kinds)
    judged = {"fitted": regret(found, fitted, gpu), "left out": leave_one_out(found, gpu)}
    for how, each in judged.items():
        for kind in kinds:
            if of_kind := [one for one in each if one.kind == kind]:
                tell(f"{provenance['gpu']}, {how}, {kind}: {summary(of_kind)}")
    return {
        "gpu": gpu._asdict(),
        "provenance": dict(provenance),
        "candidates": {
            kind: [{**each._asdict(), "config": _told(each.config)} for each in fitted.get(kind, ())]
            for kind in dict.fromkeys((*model.KINDS, *kinds))
        },
        "regret": {
            how: {one.name: [one.kind, one.times, one.chosen, one.best] for one in each} for how, each in judged.items()
        },
    }


def _told(config: Config) -> dict:
    """The fields of a configuration that differ from their defaults."""
    fields = dataclasses.fields(config)
    return {each.name: value for each in fields if (value := getattr(config, each.name)) != each.default}


def write(content: Mapping, out: Path) -> None:
    """Write constants to a file, whole or not at all."""
    write_atomically(out, rows_on_lines(json.dumps(content, indent=1)) + "\n")
    model.forget()


def tune(
    out: Path,
    gpu: model.Gpu,
    provenance: Mapping,
    seconds: float = SECONDS,
    record: Path | None = None,
    tell: Callable[[str], object] = print,
) -> dict[str, dict[str, str]]:
    """Measure ``compact_rows`` in all passes on the current GPU, fit constants, and write them.

    Args:
        out: the file of constants, which is replaced.
        gpu, provenance: of the current GPU.
        seconds: after them no row is begun. Compiling comes before, and fitting afterwards.
        record: a file for the measured times.
        tell: gets lines of progress, and at the end how good the choices are.

    Returns:
        What was wrong or failed, as ``candidates.failures``; it is in no choice.

    Raises:
        ValueError: too few rows were measured to fit anything; the file is left as it was.
    """
    rows, passes = compact_rows(), tuple(KIND_OF_PASS)
    candidates.compile_ahead(rows, passes, tell=tell)
    began = time.monotonic()
    found = candidates.measure(rows, passes, seconds=seconds, tell=tell)
    tell(f"{len(found)} of {len(rows)} rows measured in {time.monotonic() - began:.0f} s")
    if record:
        text = json.dumps({"provenance": provenance, "rows": found}, indent=1)
        write_atomically(record, rows_on_lines(text) + "\n")
    content = constants(found, gpu, provenance, tell)
    if lacking := [kind for kind in model.KINDS if not content["candidates"][kind]]:
        raise ValueError(f"{len(found)} rows are too few to fit {', '.join(lacking)}: {_FEWEST} of each configuration")
    write(content, out)
    return candidates.failures(found)
