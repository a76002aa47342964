"""Measurements of masked groups, ``deepgemm``: few rows against a copy's bandwidth, many against bfloat16 and peers."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import random
import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from course_kernels import deepgemm, shuffle_weight
from course_kernels.bench import clean_cache
from course_kernels.bench.gpu_timer import GpuTimer
from course_kernels.bench.interface import Calls, Function, Provider, Unverified, WrongResult
from course_kernels.bench.measured import Timings
from course_kernels.bench.verified_timing import measure_one
from course_kernels.engine.hopper import cute

# DeepGEMM's shapes of decoding (tests/generators.py): groups and expected rows, then N and K.
GROUPS = ((32, 20), (32, 192), (6, 1024))
WEIGHTS = ((6144, 7168), (7168, 3072), (4096, 4096), (4096, 2048))
KINDS = ("bfloat16", "float8", "float8 blocks")
REPEATS = 30
BLOCK, FP8 = 128, torch.float8_e4m3fn
_FEW_ROWS = 64  # up to here a product's speed is its bandwidth
READ = "read of the same bytes"
OURS = ("auto", "triton", "cute", "torch", "triton, shuffled")
# Relative error of a group: rounding to bfloat16, and what tensor cores lose of sums of 8-bit products; fast
# accumulation, which a peer uses, is not among them.
_BOUND = 5e-3


class CleanTimer(GpuTimer):
    """A clock that leaves L2 nothing to write back."""

    interleaved_us = staticmethod(clean_cache.interleaved_us)


class Cell(NamedTuple):
    """A shape: ``groups`` of about ``rows`` rows each, in room for ``max_m``."""

    groups: int
    rows: int
    N: int
    K: int

    @property
    def max_m(self) -> int:
        """Rows of memory per group, as in AITER's test: 256 for few expected rows, else twice the expected rows."""
        return 256 if self.rows < 128 else 2 * self.rows

    def sizes(self) -> list[int]:
        """Draw the valid rows of each group: 0.7 to 1.3 times the expected rows."""
        draw = random.Random(self.groups * self.rows)
        return [int(self.rows * draw.uniform(0.7, 1.3)) for _ in range(self.groups)]

    def bytes_moved(self, kind: str) -> int:
        """Bytes of the valid rows of X and Y, and of the weights of groups with such rows; no scale factors."""
        counts, size = self.sizes(), 2 if kind == "bfloat16" else 1
        weights = sum(count > 0 for count in counts) * self.N * self.K * size
        return sum(counts) * (self.K * size + self.N * 2) + weights

    @property
    def flops(self) -> int:
        """Multiplications and additions for the valid rows."""
        return 2 * sum(self.sizes()) * self.N * self.K

    def __str__(self) -> str:
        return f"{self.groups} x {self.rows}, {self.N} x {self.K}"


def cells() -> list[Cell]:
    """All shapes."""
    return [Cell(*groups, *weight) for groups, weight in itertools.product(GROUPS, WEIGHTS)]


@dataclasses.dataclass(frozen=True)
class Operands:
    """The operands of ``deepgemm`` for one cell and kind, with the shuffled weight. ``counts`` has each group's valid
    rows, and ``right`` their product in float64. With ``ours``, no other row may be written."""

    x: Tensor
    w: Tensor
    shuffled: Tensor
    y: Tensor
    sizes: Tensor
    x_scale: Tensor | None
    w_scale: Tensor | None
    counts: list[int]
    right: list[Tensor]
    ours: bool = False

    def packed(self, values: Tensor) -> Tensor:
        """Copy the valid rows of all groups into one tensor, without gaps."""
        return torch.cat([values[g, :count] for g, count in enumerate(self.counts)])

    def verify(self, result: Tensor, pass_name: str) -> None:
        """Compare the valid rows with the float64 product.

        Raises:
            WrongResult: a group is wrong; the message names it.
        """
        packed, start = result.dim() == 2, 0
        for g, (count, wanted) in enumerate(zip(self.counts, self.right, strict=True)):
            found = result[start : start + count] if packed else result[g, :count]
            start += count
            error = (found.double() - wanted).norm() / wanted.norm().clamp(min=1e-30)
            if not error < _BOUND:
                raise WrongResult(f"group {g} is wrong: relative error {error:.2e}")
            if self.ours and not result[g, count:].isnan().all():
                raise WrongResult(f"rows of group {g} that do not count were written")


