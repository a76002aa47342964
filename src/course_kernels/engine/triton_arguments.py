"""The arguments of one Triton launch: descriptors or pointers of the operands, the configuration, the grid.

This module decides everything that is fixed at compile time, and launches nothing. ``codegen`` compiles from it, too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from course_kernels.config import GemmConfig, LaunchOptions
from course_kernels.engine import low_rank
from course_kernels.engine.descriptors import Access, batch_access, flat_rows, load_access, ragged_access
from course_kernels.engine.product import Epilogue, Gated, Problem, Product
from course_kernels.engine.scale_blocks import blocks_restart
from course_kernels.engine.scaling import BLOCK, Blocks, Lines, is_outer
from course_kernels.engine.tuning import Extents, Gpu, Kind, choose, log_choice
from course_kernels.engine.tuning.fallback_rules import FEW_GATHERED
from course_kernels.kernels.codes import FunctionName, Layout, Scales, Schedule, compared_groups
from course_kernels.runtime import Device

INTERPRETER_PROGRAMS = 4


class Prepared(NamedTuple):
    """A kernel with everything that one launch gives it.

    Attributes:
        kernel: its name.
        programs: function from the ragged extent's total to the number of programs.
        arguments: the kernel's arguments by name.
        options: compiler options.
        totals: names of arguments that hold the total: None for the number itself, else the descriptor axis it bounds.
    """

    kernel: str
    programs: Callable[[int], int]
    arguments: dict[str, Any]
    options: dict[str, int]
    totals: dict[str, int | None]


def prepare(problem: Problem, product: Product, out: Tensor, device: Device) -> Prepared:
    """Prepare the launch for operands of a problem, on a device that may differ from the tensors' device.

    Raises:
        ValueError: the configuration does not fit the kernel or the GPU's shared memory.
    """
    return {"k": _transposed, "masked": _masked}.get(problem.mode, _contiguous)(problem, product, out, device)


def _contiguous(problem: Problem, product: Product, out: Tensor, device: Device) -> Prepared:
    """Prepare modes "m", "n" (as "m" of the transposed operands) and "batch"."""
    mat_a, mat_b, offs, bias = product.a, product.b, product.offs, product.epilogue.bias
    scale_a, scale_b = product.scaling.a, product.scaling.b
    if problem.mode == "n":
        mat_a, mat_b, out, scale_a, scale_b = mat_b.mT, mat_a.mT, out.mT, scale_b, scale_a
    ragged = problem.mode != "batch"
    groups, depth, columns = mat_b.shape
    epilogue, index = product.epilogue, product.index
    rows = mat_a.shape[1] if not ragged else mat_a.shape[0] if index is None else index.shape[0]
    uses_tma = device.uses_tma
    shared_b = groups > 1 and mat_b.stride(0) == 0
    gated = type(epilogue) is Gated and epilogue.activation.gated
    a = load_access(mat_a, uses_tma and index is None)
    b = load_access((mat_b[:1] if shared_b else mat_b).mT, uses_tma and not gated)
    # A descriptor's innermost coordinate is a multiple of 16 bytes: the hardware traps otherwise.
    row_step = 16 // mat_a.element_size() if ragged and a.kind == Layout.COL_MAJOR else 1
    if ragged:
        c = ragged_access(out, uses_tma and row_step == 1 and epilogue.activation is None, stored=True)
    else:
        c = batch_access(out, uses_tma)
    kind = _kind(problem, "m" if ragged else "batch", "k" if mat_b.stride(-2) == 1 else "n", mat_a)
    extents = Extents(_average(problem, groups) if ragged else rows, columns, depth, groups)
    rank_block = epilogue.low_rank.block if epilogue.low_rank else 0
    config = _resolve_config(problem, kind, extents, out, (a, b, c), device, rank_block)
    if problem.options.config is None and epilogue.activation is not None:
        config = _for_few_rows(config, kind, extents, out, device, rank_block)
    block_m, block_n, block_k = config.block
    blocks = _block_scales(problem, scale_a, scale_b, ("g", "m", "k"), ("g", "n", "k"))
    counter = None
    if config.schedule == "dynamic":
        counter = torch.zeros(1, dtype=torch.int32, device=mat_a.device)
    arguments = dict(
        a=_block(a, mat_a, block_m, block_k),
        b=_block(b, mat_b, block_n, block_k),
        c_desc=c.descriptor(out, (block_m, block_n // config.store_parts)),
        c_ptr=out, offs_ptr=offs, bias_ptr=bias, scale_a_ptr=scale_a, scale_b_ptr=scale_b, counter_ptr=counter,
        total=rows, M=0 if ragged else rows, N=columns, K=depth, G=groups,
        **_strides("a", ("g", "m", "k"), mat_a), **_strides("b", ("g", "k", "n"), mat_b),
        **_strides("c", ("g", "m", "n"), out), **_side_strides(bias, scale_b), **blocks,
        index_ptr=index, **epilogue.sides(), **low_rank.arguments(epilogue.low_rank),
        LOAD_A=product.rows.load, LOAD_B=FunctionName("load_pair" if gated else "load_columns"),
        EPILOGUE=epilogue.function, ACTIVATION=_activation(epilogue),
        A_KIND=a.kind, B_KIND=b.kind, C_KIND=c.kind, RAGGED=ragged, SHARED_B=shared_b, ROW_STEP=row_step,
        ZERO_TAIL=ragged and not problem.keep_tail,
        GROUPS=compared_groups(groups) if ragged else 2,
        BLOCK_M=block_m, BLOCK_N=block_n, BLOCK_K=block_k, GROUP_M=config.group_m, STORE_PARTS=config.store_parts,
        SCHEDULE=int(Schedule.DYNAMIC if counter is not None else Schedule.ROUND_ROBIN), PRECISION=problem.precision,
        NUM_XCDS=config.num_xcds,
    )  # fmt: skip

    num_sms = problem.options.num_sms

    def programs(total):
        # The groups' sizes are on the device, so this is an upper bound of the tiles.
        if ragged:
            return _programs(config, config.tiles(total, columns) + groups * -(-columns // block_n), device, num_sms)
        return _programs(config, groups * config.tiles(rows, columns), device, num_sms)

    totals = {"total": None} if ragged else {}
    if ragged and problem.block_lines is not None and is_outer(scale_a):
        totals["stride_sa_k"] = None
    if ragged and a.has_descriptor:
        totals["a"] = 0 if a.kind == Layout.ROW_MAJOR else 1
    return Prepared("contiguous", programs, arguments, _options(config, device), totals)


def _for_few_rows(
    config: GemmConfig, kind: Kind, extents: Extents, out: Tensor, device: Device, rank_block: int
) -> GemmConfig:
    """The configuration for a product with an activation: another one if its groups have few rows."""
    if kind.element_bytes != 2 or extents.M > FEW_GATHERED.block_m or device.num_sms is None:
        return config
    limits = dict(
        capability=device.capability, shared_limit=device.shared_limit, uses_tma=False,
        rank_block=rank_block,
    )  # fmt: skip
    return FEW_GATHERED.fitted(kind.kernel, kind.element_bytes, out.element_size(), **limits) or config


def _activation(epilogue: Epilogue) -> tuple | None:
    """The kernel's constant for an epilogue's activation; None without one."""
    if epilogue.activation is None:
        return None
    function, gated, *numbers = epilogue.activation
    return gated, 1 + epilogue.interleaved, int(function), *numbers


def _transposed(problem: Problem, product: Product, out: Tensor, device: Device) -> Prepared:
    """Prepare mode "k"."""
    mat_a, mat_b, offs, bias = product.a, product.b, product.offs, product.epilogue.bias
    scale_a, scale_b = product.scaling.a, product.scaling.b
    (rows, total), columns, groups = mat_a.shape, mat_b.shape[1], out.shape[0]
    uses_tma, accumulate = device.uses_tma, problem.accumulate
    a, b = ragged_access(mat_a.mT, uses_tma), ragged_access(mat_b, uses_tma)
    # The hardware adds to float32; with other dtypes it would round twice. The interpreter cannot add.
    adds = out.dtype == torch.float32 and device.num_sms is not None
    c = batch_access(out, uses_tma and (adds or not accumulate))
    kind = _kind(problem, "k", "k" if mat_a.element_size() == 1 else "n", mat_a)
    extents = Extents(rows, columns, _average(problem, groups), groups)
    config = _resolve_config(problem, kind, extents, out, (a, b, c), device)
    block_m, block_n, block_k = config.block
    blocks = _block_scales(problem, scale_a, scale_b, ("m", "k"), ("n", "k"))
    del blocks["B_LINES"]  # in mode "k" A_LINES serves both
    tiles = groups * config.tiles(rows, columns)
    programs = _programs(config, tiles, device, problem.options.num_sms)
    arguments = dict(
        a=a.descriptor(mat_a, (block_k, block_m)) or mat_a,
        b=b.descriptor(mat_b, (block_k, block_n)) or mat_b,
        c_desc=c.descriptor(out, (block_m, block_n // config.store_parts)),
        c_ptr=out, offs_ptr=offs, bias_ptr=bias, scale_a_ptr=scale_a, scale_b_ptr=scale_b,
        total=total, M=rows, N=columns, G=groups,
        stride_am=mat_a.stride(0), stride_ak=mat_a.stride(1), stride_bk=mat_b.stride(0), stride_bn=mat_b.stride(1),
        **_strides("c", ("g", "m", "n"), out), **_side_strides(bias, scale_b), **blocks,
        A_KIND=a.kind, B_KIND=b.kind, C_KIND=c.kind,
        RESTART=problem.block_lines is not None and blocks_restart(scale_a, total, groups),
        BLOCK_M=block_m, BLOCK_N=block_n, BLOCK_K=block_k, GROUP_M=config.group_m, STORE_PARTS=config.store_parts,
        PRECISION=problem.precision, SPAN=1 if programs >= tiles else 64, NUM_XCDS=config.num_xcds,
        ACCUMULATE=accumulate,
    )  # fmt: skip
    return Prepared("transposed", lambda total: programs, arguments, _options(config, device), {"total": None})


def _masked(problem: Problem, product: Product, out: Tensor, device: Device) -> Prepared:
    """Prepare counted rows, mode "masked"."""
    a, b, scaling = product.a, product.b.mT, product.scaling
    reads_a = load_access(a, device.uses_tma)
    reads_b = load_access(b, device.uses_tma and not problem.pack)
    rows = flat_rows(out)
    writes = ragged_access(rows if rows is not None else out, device.uses_tma and rows is not None, stored=True)
    kind = _kind(problem, "masked", "n" if reads_b.kind == Layout.COL_MAJOR else "k", a)
    extents = Extents(problem.rows_per_group, problem.N, problem.K, problem.G)
    config = _resolve_config(problem, kind, extents, out, (reads_a, reads_b, writes), device)
    block_m, block_n, block_k = config.block
    scale_a, scale_b = (None, None) if scaling.a is None else _grouped_factors(scaling)
    arguments = dict(
        a=_block(reads_a, a, block_m, block_k),
        b=_block(reads_b, b, block_n, block_k),
        c_desc=writes.descriptor(out, (block_m, block_n // config.store_parts)), c_ptr=out, sizes_ptr=product.offs,
        scale_a_ptr=scaling.a, scale_b_ptr=scaling.b, max_M=problem.M, N=problem.N, K=problem.K, G=problem.G,
        **_strides("a", ("g", "m", "k"), a), **_strides("b", ("g", "n", "k"), b), **_strides("c", ("g", "m", "n"), out),
        **_factor_strides("sa_", "gmk", scale_a), **_factor_strides("sb_", "gnk", scale_b),
        A_KIND=reads_a.kind, B_KIND=reads_b.kind, C_KIND=writes.kind,
        PACK=problem.pack,
        SCALES=int({Lines: Scales.LINES, Blocks: Scales.BLOCKS}.get(type(scaling), Scales.NONE)),
        GROUPS=compared_groups(problem.G),
        BLOCK_M=block_m, BLOCK_N=block_n, BLOCK_K=block_k, GROUP_M=config.group_m, STORE_PARTS=config.store_parts,
    )  # fmt: skip
    programs = _programs(config, problem.G * config.tiles(problem.M, problem.N), device, problem.options.num_sms)
    return Prepared("masked", lambda total: programs, arguments, _options(config, device), {})


def _grouped_factors(scaling: Lines | Blocks) -> tuple[Tensor, Tensor]:
    """Factors of counted rows, each (G, lines, blocks of K)."""
    if isinstance(scaling, Lines):
        return scaling.a[:, :, None], scaling.b[:, :, None]
    return scaling.a, scaling.b.mT


def _factor_strides(name: str, dims: str, factors: Tensor | None) -> dict[str, int]:
    """Stride arguments of factors (G, lines, blocks): 0 along an extent of 1, and 0 without factors."""
    strides = (0, 0, 0) if factors is None else factors.stride()
    extents = (1, 1, 1) if factors is None else factors.shape
    return {f"stride_{name}{dim}": stride * (extent > 1) for dim, stride, extent in zip(dims, strides, extents)}


def _block(access: Access, tensor: Tensor, lines: int, depth: int):
    """The argument for an operand that ``load_block`` reads: a descriptor of its blocks, or the tensor."""
    block = (lines, depth) if access.kind == Layout.ROW_MAJOR else (depth, lines)
    return access.descriptor(tensor, block) or tensor


def _strides(name: str, dims: tuple[str, str, str], tensor: Tensor) -> dict[str, int]:
    """Stride arguments of a tensor of two or three dimensions; a missing group has stride 0."""
    strides = (0, *tensor.stride())[-3:]
    return {f"stride_{name}{dim}": stride for dim, stride in zip(dims, strides)}


def _side_strides(bias, scale_b) -> dict[str, int]:
    return dict(
        stride_bias_g=0 if bias is None else bias.stride(0),
        stride_bias_n=0 if bias is None else bias.stride(1),
        stride_scale_g=0 if scale_b is None else scale_b.stride(0),
    )


def _block_scales(problem: Problem, scale_a, scale_b, dims_a, dims_b) -> dict[str, int | None]:
    """Lines of the kernel's A and B that share a factor, and the factors' strides. For other scales 0 lines and strides
    of None, so the compiler leaves them out."""
    if problem.block_lines is None:
        names = [f"stride_s{name}_{dim}" for name, dims in (("a", dims_a), ("b", dims_b)) for dim in dims]
        return dict.fromkeys(names) | dict(A_LINES=0, B_LINES=0)
    lines = problem.block_lines[:: -1 if problem.mode == "n" else 1]
    if problem.mode != "n" and lines[1] == BLOCK:
        scale_b = scale_b.mT  # stored like B, with K before N
    found = dict(A_LINES=lines[0], B_LINES=lines[1])
    for name, dims, scale in (("a", dims_a, scale_a), ("b", dims_b, scale_b)):
        strides = (0, *scale.stride())[-len(dims) :]
        found |= {f"stride_s{name}_{dim}": stride for dim, stride in zip(dims, strides)}
    return found


def _options(config: GemmConfig, device: Device) -> dict[str, int]:
    options = dict(num_warps=config.num_warps, num_stages=config.num_stages)
    return options | config.amd_options if isinstance(device.arch, str) else options  # names are AMD's


def _programs(config: GemmConfig, max_tiles: int, device: Device, num_sms: int | None) -> int:
    if max_tiles >= 2**31:  # kernels count tiles in 32 bits
        raise ValueError(
            f"the product may have {max_tiles} tiles of {config.block}, more than one launch can count (2**31)"
        )
    programs = config.programs
    if programs is None:
        programs = INTERPRETER_PROGRAMS if device.num_sms is None else device.num_sms * config.programs_per_sm
    if _leaves_sms(num_sms, device):
        programs = min(programs, num_sms)  # an idle SM gets a program before any gets its second
    return max(1, min(programs, max_tiles))


def _leaves_sms(num_sms: int | None, device: Device) -> bool:
    """Whether some SMs must stay idle."""
    return num_sms is not None and (device.num_sms is None or num_sms < device.num_sms)


def _kind(problem: Problem, along: str, b_major: str, mat_a: Tensor) -> Kind:
    """The kind of product that the kernel computes."""
    size = mat_a.element_size()
    scaling = Scales.BLOCKS if problem.block_lines is not None else Scales.LINES if size == 1 else Scales.NONE
    return Kind(along, b_major, size, scaling, problem.precision)


def _average(problem: Problem, groups: int) -> float:
    """The average group's ragged extent, from the rounded total: similar totals must get the same configuration."""
    return round(problem.rows_per_group * groups) / max(1, groups)


