"""The jagged kernels in Helion, and their launches. Importing this needs the extra ``helion``, and loads Triton.

A Helion kernel says what each tile computes; block sizes, warps, loop order, swizzle and pipelining are its
configuration, and Helion writes the Triton kernel for it. To read that kernel, on a machine without a GPU too, with any
operands on the CPU, whether Triton is interpreted or not:

    bind(kernel, A_packed, B, group_offsets, config).to_triton_code(config)

Nothing is tuned at call time: ``tuned`` looks the configuration up. On CPU tensors Triton's interpreter runs the
kernel; Helion's own, ``HELION_INTERPRET=1``, excludes it.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import weakref

import torch
from torch import Tensor

from course_kernels import runtime
from course_kernels.jagged.interpreting import widened_on_cpu
from course_kernels.jagged.tuned import find_config

runtime.load_triton()  # Helion imports it


def keeping_current_gpu(known: bool) -> contextlib.AbstractContextManager:
    """A context after which the current GPU is the one before; nothing where none is ``known``."""
    return torch.cuda.device(torch.cuda.current_device()) if known else contextlib.nullcontext()


try:
    with keeping_current_gpu(torch.cuda.is_initialized()):
        import helion
        import helion.language as hl
        from helion.autotuner import PowerOfTwoFragment
except ImportError as error:
    if error.name != "helion":  # it is there: Helion 1.5.1 does not import with torch 2.11, as 1.5.0 does
        raise ImportError(
            f"implementation='helion': the installed Helion does not import with torch {torch.__version__}: {error}"
        ) from error
    raise ImportError(
        "implementation='helion' needs Helion, whose kernels these are: " + runtime.INSTALL_EXTRA.format("helion")
    ) from error

_INTERPRETER_WORKERS = 4
_UNSET = ("", "0", "false", "no", "off")
_bound: weakref.WeakSet[helion.Kernel] = weakref.WeakSet()
_INT32_REACH = 2**31 - 2**20  # elements, less those of a boundary block


def larger(x, y):
    """The larger of two, for a scan."""
    return torch.maximum(x, y)


def divide(x, y):
    """x / y of numbers that are not negative. ``//`` on tensors is Python's, a dozen instructions more."""
    return torch.div(x, y, rounding_mode="trunc")


def count_tiles(group_offsets, total_m, G, width, block_m):
    """``kernels.jagged.count_tiles``: the row after each group's last, and the rows of tiles up to there."""
    groups = hl.arange(width)
    starts = hl.load(group_offsets, [groups], extra_mask=(groups > 0) & (groups <= G))
    ends = hl.load(group_offsets, [groups + 1], extra_mask=groups < G)
    starts = hl.associative_scan(larger, torch.clamp(starts, 0, total_m), 0)
    ends = hl.associative_scan(larger, torch.clamp(ends, 0, total_m), 0)
    return ends, hl.cumsum(divide(ends - starts + block_m - 1, block_m), 0)


def find_group(tile_row, ends, row_ends, total_m):
    """``kernels.jagged.find_group``: its first row of tiles, its first row, and the row after its last."""
    passed = row_ends <= tile_row
    first = torch.amax(torch.where(passed, row_ends, 0))
    start = torch.amax(torch.where(passed, ends, 0))
    return first, start, torch.amin(torch.where(passed, total_m, ends))


