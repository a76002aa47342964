"""From operands to a result in memory: checks, the choice of a backend, and the plans that earlier calls left.

A warm call finds its plan under ``problem.signature`` and launches. Whatever has no plan yet goes through the checks,
asks the backends in order, and leaves one.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable
from typing import Any

import torch
from torch import Tensor

from course_kernels.packed.backends import cute, torch_loop
from course_kernels.packed.checks import check_ends, check_out, readable
from course_kernels.packed.problem import Operands, Options, Problem, out_shape, signature

MAX_PLANS = 4096


class PlanCache:
    """Plans by signature. Safe under threads; where it is full, the oldest plan makes room."""

    def __init__(self, size: int = MAX_PLANS):
        self._size, self._plans, self._lock = size, {}, threading.Lock()
        self.get = self._plans.get  # reading a dict needs no lock

    def put(self, key: Hashable, plan: Any) -> None:
        """Keep a plan."""
        with self._lock:
            while len(self._plans) >= self._size:
                del self._plans[next(iter(self._plans))]
            self._plans[key] = plan

    def clear(self) -> None:
        """Forget every plan."""
        with self._lock:
            self._plans.clear()

    def __len__(self) -> int:
        return len(self._plans)


plans = PlanCache()


def execute(operands: Operands, options: Options, out: Tensor | None = None) -> Tensor:
    """The product of operands, which need not have been checked.

    Args:
        operands: dense tensors in memory, or what the caller passed instead.
        options: how to compute it.
        out: where to write it; None allocates. Fresh memory is aligned, as it was when the plan was made.

    Raises:
        TypeError, ValueError, RuntimeError, ImportError: as ``grouped_mm``. Nothing is written before.
    """
    key = None if options.check else signature(operands, options, out)
    known = plans.get(key)
    if known is None:
        return _execute_unknown(operands, options, out)
    plan, out_dtype = known
    if out is None:
        out = torch.empty(out_shape(operands), dtype=out_dtype, device=operands.mat_a.device)
    else:
        check_out(out, out_shape(operands), out_dtype, operands)
    _run(plan, operands, out)
    return out


def _execute_unknown(operands: Operands, options: Options, out: Tensor | None) -> Tensor:
    problem = Problem.of(operands, options)
    given, operands = operands, readable(problem, operands)
    if out is not None:
        check_out(out, problem.out_shape, problem.out_dtype, given)
    if options.check:
        check_ends(problem, operands.offs)
    key = signature(operands, options._replace(check=False), out)
    plan, _ = plans.get(key) or (None, None)
    if out is None:
        out = torch.empty(problem.out_shape, dtype=problem.out_dtype, device=operands.mat_a.device)
    if plan is None:
        plan = choose_backend(problem, operands, out).plan(problem, operands, out)
        if key is not None:
            plans.put(key, (plan, problem.out_dtype))
    _run(plan, operands, out)
    return out


def choose_backend(problem: Problem, operands: Operands, out: Tensor):
    """The backend that computes a product: the named one where it can, else the first that supports it.

    Raises:
        ValueError, ImportError: the named one does not run here.
    """
    named, device = problem.options.backend, operands.mat_a.device
    if named == "cute":
        cute.check_available(device)
    if named == "torch" or (named == "auto" and device.type == "cpu"):
        return torch_loop
    asks_cute = named == "cute" or (named == "auto" and cute.preferred(problem, operands))
    if asks_cute and cute.supports(problem, operands, out):
        return cute
    from course_kernels.packed.backends import triton  # imports Triton, which takes a second

    return triton


def _run(plan, operands: Operands, out: Tensor) -> None:
    index = out.device.index
    if index is None or out.device.type != "cuda" or index == torch.cuda.current_device():
        plan.run(operands, out)
    else:
        with torch.cuda.device(index):
            plan.run(operands, out)