def _resolve_config(
    problem: Problem, kind: Kind, extents: Extents, out: Tensor, accesses, device: Device, rank_block: int = 0
) -> GemmConfig:
    """The given configuration, or that of ``tuning.choose``, changed by the launch options."""
    sizes = kind.element_bytes, out.element_size()
    limits = dict(
        capability=device.capability, shared_limit=device.shared_limit, uses_tma=accesses[-1].has_descriptor,
        accumulate=problem.accumulate, rank_block=rank_block,
    )  # fmt: skip
    config, wanted = problem.options.config, None
    if isinstance(config, LaunchOptions):
        config, wanted = None, config
    if config is not None:
        if reason := config.valid_for(kind.kernel, *sizes, **limits):
            raise ValueError(f"config does not suit {reason}; got {config}")
        if problem.block_lines is not None and BLOCK % config.block_k:
            raise ValueError(
                f"config does not suit block scales, whose blocks are {BLOCK} deep: block_k is {config.block_k}; "
                f"got {config}"
            )
        log_choice(problem, "triton", config, None, "as given")
        return config
    chosen = choose(
        kind, extents, Gpu.of(device),
        uses_tma=all(access.has_descriptor for access in accesses), stores_tma=accesses[-1].has_descriptor,
        out_bytes=out.element_size(), accumulate=problem.accumulate, rank_block=rank_block,
        programs=wanted and wanted.programs, alone=_leaves_sms(problem.options.num_sms, device),
    )  # fmt: skip
    launched = chosen.config if wanted is None else wanted.applied(chosen.config)
    if wanted is not None and (reason := launched.valid_for(kind.kernel, *sizes, **limits)):
        raise ValueError(f"config does not suit {reason}; got {wanted}")
    log_choice(problem, "triton", launched, chosen.us, chosen.why)
    return launched
