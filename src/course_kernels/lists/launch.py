"""From checked matrices to kernel launches: which kernel takes which problem, the tables, and the grid.

Problems that a kernel can treat alike (same layouts, same alignment, descriptors or not) share one launch, so an
ordinary list takes one launch and an awkward one a few. All tables of all launches travel in one copy.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Sequence
from typing import NamedTuple

import torch

from course_kernels import runtime
from course_kernels.config import GemmConfig
from course_kernels.contexts import is_profiling
from course_kernels.dtypes import TRITON_TYPES
from course_kernels.kernels import naive, round_robin, tma
from course_kernels.kernels.codes import Layout, Record, Schedule
from course_kernels.kernels.language import tl
from course_kernels.lists.cost_model import choose
from course_kernels.lists.fixed_memory import FixedMemory

ROW_MAJOR, COL_MAJOR, ANY = int(Layout.ROW_MAJOR), int(Layout.COL_MAJOR), int(Layout.ANY)
_INTERPRETER_PROGRAMS = 4
_LOGGER = logging.getLogger("course_kernels")
KERNELS = {"naive": naive.naive_kernel, "round_robin": round_robin.round_robin_kernel, "tma": tma.tma_kernel}


@dataclasses.dataclass(frozen=True)
class Launch:
    """One kernel launch of a plan.

    Attributes:
        kernel: "naive", "round_robin" or "tma".
        problems: indices of the problems it computes.
        config: its configuration.
        programs: size of its grid.
        tiles: number of tiles it computes.
        records: int64 (tiles, 4) log (see ``kernels.record``), or None. Rows follow the tile index.
    """

    kernel: str
    problems: tuple[int, ...]
    config: GemmConfig
    programs: int
    tiles: int
    records: torch.Tensor | None = None

    def __str__(self) -> str:
        block = "×".join(map(str, self.config.block))
        counts = ((len(self.problems), "problem"), (self.tiles, "tile"), (self.programs, "program"))
        problems, tiles, programs = (f"{count} {noun}{'s' * (count != 1)}" for count, noun in counts)
        return f"{self.kernel}: {problems}, {tiles} of {block}, {programs}"


class View(NamedTuple):
    """A matrix as the tables describe it: what torch says of it, asked once.

    Attributes:
        address: of its first element.
        rows, cols: its extents.
        layout: ROW_MAJOR, COL_MAJOR, or ANY where neither stride is 1.
        strides: of row and column in elements. The stride along an extent of 1 or 0 is never used, so it counts as
            whatever serves: such a matrix, and an empty one, gets the least leading dimension that satisfies the
            16-byte rule.
        described: whether a TMA descriptor can describe it: one stride of 1, base address and the other stride
            multiples of 16 bytes.
        aligned: whether the pointer kernel's hints hold for it as an operand: as ``described``, and the extent along
            the stride of 1 is a multiple of 16 bytes, too.
    """

    address: int
    rows: int
    cols: int
    layout: int
    strides: tuple[int, int]
    described: bool
    aligned: bool

    @classmethod
    def of(cls, matrix: torch.Tensor) -> View:
        """The view of a 2-D tensor of 1, 2 or 4 bytes an element."""
        (rows, cols), (row_stride, col_stride), address = matrix.shape, matrix.stride(), matrix.data_ptr()
        unit = 16 // matrix.element_size()
        if col_stride == 1 or (cols <= 1 and row_stride != 1):
            layout, along = ROW_MAJOR, cols
            leading = row_stride if rows > 1 and cols else -(-max(cols, 1) // unit) * unit
            strides = (leading, 1)
        elif row_stride == 1 or rows <= 1:
            layout, along = COL_MAJOR, rows
            leading = col_stride if cols > 1 and rows else -(-max(rows, 1) // unit) * unit
            strides = (1, leading)
        else:
            return cls(address, rows, cols, ANY, (row_stride, col_stride), False, False)
        described = address % 16 == 0 and leading % unit == 0 and leading > 0
        return cls(address, rows, cols, layout, strides, described, described and along % unit == 0)


def satisfies_descriptor_rule(matrix: torch.Tensor) -> bool:
    """Whether a TMA descriptor can describe a matrix: one stride of 1, base address and the other stride multiples of
    16 bytes, the latter not 0."""
    return View.of(matrix).described


class Prepared:
    """Launches ready to run. Holds every tensor whose address is in a table, and its memory.

    Args:
        device: of the tensors.
        out: the outputs.
        memory: the operands and outputs as the caller has them; None where the only run follows at once.
    """

    def __init__(self, device: torch.device, out: Sequence[torch.Tensor] = (), memory: FixedMemory | None = None):
        self.device = device
        self._memory = memory
        # Nothing that is saved for a backward is an inference tensor, and none has a version outside of its mode.
        self._versioned = [tensor for tensor in out if not tensor.is_inference()]
        self.launches: list[Launch] = []
        self._calls: list[tuple] = []  # (kernel, grid, positional arguments, keyword arguments)
        self._copies_in: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._copies_out: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._keep: list = []

    @runtime.outside_graphs("a GroupGemmPlan launches its kernels between two graphs")
    def run(self) -> None:
        """Enqueue every launch.

        Raises:
            RuntimeError: a tensor has other memory than when the tables were made.
        """
        if self._memory is None:
            self._run()
            return
        self._memory.check()
        if is_profiling():
            with torch.profiler.record_function("course_kernels::GroupGemmPlan.run"):
                self._run()
        else:
            self._run()

    def _run(self) -> None:
        for target, source in self._copies_in:
            target.copy_(source)
        if self.device.type == "cuda":
            runtime.ensure_allocator()
            with torch.cuda.device(self.device):
                self._launch_all()
        else:
            with runtime.interpreting():
                self._launch_all()
        for target, source in self._copies_out:
            target.copy_(source)
        torch.autograd.graph.increment_version(self._versioned)  # a kernel's writes are not seen by autograd

    def _launch_all(self) -> None:
        for kernel, grid, args, kwargs in self._calls:
            kernel[grid](*args, **kwargs)


def prepare(group_A, group_B, out, settings, programs=None, recording=False, kept=False) -> Prepared:
    """Choose kernels and build tables for checked operands and outputs.

    Args:
        group_A, group_B, out: G matrices each, checked by ``group_gemm``.
        settings: its method, precision and config.
        programs, recording: as for ``GroupGemmPlan``.
        kept: to be run later, when a tensor may have other memory.
    """
    device = group_A[0].device if group_A else runtime.device()
    prepared = Prepared(device, out, FixedMemory(dict(group_A=group_A, group_B=group_B, out=out)) if kept else None)
    if not group_A:
        return prepared
    if runtime.mode() == "interpreter":
        group_A, group_B, out = (
            [_stand_in(t, prepared, is_output) for t in group]
            for group, is_output in ((group_A, False), (group_B, False), (out, True))
        )
    prepared._keep += [group_A, group_B, out]
    level = int(Record.OFF)
    if recording:  # only NVIDIA GPUs have the clock and the SM's number
        level = int(Record.PROGRAM if runtime.capability(device) is None else Record.TIME)
    descriptors = settings.method != "round_robin" and runtime.supports_descriptors(device)
    itemsizes = group_A[0].element_size(), out[0].element_size()
    views = [tuple(map(View.of, problem)) for problem in zip(group_A, group_B, out)]
    for i, problem in enumerate(views):
        for name, view in zip(("group_A", "group_B", "out"), problem):
            if not view.address and view.rows and view.cols:
                raise TypeError(f"{name}[{i}] must have memory of its own, which fake and wrapper tensors lack")
    buckets: dict[_Bucket, list[int]] = {}
    for i, problem in enumerate(views):
        if problem[2].rows and problem[2].cols:
            bucket = _bucket(*problem, 16 // itemsizes[0], settings.method, descriptors, i)
            buckets.setdefault(bucket, []).append(i)
    planned = [
        (bucket, members, *_plan_grid(bucket, [views[i] for i in members], itemsizes, settings, device, programs))
        for bucket, members in buckets.items()
    ]
    tables = _Tables(planned, views, device)
    prepared._keep.append(tables)
    for index, (bucket, members, kernel, config, grid, tiles) in enumerate(planned):
        log = torch.full((tiles, 4), -1, dtype=torch.int64, device=device) if recording else None
        launch = Launch(kernel, tuple(members), config, grid, tiles, log)
        a, b, c = group_A[members[0]], group_B[members[0]], out[members[0]]
        common = compile_time_arguments(
            launch.kernel, config, dtype=a.dtype, out_dtype=c.dtype, layouts=bucket.layouts,
            aligned=bucket.describe_c if kernel == "tma" else bucket.aligned,
            precision=settings.precision, record_level=level,
        )  # fmt: skip
        common.update(num_warps=config.num_warps, num_stages=config.num_stages)
        prepared.launches.append(launch)
        _LOGGER.debug("group_gemm: %s", launch)
        if launch.kernel == "naive":
            view_a, view_b, view_c = views[members[0]]
            extents = view_c.rows, view_c.cols, view_a.cols
            args = (a, b, c, *extents, *view_a.strides, *view_b.strides, *view_c.strides, log)
        else:
            args = (*tables.of(index), len(members), tiles, tables.counter(index), log)
        prepared._calls.append((KERNELS[launch.kernel], (grid,), args, common))
    return prepared


def compile_time_arguments(
    kernel: str,
    config: GemmConfig,
    *,
    dtype: torch.dtype,
    out_dtype: torch.dtype,
    layouts: tuple[int, int, int],
    aligned: bool,
    precision: str = "ieee",
    record_level: int = int(Record.OFF),
) -> dict:
    """The ``tl.constexpr`` arguments of a launch, by name. ``codegen`` compiles what this says, too.

    Args:
        kernel: "naive", "round_robin" or "tma".
        config: its configuration.
        dtype, out_dtype: of the operands and of C.
        layouts: of A, B and C: ROW_MAJOR, COL_MAJOR or ANY.
        aligned: "round_robin": all matrices satisfy the 16-byte rule, contiguous extents included; "tma": C does, so
            that it is stored through a descriptor. Without effect for "naive", where Triton looks at each argument.
        precision: as for ``group_gemm``.
        record_level: one of ``kernels.record``'s levels.
    """
    arguments = dict(
        BLOCK_M=config.block_m, BLOCK_N=config.block_n, BLOCK_K=config.block_k, GROUP_M=config.group_m,
        PRECISION=precision, RECORD=record_level,
    )  # fmt: skip
    if kernel == "naive":
        return arguments
    arguments.update(
        A_DTYPE=tl.dtype(TRITON_TYPES[dtype]), C_DTYPE=tl.dtype(TRITON_TYPES[out_dtype]),
        A_LAYOUT=layouts[0], B_LAYOUT=layouts[1], C_LAYOUT=layouts[2], SCHEDULE=int(Schedule[config.schedule.upper()]),
    )  # fmt: skip
    if kernel == "tma":
        arguments.update(DESCRIBE_C=aligned, STORE_PARTS=config.store_parts)
    else:
        arguments.update(ALIGN=16 // dtype.itemsize if aligned else 1)
    return arguments


def _stand_in(matrix: torch.Tensor, prepared: Prepared, is_output: bool) -> torch.Tensor:
    """Triton's interpreter multiplies bfloat16 bit patterns as if they were integers and truncates when it stores
    them. There a bfloat16 matrix is replaced by a float32 copy, which represents it exactly."""
    if matrix.dtype != torch.bfloat16:
        return matrix
    copy = torch.empty_like(matrix, dtype=torch.float32)
    if is_output:
        prepared._copies_out.append((matrix, copy))
    else:
        prepared._copies_in.append((copy, matrix))
    return copy


class _Bucket(NamedTuple):
    """What the problems of one launch have in common: the kernels that can compute them, the preferred one first; the
    layouts of A, B and C; whether the pointer kernel's hints hold; whether C can be described."""

    kernels: tuple[str, ...]
    layouts: tuple[int, int, int]
    aligned: bool
    describe_c: bool
    index: int = -1  # sets a naive launch's only problem apart


