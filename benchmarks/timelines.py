"""Timelines that the kernels record themselves: program, SM, start and end of every tile."""

from __future__ import annotations

import dataclasses
import itertools
import statistics

import torch

from course_kernels import GemmConfig, GroupGemmPlan
from course_kernels.bench.gpu_timer import GpuTimer
from course_kernels.bench.verified_timing import verified_call
from course_kernels.schedule import tiles
from course_kernels.testing.data import routed_sizes
from list_api import Operands, medians, timed

EXPERTS, TOKENS, HIDDEN, INNER = 8, 8192, 2048, 1536
BLOCK = GemmConfig(128, 256, 64, num_warps=8, num_stages=3, group_m=1)
SCHEDULES = {
    "round_robin": BLOCK,
    "chunks": dataclasses.replace(BLOCK, schedule="chunks"),
    "swizzled": dataclasses.replace(BLOCK, group_m=8),
    "dynamic": dataclasses.replace(BLOCK, schedule="dynamic"),
}


def recorded(plan: GroupGemmPlan, problems, run=None) -> list[list[int]]:
    """Rows [tile, problem, m, n, program, sm, start_ns, end_ns] of a plan's run on a cold L2 cache, from time 0."""
    flush = torch.empty(64 * 2**20, dtype=torch.int32, device="cuda")
    for _ in range(3):
        flush.zero_()
        (run or plan.run)()
        torch.cuda.synchronize()
    rows = []
    for launch in plan.launches:
        config = launch.config
        members = [problems[i] for i in launch.problems]
        order = tiles(members, config.block_m, config.block_n, config.group_m)
        for tile, entry in zip(order, launch.records.tolist(), strict=True):
            if min(entry) < 0:
                raise AssertionError(f"{tile} was not recorded")
            rows.append([tile.index, launch.problems[tile.problem], tile.m, tile.n, *entry])
    start = min(row[6] for row in rows)
    return [[*row[:6], row[6] - start, row[7] - start] for row in rows]


def launches() -> dict:
    """64 problems of 256³: one launch each, as called and in a CUDA graph, and all in one launch."""
    problems = [(256, 256, 256)] * 64
    operands = Operands.of(problems)
    one_each, grouped = (operands.plan(method=method, record=True) for method in ("naive", "round_robin"))
    _, replay = verified_call({"": one_each.run}, "forward", operands, GpuTimer(), {})
    results = {
        "one launch per problem": recorded(one_each, problems),
        "one launch per problem, CUDA graph": recorded(one_each, problems, replay),
        "one launch": recorded(grouped, problems),
    }
    operands.verify(grouped.out)
    return {
        "problems": [list(problem) for problem in problems],
        **{name: {"tiles": [[row[1], *row[4:]] for row in rows]} for name, rows in results.items()},
    }


def weight_gradients(router: str) -> tuple[list[tuple[int, int, int]], Operands]:
    """Problems and operands of dW_e = X_eᵀ dY_e for the course's layer of 8 experts and 8,192 tokens."""
    sizes = routed_sizes(router, TOKENS, EXPERTS)
    group_A = [torch.randn(n, HIDDEN, device="cuda").half().t() for n in sizes]
    group_B = [torch.randn(n, INNER, device="cuda").half() for n in sizes]
    return [(HIDDEN, INNER, n) for n in sizes], Operands(group_A, group_B)


def schedules() -> dict:
    """Each schedule on each router's batch: the recorded timeline, and the time without recording."""
    results = []
    for batch, router in (("uniform", "uniform"), ("skewed", "zipf"), ("one-hot", "one_hot")):
        problems, operands = weight_gradients(router)
        plain = {name: operands.plan(method="tma", config=config).run for name, config in SCHEDULES.items()}
        us = medians(timed(operands, plain, repeats=80))
        for name, config in SCHEDULES.items():
            plan = operands.plan(method="tma", config=config, record=True)
            rows = recorded(plan, problems)
            operands.verify(plan.out)
            results.append(
                {
                    "batch": batch,
                    "schedule": name,
                    "problems": [list(problem) for problem in problems],
                    "block": list(config.block),
                    "group_m": config.group_m,
                    "programs": plan.launches[0].programs,
                    "median_us": us[name],
                    "tiles": rows,
                }
            )
    return {"dtype": "float16", "kernel": "tma", "timelines": results}


def switch() -> dict:
    """Time between two tiles of one program in the descriptor kernel: next problem, and same problem."""
    problems = [(2048, 2048, 2048)] * 4
    operands = Operands.of(problems)
    gaps: dict[bool, list[float]] = {True: [], False: []}
    for schedule in ("round_robin", "chunks"):
        config = dataclasses.replace(BLOCK, schedule=schedule)
        plan = operands.plan(method="tma", config=config, record=True)
        rows = sorted(recorded(plan, problems), key=lambda row: (row[4], row[6]))
        for before, after in itertools.pairwise(rows):
            if before[4] == after[4]:
                gaps[before[1] != after[1]].append((after[6] - before[7]) / 1e3)
        operands.verify(plan.out)

    def quartiles(values):
        low, median, high = statistics.quantiles(values, n=4)
        return {"median": round(median, 3), "q1": round(low, 3), "q3": round(high, 3), "count": len(values)}

    return {
        "source": "tma kernel, four problems of 2048³ float16, round-robin and chunks",
        "switch_us": quartiles(gaps[True]),
        "same_problem_us": quartiles(gaps[False]),
    }
