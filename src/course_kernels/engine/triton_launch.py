"""Launches of the Triton kernels: every product, on every GPU that Triton compiles for, and in its interpreter.

A plan holds everything that depends only on shapes, strides, dtypes and alignment: descriptors, the configuration, the
compiled kernel, the argument list. Running it fills in addresses and the total, and launches. The host reads nothing of
the device, so a launch can be in a CUDA graph; each replay uses the current values of the ends or counts.
"""

from __future__ import annotations

import sys
import threading

import torch
from torch import Tensor

from course_kernels import runtime
from course_kernels.dtypes import FP8_FNUZ, SCALED_DTYPES
from course_kernels.engine.product import Problem, Product
from course_kernels.engine.relaunch import Address, Relaunch, make_context_current
from course_kernels.engine.triton_arguments import Prepared, prepare
from course_kernels.kernels import contiguous, masked, transposed
from course_kernels.kernels.codes import FunctionName
from course_kernels.layout import GroupLayout

KERNELS = {
    "contiguous": contiguous.contiguous_kernel,
    "transposed": transposed.transposed_kernel,
    "masked": masked.masked_kernel,
}
# The kernels' address arguments, and the tensor of each.
_SOURCES = {
    "a": "a", "b": "b", "offs_ptr": "offs", "sizes_ptr": "offs", "bias_ptr": "bias", "scale_a_ptr": "scale_a",
    "scale_b_ptr": "scale_b", "c_desc": "out", "c_ptr": "out", "counter_ptr": "counter", "index_ptr": "index",
    "pre_ptr": "pre", "weights_ptr": "weights", "activated_ptr": "activated", "dots_ptr": "dots",
    "left_ptr": "left", "right_ptr": "right",
}  # fmt: skip
# In the order of ``_addresses``; those from the index on are of a layer's products alone.
_TENSORS = (
    "a", "b", "offs", "bias", "scale_a", "scale_b", "out", "counter", "index", "pre", "weights", "activated", "dots",
    "left", "right",
)  # fmt: skip
_WIDENED = {torch.bfloat16, FP8_FNUZ, *SCALED_DTYPES}  # to float32, in the interpreter
_SWAPPED = {"a": "b", "b": "a", "scale_a": "scale_b", "scale_b": "scale_a"}  # mode "n" is computed transposed


def plan(problem: Problem, product: Product, out: Tensor) -> Plan | InterpretedPlan | EmptyPlan:
    """Make the plan for products like this one.

    Raises:
        ValueError: the configuration does not fit the kernel or the GPU's shared memory.
        RuntimeError: the process cannot run kernels.
    """
    runtime.check_can_launch(product.a.device)
    if not out.numel() or (problem.mode != "k" and not (problem.G and problem.K)):
        return EmptyPlan(problem)
    return (Plan if out.is_cuda else InterpretedPlan)(problem)


def multiply(problem: Problem, product: Product, out: Tensor) -> Plan | InterpretedPlan | EmptyPlan:
    """Write a checked product to ``out``. Returns the plan, which can be run again."""
    made = plan(problem, product, out)
    made.run(product, out)
    return made


class InterpretedPlan:
    """A launch in Triton's interpreter."""

    def __init__(self, problem: Problem):
        self._problem = problem

    def run(self, product: Product, out: Tensor) -> None:
        """Interpret the kernel on float32 copies of operands that the interpreter reads wrongly: it takes the bits of
        bfloat16 for integers, subnormal float8_e5m2 numbers for others, and NaN of float8_e4m3fn for 480, and does not
        know gfx942's float8. All float8 operands are copied, NaN or not: it sums those that it reads itself in another
        order, and rows that no group has may hold anything."""

        def wide(tensor):
            return tensor.float() if tensor is not None and tensor.dtype in _WIDENED else tensor

        epilogue, result = product.epilogue, wide(out)
        fields = {name: getattr(epilogue, name) for name in getattr(epilogue, "_fields", ())}
        copied = {name: wide(each) for name, each in fields.items() if isinstance(each, Tensor)}
        if copied:
            epilogue = epilogue._replace(**copied)
        if (low := epilogue.low_rank) is not None:
            epilogue = epilogue._replace(low_rank=low._replace(left=wide(low.left), right=wide(low.right)))
        copies = product._replace(a=wide(product.a), b=wide(product.b), epilogue=epilogue)
        kernel, programs, arguments, options, _ = self._prepare(copies, result)
        keeps = self._problem.accumulate or self._problem.mode == "masked" or epilogue.activation is not None
        before = result.clone() if result is not out and keeps else None
        with runtime.interpreting():
            kernel[(programs(self._total(copies)),)](**arguments, **options)
        if before is not None:  # unwritten elements keep their bits: rounding changes those of a NaN
            changed = result.view(torch.int32) != before.view(torch.int32)
            out[changed] = result[changed].to(out.dtype)
        elif result is not out:
            out.copy_(result)
        for name in ("pre", "activated"):
            if name in copied and copied[name] is not fields[name]:
                fields[name].copy_(copied[name])

    def _total(self, product: Product) -> int:
        """The total of the ragged extent; 0 without one."""
        mode = self._problem.mode
        if mode == "m":
            return product.rows_of_a
        return product.a.shape[1] if mode == "k" else product.b.shape[1] if mode == "n" else 0

    def _prepare(self, product: Product, out: Tensor) -> tuple:
        """Call ``triton_arguments.prepare``; return the kernel itself in place of its name."""
        prepared: Prepared = prepare(self._problem, product, out, runtime.Device.of(out.device))
        kernel = KERNELS[prepared.kernel]
        functions = sys.modules[kernel.fn.__module__]
        for name, value in prepared.arguments.items():
            if isinstance(value, FunctionName):
                prepared.arguments[name] = getattr(functions, value.name)
        return kernel, *prepared[1:]