def make(cell: Cell, kind: str, device: torch.device | str) -> Operands:
    """Random normal operands, and factors around 1. Factors of blocks lie in memory as the quantisers store them."""
    generator = torch.Generator(device).manual_seed(0)

    def normal(*shape, dtype=torch.bfloat16):
        return torch.randn(shape, dtype=dtype, device=device, generator=generator)

    def factors(*shape):
        return normal(*shape, dtype=torch.float32).mul_(0.1).exp_()

    counts = cell.sizes()
    x, w = normal(cell.groups, cell.max_m, cell.K), normal(cell.groups, cell.N, cell.K)
    scales = None, None
    if kind != "bfloat16":
        x, w = x.to(FP8), w.to(FP8)
        deep, wide = -(-cell.K // BLOCK), -(-cell.N // BLOCK)
        if kind == "float8":
            scales = factors(cell.groups, cell.max_m), factors(cell.groups)
        else:
            scales = factors(deep, cell.groups, cell.max_m).permute(1, 2, 0), factors(cell.groups, wide, deep)
    y = torch.empty(cell.groups, cell.max_m, cell.N, dtype=torch.bfloat16, device=device)
    sizes = torch.tensor(counts, dtype=torch.int32, device=device)
    return Operands(x, w, shuffle_weight(w), y, sizes, *scales, counts, list(exact(x, w, *scales, counts)))


def exact(x: Tensor, w: Tensor, x_scale: Tensor | None, w_scale: Tensor | None, counts: list[int]) -> Iterator[Tensor]:
    """Compute the product of each group's valid rows in float64."""
    for g, count in enumerate(counts):
        a, b = x[g, :count].double(), w[g].double()
        if x_scale is not None and x_scale.dim() == 3:
            a *= x_scale[g, :count].repeat_interleave(BLOCK, 1)[:, : a.shape[1]]
            of_w = w_scale[g].repeat_interleave(BLOCK, 0)[: b.shape[0]]
            b *= of_w.repeat_interleave(BLOCK, 1)[:, : b.shape[1]]
        product = a @ b.mT
        if x_scale is not None and x_scale.dim() == 2:
            product *= x_scale[g, :count, None] * w_scale[g]
        yield product


# ---- providers


def providers(cell: Cell, kind: str, backends: Sequence[str]) -> list[Provider]:
    """``deepgemm`` with each backend and the plain weight; Triton also with the shuffled weight. Then torch's functions
    for the kind. For few rows, also a plain read of as many bytes as the product moves."""

    def ours(o: Operands, backend: str, shuffled: bool = False) -> Calls:
        def call() -> Tensor:
            weight = o.shuffled if shuffled else o.w
            return deepgemm(o.x, weight, o.y, o.sizes, o.x_scale, o.w_scale, backend=backend, expected_m=cell.rows)

        return Calls({"": call}, called={"": call}, operands=dataclasses.replace(o, ours=True))

    def read(o: Operands) -> Calls:
        source = torch.zeros(-(-cell.bytes_moved(kind) // 4), dtype=torch.int32, device=o.x.device)

        def call() -> None:
            clean_cache.read(source)  # its sums are not compared

        return Calls({"": call}, operands=Unverified())

    found = [Function(backend, functools.partial(ours, backend=backend), "ours") for backend in backends]
    if "triton" in backends:
        found.append(Function("triton, shuffled", functools.partial(ours, backend="triton", shuffled=True), "ours"))
    found += [Function(name, calls) for name, calls in PEERS[kind].items()]
    return [*found, Function(READ, read, "ceiling")] if cell.rows <= _FEW_ROWS else found


def by_bmm(o: Operands) -> Calls:
    """Multiply all rows as a batch, valid or not."""
    return Calls({"": lambda: torch.bmm(o.x, o.w.mT, out=o.y)})


def by_grouped_mm(o: Operands) -> Calls:
    """Multiply the valid rows, which were packed before the call."""
    packed, offs = o.packed(o.x), torch.cumsum(o.sizes, 0, dtype=torch.int32)
    return Calls({"": lambda: functional.grouped_mm(packed, o.w.mT, offs=offs)})


def by_scaled_grouped_mm(o: Operands) -> Calls:
    """Multiply packed rows with a factor per row; every row of a group's weight has the group's factor."""
    packed, rows, offs = o.packed(o.x), o.packed(o.x_scale), torch.cumsum(o.sizes, 0, dtype=torch.int32)
    lines, row_wise = o.w_scale[:, None].expand(-1, o.w.shape[1]).contiguous(), functional.ScalingType.RowWise
    arguments = (packed, o.w.mT, rows, row_wise, lines, row_wise)
    return Calls({"": lambda: functional.scaled_grouped_mm(*arguments, offs=offs, output_dtype=torch.bfloat16)})


PEERS = {
    "bfloat16": {"torch.bmm, all rows": by_bmm, "torch grouped_mm, packed": by_grouped_mm},
    "float8": {"torch scaled_grouped_mm, packed": by_scaled_grouped_mm},
    "float8 blocks": {},
}


# ---- the record


def measure(
    table: Sequence[Cell], *, backends: Sequence[str], repeats: int = REPEATS, device: str = "cuda", timer=None,
    clean_timer=None, tell: Callable[[str], object] = print,
) -> dict:  # fmt: skip
    """Measure every cell and kind: µs of each call in a CUDA graph, its bandwidth and rate, and the host time of ours.
    For few rows, "clean" has the times with an L2 cache that has nothing to write back.

    Raises:
        AssertionError: a result of ours is wrong or failed. A peer's failure is only noted.
    """
    timer, clean_timer = timer or GpuTimer(), clean_timer or CleanTimer()
    results = {"copy_tb_s": round(timer.copy_tb_s(), 3), "cells": {}}
    for cell in table:
        entry = results["cells"][str(cell)] = {**cell._asdict(), "max_m": cell.max_m, "kinds": {}}
        for kind in KINDS:
            entry["kinds"][kind] = _measure(cell, kind, backends, repeats, device, timer, clean_timer)
            timer.free()
        fastest = {
            kind: min((each["median_us"] for name, each in about["us"].items() if name in OURS), default=None)
            for kind, about in entry["kinds"].items()
        }
        base = fastest.pop("bfloat16")
        entry["speedup_over_bfloat16"] = {kind: round(base / us, 3) for kind, us in fastest.items() if base and us}
        tell(_line(cell, entry, results["copy_tb_s"]))
    return results


def _measure(cell: Cell, kind: str, backends: Sequence[str], repeats: int, device: str, timer, clean_timer) -> dict:
    among = providers(cell, kind, backends)
    ours = {provider.name for provider in among if provider.role == "ours"}

    def timed(passes: tuple[str, ...], timer) -> Timings:
        found = measure_one(cell, lambda: make(cell, kind, device), among, passes, repeats, timer)
        if wrong := [f"{cell}, {kind}, {name}: {why}" for name, why in found.failed.items() if name in ours]:
            raise AssertionError("wrong or failed:\n" + "\n".join(wrong))
        return found

    about: dict = {"rows": sum(cell.sizes())}
    if cell.rows <= _FEW_ROWS:
        about["clean"] = _rated(cell, kind, timed(("forward",), clean_timer))
    found = timed(("forward", "called"), timer)
    failed = {name: ", ".join(why.values()) for name, why in (found.failed | found.out_of_memory).items()}
    return about | _rated(cell, kind, found) | {"host_us": dict(found.host_us), "failed": failed}


def _rated(cell: Cell, kind: str, timings: Timings) -> dict:
    """The µs and rates of each call, and the bandwidth of the plain read if it was measured."""
    us = timings.us_as_json()["forward"]
    tb_s = {name: round(cell.bytes_moved(kind) / each["median_us"] / 1e6, 3) for name, each in us.items()}
    read = {"read_tb_s": tb_s.pop(READ)} if us.pop(READ, None) else {}
    rates = {name: {"tb_s": tb_s[name], "tflops": round(cell.flops / us[name]["median_us"] / 1e6, 1)} for name in us}
    return {"us": us, "rates": rates, **read}


def _line(cell: Cell, entry: dict, copy_tb_s: float) -> str:
    words = []
    for kind, about in entry["kinds"].items():
        for state, times in {"": about, ", clean": about.get("clean", {})}.items():
            for name, rate in times.get("rates", {}).items():
                speed = f"{rate['tflops']} TFLOP/s"
                if cell.rows <= _FEW_ROWS:
                    of = {"a copy": copy_tb_s, "a read": times.get("read_tb_s")}
                    speed = ", ".join(f"{rate['tb_s'] / other:.0%} of {what}" for what, other in of.items() if other)
                words.append(f"  {kind}, {name}{state}: {times['us'][name]['median_us']} us, {speed}")
    return "\n".join([str(cell), *words])


def rows() -> dict:
    """All cells with every backend that runs here."""
    device = torch.device("cuda", torch.cuda.current_device())
    backends = ("auto", "triton", "cute") if cute.runs_on(device) and cute.installed() else ("auto", "triton")
    results = measure(cells(), backends=backends, tell=lambda line: print(line, flush=True))
    few = [
        about
        for cell, entry in zip(cells(), results["cells"].values())
        for about in entry["kinds"].values()
        if cell.rows <= _FEW_ROWS
    ]
    for state, found in {"as usual": few, "clean": [about["clean"] for about in few]}.items():
        rates = ([rate["tb_s"] for name, rate in each["rates"].items() if name in OURS] for each in found)
        best = [max(each) for each in rates if each]
        share = statistics.geometric_mean(best) / results["copy_tb_s"]
        print(f"few rows, L2 {state}: {share:.0%} of a copy's bandwidth", flush=True)
    return results
