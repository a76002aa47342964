"""Exercise 04b: the call for the tables of two batches, and a launch that reads those of the first."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import torch

from course_kernels import runtime
from course_kernels.kernels import round_robin
from course_kernels.kernels.codes import Layout, Record, Schedule
from course_kernels.kernels.language import tl
from gemm_course.runner import probes
from gemm_course.runner.fake_gpu import FakeGPU

BLOCK_M, BLOCK_N, BLOCK_K = 32, 32, 32
PROGRAMS = 4
LARGEST = 60  # extent of a drawn matrix: with larger ones in a table, there might be a million tiles
TABLES = {"pointers": (3, torch.int64), "sizes": (3, torch.int32), "strides": (6, torch.int64)}
MATRICES = ("X", "W", "Y")
FIRST, SECOND = "", " of the second call"


def matrices(problems: list, watch: probes.Watch, batch: str = FIRST) -> list[tuple[torch.Tensor, ...]]:
    """X, W and Y of every problem, watched. No kernel stores the Y of the second call."""
    found = []
    for g, problem in enumerate(problems):
        layouts, x, w = problem["layouts"], problem["x"], problem["w"]
        shape = len(x), len(w)
        names = [matrix_name(g, which, batch) for which in range(len(MATRICES))]
        if problem["skips"]:  # every other column of something wider
            wide = torch.full((x.shape[0], 2 * x.shape[1]), float("nan"), dtype=x.dtype)
            wide[:, ::2] = x
            x = watch.matrix(names[0], wide, layouts[0])[:, ::2]
        else:
            x = watch.matrix(names[0], x, layouts[0])
        w = watch.matrix(names[1], w, layouts[1])
        if batch == FIRST:
            y = watch.output(names[2], shape, torch.float32, layouts[2])
        else:
            y = watch.matrix(names[2], torch.zeros(shape), layouts[2])
        found.append((x, w, y))
    return found


def prepare(inputs: dict, watch: probes.Watch) -> Callable:
    """Lay out the inputs; returns the call, with a launch of the library's kernel on its tables if harmless.

    Tables are asked for twice, the second time for other matrices of the same shapes and strides.
    """
    problems, others = (matrices(inputs["problems"], watch, batch) for batch in (FIRST, SECOND))

    def call(answer) -> dict:
        fake = FakeGPU() if watch.device.type == "cpu" else None
        with fake or contextlib.nullcontext():
            first = answer(*map(list, zip(*problems)))
            second = answer(*map(list, zip(*others)))
        return {
            "first": _described(first, fake),
            "second": _described(second, fake),
            "after": [[[list(each.shape), list(each.stride())] for each in problem] for problem in problems],
            "launched": _launch(first, len(problems), watch),
            "objects": [[id(each) for each in problem] for problem in problems],
        }

    return call


def matrix_name(g: int, which: int, batch: str = FIRST) -> str:
    """The name of X, W or Y of a problem in the watch."""
    return f"{MATRICES[which]} of problem {g}{batch}"


def _described(tables, fake: FakeGPU | None) -> list[dict] | str:
    """Three tables, each with its numbers and its device; the name of a type in place of anything else."""
    if not _are_three(tables):
        return type(tables).__name__
    return [
        {
            "numbers": table.detach(), "contiguous": table.is_contiguous(),
            "device": str(fake.GPU if fake and fake.has(table) else table.device),
        }
        if isinstance(table, torch.Tensor) else {"kind": type(table).__name__}
        for table in tables
    ]  # fmt: skip


def _are_three(tables) -> bool:
    return isinstance(tables, (tuple, list)) and len(tables) == len(TABLES)


def _are_readable(tables, count: int) -> bool:
    """True if the kernel can read all tables, right or wrong."""
    return _are_three(tables) and all(
        isinstance(table, torch.Tensor)
        and (table.shape, table.dtype) == ((count, columns), dtype)
        and table.is_contiguous()
        for table, (columns, dtype) in zip(tables, TABLES.values())
    )


def _launch(tables, count: int, watch: probes.Watch) -> bool:
    """Launch the library's kernel on watched copies of the tables if that is harmless; returns whether it was."""
    if not _are_readable(tables, count):
        return False
    pointers, sizes, strides = (table.detach().cpu() for table in tables)
    if not is_harmless(pointers.tolist(), sizes.tolist(), strides.tolist(), watch):
        return False
    columns = [watch.table(f"pointers[:, {which}]", pointers[:, which]) for which in range(3)]
    watched = watch.packed("sizes", sizes), watch.packed("strides", strides)
    tiles = sum(-(-m // BLOCK_M) * -(-n // BLOCK_N) for m, n, _ in sizes.tolist())
    round_robin.round_robin_kernel[(PROGRAMS,)](
        *columns, *watched, count, tiles, None, None,
        A_DTYPE=tl.float16, C_DTYPE=tl.float32, A_LAYOUT=int(Layout.ANY), B_LAYOUT=int(Layout.ANY),
        C_LAYOUT=int(Layout.ANY), ALIGN=1, BLOCK_M=BLOCK_M, BLOCK_N=BLOCK_N, BLOCK_K=BLOCK_K, GROUP_M=8,
        SCHEDULE=int(Schedule.ROUND_ROBIN), PRECISION="ieee", RECORD=int(Record.OFF),
    )  # fmt: skip
    return True


def is_harmless(pointers: list, sizes: list, strides: list, watch: probes.Watch) -> bool:
    """True if a launch on these tables ends soon and, on a GPU, stays in the memory of the matrices.

    In the interpreter the probes stop every other access.
    """
    if not all(1 <= extent <= LARGEST for size in sizes for extent in size):
        return False
    return runtime.mode() == "interpreter" or all(
        _stays_inside(watch, *operand)
        for addresses, (m, n, k), steps in zip(pointers, sizes, strides)
        for operand in zip(addresses, ((m, k), (k, n), (m, n)), (steps[:2], steps[2:4], steps[4:]), (2, 2, 4))
    )


def _stays_inside(watch: probes.Watch, address: int, shape: tuple, steps: list, itemsize: int) -> bool:
    """True if a matrix of this address, shape and strides is in the memory of one of the watch's."""
    last = [(extent - 1) * step * itemsize for extent, step in zip(shape, steps)]
    low, high = (address + sum(pick(each, 0) for each in last) for pick in (min, max))
    return address % itemsize == 0 and watch.holds(low, high + itemsize)
