"""From checked operands of a grouped product to one kernel launch.

What depends on shapes, strides, types and alignment alone is prepared once and kept: which operand a descriptor can
describe, the configuration, the compiled kernel, the argument list. A call then fills in addresses and launches. It
reads nothing on the device and allocates nothing. The total over the groups changes from batch to batch: it is filled
in like an address, and only its bucket decides what is prepared.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from course_kernels import runtime
from course_kernels.config import GemmConfig
from course_kernels.layout.group_layout import GroupLayout
from course_kernels.packed.backends import triton_descriptors as operands
from course_kernels.packed.backends.triton_relaunch import Address, Relaunch
from course_kernels.packed.problem import MODES
from course_kernels.packed.tuning.defaults import Bucket
from course_kernels.packed.tuning.lookup import get_config, kernel_of
from course_kernels.runtime import Device

# Tensors of a launch (mat_a, mat_b, offs, out, bias, scale_a, scale_b) that have the ragged extent, and its axis.
_RAGGED = {"m": {0: 0, 3: 0, 5: 0}, "n": {1: 1, 3: 1, 6: 0}, "k": {0: 1, 1: 0}, "batch": {}}
_INTERPRETER_PROGRAMS = 4
_MAX_PLANS = 4096
_plans: dict[tuple, Plan] = {}


def multiply(
    mat_a: torch.Tensor,
    mat_b: torch.Tensor,
    offs: torch.Tensor | None,
    out: torch.Tensor,
    *,
    bias: torch.Tensor | None = None,
    scale_a: torch.Tensor | None = None,
    scale_b: torch.Tensor | None = None,
    keep_tail: bool = False,
    config: GemmConfig | None = None,
) -> Plan | None:
    """Write the grouped product of checked operands to ``out``; ``grouped_mm`` says what they are.

    Args:
        mat_a, mat_b, offs, bias: as for ``grouped_mm``; the ranks of the matrices tell the mode.
        out: the result, every element of which is written, zeros to the tail.
        scale_a: float32, one factor for each row of A: (total_m,), (G, M); contiguous. Both scales or none.
        scale_b: float32, one factor for each column of B: (total_n,), (G, N); contiguous.
        keep_tail: leave what lies behind the last group in ``out`` as it is.
        config: instead of ``get_config``'s.

    Returns:
        The launch, which can be run again on tensors of the same form; None where there was nothing to do.

    Raises:
        ValueError: ``config`` does not fit the kernel or the GPU's shared memory.
        RuntimeError: the process cannot run kernels.
    """
    if not out.numel():
        return None
    tensors = (mat_a, mat_b, offs, out, bias, scale_a, scale_b)
    index = mat_a.device.index
    tf32 = mat_a.dtype == torch.float32 and runtime.allows_tf32()
    key = (_form(tensors), keep_tail, config, index, tf32)
    plan = _plans.get(key)
    if plan is None:
        runtime.check_can_launch(mat_a.device)
        if len(_plans) >= _MAX_PLANS:
            del _plans[next(iter(_plans))]  # the oldest
        plan = Plan(tensors, keep_tail, config, precision="tf32" if tf32 else "ieee")
        _plans[key] = plan
    if index is None or index == torch.cuda.current_device():
        plan.run(tensors)
    else:
        with torch.cuda.device(index):
            plan.run(tensors)
    return plan


def _form(tensors: tuple) -> tuple:
    """What a launch is prepared for: all that decides about it but addresses, and of the total no more than matters."""
    mat_a, mat_b = tensors[:2]
    mode = MODES[mat_a.dim(), mat_b.dim()]
    axes = _RAGGED[mode]
    form = []
    for i, tensor in enumerate(tensors):
        if tensor is None:
            form.append(None)
            continue
        shape = tensor.shape
        if (axis := axes.get(i)) is not None:
            shape = shape[:axis] + shape[axis + 1 :]
        form.append((shape, tensor.stride(), tensor.dtype, tensor.data_ptr() & 15))
    if mode == "batch":
        return tuple(form)
    groups, depth = tensors[2].shape[0], mat_a.shape[-1]
    rows, columns = mat_a.shape[-2], mat_b.shape[-1]
    total = {"m": rows, "n": columns, "k": depth}[mode]
    if total < 2 or total > operands.WINDOW_ROWS:  # strides without a meaning; extents that no window has
        return (*form, total)
    if mode == "n":
        rows, columns = columns, rows
    return (*form, Bucket.of("grouped_mm_k" if mode == "k" else "grouped_mm", rows, depth, columns, groups))


class Prepared(NamedTuple):
    """A kernel with everything that one launch gives it.

    Attributes:
        kernel: its name.
        programs: of the launch, by the ragged extent's total.
        arguments: by name.
        options: of its compilation.
        totals: of the arguments that hold the total: None for the number, an axis for a descriptor that it bounds.
    """

    kernel: str
    programs: Callable[[int], int]
    arguments: dict[str, Any]
    options: dict[str, int]
    totals: dict[str, int | None]


def prepare(tensors: tuple, *, keep_tail: bool, config: GemmConfig | None, precision: str, device: Device) -> Prepared:
    """The launch for operands of a product, which decides all that is fixed at compile time. Runs nothing.

    Args:
        tensors: mat_a, mat_b, offs, out, bias, scale_a, scale_b, as for ``multiply``.
        keep_tail, config: as for ``multiply``.
        precision: "ieee" or "tf32".
        device: that the launch is for; the tensors may be elsewhere.
    """
    mode = MODES[tensors[0].dim(), tensors[1].dim()]
    if mode == "k":
        return _transposed_launch(tensors, config, precision, device)
    return _contiguous_launch(tensors, mode, keep_tail, config, precision, device)


class Plan:
    """Everything about a launch but its addresses."""

    def __init__(self, tensors, keep_tail: bool, config: GemmConfig | None, precision: str):
        mat_a, mat_b, offs, out = tensors[:4]
        self._lock = threading.Lock()
        self._relaunch = None
        mode = MODES[mat_a.dim(), mat_b.dim()]
        # Which operand the kernel calls a: a ragged N is computed as a ragged M of the transposed operands.
        self._source_a = int(mode == "n")
        self.mode, self.keep_tail, self.config, self.precision = mode, keep_tail, config, precision
        groups = out.shape[0] if mode in ("k", "batch") else offs.shape[0]
        depth = mat_b.shape[-2]
        self.without_product = (not groups or not depth) and mode != "k"
        self._axis = next(iter(_RAGGED[mode].items()), None)
        self.device = mat_a.device

    def here(self) -> bool:
        """Whether the plan's device is the current one, as ``run`` wants it."""
        return self.device.index is None or self.device.index == torch.cuda.current_device()

    def run(self, tensors) -> None:
        """Launch on these tensors, which are alike to those that the plan was made for."""
        if self.without_product:
            return _write_without_product(self.mode, self.keep_tail, *tensors[2:5])
        if self.device.type != "cuda":
            return self._interpret(tensors)
        with self._lock:  # the plan's descriptors are filled in and read in one go
            if self._relaunch is None:
                self._compile(tensors)
                return None
            addresses = [None if t is None else t.data_ptr() for t in tensors]
            if self._needs_counter:
                counter = torch.zeros(1, dtype=torch.int32, device=self.device)
                addresses.append(counter.data_ptr())
            total = self._total(tensors)
            stream = torch._C._cuda_getCurrentRawStream(self.device.index)
            self._relaunch(addresses, stream, self._programs(total), total)
        return None

    def _total(self, tensors) -> int:
        """The ragged extent; 0 in mode "batch"."""
        return tensors[self._axis[0]].shape[self._axis[1]] if self._axis else 0

    def _compile(self, tensors) -> None:
        """Launch through Triton's own path, which compiles, and keep what it made."""
        kernel, self._programs, arguments, options, totals = self._build(tensors)
        programs = self._programs(self._total(tensors))
        compiled = kernel[(programs,)](**arguments, **options)
        index = {"a": self._source_a, "b": 1 - self._source_a, "c_desc": 3, "c_ptr": 3, "offs_ptr": 2, "bias_ptr": 4}
        index |= {"scale_a_ptr": 5 + self._source_a, "scale_b_ptr": 6 - self._source_a, "counter_ptr": len(tensors)}
        values = [arguments[name] for name in kernel.arg_names]
        sources = {}
        for position, (name, value) in enumerate(zip(kernel.arg_names, values)):
            if name in index and value is not None:
                sources[position] = index[name]
                if isinstance(value, torch.Tensor):  # which would keep its memory
                    values[position] = 0
                else:
                    value.base = Address(value.base.dtype)
        self._needs_counter = arguments.get("counter_ptr") is not None
        totals = {kernel.arg_names.index(name): axis for name, axis in totals.items()}
        self._relaunch = Relaunch(compiled, programs, values, sources, totals)

    def _interpret(self, tensors) -> None:
        """Triton's interpreter multiplies bfloat16 bit patterns as if they were integers: float32 copies stand in."""

        def wide(tensor):
            return tensor.float() if tensor is not None and tensor.dtype == torch.bfloat16 else tensor

        copies = [wide(tensor) for tensor in tensors]
        kernel, programs, arguments, options, _ = self._build(copies)
        kernel[(programs(self._total(copies)),)](**arguments, **options)
        if copies[3] is not tensors[3]:
            tensors[3].copy_(copies[3])

    def _build(self, tensors):
        """As ``prepare``, with the kernel itself."""
        from course_kernels.kernels import contiguous, transposed

        name, *rest = prepare(
            tensors,
            keep_tail=self.keep_tail,
            config=self.config,
            precision=self.precision,
            device=Device.of(self.device),
        )
        return {"contiguous": contiguous.contiguous_kernel, "transposed": transposed.transposed_kernel}[name], *rest


