"""From operands to rows in memory: checks, the choice of a backend, and the plans that earlier calls left."""

from __future__ import annotations

import contextlib

import torch
from torch import Tensor

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
from course_kernels.packed.execute import PlanCache

plans = PlanCache()


def execute(operands: Operands, options: Options) -> Tensor:
    """Write a product, whose arguments need not have been checked, to ``operands.Y``, and return that.

    Raises:
        TypeError, ValueError, RuntimeError, ImportError: as ``deepgemm``. Nothing is written before.
    """
    try:
        plan = plans.get(None if options.check else signature(operands, options))
    except TypeError:  # an option that is not hashable
        plan = None
    if plan is None:
        return _execute_unknown(operands, options)
    check_memory(operands)
    _run(plan, readable(operands))
    return operands.Y


def _execute_unknown(operands: Operands, options: Options) -> Tensor:
    problem = Problem.of(operands, options)
    check_memory(operands)
    if options.check:
        check_values(operands.group_layout, problem.max_M)
    given, operands = operands, readable(operands)
    key = signature(given, options._replace(check=False))
    plan = plans.get(key)
    if plan is None:
        with torch.cuda.device(given.Y.device) if given.Y.is_cuda else contextlib.nullcontext():
            plan = _choose(problem, operands)
        if key is not None:
            plans.put(key, plan)
    _run(plan, operands)
    return given.Y


def _choose(problem: Problem, operands: Operands):
    """The plan of the named backend where it can, else of the first that supports the product."""
    named, device = problem.options.backend, operands.XQ.device
    if named == "cute":
        hopper.check_available(device)
    if named == "torch" or (named == "auto" and device.type == "cpu"):
        return torch_loop.Plan(problem)
    asks_cute = named == "cute" or (named == "auto" and hopper.preferred(problem, operands))
    if asks_cute and hopper.supports(problem, operands):
        return hopper.plan(problem, operands)
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