def _bucket(a: View, b: View, c: View, unit: int, method: str, descriptors: bool, index: int) -> _Bucket:
    """The bucket of a problem; ``unit`` is the number of operand elements in 16 bytes."""
    layouts = a.layout, b.layout, c.layout
    aligned = a.aligned and b.aligned and c.described and max(c.strides) % unit == 0
    if method == "naive":
        # Triton looks at the arguments itself, and sees only multiples of 16.
        aligned = aligned and all(extent % 16 == 0 for extent in (a.rows, a.cols, b.cols))
        return _Bucket(("naive",), layouts, aligned, False, index)
    kernels = ("round_robin",)
    if descriptors and a.described and b.described:
        kernels = ("tma",) if method == "tma" else ("tma", "round_robin")
    # A descriptor's store writes whole 16 bytes, so that rows of C have to end with one; a load does not mind.
    describe_c = "tma" in kernels and c.layout == ROW_MAJOR and c.aligned
    return _Bucket(kernels, layouts, aligned and "round_robin" in kernels, describe_c)


def _plan_grid(bucket, views, itemsizes, settings, device, programs) -> tuple[str, GemmConfig, int, int]:
    """(kernel, configuration, programs, tiles) of one launch."""
    problems = tuple((c.rows, c.cols, a.cols) for a, _, c in views)
    num_sms = runtime.num_sms(device)
    kernel, config = bucket.kernels[0], settings.config
    limits = dict(shared_limit=runtime.shared_memory_limit(device), capability=runtime.capability(device))
    if config is None:
        kernel, config = choose(
            problems,
            kernels=bucket.kernels,
            itemsize=itemsizes[0],
            precision=settings.precision,
            num_sms=num_sms,
            out_itemsize=itemsizes[1],
            aligned=bucket.aligned,
            **limits,
        )
    elif reason := config.valid_for(kernel, *itemsizes, **limits):
        raise ValueError(f"config does not suit {reason}; got {config}")
    tiles = sum(config.tiles(m, n) for m, n, _ in problems)
    if tiles >= 2**31:
        raise ValueError(f"the problems have {tiles} tiles of {config.block}, more than one launch can count (2**31)")
    if kernel == "naive":
        return kernel, config, tiles, tiles
    if programs is None:
        programs = _INTERPRETER_PROGRAMS if num_sms is None else num_sms * config.programs_per_sm
    return kernel, config, min(programs, tiles), tiles


