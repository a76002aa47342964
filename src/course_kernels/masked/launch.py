"""The Triton kernel's launches: every masked product, on every GPU that Triton compiles for, and in its interpreter.

As in ``packed.backends.triton``, a plan holds what depends on shapes, strides, dtypes and alignment alone. Running it
fills in addresses and launches, and reads nothing on the device: a launch can be in a CUDA graph, and each replay
computes the rows that count then.
"""

from __future__ import annotations

import threading
from typing import Any, NamedTuple

import torch
from torch import Tensor

from course_kernels import runtime
from course_kernels.config import GemmConfig
from course_kernels.dtypes import FP8, FP8_FNUZ
from course_kernels.kernels.codes import Layout, Scales
from course_kernels.kernels.masked import masked_kernel
from course_kernels.masked.problem import FP8_DTYPES, SCALED, Operands, Problem, flat_rows
from course_kernels.masked.shuffle import PACK_BYTES
from course_kernels.packed.backends.descriptors import Access, load_access, ragged_access
from course_kernels.packed.backends.relaunch import Address, Relaunch
from course_kernels.packed.tuning.lookup import get_config
from course_kernels.runtime import Device

_INTERPRETER_PROGRAMS = 4
# Arguments that are addresses, by their place among the operands.
_SOURCES = {"x": 0, "w": 1, "y_desc": 2, "y_ptr": 2, "sizes_ptr": 3, "x_scale_ptr": 4, "w_scale_ptr": 5}


class Prepared(NamedTuple):
    """What one launch gives the kernel.

    Attributes:
        programs: of the launch.
        arguments: by name.
        options: of its compilation.
    """

    programs: int
    arguments: dict[str, Any]
    options: dict[str, int]


