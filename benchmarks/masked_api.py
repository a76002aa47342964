"""Measurements of masked groups, ``deepgemm``: few rows against a copy's bandwidth, many against bfloat16 and peers."""

from __future__ import annotations

import itertools
import random
import statistics
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from course_kernels import deepgemm, shuffle_weight
from course_kernels.bench import clean_cache, timing
from course_kernels.bench.gpu_timer import GpuTimer
from course_kernels.bench.interface import WrongResult
from course_kernels.packed.backends import cute

# DeepGEMM's shapes of decoding (tests/generators.py): groups and expected rows, then N and K.
GROUPS = ((32, 20), (32, 192), (6, 1024))
WEIGHTS = ((6144, 7168), (7168, 3072), (4096, 4096), (4096, 2048))
KINDS = ("bfloat16", "float8", "float8 blocks")
REPEATS = 30
BLOCK, FP8 = 128, torch.float8_e4m3fn
_FEW_ROWS = 64  # up to here a product's speed is its bandwidth
READ = "read of the same bytes"
# Relative error of a group: rounding to bfloat16, and what tensor cores lose of sums of 8-bit products; fast
# accumulation, which a peer uses, is not among them.
_BOUND = 5e-3


class Timer(GpuTimer):
    """The usual clock, and another that leaves L2 nothing to write back."""

    clean_us = staticmethod(clean_cache.interleaved_us)


class Cell(NamedTuple):
    """A shape: ``groups`` of about ``rows`` rows each, in room for ``max_m``."""

    groups: int
    rows: int
    N: int
    K: int

    @property
    def max_m(self) -> int:
        """As AITER's test has it: 256 for few rows, twice the expected ones for more."""
        return 256 if self.rows < 128 else 2 * self.rows

    def sizes(self) -> list[int]:
        """Rows that count, 0.7 to 1.3 times the expected ones."""
        draw = random.Random(self.groups * self.rows)
        return [int(self.rows * draw.uniform(0.7, 1.3)) for _ in range(self.groups)]

    def __str__(self) -> str:
        return f"{self.groups} x {self.rows}, {self.N} x {self.K}"


def cells() -> list[Cell]:
    """All shapes."""
    return [Cell(*groups, *weight) for groups, weight in itertools.product(GROUPS, WEIGHTS)]


class Operands(NamedTuple):
    """Of one cell and kind: what ``deepgemm`` takes, the shuffled weight, and rows packed without gaps for peers."""

    x: Tensor
    w: Tensor
    shuffled: Tensor
    y: Tensor
    sizes: Tensor
    x_scale: Tensor | None
    w_scale: Tensor | None
    counts: list[int]

    @property
    def bytes_moved(self) -> int:
        """Rows that count of X and Y, and the weights of groups that have any; factors are left out."""
        rows, groups = sum(self.counts), sum(count > 0 for count in self.counts)
        size = self.x.element_size()
        return rows * (self.x.shape[2] * size + self.y.shape[2] * self.y.element_size()) + groups * self.w[0].nbytes

    @property
    def flops(self) -> int:
        """Multiplications and additions of rows that count."""
        return 2 * sum(self.counts) * self.w.shape[1] * self.w.shape[2]


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
    return Operands(x, w, shuffle_weight(w), y, sizes, *scales, counts)


def ours(o: Operands, rows: int, backends: tuple[str, ...]) -> dict[str, Callable[[], Tensor]]:
    """Calls of ``deepgemm``: the choice and each kernel with the plain weight, Triton's with the shuffled one, too."""

    def call(weight, backend):
        return lambda: deepgemm(
            o.x, weight, o.y, o.sizes, o.x_scale, o.w_scale, backend=backend, expected_m=rows
        )  # fmt: skip

    found = {backend: call(o.w, backend) for backend in backends}
    return found | {"triton, shuffled": call(o.shuffled, "triton")} if "triton" in backends else found


def peers(o: Operands) -> dict[str, Callable[[], Tensor]]:
    """What torch has: all rows as a batch, and rows that were packed without gaps beforehand."""
    packed = torch.cat([o.x[g, :count] for g, count in enumerate(o.counts)])
    offs = torch.cumsum(o.sizes, 0, dtype=torch.int32)
    functional = torch.nn.functional
    if o.x_scale is None:
        found = {"torch.bmm, all rows": lambda: torch.bmm(o.x, o.w.mT, out=o.y)}
        if hasattr(functional, "grouped_mm"):
            found["torch grouped_mm, packed"] = lambda: functional.grouped_mm(packed, o.w.mT, offs=offs)
        return found
    if o.x_scale.dim() == 3 or not hasattr(functional, "scaled_grouped_mm"):
        return {}
    rows = torch.cat([o.x_scale[g, :count] for g, count in enumerate(o.counts)])
    lines = o.w_scale[:, None].expand(-1, o.w.shape[1]).contiguous()
    row_wise = functional.ScalingType.RowWise
    return {
        "torch scaled_grouped_mm, packed": lambda: functional.scaled_grouped_mm(
            packed, o.w.mT, rows, row_wise, lines, row_wise, offs=offs, output_dtype=torch.bfloat16
        )
    }


