"""Measure `grouped_mm` and its peers on rows of `bench.rows`, one after the other, in one run."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Sequence

import torch

from course_kernels.bench.gpu_timer import GpuTimer
from course_kernels.bench.interface import Provider, Verified
from course_kernels.bench.measured import Measured, Results
from course_kernels.bench.operands import make_operands
from course_kernels.bench.rows import EVERY_PASS, PASSES, Row
from course_kernels.bench.verified_timing import measure_one

__all__ = ["measure"]

REPEATS = 40


def _present(providers: Iterable[Provider]) -> tuple[dict[str, dict[str, str]], list[Provider]]:
    """Entries of the providers in a record, and the providers that are available here."""
    about, present = {}, []
    for provider in providers:
        about[provider.name] = {"label": provider.label, "role": provider.role}
        if reason := provider.unavailable():
            about[provider.name]["absent"] = reason
            continue
        present.append(provider)
        if version := provider.version():
            about[provider.name]["version"] = version
    return about, present


def measure(
    rows: Sequence[Row],
    providers: Sequence[Provider],
    *,
    passes: Sequence[str] = PASSES,
    repeats: int = REPEATS,
    device: torch.device | str = "cuda",
    dtype: torch.dtype = torch.bfloat16,
    timer=None,
    make: Callable[[Row, torch.device | str, torch.dtype], Verified] = make_operands,
    tell: Callable[[Measured], object] | None = None,
    keep: Callable[[Results], object] | None = None,
) -> Results:
    """Measure rows: verify every provider's result over poisoned memory, then time all of them in turn.

    A provider that failed or ran out of memory has no times, and its row has the reason.

    Args:
        rows: problems, one after the other; their memory is freed between them.
        providers: unavailable ones are left out, with the reason in the result.
        passes: of `EVERY_PASS`.
        repeats: timed calls of each provider and pass, at least 2.
        dtype: of the operands. 8-bit operands have scales and no gradients, and need providers of scaled products.
        timer: the clock; None is `GpuTimer`, with which providers take turns.
        make: makes a row's operands on a device, in a dtype. Any but `make_operands` needs its own providers.
        tell: called with each row as soon as it is measured.
        keep: called after each row with all rows so far, to write them.

    Raises:
        ValueError: an unknown pass, one that 8-bit operands do not have, or fewer than 2 repeats.
        RuntimeError: the device was lost.
    """
    known = EVERY_PASS if dtype.itemsize > 1 else PASSES[:2]
    if unknown := [name for name in passes if name not in known]:
        raise ValueError(f"passes must be among {', '.join(known)}, got {', '.join(map(repr, unknown))}")
    if repeats < 2:
        raise ValueError(f"repeats must be at least 2, since quartiles are taken; got {repeats}")
    timer = GpuTimer() if timer is None else timer
    about, present = _present(providers)
    copy_tb_s = round(timer.copy_tb_s(), 3)
    results = Results(str(dtype).removeprefix("torch."), repeats, copy_tb_s, about, {}, tuple(row.name for row in rows))
    timer.free()
    for row in rows:
        operands = functools.partial(make, row, device, dtype)
        timings = measure_one(row, operands, present, passes, repeats, timer)
        measured = Measured.of(row, passes, dtype.itemsize, timings)
        results = dataclasses.replace(
            results, rows={**results.rows, row.name: measured}, unmeasured=results.unmeasured[1:]
        )
        timer.free()
        if tell is not None:
            tell(measured)
        if keep is not None:
            keep(results)
    return results