def prepare(problem: Problem, operands: Operands, device: Device) -> Prepared:
    """The launch for operands of a problem, on a device that need not be where the tensors are.

    Raises:
        ValueError: the configuration does not fit the kernel or the GPU's shared memory.
    """
    x, w, y, sizes, x_scale, w_scale = operands
    shuffled = problem.options.shuffled
    reads_x = load_access(x, device.uses_tma)
    reads_w = load_access(w, device.uses_tma and not shuffled)
    rows = flat_rows(y)
    writes = ragged_access(rows if rows is not None else y, device.uses_tma and rows is not None, stored=True)
    config = _resolve_config(problem, x.dtype, y.dtype, (reads_x, reads_w, writes), device)
    block_m, block_n, block_k = config.block
    arguments = dict(
        x=_block(reads_x, x, block_m, block_k),
        w=_block(reads_w, w, block_n, block_k),
        y_desc=writes.descriptor(y, (block_m, block_n // config.store_parts)), y_ptr=y, sizes_ptr=sizes,
        x_scale_ptr=x_scale, w_scale_ptr=w_scale, max_M=problem.max_M, N=problem.N, K=problem.K, G=problem.G,
        **_strides("x", "gmk", x), **_strides("w", "gnk", w), **_strides("y", "gmn", y),
        **_strides("xs", "gmk", x_scale), **_strides("ws", "gnk", w_scale),
        X_KIND=reads_x.kind, W_KIND=reads_w.kind, Y_KIND=writes.kind,
        PACK=PACK_BYTES // problem.dtype.itemsize if shuffled else 0,
        SCALES=int(problem.scales), GROUPS=max(2, 1 << (problem.G - 1).bit_length()),
        BLOCK_M=block_m, BLOCK_N=block_n, BLOCK_K=block_k, GROUP_M=config.group_m, STORE_PARTS=config.store_parts,
    )  # fmt: skip
    programs = _INTERPRETER_PROGRAMS if device.num_sms is None else device.num_sms * config.programs_per_sm
    programs = max(1, min(programs, problem.G * config.tiles(problem.max_M, problem.N)))
    return Prepared(programs, arguments, dict(num_warps=config.num_warps, num_stages=config.num_stages))


def plan(problem: Problem, operands: Operands) -> Plan | InterpretedPlan | EmptyPlan:
    """The launch for products like this one.

    Raises:
        ValueError: as ``prepare``.
        RuntimeError: the process cannot run kernels.
    """
    runtime.check_can_launch(operands.XQ.device)
    if not operands.Y.numel() or not problem.K:
        return EmptyPlan()
    return (Plan if operands.Y.is_cuda else InterpretedPlan)(problem)


class InterpretedPlan:
    """A launch in Triton's interpreter."""

    def __init__(self, problem: Problem):
        self._problem = problem

    def run(self, operands: Operands) -> None:
        """Interpret the kernel, on float32 copies of what the interpreter cannot multiply: it takes the bits of
        bfloat16 for integers, and does not know gfx942's float8."""

        def wide(tensor):
            copied = tensor is not None and tensor.dtype in (torch.bfloat16, FP8_FNUZ)
            return tensor.float() if copied else tensor

        copies = Operands(*map(wide, operands))
        programs, arguments, options = prepare(self._problem, copies, Device.of(operands.Y.device))
        masked_kernel[(programs,)](**arguments, **options)
        if copies.Y is not operands.Y:
            # Rows that do not count keep their bits: a conversion there and back may change those of a NaN.
            counts = rows_that_count(operands)
            operands.Y.copy_(torch.where(counts, copies.Y.to(operands.Y.dtype), operands.Y))


class Plan:
    """Everything about a launch on a GPU but its addresses."""

    def __init__(self, problem: Problem):
        self._problem, self._programs = problem, 0
        self._lock = threading.Lock()
        self._relaunch: Relaunch | None = None

    def run(self, operands: Operands) -> None:
        """Launch on the current stream. The tensors' device is the current one."""
        with self._lock:  # the plan's descriptors are filled in and read in one go
            if self._relaunch is None:
                self._compile(operands)
                return
            addresses = [None if tensor is None else tensor.data_ptr() for tensor in operands]
            stream = torch._C._cuda_getCurrentRawStream(operands.Y.device.index)
            self._relaunch(addresses, stream, self._programs, 0)

    def _compile(self, operands: Operands) -> None:
        """Launch through Triton's own path, which compiles, and keep what it made."""
        self._programs, arguments, options = prepare(self._problem, operands, Device.of(operands.Y.device))
        compiled = masked_kernel[(self._programs,)](**arguments, **options)
        values, sources = [arguments[name] for name in masked_kernel.arg_names], {}
        for position, (name, value) in enumerate(zip(masked_kernel.arg_names, values)):
            if name in _SOURCES and value is not None:
                sources[position] = _SOURCES[name]
                if isinstance(value, Tensor):  # which would keep its memory
                    values[position] = 0
                else:
                    value.base = Address(value.base.dtype)
        self._relaunch = Relaunch(compiled, self._programs, values, sources, {})


class EmptyPlan:
    """Products over no K, of no groups, or without elements."""

    def run(self, operands: Operands) -> None:
        """Write zeros to the rows that count."""
        if operands.Y.numel():
            operands.Y.masked_fill_(rows_that_count(operands), 0)


def rows_that_count(operands: Operands) -> Tensor:
    """(G, max_M, 1): whether a row counts. Does not wait for the device."""
    y, sizes = operands.Y, operands.group_layout
    return (torch.arange(y.shape[1], device=y.device) < sizes[:, None])[:, :, None]


def _block(access: Access, tensor: Tensor, lines: int, depth: int):
    """The argument for an operand that ``load_block`` reads: a descriptor of its blocks, or the tensor."""
    block = (lines, depth) if access.kind == Layout.ROW_MAJOR else (depth, lines)
    return access.descriptor(tensor, block) or tensor


def _strides(name: str, dims: str, tensor: Tensor | None) -> dict[str, int]:
    """Stride arguments of a tensor of three dimensions, 0 along an extent of 1: a factor that serves a whole group
    serves every line."""
    strides = (0, 0, 0) if tensor is None else tensor.stride()
    extents = (1, 1, 1) if tensor is None else tensor.shape
    return {
        f"stride_{name}{dim}": 0 if extent == 1 and name in ("xs", "ws") else stride
        for dim, stride, extent in zip(dims, strides, extents)
    }


def _resolve_config(problem: Problem, dtype, out_dtype, accesses, device: Device) -> GemmConfig:
    """The given configuration, or the tuned one with as many stages as the GPU's shared memory holds."""
    blocks = problem.scales == Scales.BLOCKS
    sizes = (dtype.itemsize, out_dtype.itemsize)
    limits = dict(capability=device.capability, shared_limit=device.shared_limit, uses_tma=accesses[-1].has_descriptor)
    config = problem.options.config
    if config is not None:
        reason = config.valid_for("masked", *sizes, **limits)
        if reason is None and blocks and config.block_k > SCALED:
            reason = f"block scales, of which one is for {SCALED} of K: block_k is {config.block_k}"
        if reason:
            raise ValueError(f"config does not suit {reason}; got {config}")
        return config
    chosen = get_config(
        "masked_block" if blocks else "masked",
        problem.rows, problem.K, problem.N, problem.G,
        dtype=FP8 if problem.dtype in FP8_DTYPES else dtype,
        arch=device.arch,
        uses_tma=all(access.has_descriptor for access in accesses),
    )  # fmt: skip
    fitted = chosen.fitted("masked", *sizes, **limits)
    if fitted is None:
        raise ValueError(f"no configuration suits this GPU: {chosen.valid_for('masked', *sizes, **limits)}")
    return fitted