def exact(o: Operands) -> Iterator[Tensor]:
    """Rows that count of each group, in float64."""
    for g, count in enumerate(o.counts):
        a, b = o.x[g, :count].double(), o.w[g].double()
        if o.x_scale is not None and o.x_scale.dim() == 3:
            a *= o.x_scale[g, :count].repeat_interleave(BLOCK, 1)[:, : a.shape[1]]
            of_w = o.w_scale[g].repeat_interleave(BLOCK, 0)[: b.shape[0]]
            b *= of_w.repeat_interleave(BLOCK, 1)[:, : b.shape[1]]
        product = a @ b.mT
        if o.x_scale is not None and o.x_scale.dim() == 2:
            product *= o.x_scale[g, :count, None] * o.w_scale[g]
        yield product


def verify(name: str, result: Tensor, o: Operands, right: list[Tensor]) -> None:
    """Compare rows that count with float64's; of ours, no other row may have been written.

    Raises:
        WrongResult: with the group.
    """
    packed, start = result.dim() == 2, 0
    for g, (count, wanted) in enumerate(zip(o.counts, right, strict=True)):
        found = result[start : start + count] if packed else result[g, :count]
        start += count
        error = (found.double() - wanted).norm() / wanted.norm().clamp(min=1e-30)
        if not error < _BOUND:
            raise WrongResult(f"{name} is wrong in group {g}: relative error {error:.2e}")
        if name in OURS and not result[g, count:].isnan().all():
            raise WrongResult(f"{name} has written rows of group {g} that do not count")


OURS = ("auto", "triton", "cute", "torch", "triton, shuffled")


def measure(
    table: list[Cell],
    *,
    backends: tuple[str, ...],
    repeats: int = REPEATS,
    device: str = "cuda",
    timer=None,
    tell=print,
) -> dict:
    """Every cell and kind: µs of each call in a CUDA graph, its bandwidth and its rate, and host time of ours. Beside
    few rows a read of the same bytes is timed; "clean" has the times with an L2 cache that has nothing to write back.

    Raises:
        WrongResult: of ours; a peer's is noted.
    """
    timer = timer or Timer()
    results = {"copy_tb_s": round(timer.copy_tb_s(), 3), "cells": {}}
    for cell in table:
        entry = results["cells"][str(cell)] = {**cell._asdict(), "max_m": cell.max_m, "kinds": {}}
        for kind in KINDS:
            entry["kinds"][kind] = _measure(cell, kind, backends, repeats, device, timer)
            timer.free()
        fastest = {kind: _best(about) for kind, about in entry["kinds"].items()}
        entry["speedup_over_bfloat16"] = {
            kind: round(fastest["bfloat16"] / us, 3) for kind, us in fastest.items() if kind != "bfloat16"
        }
        tell(_line(cell, entry, results["copy_tb_s"]))
    return results


def _measure(cell: Cell, kind: str, backends, repeats: int, device: str, timer) -> dict:
    o = make(cell, kind, device)
    right = list(exact(o))
    functions, failed = {}, {}
    mine = ours(o, cell.rows, backends)
    for name, function in (mine | peers(o)).items():
        try:
            o.y.fill_(torch.nan)
            replay = timer.graph(function)
            verify(name, replay(), o, right)
            functions[name] = replay
        except Exception as error:
            if name in mine:
                raise
            failed[name] = f"{type(error).__name__}: {error}"[:200]
    about = {"rows": sum(o.counts)}
    if cell.rows <= _FEW_ROWS:
        source = torch.zeros(-(-o.bytes_moved // 4), dtype=torch.int32, device=device)
        functions[READ] = timer.graph(lambda: clean_cache.read(source))
        about["clean"] = _rated(o, timer.clean_us(functions, repeats))
    about |= _rated(o, timer.interleaved_us(functions, repeats))
    host = {name: round(timer.host_us(function), 1) for name, function in mine.items()}
    return about | {"host_us": host, "failed": failed}


def _rated(o: Operands, times: dict[str, list[float]]) -> dict:
    """µs and rates of each call, and the rate of a read."""
    us = {name: timing.summary(each) for name, each in times.items()}
    tb_s = {name: round(o.bytes_moved / each["median_us"] / 1e6, 3) for name, each in us.items()}
    rates = {
        name: {"tb_s": tb_s[name], "tflops": round(o.flops / us[name]["median_us"] / 1e6, 1)}
        for name in us
        if name != READ
    }
    read = {"read_tb_s": tb_s[READ]} if READ in us else {}
    return {"us": {name: us[name] for name in rates}, "rates": rates, **read}


def _best(about: dict) -> float:
    """µs of our fastest call."""
    return min(each["median_us"] for name, each in about["us"].items() if name in OURS)


def _line(cell: Cell, entry: dict, copy_tb_s: float) -> str:
    words = []
    for kind, about in entry["kinds"].items():
        for state, times in {"": about, ", clean": about.get("clean", {})}.items():
            for name, rate in times.get("rates", {}).items():
                speed = f"{rate['tflops']} TFLOP/s"
                if cell.rows <= _FEW_ROWS:
                    of = {"a copy": copy_tb_s, "a read": times["read_tb_s"]}
                    speed = ", ".join(f"{rate['tb_s'] / other:.0%} of {what}" for what, other in of.items())
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
        best = [max(rate["tb_s"] for name, rate in each["rates"].items() if name in OURS) for each in found]
        share = statistics.geometric_mean(best) / results["copy_tb_s"]
        print(f"few rows, L2 {state}: {share:.0%} of a copy's bandwidth", flush=True)
    return results
