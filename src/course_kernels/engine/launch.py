"""The Triton kernels: every packed product, on every GPU that Triton compiles for, and in its interpreter.

A plan holds what depends on shapes, strides, dtypes and alignment alone: descriptors, the configuration, the compiled
kernel, the argument list. Running it fills in addresses and the total, and launches. It reads nothing on the device.
"""

from __future__ import annotations

import threading

import torch
from torch import Tensor

from course_kernels import runtime
from course_kernels.dtypes import FP8, FP8_E5M2, SCALED_DTYPES
from course_kernels.engine.arguments import prepare
from course_kernels.engine.product import Operands, Options, Problem
from course_kernels.engine.relaunch import Address, Relaunch
from course_kernels.kernels import contiguous, transposed
from course_kernels.layout import GroupLayout

KERNELS = {"contiguous": contiguous.contiguous_kernel, "transposed": transposed.transposed_kernel}
# Arguments that are addresses, by their place among operands and out, as a kernel's a and b are mat_a and mat_b.
_SOURCES = {"a": 0, "b": 1, "offs_ptr": 2, "bias_ptr": 3, "scale_a_ptr": 4, "scale_b_ptr": 5, "c_desc": 6, "c_ptr": 6}
_COUNTER = 7
_DEFAULT = Options()
_SWAPPED = {0: 1, 1: 0, 4: 5, 5: 4}  # a ragged N is computed as a ragged M of the transposed operands


def supports(problem: Problem, operands: Operands, out: Tensor) -> bool:
    """Every product whose form is right."""
    return True


def plan(problem: Problem, operands: Operands, out: Tensor) -> Plan | InterpretedPlan | EmptyPlan:
    """The launch for products like this one.

    Raises:
        ValueError: the configuration does not fit the kernel or the GPU's shared memory.
        RuntimeError: the process cannot run kernels.
    """
    runtime.check_can_launch(operands.mat_a.device)
    if not out.numel() or (problem.mode != "k" and not (problem.G and problem.K)):
        return EmptyPlan(problem)
    return (Plan if out.is_cuda else InterpretedPlan)(problem)


def multiply(operands: Operands, out: Tensor, options: Options = _DEFAULT) -> Plan | InterpretedPlan | EmptyPlan:
    """Write a checked product to ``out``. Returns the plan, which can be run again."""
    problem = Problem.of(operands, options)
    made = plan(problem, operands, out)
    made.run(operands, out)
    return made


class InterpretedPlan:
    """A launch in Triton's interpreter."""

    def __init__(self, problem: Problem):
        self._problem = problem
        # Where the ragged extent's total is read off: an operand and its axis.
        self._ragged = {"m": (0, 0), "n": (1, 1), "k": (0, 1), "batch": None}[problem.mode]

    def run(self, operands: Operands, out: Tensor) -> None:
        """Interpret the kernel on float32 copies of what the interpreter cannot multiply: it takes the bits of bfloat16
        for integers, subnormal numbers of float8_e5m2 for others, and NaN of float8_e4m3fn for 480."""
        widened = {torch.bfloat16}
        matrices = operands.mat_a, operands.mat_b
        if any(m.dtype == FP8_E5M2 or (m.dtype == FP8 and m.float().isnan().any()) for m in matrices):
            widened.update(SCALED_DTYPES)  # both: a product has operands of one type, or of float8

        def wide(tensor):
            return tensor.float() if tensor is not None and tensor.dtype in widened else tensor

        copies, result = Operands(*map(wide, operands)), wide(out)
        kernel, programs, arguments, options, _ = self._prepare(copies, result)
        before = result.clone() if result is not out and self._problem.options.accumulate else None
        with runtime.interpreting():
            kernel[(programs(self._total(copies)),)](**arguments, **options)
        if before is not None:  # what was not added to keeps its bits: rounding changes those of a NaN
            changed = result.view(torch.int32) != before.view(torch.int32)
            out[changed] = result[changed].to(out.dtype)
        elif result is not out:
            out.copy_(result)

    def _total(self, operands: Operands) -> int:
        """The ragged extent; 0 in mode "batch"."""
        return operands[self._ragged[0]].shape[self._ragged[1]] if self._ragged else 0

    def _prepare(self, operands: Operands, out: Tensor):
        """As ``launch_arguments.prepare``, with the kernel itself."""
        name, *rest = prepare(self._problem, operands, out, runtime.Device.of(out.device))
        return KERNELS[name], *rest


class Plan(InterpretedPlan):
    """Everything about a launch on a GPU but its addresses and the total."""

    def __init__(self, problem: Problem):
        super().__init__(problem)
        self._lock = threading.Lock()
        self._relaunch: Relaunch | None = None

    def run(self, operands: Operands, out: Tensor) -> None:
        """Launch on the current stream. The tensors' device is the current one."""
        with self._lock:  # the plan's descriptors are filled in and read in one go
            if self._relaunch is None:
                self._compile(operands, out)
                return
            addresses = [None if tensor is None else tensor.data_ptr() for tensor in (*operands, out)]
            if self._needs_counter:
                counter = torch.zeros(1, dtype=torch.int32, device=out.device)
                addresses.append(counter.data_ptr())
            total = self._total(operands)
            stream = torch._C._cuda_getCurrentRawStream(out.device.index)
            self._relaunch(addresses, stream, self._programs(total), total)

    def _compile(self, operands: Operands, out: Tensor) -> None:
        """Launch through Triton's own path, which compiles, and keep what it made."""
        kernel, self._programs, arguments, options, totals = self._prepare(operands, out)
        programs = self._programs(self._total(operands))
        compiled = kernel[(programs,)](**arguments, **options)
        swapped = _SWAPPED if self._problem.mode == "n" else {}
        places = {name: swapped.get(place, place) for name, place in _SOURCES.items()} | {"counter_ptr": _COUNTER}
        values = [arguments[name] for name in kernel.arg_names]
        sources = {}
        for position, (name, value) in enumerate(zip(kernel.arg_names, values)):
            if name in places and value is not None:
                sources[position] = places[name]
                if isinstance(value, Tensor):  # which would keep its memory
                    values[position] = 0
                else:
                    value.base = Address(value.base.dtype)
        self._needs_counter = arguments.get("counter_ptr") is not None
        totals = {kernel.arg_names.index(name): axis for name, axis in totals.items()}
        self._relaunch = Relaunch(compiled, programs, values, sources, totals)


class EmptyPlan:
    """Products over no K, of no groups, or without elements: zeros, or the bias."""

    def __init__(self, problem: Problem):
        self._mode, self._keep_tail = problem.mode, problem.options.keep_tail

    def run(self, operands: Operands, out: Tensor) -> None:
        """Write the result."""
        offs, bias = operands.offs, operands.bias
        if not out.numel():
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
