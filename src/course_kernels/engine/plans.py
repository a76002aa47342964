"""The path from a call to a launch, with a cache of plans.

A call without a plan is checked, a backend plans it, and the plan is cached under the product's ``signature``. A warm
call finds its plan and launches.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Hashable
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from course_kernels.engine.backend_choice import choose, offered
from course_kernels.engine.options import Options
from course_kernels.engine.product import Problem, Product
from course_kernels.engine.signature import signature
from course_kernels.memory_overlap import are_apart, overlaps_itself

MAX_PLANS = 4096


class PlanCache:
    """Plans by signature, thread-safe. A full cache drops its oldest plan."""

    _all: ClassVar[weakref.WeakSet[PlanCache]] = weakref.WeakSet()

    def __init__(self, size: int = MAX_PLANS):
        self._all.add(self)
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

    @classmethod
    def clear_all(cls) -> None:
        """Forget the plans of all caches: of products, layers, launches. For who replaces what plans depend on."""
        for cache in list(cls._all):
            cache.clear()

    def __len__(self) -> int:
        return len(self._plans)


plans = PlanCache()


class Known(NamedTuple):
    """A cached plan with its device and the result's form; a ragged extent of the form may change."""

    plan: Any
    device: torch.device
    mode: str
    shape: tuple[int, ...]
    dtype: torch.dtype

    def allocate(self, product: Product) -> Tensor:
        """Allocate the result of a call, whose total may differ from that of earlier calls."""
        columns = self.shape[-1]
        if self.mode == "m":  # the frequent case, a third of a microsecond faster than torch.empty
            shape = (product.a.shape[0], columns)
            return torch.empty_strided(shape, (columns, 1), dtype=self.dtype, device=self.device)
        return torch.empty(self.shape_for(product), dtype=self.dtype, device=self.device)

    def shape_for(self, product: Product) -> tuple[int, ...]:
        """The result's shape for the total of a call."""
        if self.mode == "m":
            return product.a.shape[0], self.shape[1]
        return (self.shape[0], product.b.shape[1]) if self.mode == "n" else self.shape

    def is_writable(self, product: Product, out: Tensor) -> bool:
        """Whether ``out`` surely can be written to. The signature already fixes its dtype and device."""
        return (
            out.shape == self.shape_for(product)
            and not (out.requires_grad or out.is_inference() or out.is_neg())
            and (out.is_contiguous() or not overlaps_itself(out))
            and are_apart(out, (product.a, product.b, *product.rows[:1], *product.scaling[:2], product.epilogue.bias))
        )

    def run(self, product: Product, out: Tensor) -> Tensor:
        """Write the product to ``out``, with the plan's device as the current one."""
        index = self.device.index
        if index is None or index == torch.cuda.current_device():
            self.plan.run(product, out)
        else:
            with torch.cuda.device(index):
                self.plan.run(product, out)
        return out


def execute(
    product: Product | None,
    options: Options,
    out: Tensor | None,
    check: Callable[[Any, Options, Tensor | None], tuple[Problem, Product]],
    arguments: Any = None,
) -> Tensor:
    """Compute a product of operands that may be unchecked.

    Args:
        product: of dense tensors in memory, or of whatever the caller passed; None if no product can be made of that,
            so that ``check`` raises.
        options: options of the computation.
        out: the tensor to write or add to; None allocates. Fresh memory is aligned, as it was when the plan was made.
        check: the checks of an API, whose errors name its arguments. It takes ``arguments``, ``options`` and ``out``,
            and returns the problem, and the product as kernels read it.
        arguments: the API's arguments. Default: the product.

    Raises:
        TypeError, ValueError, RuntimeError, ImportError: as ``check`` and ``backend_choice.choose``, before anything is
            written.
    """
    known = None
    if product is not None and not options.check:
        try:
            known = plans.get(signature(product, options, out))
        except TypeError:  # an option that is not hashable
            known = None
    arguments = product if arguments is None else arguments
    if known is None:
        return _execute_unknown(*check(arguments, options, out), options, out)
    if out is None:
        return known.run(product, known.allocate(product))
    if not known.is_writable(product, out):
        check(arguments, options, out)
    return known.run(product, out)


def find(
    product: Product, options: Options, out: Tensor, problem: Callable[[], Problem], fresh: bool = False
) -> Known:  # fmt: skip
    """Find or make the plan of a product that needs no checks; ``problem`` makes its problem where no plan is known.
    ``fresh``: ``out`` is what ``execute`` would allocate, so the plan is the same."""
    key = signature(product, options, None if fresh else out)
    known = plans.get(key)
    return _plan(problem(), product, out, key) if known is None else known


def find_offered(product: Product, options: Options, out: Tensor, problem: Callable[[], Problem]) -> Known:
    """Do what ``find`` does if the CuTe kernel is what computes the product. If not, the plan is None; this is
    remembered, too.

    Raises:
        ValueError, ImportError: as ``backend_choice.offered``.
    """
    key = signature(product, options, out)
    known = plans.get(key)
    return _plan(problem(), product, out, key, offered) if known is None else known


def _execute_unknown(problem: Problem, product: Product, options: Options, out: Tensor | None) -> Tensor:
    """Compute a checked product: find or make its plan, and run it."""
    key = signature(product, options._replace(check=False), out)
    known = plans.get(key)
    if out is None:
        out = torch.empty(problem.out_shape, dtype=problem.out_dtype, device=product.a.device)
    if known is None:
        known = _plan(problem, product, out, key)
    return known.run(product, out)


def _plan(problem: Problem, product: Product, out: Tensor, key: Hashable, choose_from=None) -> Known:
    """Make the plan of a product, and keep it under its key."""
    with torch.cuda.device(out.device) if out.is_cuda else contextlib.nullcontext():
        plan = (choose_from or choose)(problem, product, out)
    known = Known(plan, out.device, problem.mode, problem.out_shape, problem.out_dtype)
    if key is not None:
        plans.put(key, known)
    return known
