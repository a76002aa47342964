"""Tune the time model for a GPU: measure, fit the constants, and write the file that the library reads."""

from __future__ import annotations

import dataclasses
import json
import math
import random
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from course_kernels import runtime
from course_kernels.bench import zoo
from course_kernels.bench.record import rows_on_lines
from course_kernels.bench.rows import Row
from course_kernels.bench.tuning import config_times
from course_kernels.bench.tuning.fit import FEWEST, Sample, fit, leave_one_out, regret, samples, summary
from course_kernels.engine.tuning import Gpu, Kind, time_model
from course_kernels.engine.tuning.configs_by_kind import Config, by_name
from course_kernels.engine.tuning.gpu_constants import Candidate
from course_kernels.engine.tuning.kinds import KINDS
from course_kernels.files import write_atomically

__all__ = ["SECONDS", "compact_rows", "compared", "compared_in_words", "constants", "sources", "tune", "write"]

SECONDS = 240.0  # time of ``tune``, compiling included
MOST_FLOPS = 4.2e12  # of a measured product
_LEAST_SHARE = 1 / 3  # share of the time for measuring, however long compiling takes
_RANDOM_ROWS, _FEW_GROUPS = 36, 8
_TOKENS = (64, 1024, 8192)


def sources(names: Iterable[str]) -> dict[str, str]:
    """Row → its model, so that all rows of a model are left out together; a row of no model → itself."""
    known = sorted((each.name for each in zoo.MODELS), key=len, reverse=True)
    return {name: next((each for each in known if name.startswith(each)), name) for name in names}


def compact_rows() -> list[Row]:
    """The rows that ``tune`` measures, in random order: random shapes, and layers of five models that judge the
    choices. All extents are multiples of 16, so that fewer kernels are compiled."""
    models = sorted({sources([row.name])[row.name] for row in zoo.compact()})
    found = config_times.random_rows(_RANDOM_ROWS) + zoo.rows(models, _TOKENS, ("zipf",))
    found += config_times.random_rows(_FEW_GROUPS, most_flops=MOST_FLOPS, few_groups=True)
    found = [row for row in found if row.flops <= MOST_FLOPS and row.N % 16 == row.K % 16 == 0]
    random.Random(1).shuffle(found)
    return found


def constants(
    rows: Mapping[str, Mapping], gpu: Gpu, provenance: Mapping, tell: Callable[[str], object] = print
) -> dict:
    """Fit constants to rows of ``config_times.measure``; return them in the form of ``measured.read``.

    Args:
        rows: entries by name.
        gpu, provenance: of the measurement.
        tell: gets a line about how good the choices are, for each kind.
    """
    found = samples(rows, sources(rows))
    kinds = [kind for kind in config_times.KIND_OF_PASS.values() if any(each.kind == kind for each in found)]
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
            str(kind): [{**each._asdict(), "config": _changed_fields(each.config)} for each in fitted.get(kind, ())]
            for kind in dict.fromkeys((*KINDS, *kinds))
        },
        "regret": {
            how: {one.name: [str(one.kind), one.times, one.chosen, one.best] for one in each}
            for how, each in judged.items()
        },
    }


def _changed_fields(config: Config) -> dict:
    """The fields of a configuration that differ from their defaults."""
    fields = dataclasses.fields(config)
    return {each.name: value for each in fields if (value := getattr(config, each.name)) != each.default}


def write(content: Mapping, out: Path) -> None:
    """Write constants to a file, atomically."""
    write_atomically(out, rows_on_lines(json.dumps(content, indent=1)) + "\n")
    time_model.forget()


def tune(
    out: Path,
    gpu: Gpu,
    provenance: Mapping,
    seconds: float = SECONDS,
    record: Path | None = None,
    triton_only: bool = False,
    tell: Callable[[str], object] = print,
) -> dict[str, dict[str, str]]:
    """Measure ``compact_rows`` in all passes that the current GPU multiplies, fit constants, and write them.

    Args:
        out: the file of constants, which is replaced.
        gpu, provenance: of the current GPU.
        seconds: the time after which no row begins, compiling included. At least a third of it is for measuring.
            Fitting comes afterwards.
        record: a file for the measured times.
        triton_only: leave out the kernel in CuTe DSL.
        tell: gets lines of progress, and at the end how good the choices are.

    Returns:
        The wrong or failed calls, in the form of ``config_times.failures``. Their times are not used.

    Raises:
        ValueError: too few rows were measured to fit anything; the file is left as it was.
    """
    rows, among, began = compact_rows(), config_times.here(triton_only), time.monotonic()
    passes = config_times.PASSES + (config_times.PASSES_8_BIT if runtime.supports_fp8() else ())
    passes += tuple(name for name in config_times.PASSES_OF_LAYER if among.get(config_times.KIND_OF_PASS[name]))
    config_times.compile_ahead(rows, passes, among, tell=tell)
    compiled = time.monotonic() - began
    tell(f"compiled in {compiled:.0f} s")
    rest = max(seconds - compiled, _LEAST_SHARE * seconds)
    found = config_times.measure(rows, passes, seconds=rest, among=among, tell=tell)
    tell(f"{len(found)} of {len(rows)} rows measured, {time.monotonic() - began:.0f} s with compiling")
    if record:
        text = json.dumps({"provenance": provenance, "gpu": gpu._asdict(), "rows": found}, indent=1)
        write_atomically(record, rows_on_lines(text) + "\n")
    content = constants(found, gpu, provenance, tell)
    if lacking := [str(kind) for kind in KINDS if not content["candidates"][str(kind)]]:
        raise ValueError(f"{len(found)} rows are too few to fit {', '.join(lacking)}: {FEWEST} of each configuration")
    write(content, out)
    return config_times.failures(found)


def compared(
    found: Iterable[Sample],
    mine: Mapping[Kind, Iterable[Candidate]],
    theirs: Mapping[Kind, Iterable[Candidate]],
    gpu: Gpu,
) -> dict[Kind, list[float]]:
    """Compare two sets of constants by their choices of Triton's configurations: by kind, the ratio of the times of the
    two choices for each product. Both choose among the configurations that the product was measured with."""
    ratios: dict[Kind, list[float]] = {}
    for sample in found:
        names = {config: name for name, config in by_name(sample.kind).items()}
        chosen = []
        for constants_ in (mine, theirs):
            asked = [each for each in constants_.get(sample.kind, ()) if each.backend == "triton"]
            times = {
                name: time_model.estimate(each, sample.kind, sample.extents, gpu)
                for each in asked
                if (name := names[each.config]) in sample.us
            }
            chosen.append(min(times, key=times.get, default=None))
        if None not in chosen:
            ratios.setdefault(sample.kind, []).append(sample.us[chosen[0]] / sample.us[chosen[1]])
    return ratios


def compared_in_words(ratios: Mapping[Kind, list[float]]) -> str:
    """A line for each kind of ``compared``: products, geometric mean, worst and best."""
    return "\n".join(
        f"{kind}: {len(times)} products, mean {math.exp(math.fsum(map(math.log, times)) / len(times)):.4f}, "
        f"worst {max(times):.3f}, best {min(times):.3f}"
        for kind, times in ratios.items()
    )
