"""A warm call of the layer: one look-up by everything that checks and choices depend on, then launches alone.

A call without a plan makes all checks and runs step by step. Where all of the layer is four launches (the sort, two
products, the sum of each token's rows), it leaves a ``LayerPlan``; for few tokens, two launches, a ``FewTokens``; with
experts of other ranks, a ``distributed.motion.ThroughPlan``. A later call with the same key has passed the same checks,
would choose the same kernels, and only allocates results and launches.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable

import torch
from torch import Tensor

from course_kernels import runtime
from course_kernels.contexts import (
    has_overrides,
    is_any_autocast_enabled,
    is_intercepted,
    is_profiling,
    wants_grad,
)
from course_kernels.engine.plans import Known, PlanCache, find, find_offered
from course_kernels.engine.product import STORE, Ends, Gated, Product, Store
from course_kernels.engine.scaling import UNSCALED
from course_kernels.engine.signature import forms_of
from course_kernels.kernels.codes import Activation
from course_kernels.moe import few_tokens, layer, steps
from course_kernels.moe.few_tokens import Scales
from course_kernels.moe.form import Arriving, Form, Operands
from course_kernels.moe.routing import Routing, Sorting

plans = PlanCache()
_find_fresh = functools.partial(find, fresh=True)


def key_of(operands: Operands, ids, scales, *options) -> Hashable:
    """Make the key of a plan from arguments that may be unchecked: everything of them that a call depends on, except
    values and addresses.

    Returns:
        None where no plan serves: a mode, a transform, autocast or a profiler has to see the call, an argument is no
        ordinary tensor with memory, or an option cannot be hashed.
    """
    if is_intercepted() or is_profiling() or is_any_autocast_enabled() or has_overrides(*operands, ids, *scales):
        return None
    activation = options[0]
    # With their types: 1 equals True, but where the checks want a bool they refuse 1.
    key = [wants_grad(*operands), *options, *map(type, options)]
    if type(activation) is Activation:
        key += map(type, activation)
    try:
        if scales != (None, None):  # float8 weights that ask for gradients are refused
            key += [each.requires_grad for each in (operands.gate_up, operands.down, *scales)]
        forms = forms_of(*operands, ids, *scales)
        if forms is None:
            return None
        key = *key, forms, operands.x.dtype == torch.float32 and runtime.allows_tf32()
        hash(key)
    except (AttributeError, RuntimeError, TypeError):
        return None  # not tensors, or without strides: the checks raise
    return key


def remember(key: Hashable, operands: Operands, ids: Tensor, form: Form, scales: Scales = (None, None)) -> None:
    """Keep a plan for what was checked and computed, where there is one. ``scales``: of float8 weights, which only few
    tokens have a plan for."""
    if few_tokens.fits(operands, ids, form):
        plans.put(key, few_tokens.FewTokens(operands, ids, form, scales))
    elif not layer.runs_in_torch(operands, form) and layer.is_fused(operands, form, ids.numel(), wants_grad(*operands)):
        plans.put(key, LayerPlan(operands, ids, form, wants_grad(*operands)))


class LayerPlan:
    """A layer whose products' kernels gather and activate, for arguments of one key. The first call plans products.

    Args:
        operands, ids, form: as checked, and with the weights as given.
        keep: whether a backward will need the activation's argument.
        rows: of experts, if the routing is shortened.
    """

    def __init__(self, operands: Operands, ids: Tensor, form: Form, keep: bool, rows: int | None = None):
        x, gate_up, down, weights, *_ = operands
        (tokens, hidden), (_, top_k) = x.shape, ids.shape
        self.form, self.keep = form, keep
        self._ready = weights.dtype == torch.float32 and weights.is_contiguous()
        self._dtype, self._device, self._options = x.dtype, x.device, form.options
        self._rows, self._tokens, self._hidden = tokens * top_k if rows is None else rows, tokens, hidden
        self._width, self._inner = gate_up.shape[1], down.shape[2]
        self._sorting, self._combining = Sorting(ids, gate_up.shape[0]), steps.combining(tokens, hidden, top_k)
        self._known: dict[str, Known] = {}

    def prepare(self, operands: Operands, ids: Tensor) -> tuple[Operands, Routing]:
        """Sort the choices; return the operands with weights as kernels read them, and the routing."""
        if not self._ready:
            operands = operands._replace(weights=operands.weights.float().contiguous())
        return operands, Routing(*self._sorting(ids))

    def forward(
        self, operands: Operands, routing: Routing, scales: Scales = (None, None)
    ) -> tuple[Tensor, Tensor | None]:
        """Do what ``layer.forward`` does. Nothing is recorded for autograd where the operands ask for no gradient."""
        result, pre = self.products(operands, routing)
        out = self._empty(self._tokens, self._hidden)
        self._combining(result, routing.rows, operands.weights, out)
        return out, pre

    def products(
        self, operands: Operands, routing: Routing, arriving: Arriving | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Compute the rows of experts, (T * k, H), and the activation's argument, if it is kept. Tokens may be
        ``arriving``."""
        x, gate_up, down, _, gate_up_bias, down_bias = operands
        ends, form = routing.ends, self.form
        pre = self._empty(self._rows, self._width) if self.keep else None
        hidden = self._empty(self._rows, self._inner)
        activated = Gated(form.activation, form.interleaved, pre, gate_up_bias)
        product = Product(x, gate_up.mT, Ends(ends, routing.tokens), UNSCALED, activated)
        if arriving is None or not self._waits(product, hidden, arriving):
            self._run("first", product, hidden)
        result = self._empty(self._rows, self._hidden)
        product = Product(hidden, down.mT, Ends(ends), UNSCALED, STORE if down_bias is None else Store(down_bias))
        self._run("second", product, result, _find_fresh)
        return result, pre

    def _empty(self, rows: int, columns: int) -> Tensor:
        return torch.empty_strided((rows, columns), (columns, 1), dtype=self._dtype, device=self._device)

    def _waits(self, product: Product, out: Tensor, arriving: Arriving) -> bool:
        """Compute a product of tokens that arrive if its kernel can wait for them. After it all are there."""
        product = product._replace(rows=product.rows._replace(pieces=arriving.pieces(self._width)))
        known = self._run("arriving", product, out, find_offered)
        arriving.settle()
        return known.plan is not None

    def _run(self, name: str, product: Product, out: Tensor, how: Callable[..., Known] = find) -> Known:
        """Compute a product by its plan, which the first call finds as ``layer.forward`` does."""
        known = self._known.get(name)
        if known is None:
            problem = functools.partial(layer.problem_of_rows, product, self._options, out)
            known = self._known[name] = how(product, self._options, out, problem)
        if known.plan is not None:
            known.plan.run(product, out)
        return known