class Plan(InterpretedPlan):
    """Everything about a launch on a GPU except its addresses and the total."""

    def __init__(self, problem: Problem):
        super().__init__(problem)
        self._lock = threading.Lock()
        self._relaunch: Relaunch | None = None

    def run(self, product: Product, out: Tensor) -> None:
        """Launch on the current stream. The tensors' device must be the current one."""
        if self._relaunch is None:
            with self._lock:
                self._compile(product, out)
            return
        total = self._total(product)
        stream = torch._C._cuda_getCurrentRawStream(out.device.index)
        # A new one for every launch with a dynamic schedule, kept until then: another thread could get its memory.
        counter = torch.zeros(1, dtype=torch.int32, device=out.device) if self._needs_counter else None
        self._relaunch(self._addresses(product, out, counter), stream, self._programs(total), total)

    @staticmethod
    def _addresses(product: Product, out: Tensor, counter: Tensor | None) -> list[int | None]:
        """The addresses of ``_TENSORS``."""
        a, b, rows, scaling, epilogue, _ = product
        tensors = (a, b, rows[0] if rows else None, epilogue.bias, scaling.a, scaling.b, out, counter)
        low = epilogue.low_rank
        if low is not None or epilogue.activation is not None or product.index is not None:
            tensors = (*tensors, product.index, *epilogue.sides().values(), *(low or (None, None))[:2])
        return [None if tensor is None else tensor.data_ptr() for tensor in tensors]

    def _compile(self, product: Product, out: Tensor) -> None:
        """Launch through Triton's own path, which compiles, and keep the compiled kernel and its arguments."""
        kernel, self._programs, arguments, options, totals = self._prepare(product, out)
        programs = self._programs(self._total(product))
        make_context_current()
        compiled = kernel[(programs,)](**arguments, **options)
        values = [arguments[name] for name in kernel.arg_names]
        sources, swapped = {}, _SWAPPED if self._problem.mode == "n" else {}
        for position, (name, value) in enumerate(zip(kernel.arg_names, values)):
            if name in _SOURCES and value is not None:
                sources[position] = _TENSORS.index(swapped.get(_SOURCES[name], _SOURCES[name]))
                if isinstance(value, Tensor):  # a kept tensor would keep its memory
                    values[position] = 0
                else:
                    value.base = Address(value.base.dtype)
        self._needs_counter = arguments.get("counter_ptr") is not None
        totals = {kernel.arg_names.index(name): axis for name, axis in totals.items()}
        self._relaunch = Relaunch(compiled, programs, values, sources, totals)


class EmptyPlan:
    """The plan of a product with K = 0, without groups or without elements: writes zeros, or the bias."""

    def __init__(self, problem: Problem):
        self._mode, self._keep_tail = problem.mode, problem.keep_tail

    def run(self, product: Product, out: Tensor) -> None:
        """Write the result."""
        offs, bias = product.offs, product.epilogue.bias
        if not out.numel():
            return
        if self._mode == "masked":
            rows = torch.arange(out.shape[1], dtype=torch.int64, device=out.device)
            out.masked_fill_((rows < offs[:, None])[:, :, None], 0)
            return
        if self._mode == "batch":
            out.zero_() if bias is None else out.copy_(bias[:, None, :].expand_as(out))
            return
        dim = 0 if self._mode == "m" else 1
        layout = GroupLayout.from_ends(offs)
        group = layout.row_groups(out.shape[dim]) if layout.G else offs.new_full((out.shape[dim],), -1)
        inside = (group >= 0).unsqueeze(1 - dim)
        value = out.new_zeros(())
        if bias is not None and layout.G:
            value = torch.where(inside, bias[group.clamp(min=0).long()], 0).to(out.dtype)
        out.copy_(torch.where(inside, value, out if self._keep_tail else torch.zeros_like(value)))
