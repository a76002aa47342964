"""The Triton kernel's launches: every masked product, on every GPU that Triton compiles for, and in its interpreter.

As in ``engine.launch``, a plan holds what depends on shapes, strides, dtypes and alignment alone. Running it
fills in addresses and launches, and reads nothing on the device: a launch can be in a CUDA graph, and each replay
computes the rows that count then.
"""

from __future__ import annotations

import threading

import torch
from torch import Tensor

from course_kernels import runtime
from course_kernels.dtypes import FP8_FNUZ
from course_kernels.engine.relaunch import Address, Relaunch
from course_kernels.kernels.masked import masked_kernel
from course_kernels.masked.launch_arguments import prepare
from course_kernels.masked.problem import Operands, Problem
from course_kernels.runtime import Device

# Arguments that are addresses, by their place among the operands.
_SOURCES = {"x": 0, "w": 1, "y_desc": 2, "y_ptr": 2, "sizes_ptr": 3, "x_scale_ptr": 4, "w_scale_ptr": 5}


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
        with runtime.interpreting():
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