def jagged(A_packed: Tensor, B: Tensor, group_offsets: Tensor, width: hl.constexpr) -> Tensor:
    """``kernels.jagged.jagged_kernel`` in Helion: a program for every tile, ``width`` a power of two of at least G."""
    BLOCK_M = hl.register_block_size(16, 256)
    BLOCK_N = hl.register_block_size(16, 256)
    total_m, K = A_packed.shape
    N = B.size(1)
    G = group_offsets.size(0) - 1
    out = torch.empty(total_m, N, dtype=torch.promote_types(A_packed.dtype, B.dtype), device=A_packed.device)
    tiles_m = (total_m + BLOCK_M - 1) // BLOCK_M + G
    tiles_n = (N + BLOCK_N - 1) // BLOCK_N
    for tile_row, tile_n in hl.grid([tiles_m, tiles_n]):
        ends, row_ends = count_tiles(group_offsets, total_m, G, width, BLOCK_M)
        group_rows = torch.amax(row_ends)
        cols = tile_n * BLOCK_N + hl.arange(BLOCK_N)
        if tile_row < group_rows:
            first, start, end = find_group(tile_row, ends, row_ends, total_m)
            rows = start + (tile_row - first) * BLOCK_M + hl.arange(BLOCK_M)
            acc = hl.zeros([BLOCK_M, BLOCK_N], dtype=torch.float32)
            for tile_k in hl.tile(K):
                block_a = hl.load(A_packed, [rows, tile_k.index], extra_mask=(rows < end)[:, None])
                block_b = hl.load(B, [tile_k.index, cols], extra_mask=(cols < N)[None, :])
                acc = hl.dot(block_a.to(out.dtype), block_b.to(out.dtype), acc=acc)
            hl.store(out, [rows, cols], acc.to(out.dtype), extra_mask=(rows < end)[:, None] & (cols < N)[None, :])
        else:
            rows = torch.amax(ends) + (tile_row - group_rows) * BLOCK_M + hl.arange(BLOCK_M)
            zeros = hl.zeros([BLOCK_M, BLOCK_N], dtype=out.dtype)
            hl.store(out, [rows, cols], zeros, extra_mask=(rows < total_m)[:, None] & (cols < N)[None, :])
    return out


