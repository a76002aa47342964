"""From operands to rows in memory: checks, the choice of a backend, and the plans that earlier calls left."""

from __future__ import annotations

import contextlib
from typing import Any, NamedTuple

import torch
from torch import Tensor

from course_kernels.engine import offers
from course_kernels.engine.hopper import cute
from course_kernels.engine.plans import PlanCache
from course_kernels.masked import hopper, torch_loop
from course_kernels.masked.problem import (
    Operands,
    Options,
    Problem,
    check_memory,
    check_values,
    readable,
    signature,
)
from course_kernels.memory import byte_range

plans = PlanCache()


class _Known(NamedTuple):
    """What a warm call needs: the plan, and how many bytes each operand reaches over, which its key decides."""

    plan: Any
    reaches: tuple[int, ...]

    def is_apart(self, operands: Operands) -> bool:
        """Whether Y's addresses are surely no operand's. A third of the time of asking for what they share."""
        start = operands.Y.data_ptr()
        end = start + self.reaches[2]
        for i, (operand, reach) in enumerate(zip(operands, self.reaches)):
            if i != 2 and operand is not None:
                first = operand.data_ptr()
                if first < end and start < first + reach:
                    return False
        return True


def execute(operands: Operands, options: Options) -> Tensor:
    """Write a product, whose arguments need not have been checked, to ``operands.Y``, and return that.

    Raises:
        TypeError, ValueError, RuntimeError, ImportError: as ``deepgemm``. Nothing is written before.
    """
    try:
        known = plans.get(None if options.check else signature(operands, options))
    except TypeError:  # an option that is not hashable
        known = None
    if known is None:
        return _execute_unknown(operands, options)
    if operands.Y.requires_grad or operands.Y.is_inference() or not known.is_apart(operands):
        check_memory(operands)
    _run(known.plan, readable(operands))
    return operands.Y


def _execute_unknown(operands: Operands, options: Options) -> Tensor:
    problem = Problem.of(operands, options)
    check_memory(operands)
    if options.check:
        check_values(operands.group_layout, problem.max_M)
    given, operands = operands, readable(operands)
    key = signature(given, options._replace(check=False))
    known = plans.get(key)
    if known is None:
        with torch.cuda.device(given.Y.device) if given.Y.is_cuda else contextlib.nullcontext():
            plan = _choose(problem, operands)
        ranges = [(0, 0) if tensor is None else byte_range(tensor) for tensor in given]
        known = _Known(plan, tuple(end - start for start, end in ranges))
        if key is not None:
            plans.put(key, known)
    _run(known.plan, operands)
    return given.Y


def _choose(problem: Problem, operands: Operands):
    """The plan of the named backend where it can, else of the first that supports the product."""
    named, device = problem.options.backend, operands.XQ.device
    if named == "cute":
        hopper.check_available(device)
    if named == "torch" or (named == "auto" and device.type == "cpu"):
        return torch_loop.Plan(problem)
    if named == "cute" or (named == "auto" and cute.runs_on(device) and cute.installed()):
        offer = hopper.offer(problem, operands)
        if offer and (named == "cute" or offers.is_sooner(offer, operands.XQ.element_size())):
            return offer.plan(problem, operands)
    from course_kernels.masked import launch  # imports Triton, which takes a second

    return launch.plan(problem, operands)


def _run(plan, operands: Operands) -> None:
    """Run with the tensors' device as the current one."""
    index = operands.Y.device.index
    if index is None or index == torch.cuda.current_device():
        plan.run(operands)
    else:
        with torch.cuda.device(index):
            plan.run(operands)