class _Tables:
    """The device tables of all grouped launches, in one buffer that took one copy.

    For a launch over n problems: three columns of n addresses (int64), n rows of M, N, K (int32), n rows of six
    strides (int64), and a counter (int32) that starts at zero.
    """

    def __init__(self, planned, views, device):
        words: list[int] = []
        self._slices = []
        for _, members, kernel, *_ in planned:
            self._slices.append((len(words), len(members)))
            if kernel != "naive":
                problems = [views[i] for i in members]
                for column in range(3):
                    words += [problem[column].address for problem in problems]
                for a, b, c in problems:
                    words += [*a.strides, *b.strides, *c.strides]
                sizes = [extent for a, _, c in problems for extent in (c.rows, c.cols, a.cols)]
                sizes += [0] * (2 - len(sizes) % 2)  # the counter, and up to a whole word
                words += [low | high << 32 for low, high in zip(sizes[::2], sizes[1::2])]
        pinned = device.type == "cuda" and bool(words)
        host = torch.tensor(words, dtype=torch.int64, device="cpu", pin_memory=pinned)
        self._host = host  # pinned memory must stay until the copy has happened
        self._device = host.to(device, non_blocking=True)

    def of(self, index: int) -> tuple[torch.Tensor, ...]:
        """Tables of one launch: addresses of A, B and C, sizes, strides."""
        start, n = self._slices[index]
        pointers = self._device[start : start + 3 * n].view(3, n)
        strides = self._device[start + 3 * n : start + 9 * n].view(n, 6)
        sizes = self._device[start + 9 * n :].view(torch.int32)[: 3 * n].view(n, 3)
        return pointers[0], pointers[1], pointers[2], sizes, strides

    def counter(self, index: int) -> torch.Tensor:
        """The counter of one launch, int32 (1,)."""
        start, n = self._slices[index]
        return self._device[start + 9 * n :].view(torch.int32)[3 * n : 3 * n + 1]