def jagged_persistent(A_packed: Tensor, B: Tensor, group_offsets: Tensor, sms: int, width: hl.constexpr) -> Tensor:
    """``kernels.jagged.jagged_persistent_kernel`` in Helion: every worker visits its own tiles, and no others."""
    BLOCK_M = hl.register_block_size(16, 256)
    BLOCK_N = hl.register_block_size(16, 256)
    GROUP_M = hl.register_tunable("group_m", PowerOfTwoFragment(1, 16, 8))
    workers = sms * hl.register_tunable("workers_per_sm", PowerOfTwoFragment(1, 4, 1))
    total_m, K = A_packed.shape
    N = B.size(1)
    G = group_offsets.size(0) - 1
    out = torch.empty(total_m, N, dtype=torch.promote_types(A_packed.dtype, B.dtype), device=A_packed.device)
    for worker in hl.grid(workers):
        ends, row_ends = count_tiles(group_offsets, total_m, G, width, BLOCK_M)
        tiles_n = (N + BLOCK_N - 1) // BLOCK_N
        for tile in hl.grid(worker, torch.amax(row_ends) * tiles_n, workers):
            first, start, end = find_group(tile // tiles_n, ends, row_ends, total_m)
            # As ``kernels.common.tile_position``: strips of GROUP_M tile rows, column by column.
            inside = tile - first * tiles_n
            top = divide(inside, GROUP_M * tiles_n) * GROUP_M
            inside = inside - top * tiles_n
            height = torch.clamp(divide(end - start + BLOCK_M - 1, BLOCK_M) - top, 1, GROUP_M)
            tile_n = divide(inside, height)
            rows = start + (top + inside - tile_n * height) * BLOCK_M + hl.arange(BLOCK_M)
            cols = tile_n * BLOCK_N + hl.arange(BLOCK_N)
            acc = hl.zeros([BLOCK_M, BLOCK_N], dtype=torch.float32)
            for tile_k in hl.tile(K):
                block_a = hl.load(A_packed, [rows, tile_k.index], extra_mask=(rows < end)[:, None])
                block_b = hl.load(B, [tile_k.index, cols], extra_mask=(cols < N)[None, :])
                acc = hl.dot(block_a.to(out.dtype), block_b.to(out.dtype), acc=acc)
            hl.store(out, [rows, cols], acc.to(out.dtype), extra_mask=(rows < end)[:, None] & (cols < N)[None, :])
        last = torch.amax(ends)
        for tile in hl.grid(worker, divide(total_m - last + BLOCK_M - 1, BLOCK_M) * tiles_n, workers):
            rows = last + tile // tiles_n * BLOCK_M + hl.arange(BLOCK_M)
            cols = tile % tiles_n * BLOCK_N + hl.arange(BLOCK_N)
            zeros = hl.zeros([BLOCK_M, BLOCK_N], dtype=out.dtype)
            hl.store(out, [rows, cols], zeros, extra_mask=(rows < total_m)[:, None] & (cols < N)[None, :])
    return out


FUNCTIONS = {"simple": jagged, "persistent": jagged_persistent}


@functools.lru_cache(maxsize=256)
def _kernel(kernel: str, config: str | None, precision: str, index_dtype: torch.dtype):
    # Shapes are dynamic: a compiled kernel serves every number of rows.
    options = dict(static_shapes=False, dot_precision=precision, index_dtype=index_dtype)
    if config is not None:
        options["config"] = helion.Config.from_json(config)
    return helion.kernel(FUNCTIONS[kernel], **options)


def make_kernel(kernel: str, A_packed: Tensor, B: Tensor, config: dict | None = None) -> helion.Kernel:
    """The Helion kernel for operands like these.

    Args:
        kernel: "simple" or "persistent".
        config: of ``helion.Config``; None leaves the choice to Helion, whose ``autotune`` takes minutes.
    """
    dtype = torch.promote_types(A_packed.dtype, B.dtype)
    tf32 = dtype == torch.float32 and runtime.allows_tf32() and runtime.supports_tf32(A_packed.device)
    reach = max(_reach(A_packed), _reach(B), A_packed.shape[0] * B.shape[1])
    index_dtype = torch.int32 if reach < _INT32_REACH else torch.int64
    text = None if config is None else json.dumps(config, sort_keys=True)
    return _kernel(kernel, text, "tf32" if tf32 else "ieee", index_dtype)


def arguments(kernel: str, A_packed: Tensor, B: Tensor, group_offsets: Tensor) -> tuple:
    """What the Helion kernel is called with."""
    groups = group_offsets.shape[0] - 1
    width = max(2, 1 << (groups - 1).bit_length())
    operands = A_packed, B, group_offsets
    if kernel == "simple":
        return *operands, width
    return *operands, runtime.num_sms(A_packed.device) or _INTERPRETER_WORKERS, width


def bind(
    kernel: str, A_packed: Tensor, B: Tensor, group_offsets: Tensor, config: dict | None = None
) -> helion.runtime.kernel.BoundKernel:
    """The Helion kernel for operands like these; with ``config`` compiled down to Triton's language.

    The current GPU stays the current one: on a host of several, the first kernel that Helion makes in a process leaves
    the last GPU so (1.5.0), where a launch would not wait for operands of another.
    """
    function = make_kernel(kernel, A_packed, B, config)
    with keeping_current_gpu(torch.cuda.is_available()):
        bound = function.bind(arguments(kernel, A_packed, B, group_offsets))
        if config is not None:
            bound.set_config(function.configs[0])
            _bound.add(function)
    return bound


@widened_on_cpu
def multiply(kernel: str, A_packed: Tensor, B: Tensor, group_offsets: Tensor, config: dict | None = None) -> Tensor:
    """The product of checked operands with no extent of 0, as ``triton_kernels.multiply``.

    Args:
        kernel: "simple" or "persistent".
        config: of ``helion.Config``; None looks one up.

    Raises:
        RuntimeError: Helion's own interpreter is asked for, and the operands are on a CPU.
    """
    if not A_packed.is_cuda and os.environ.get("HELION_INTERPRET", "").strip().lower() not in _UNSET:
        raise RuntimeError(
            "implementation='helion' runs in Triton's interpreter on CPU tensors, and HELION_INTERPRET="
            f"{os.environ['HELION_INTERPRET']} asks for Helion's own, which multiplies on GPUs alone: unset it"
        )
    if config is None:
        (total_m, K), N, G = A_packed.shape, B.shape[1], group_offsets.shape[0] - 1
        dtype = torch.promote_types(A_packed.dtype, B.dtype)
        config = find_config(kernel, total_m, N, K, G, dtype, runtime.Device.of(A_packed.device).arch)
    function = make_kernel(kernel, A_packed, B, config)
    if function not in _bound:
        bind(kernel, A_packed, B, group_offsets, config)
    return function(*arguments(kernel, A_packed, B, group_offsets))


def _reach(matrix: Tensor) -> int:
    """Elements from a matrix's first to its last, by address."""
    return 1 + sum((size - 1) * stride for size, stride in zip(matrix.shape, matrix.stride()))
