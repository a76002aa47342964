"""From operands to a result in memory: checks, the choice of a backend, and the plans that earlier calls left.

A warm call finds its plan under ``problem.signature`` and launches. Whatever has no plan yet goes through the checks,
asks the backends in order, and leaves one.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Hashable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from course_kernels.contexts import unwrapped
from course_kernels.engine.checks import check_ends, check_options, check_out
from course_kernels.engine.offers import choose
from course_kernels.engine.product import Operands, Options, Problem, signature
from course_kernels.engine.scaling import check_whole_blocks
from course_kernels.memory import check_has_memory

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


class _Known(NamedTuple):
    """What a warm call needs: the plan, its device, and the result's form but for the ragged extent."""

    plan: Any
    device: torch.device
    mode: str
    shape: tuple[int, ...]
    dtype: torch.dtype

    def allocate(self, operands: Operands) -> Tensor:
        """A result for a batch, which may have another total."""
        columns = self.shape[-1]
        if self.mode == "m":  # the frequent case, a third of a microsecond faster than torch.empty
            shape = (operands.mat_a.shape[0], columns)
            return torch.empty_strided(shape, (columns, 1), dtype=self.dtype, device=self.device)
        return torch.empty(self.shape_for(operands), dtype=self.dtype, device=self.device)

    def shape_for(self, operands: Operands) -> tuple[int, ...]:
        """The result's shape for a batch."""
        if self.mode == "m":
            return operands.mat_a.shape[0], self.shape[1]
        return (self.shape[0], operands.mat_b.shape[1]) if self.mode == "n" else self.shape

    def run(self, operands: Operands, out: Tensor) -> Tensor:
        """Write the product to ``out``, with its device as the current one."""
        index = self.device.index
        if index is None or index == torch.cuda.current_device():
            self.plan.run(operands, out)
        else:
            with torch.cuda.device(index):
                self.plan.run(operands, out)
        return out


def execute(operands: Operands, options: Options, out: Tensor | None = None) -> Tensor:
    """The product of operands, which need not have been checked.

    Args:
        operands: dense tensors in memory, or what the caller passed instead.
        options: how to compute it.
        out: where to write it, or what to add it to; None allocates. Fresh memory is aligned, as it was when the plan
            was made.

    Raises:
        TypeError, ValueError, RuntimeError, ImportError: as ``grouped_mm``. Nothing is written before.
    """
    try:
        known = plans.get(None if options.check else signature(operands, options, out))
    except TypeError:  # an option that is not hashable
        known = None
    if known is None:
        return _execute_unknown(operands, options, out)
    if out is None:
        return known.run(operands, known.allocate(operands))
    check_out(out, known.shape_for(operands), known.dtype, operands._asdict())
    return known.run(operands, out)


def _execute_unknown(operands: Operands, options: Options, out: Tensor | None) -> Tensor:
    operands = Operands(*map(unwrapped, operands))  # vjp's function runs after its transform has ended
    problem = Problem.of(operands, options)
    check_has_memory(operands._asdict())
    if out is None:
        check_options("zero", None, False, options.accumulate)
    given, operands = operands, problem.readable(operands)
    if out is not None:
        check_out(out, problem.out_shape, problem.out_dtype, given._asdict())
        check_has_memory({"out": out})
    if options.check:
        check_ends(operands.offs, problem.mode, problem.ragged)
        if problem.mode == "k" and problem.block_lines is not None:
            check_whole_blocks(operands.offs, operands.scale_a, problem.K)
    key = signature(operands, options._replace(check=False), out)
    known = plans.get(key)
    if out is None:
        out = torch.empty(problem.out_shape, dtype=problem.out_dtype, device=operands.mat_a.device)
    if known is None:
        with torch.cuda.device(out.device) if out.is_cuda else contextlib.nullcontext():
            plan = choose(problem, operands, out).plan(problem, operands, out)
        known = _Known(plan, out.device, problem.mode, problem.out_shape, problem.out_dtype)
        if key is not None:
            plans.put(key, known)
    return known.run(operands, out)
