"""Measurements of the list API, ``group_gemm``."""

from __future__ import annotations

import dataclasses

import torch

from course_kernels import GroupGemmPlan, group_gemm, runtime
from course_kernels.bench import timing
from course_kernels.bench.tutorial_peer import TutorialPlan, configurations
from shapes import group_gemm_rows

OURS = ("naive", "round_robin", "tma", "auto")


def operands(problems) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Random float16 matrices for a list of (M, N, K)."""
    group_A = [torch.randn(m, k, device="cuda").half() for m, _, k in problems]
    group_B = [torch.randn(k, n, device="cuda").half() for _, n, k in problems]
    return group_A, group_B


def verify(name: str, out, group_A, group_B, bound: float = 1e-3) -> None:
    """Compare outputs with float64 products; the bound allows a float32 sum and one rounding to float16."""
    for i, (c, a, b) in enumerate(zip(out, group_A, group_B)):
        exact = a.double() @ b.double()
        error = ((c.double() - exact).norm() / exact.norm().clamp(min=1e-30)).item()
        if not error < bound:
            raise AssertionError(f"{name} is wrong in problem {i}: relative error {error}")


def graphed(name: str, call, out, group_A, group_B, bound: float = 1e-3):
    """A CUDA graph of a call whose outputs were poisoned before it and verified after."""
    for c in out:
        c.fill_(float("nan"))
    call()
    verify(name, out, group_A, group_B, bound)
    return timing.capture(call)


def cublas_loop(group_A, group_B, out):
    """One cuBLAS product per problem, into given outputs."""

    def run():
        for a, b, c in zip(group_A, group_B, out):
            torch.mm(a, b, out=c)

    return run


def empty_launch():
    """A launch that does nothing: the cost of any graph of one kernel."""
    import triton

    @triton.jit
    def nothing(pointer):
        return

    scratch = torch.zeros(1, device="cuda")
    return lambda: nothing[(1,)](scratch)


def rows() -> dict:
    """µs of every provider on every row, in CUDA graphs, and host µs of the calls themselves."""
    results, first_choice = {}, {}
    for row, problems in group_gemm_rows().items():
        group_A, group_B = operands(problems)
        out = [torch.empty(m, n, dtype=torch.float16, device="cuda") for m, n, _ in problems]
        keep = {"empty": timing.capture(empty_launch())}
        loop = cublas_loop(group_A, group_B, out)
        keep["cublas loop"] = graphed("cublas loop", loop, out, group_A, group_B)
        plans = {}
        for i in range(len(configurations())):
            plans[f"tutorial {i}"] = TutorialPlan(group_A, group_B, i)
        for method in OURS:
            plans[method] = GroupGemmPlan(group_A, group_B, method=method)
        for name, plan in plans.items():
            keep[name] = graphed(name, plan.run, plan.out, group_A, group_B)
        times = timing.interleaved_us({name: graph.replay for name, graph in keep.items()}, repeats=150)
        us = {name: timing.summary(values) for name, values in times.items()}
        tuned = min(range(len(configurations())), key=lambda i: us[f"tutorial {i}"]["median_us"])
        keyed = first_choice.setdefault(len(problems), tuned)
        us["tutorial"], us["tutorial, key=group_size"] = us[f"tutorial {tuned}"], us[f"tutorial {keyed}"]
        us = {name: value for name, value in us.items() if name not in {f"tutorial {i}" for i in range(9)}}
        host = {
            "cublas loop": timing.host_us(loop),
            "group_gemm": timing.host_us(lambda a=group_A, b=group_B: group_gemm(a, b)),
            "plan.run": timing.host_us(plans["auto"].run),
        }
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
    for dtype, precision in (
        (torch.bfloat16, "ieee"),
        (torch.float8_e4m3fn, "ieee"),
        (torch.float32, "tf32"),
        (torch.float32, "ieee"),
    ):
        name = str(dtype).removeprefix("torch.") + (f", {precision}" if dtype == torch.float32 else "")
        results[name] = {}
        for n in (256, 512, 1024, 2048):
            group_A = [torch.randn(n, n, device="cuda").to(dtype) for _ in range(4)]
            group_B = [torch.randn(n, n, device="cuda").to(dtype).t() for _ in range(4)]
            plan = GroupGemmPlan(group_A, group_B, precision=precision)
            out = [torch.empty_like(c) for c in plan.out]
            one = torch.ones((), device="cuda")

            def loop(group_A=group_A, group_B=group_B, out=out, fp8=dtype == torch.float8_e4m3fn, one=one):
                for a, b, c in zip(group_A, group_B, out):
                    if fp8:
                        torch._scaled_mm(a, b, one, one, out_dtype=c.dtype, out=c)
                    else:
                        torch.mm(a, b, out=c)

            torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
            bound = 1e-2 if dtype in (torch.bfloat16, torch.float8_e4m3fn) else 2e-3 if precision == "tf32" else 1e-5
            graphs = {
                "torch loop": graphed("torch loop", loop, out, group_A, group_B, bound),
                "group_gemm": graphed("group_gemm", plan.run, plan.out, group_A, group_B, bound),
            }
            times = timing.interleaved_us({name: graph.replay for name, graph in graphs.items()}, repeats=60)
            results[name][f"4 x {n}^3"] = {p: timing.summary(values)["median_us"] for p, values in times.items()}
    torch.backends.cuda.matmul.allow_tf32 = False
    return {"us": results}


def when_to_group() -> dict:
    """G equal problems of N³ as a cuBLAS loop, as one batched product, and grouped: where the crossovers are."""
    cells = []
    for count in (2, 4, 8, 16, 64):
        for n in (16, 32, 64, 128, 256, 512, 1024, 2048, 4096):
            if count * n**3 > 16 * 4096**3:
                continue
            group_A, group_B = operands([(n, n, n)] * count)
            out = [torch.empty(n, n, dtype=torch.float16, device="cuda") for _ in range(count)]
            batch_A, batch_B = torch.stack(group_A), torch.stack(group_B)
            batch_out = torch.empty(count, n, n, dtype=torch.float16, device="cuda")
            plan = GroupGemmPlan(group_A, group_B)
            graphs = {
                "cublas loop": graphed("loop", cublas_loop(group_A, group_B, out), out, group_A, group_B),
                "bmm": graphed(
                    "bmm",
                    lambda a=batch_A, b=batch_B, c=batch_out: torch.bmm(a, b, out=c),
                    list(batch_out),
                    group_A,
                    group_B,
                ),
                "group_gemm": graphed("group_gemm", plan.run, plan.out, group_A, group_B),
            }
            times = timing.interleaved_us({name: graph.replay for name, graph in graphs.items()}, repeats=60)
            us = {name: timing.summary(values)["median_us"] for name, values in times.items()}
            cells.append({"count": count, "n": n, "us": us})
    return {"dtype": "float16", "cells": cells}


def programs() -> dict:
    """The grouped kernels with several numbers of programs, among them the number of SMs."""
    results = {}
    cases = {row: group_gemm_rows()[row] for row in ("4 x 1024^3", "4 x 2048^3")}
    cases["1024, 512, 256, 128"] = [(n, n, n) for n in (1024, 512, 256, 128)]
    for row, problems in cases.items():
        group_A, group_B = operands(problems)
        results[row] = {}
        for method in ("round_robin", "tma"):
            chosen = GroupGemmPlan(group_A, group_B, method=method).launches[0].config
            config = dataclasses.replace(chosen, schedule="round_robin")
            graphs, keep = {}, []
            counts = [33, 66, 84, 108, 128, runtime.num_sms() * config.programs_per_sm]
            for count in sorted(set(counts)):
                plan = GroupGemmPlan(group_A, group_B, method=method, config=config, programs=count)
                keep.append(plan)
                graphs[str(count)] = graphed(method, plan.run, plan.out, group_A, group_B)
            times = timing.interleaved_us({name: graph.replay for name, graph in graphs.items()}, repeats=60)
            results[row][method] = {name: timing.summary(values)["median_us"] for name, values in times.items()}
            results[row][f"{method} block"] = list(config.block)
    return {"dtype": "float16", "rows": results}
