"""The arguments of one launch of the masked kernel: what each operand is read through, the configuration, the grid.

Decides all that is fixed at compile time, and runs nothing: ``codegen`` compiles what it says, too.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from course_kernels.config import GemmConfig
from course_kernels.engine.access import Access, load_access, ragged_access
from course_kernels.engine.tuning import Extents, Gpu, Kind, choose
from course_kernels.kernels.codes import Layout, Scales
from course_kernels.masked.problem import SCALED, Operands, Problem, flat_rows
from course_kernels.masked.shuffle import PACK_BYTES
from course_kernels.runtime import Device

_INTERPRETER_PROGRAMS = 4


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


def _resolve_config(
    problem: Problem, dtype: torch.dtype, out_dtype: torch.dtype, accesses, device: Device
) -> GemmConfig:
    """The given configuration, or the one that ``tuning.choose`` has."""
    blocks = problem.scales == Scales.BLOCKS
    sizes = (dtype.itemsize, out_dtype.itemsize)
    limits = dict(capability=device.capability, shared_limit=device.shared_limit, uses_tma=accesses[-1].has_descriptor)
    config = problem.options.config
    if config is not None:
        reason = config.valid_for("masked", *sizes, **limits)
        if reason is None and blocks and config.block_k > SCALED:
            reason = f"block scales: block_k must divide {SCALED}, the depth of a scale, and is {config.block_k}"
        if reason:
            raise ValueError(f"config does not suit {reason}; got {config}")
        return config
    kind = Kind("masked", "n" if accesses[1].kind == Layout.COL_MAJOR else "k", problem.dtype.itemsize, problem.scales)
    return choose(
        kind, Extents(problem.rows, problem.N, problem.K, problem.G), Gpu.of(device),
        uses_tma=all(access.has_descriptor for access in accesses), stores_tma=accesses[-1].has_descriptor,
        out_bytes=out_dtype.itemsize,
    ).config  # fmt: skip
