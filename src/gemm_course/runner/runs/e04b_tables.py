"""Exercise 04b: the tables of a grouped kernel, and a launch that reads them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import torch

from course_kernels import runtime
from course_kernels.config import GemmConfig
from course_kernels.kernels import round_robin
from course_kernels.kernels.codes import Layout, Record
from course_kernels.lists import launch
from gemm_course.runner import probes
from gemm_course.runner.fake_gpu import FakeGPU

CONFIG = GemmConfig(32, 32, 32, num_warps=4, num_stages=2)
PROGRAMS = 4
TABLES = {"pointers": (3, torch.int64), "sizes": (3, torch.int32), "strides": (6, torch.int64)}
MATRICES = ("X", "W", "Y")


def size_of(problem: dict) -> tuple[int, int, int]:
    """M, N and K of a problem."""
    return problem["x"].shape[0], problem["w"].shape[0], problem["x"].shape[1]


def matrices(problems: list, watch: probes.Watch) -> list[tuple[torch.Tensor, ...]]:
    """X, W and Y of every problem, watched."""
    found = []
    for g, problem in enumerate(problems):
        layout, x = problem["layouts"], problem["x"]
        if problem["skips"]:  # every other column of something wider
            wide = torch.full((x.shape[0], 2 * x.shape[1]), float("nan"), dtype=x.dtype)
            wide[:, ::2] = x
            x = watch.matrix(matrix_name(g, 0), wide, layout[0])[:, ::2]
        else:
            x = watch.matrix(matrix_name(g, 0), x, layout[0])
        w = watch.matrix(matrix_name(g, 1), problem["w"], layout[1])
        found.append((x, w, watch.output(matrix_name(g, 2), size_of(problem)[:2], torch.float32, layout[2])))
    return found


def prepare(inputs: dict, watch) -> Callable:
    """Lay out the inputs; returns the call, and a launch of the library's kernel on its tables if harmless.

    Tables are asked for twice, the second time for other matrices of the same shapes and strides.
    """
    problems = matrices(inputs["problems"], watch)
    others = [tuple(_like(each) for each in problem) for problem in problems]
    device = problems[0][0].device
    true = {name: rows_of(name, problems) for name in TABLES}
    looks = [[_look(each) for each in problem] for problem in problems]

    def call(answer) -> dict:
        fake = FakeGPU() if device.type == "cpu" else None
        with fake or contextlib.nullcontext():
            tables = answer(*map(list, zip(*problems)))
            again = answer(*map(list, zip(*others)))
        if not isinstance(tables, (tuple, list)) or len(tables) != 3:
            return {"returned": type(tables).__name__}
        described = {name: _describe(table, fake, device) for name, table in zip(TABLES, tables)}
        ran = all(table_problem(name, table, len(problems)) is None for name, table in described.items())
        # In the interpreter a probe stops wrong addresses. A wrong size may mean a million tiles.
        asked = ("sizes",) if runtime.mode() == "interpreter" else TABLES
        ran = ran and all(described[name]["values"].tolist() == true[name] for name in asked)
        if ran:
            _launch(described, watch)
        pairs = [(look, _look(each)) for line, problem in zip(looks, problems) for look, each in zip(line, problem)]
        turned = next(([at, *pair] for at, pair in enumerate(pairs) if pair[0] != pair[1]), None)
        return {"tables": described, "ran": ran, "turned": turned, "stale": _stale(again, others)}

    return call


def _like(matrix: torch.Tensor) -> torch.Tensor:
    """Another matrix of the same shape and strides."""
    return torch.empty_strided(matrix.shape, matrix.stride(), dtype=matrix.dtype, device=matrix.device)


def _look(matrix: torch.Tensor) -> list[list[int]]:
    return [list(matrix.shape), list(matrix.stride())]


def _stale(tables, problems: list) -> bool:
    """Whether a second call gave tables with other addresses than these matrices have."""
    try:
        return tables[0].tolist() != rows_of("pointers", problems)
    except Exception:
        return True


def rows_of(name: str, problems: list[tuple[torch.Tensor, ...]]) -> list[list[int]]:
    """The rows of a table: of these X, W and Y."""
    if name == "pointers":
        return [[each.data_ptr() for each in problem] for problem in problems]
    if name == "sizes":
        return [[x.shape[0], w.shape[0], x.shape[1]] for x, w, _ in problems]
    return [[*x.stride(), *w.t().stride(), *y.stride()] for x, w, y in problems]


def matrix_name(g: int, which: int) -> str:
    """The name of X, W or Y of a problem in the watch."""
    return f"{MATRICES[which]} of problem {g}"


def _describe(table, fake: FakeGPU | None, device: torch.device) -> dict:
    """The form of a table, and its values on the CPU."""
    if not isinstance(table, torch.Tensor):
        return {"kind": type(table).__name__}
    return {
        "kind": "Tensor",
        "dtype": str(table.dtype).removeprefix("torch."),
        "shape": list(table.shape),
        "contiguous": table.is_contiguous(),
        "there": fake.has(table) if fake else table.device == device,
        "values": table.detach().cpu().contiguous().to(torch.float64 if table.is_floating_point() else torch.int64),
    }


def _launch(described: dict, watch) -> None:
    """Launch the library's kernel on watched copies of the tables."""
    pointers, sizes, strides = (described[name]["values"] for name in TABLES)
    sizes = sizes.to(torch.int32)
    columns = [watch.table(f"pointers[:, {which}]", pointers[:, which]) for which in range(3)]
    tables = watch.packed("sizes", sizes), watch.packed("strides", strides)
    options = launch.compile_time_arguments(
        "round_robin", CONFIG, dtype=torch.float16, out_dtype=torch.float32, aligned=False,
        layouts=(Layout.ANY,) * 3, record_level=Record.OFF,
    )  # fmt: skip
    tiles = sum(CONFIG.tiles(m, n) for m, n, _ in sizes.tolist())
    round_robin.round_robin_kernel[(PROGRAMS,)](*columns, *tables, len(sizes), tiles, None, None, **options)


def table_problem(name: str, table: dict, count: int) -> str | None:
    """What is wrong with the form of a table."""
    columns, dtype = TABLES[name]
    wanted = str(dtype).removeprefix("torch.")
    if table["kind"] != "Tensor":
        return f"`{name}` must be a tensor, and it is a {table['kind']}: a kernel cannot read Python's memory"
    if table["shape"] != [count, columns]:
        return (
            f"`{name}` must have a row for each of {count} problems, ({count}, {columns}); its shape is {_shape(table)}"
        )
    if table["dtype"] != wanted:
        size = getattr(torch, wanted).itemsize
        return f"`{name}` must be {wanted}, and it is {table['dtype']}: the kernel reads {size} bytes for each number"
    if not table["contiguous"]:
        return f"`{name}` is a view in another order: the kernel reads its memory, and knows nothing of its strides"
    return None


def _shape(table: dict) -> str:
    return f"({', '.join(map(str, table['shape']))})"