def _contiguous_launch(tensors, mode, keep_tail, config, precision, device) -> Prepared:
    """Modes "m", "n" (as "m" of the transposed operands) and "batch"."""
    from course_kernels.kernels.round_robin import COL_MAJOR, DYNAMIC, ROUND_ROBIN, ROW_MAJOR

    mat_a, mat_b, offs, out, bias, scale_a, scale_b = tensors
    if mode == "n":
        mat_a, mat_b, out, scale_a, scale_b = mat_b.mT, mat_a.mT, out.mT, scale_b, scale_a
    ragged = mode != "batch"
    groups, depth, columns = mat_b.shape
    rows = mat_a.shape[0] if ragged else mat_a.shape[1]
    described = device.described
    shared_b = groups > 1 and mat_b.stride(0) == 0
    a = operands.lines(mat_a, described)
    b = operands.lines((mat_b[:1] if shared_b else mat_b).mT, described)
    # A descriptor's innermost coordinate is a multiple of 16 bytes: the hardware traps otherwise.
    row_step = 16 // mat_a.element_size() if ragged and a.kind == COL_MAJOR.value else 1
    describable = described and row_step == 1
    c = operands.window(out, describable, stored=True) if ragged else operands.grouped(out, describable)
    op = "grouped_mm" if ragged else "grouped_mm_batch"
    config = _fitting(config, op, (rows, depth, columns, groups), mat_a, out, (a, b, c), precision, device)
    block_m, block_n, block_k = config.block
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
        **_strides("c", ("g", "m", "n"), out), **_side_strides(bias, scale_b),
        A_KIND=a.kind, B_KIND=b.kind, C_KIND=c.kind, RAGGED=ragged, SHARED_B=shared_b, ROW_STEP=row_step,
        ZERO_TAIL=ragged and not keep_tail, GROUPS=max(2, 1 << (groups - 1).bit_length()) if ragged else 2,
        BLOCK_M=block_m, BLOCK_N=block_n, BLOCK_K=block_k, GROUP_M=config.group_m, STORE_PARTS=config.store_parts,
        SCHEDULE=(DYNAMIC if counter is not None else ROUND_ROBIN).value, PRECISION=precision,
    )  # fmt: skip

    def programs(total):
        # What lies in groups is not known here; as many tiles as there could be.
        if ragged:
            return _programs(config, config.tiles(total, columns) + groups * -(-columns // block_n), device)
        return _programs(config, groups * config.tiles(rows, columns), device)

    totals = {"total": None} if ragged else {}
    if ragged and a.shape is not None:
        totals["a"] = 0 if a.kind == ROW_MAJOR.value else 1
    return Prepared("contiguous", programs, arguments, _options(config), totals)


def _transposed_launch(tensors, config, precision, device) -> Prepared:
    """Mode "k"."""
    mat_a, mat_b, offs, out, bias, scale_a, scale_b = tensors
    (rows, total), columns, groups = mat_a.shape, mat_b.shape[1], out.shape[0]
    described = device.described
    a, b, c = operands.window(mat_a.mT, described), operands.window(mat_b, described), operands.grouped(out, described)
    extents = (rows, total, columns, groups)
    config = _fitting(config, "grouped_mm_k", extents, mat_a, out, (a, b, c), precision, device)
    block_m, block_n, block_k = config.block
    arguments = dict(
        a=a.descriptor(mat_a, (block_k, block_m)) or mat_a,
        b=b.descriptor(mat_b, (block_k, block_n)) or mat_b,
        c_desc=c.descriptor(out, (block_m, block_n // config.store_parts)),
        c_ptr=out, offs_ptr=offs, bias_ptr=bias, scale_a_ptr=scale_a, scale_b_ptr=scale_b,
        total=total, M=rows, N=columns, G=groups,
        stride_am=mat_a.stride(0), stride_ak=mat_a.stride(1), stride_bk=mat_b.stride(0), stride_bn=mat_b.stride(1),
        **_strides("c", ("g", "m", "n"), out), **_side_strides(bias, scale_b),
        A_KIND=a.kind, B_KIND=b.kind, C_KIND=c.kind,
        BLOCK_M=block_m, BLOCK_N=block_n, BLOCK_K=block_k, GROUP_M=config.group_m, STORE_PARTS=config.store_parts,
        PRECISION=precision, SPAN=64,
    )  # fmt: skip
    programs = _programs(config, groups * config.tiles(rows, columns), device)
    return Prepared("transposed", lambda total: programs, arguments, _options(config), {"total": None})


def _block(operand: operands.Operand, tensor: torch.Tensor, lines: int, depth: int):
    """The argument for an operand that ``load_block`` reads: a descriptor of its blocks, or the tensor."""
    from course_kernels.kernels.round_robin import ROW_MAJOR

    block = (lines, depth) if operand.kind == ROW_MAJOR.value else (depth, lines)
    return operand.descriptor(tensor, block) or tensor


def _strides(name: str, dims: tuple[str, str, str], tensor: torch.Tensor) -> dict[str, int]:
    """Stride arguments of a tensor of two or three dimensions; a missing group has stride 0."""
    strides = (0, *tensor.stride())[-3:]
    return {f"stride_{name}{dim}": stride for dim, stride in zip(dims, strides)}


def _side_strides(bias, scale_b) -> dict[str, int]:
    return dict(
        stride_bias_g=0 if bias is None else bias.stride(0),
        stride_bias_n=0 if bias is None else bias.stride(1),
        stride_scale_g=0 if scale_b is None else scale_b.stride(0),
    )


def _options(config: GemmConfig) -> dict[str, int]:
    return dict(num_warps=config.num_warps, num_stages=config.num_stages)


def _programs(config: GemmConfig, most_tiles: int, device: Device) -> int:
    programs = _INTERPRETER_PROGRAMS if device.num_sms is None else device.num_sms * config.programs_per_sm
    return max(1, min(programs, most_tiles))


def _fitting(config, op, extents, mat_a, out, described, precision, device: Device) -> GemmConfig:
    """The given configuration, or the tuned one with as many stages as the GPU's shared memory holds."""
    kernel, sizes = kernel_of(op), (mat_a.element_size(), out.element_size())
    limits = dict(
        capability=device.capability, shared_limit=device.shared_limit, described=described[-1].shape is not None
    )
    if config is not None:
        if reason := config.valid_for(kernel, *sizes, **limits):
            raise ValueError(f"config does not suit {reason}; got {config}")
        return config
    chosen = get_config(
        op,
        *extents,
        dtype=mat_a.dtype,
        arch=device.arch,
        precision=precision,
        described=all(operand.shape is not None for operand in described),
    )
    fitted = chosen.fitted(kernel, *sizes, **limits)
    if fitted is None:
        raise ValueError(f"no configuration suits this GPU: {chosen.valid_for(kernel, *sizes, **limits)}")
    return fitted


def _write_without_product(mode, keep_tail, offs, out, bias) -> None:
    """Results of products over no K, or no groups: zeros, or the bias."""
    if mode == "batch":
        out.zero_() if bias is None else out.copy_(bias[:, None, :].expand_as(out))
        return
    dim = 0 if mode == "m" else 1
    layout = GroupLayout.from_ends(offs)
    group = layout.row_groups(out.shape[dim]) if layout.G else offs.new_full((out.shape[dim],), -1)
    inside = (group >= 0).unsqueeze(1 - dim)
    value = out.new_zeros(())
    if bias is not None and layout.G:
        value = torch.where(inside, bias[group.clamp(min=0).long()], 0).to(out.dtype)
    out.copy_(torch.where(inside, value, out if keep_tail else torch.zeros_like(value)))
