"""Measurements of the list API, ``group_gemm``."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from course_kernels import GroupGemmPlan, group_gemm, runtime
from course_kernels.bench import timing
from course_kernels.bench.gpu_timer import GpuTimer
from course_kernels.bench.interface import Calls, Function, Unverified, WrongResult
from course_kernels.bench.measured import Time
from course_kernels.bench.tutorial_peer import TutorialPlan, configurations
from course_kernels.bench.verified_timing import measure_one
from shapes import group_gemm_rows

OURS = ("naive", "round_robin", "tma", "auto")
Call = Callable[[], Sequence[Tensor] | None]


@dataclasses.dataclass(frozen=True)
class Operands:
    """The matrices of a list of problems. ``bound`` limits the relative error of a result: 1e-3 allows a float32 sum
    and one rounding to float16."""

    group_A: Sequence[Tensor]
    group_B: Sequence[Tensor]
    bound: float = 1e-3

    @classmethod
    def of(cls, problems: Sequence[tuple[int, int, int]]) -> Operands:
        """Random float16 matrices for a list of (M, N, K)."""
        group_A = [torch.randn(m, k, device="cuda").half() for m, _, k in problems]
        group_B = [torch.randn(k, n, device="cuda").half() for _, n, k in problems]
        return cls(group_A, group_B)

    def empty(self) -> list[Tensor]:
        """Memory for the results."""
        return [a.new_empty(a.shape[0], b.shape[1]) for a, b in zip(self.group_A, self.group_B)]

    def plan(self, **options) -> GroupGemmPlan:
        """A plan of the library."""
        return GroupGemmPlan(self.group_A, self.group_B, **options)

    def verify(self, result: Sequence[Tensor], pass_name: str = "forward") -> None:
        """Compare outputs with float64 products.

        Raises:
            WrongResult: a problem is wrong; the message names it.
        """
        for i, (c, a, b) in enumerate(zip(result, self.group_A, self.group_B, strict=True)):
            exact = a.double() @ b.double()
            error = ((c.double() - exact).norm() / exact.norm().clamp(min=1e-30)).item()
            if not error < self.bound:
                raise WrongResult(f"problem {i} is wrong: relative error {error}")


def timed(operands: Operands, calls: Mapping[str, Call], repeats: int = 60, timer=None) -> dict[str, Time]:
    """Time calls in CUDA graphs, in turn. Their outputs are verified over poisoned memory, except those of "empty".

    Raises:
        AssertionError: a call is wrong or failed.
    """

    def provider(name: str, call: Call) -> Function:
        return Function(name, lambda _: Calls({"": call}, operands=Unverified() if name == "empty" else None))

    among = [provider(name, call) for name, call in calls.items()]
    found = measure_one(None, lambda: operands, among, ("forward",), repeats, timer or GpuTimer())
    if wrong := found.failed | found.out_of_memory:
        raise AssertionError(f"wrong or failed: {wrong}")
    return dict(found.us["forward"])


def medians(times: Mapping[str, Time]) -> dict[str, float]:
    """Median µs of each."""
    return {name: time.median_us for name, time in times.items()}


def cublas_loop(operands: Operands) -> Call:
    """One cuBLAS product per problem, into memory of its own."""
    out = operands.empty()

    def run() -> list[Tensor]:
        for a, b, c in zip(operands.group_A, operands.group_B, out):
            torch.mm(a, b, out=c)
        return out

    return run


def empty_launch() -> Call:
    """A launch that does nothing: the cost of any graph of one kernel."""
    import triton

    @triton.jit
    def nothing(pointer):
        return

    scratch = torch.zeros(1, device="cuda")

    def run() -> None:
        nothing[(1,)](scratch)

    return run


def rows() -> dict:
    """µs of every provider on every row, in CUDA graphs, and host µs of the calls themselves."""
    results, first_choice = {}, {}
    for row, problems in group_gemm_rows().items():
        operands = Operands.of(problems)
        tutorials = [f"tutorial {i}" for i in range(len(configurations()))]
        loop, plans = cublas_loop(operands), {method: operands.plan(method=method) for method in OURS}
        tables = [TutorialPlan(operands.group_A, operands.group_B, i) for i in range(len(tutorials))]
        us = timed(
            operands,
            {"empty": empty_launch(), "cublas loop": loop}
            | {name: plan.run for name, plan in zip(tutorials, tables)}
            | {method: plan.run for method, plan in plans.items()},
            repeats=150,
        )
        tuned = min(tutorials, key=lambda name: us[name].median_us)
        us["tutorial"], us["tutorial, key=group_size"] = us[tuned], us[first_choice.setdefault(len(problems), tuned)]
        host = {
            "cublas loop": timing.host_us(loop),
            "group_gemm": timing.host_us(lambda o=operands: group_gemm(o.group_A, o.group_B)),
            "plan.run": timing.host_us(plans["auto"].run),
        }
        us = {name: dataclasses.asdict(time) for name, time in us.items() if name not in tutorials}
        results[row] = {
            "problems": [list(problem) for problem in problems],
            "launches": [str(launch) for launch in plans["auto"].launches],
            "us": us,
            "host_us": {name: round(value, 1) for name, value in host.items()},
        }
        print(row, {name: value["median_us"] for name, value in us.items()}, flush=True)
    return {"dtype": "float16", "rows": results}


def dtypes() -> dict:
    """The other operand types against one torch product per problem; B is column-major, as a weight is."""
    results = {}
    for dtype, precision, bound in (
        (torch.bfloat16, "ieee", 1e-2),
        (torch.float8_e4m3fn, "ieee", 1e-2),
        (torch.float32, "tf32", 2e-3),
        (torch.float32, "ieee", 1e-5),
    ):
        name = str(dtype).removeprefix("torch.") + (f", {precision}" if dtype == torch.float32 else "")
        results[name] = {}
        for n in (256, 512, 1024, 2048):
            group_A = [torch.randn(n, n, device="cuda").to(dtype) for _ in range(4)]
            group_B = [torch.randn(n, n, device="cuda").to(dtype).t() for _ in range(4)]
            operands = Operands(group_A, group_B, bound)
            plan, one = operands.plan(precision=precision), torch.ones((), device="cuda")
            out = [torch.empty_like(c) for c in plan.out]

            def loop(o=operands, out=out, one=one) -> list[Tensor]:
                for a, b, c in zip(o.group_A, o.group_B, out):
                    if a.dtype == torch.float8_e4m3fn:
                        torch._scaled_mm(a, b, one, one, out_dtype=c.dtype, out=c)
                    else:
                        torch.mm(a, b, out=c)
                return out

            torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
            results[name][f"4 x {n}^3"] = medians(timed(operands, {"torch loop": loop, "group_gemm": plan.run}))
    torch.backends.cuda.matmul.allow_tf32 = False
    return {"us": results}


def when_to_group() -> dict:
    """G equal problems of N³ as a cuBLAS loop, as one batched product, and grouped: where the crossovers are."""
    cells = []
    for count in (2, 4, 8, 16, 64):
        for n in (16, 32, 64, 128, 256, 512, 1024, 2048, 4096):
            if count * n**3 > 16 * 4096**3:
                continue
            operands = Operands.of([(n, n, n)] * count)
            batch = [torch.stack(operands.group_A), torch.stack(operands.group_B)]
            out = torch.stack(operands.empty())

            def bmm(batch=batch, out=out) -> tuple[Tensor, ...]:
                return torch.bmm(*batch, out=out).unbind()

            calls = {"cublas loop": cublas_loop(operands), "bmm": bmm, "group_gemm": operands.plan().run}
            cells.append({"count": count, "n": n, "us": medians(timed(operands, calls))})
    return {"dtype": "float16", "cells": cells}


def programs() -> dict:
    """The grouped kernels with several numbers of programs, among them the number of SMs."""
    results = {}
    cases = {row: group_gemm_rows()[row] for row in ("4 x 1024^3", "4 x 2048^3")}
    cases["1024, 512, 256, 128"] = [(n, n, n) for n in (1024, 512, 256, 128)]
    for row, problems in cases.items():
        operands, results[row] = Operands.of(problems), {}
        for method in ("round_robin", "tma"):
            chosen = operands.plan(method=method).launches[0].config
            config = dataclasses.replace(chosen, schedule="round_robin")
            counts = {33, 66, 84, 108, 128, runtime.num_sms() * config.programs_per_sm}
            calls = {
                str(count): operands.plan(method=method, config=config, programs=count).run for count in sorted(counts)
            }
            results[row][method] = medians(timed(operands, calls))
            results[row][f"{method} block"] = list(config.block)
    return {"dtype": "float16", "rows": results}
