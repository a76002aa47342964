"""Adapters of low rank (LoRA) on the experts: what a user passes, its checks, and its parts for each product."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from course_kernels.engine.product_checks import check_added_dtype, differ
from course_kernels.moe.form import Operands
from course_kernels.moe.parallel import Parallel
from course_kernels.type_checks import check_dense, is_number

NAMES = ("gate_up_a", "gate_up_b", "down_a", "down_b")


class Lora(NamedTuple):
    """Adapters of all experts: the weight of an expert e counts as ``gate_up[e] + scale * gate_up_b[e] @ gate_up_a[e]``
    and ``down[e] + scale * down_b[e] @ down_a[e]``. These sums are never made. The argument ``lora`` of
    ``moe_feed_forward``.

    Attributes:
        gate_up_a, gate_up_b: (E, r, H) and (E, N, r), N being gate_up's rows, in their order; or both None.
        down_a, down_b: (E, r, I) and (E, H, r), with an r of its own; or both None.
        scale: a number for both, or a pair of numbers: LoRA's alpha / r.

    All tensors have x's dtype, or float32; any strides.

    Examples:
        >>> import torch
        >>> from course_kernels import moe_feed_forward
        >>> from course_kernels.moe import Lora
        >>> x, gate_up, down = torch.ones(3, 4), torch.ones(2, 16, 4), torch.ones(2, 4, 8)
        >>> index, weights = torch.tensor([[0], [1], [1]]), torch.ones(3, 1)
        >>> lora = Lora(torch.ones(2, 2, 4), torch.zeros(2, 16, 2), scale=0.5)
        >>> moe_feed_forward(x, gate_up, down, index, weights, lora=lora).shape
        torch.Size([3, 4])
    """

    gate_up_a: Tensor | None = None
    gate_up_b: Tensor | None = None
    down_a: Tensor | None = None
    down_b: Tensor | None = None
    scale: float | tuple[float, float] = 1.0


Factors = tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None]


def factors_of(lora: Lora | None) -> Factors:
    """The tensors of adapters.

    Raises:
        TypeError: something else was given.
    """
    if lora is None:
        return (None,) * 4
    if not isinstance(lora, Lora):
        raise TypeError(f"lora must be a course_kernels.moe.Lora or None, got {type(lora).__name__}")
    return lora[:4]


def scales_of(lora: Lora) -> list[float]:
    """The scales of both products."""
    return [float(each) for each in (lora.scale if isinstance(lora.scale, (tuple, list)) else (lora.scale,) * 2)]


def named(factors: Factors) -> dict[str, Tensor]:
    """The tensors that are there, by the names in messages."""
    return {f"lora.{name}": each for name, each in zip(NAMES, factors) if each is not None}


def local(lora: Lora, ep: Parallel) -> Lora:
    """The adapters of this rank's experts."""
    given = named(factors_of(lora))
    found = dict(zip(given, ep.local(**given)))
    return Lora(*(found.get(f"lora.{name}") for name in NAMES), lora.scale)


def cast_adapters(lora: Lora, dtype: torch.dtype) -> Lora:
    """Adapters under autocast: tensors of float32 stay, as biases do, for products round them anyway."""
    tensors = (
        each.to(dtype) if isinstance(each, Tensor) and each.dtype in (torch.float16, torch.bfloat16) else each
        for each in lora[:4]
    )  # fmt: skip
    return Lora(*tensors, lora.scale)


def check_lora(lora: Lora, operands: Operands, main_grads) -> None:
    """Raise unless adapters fit the checked tensors of a layer.

    Raises:
        TypeError, ValueError: naming the argument, what it got and what it wants.
    """
    x, gate_up, down = operands[:3]
    for name, weight, a, b in (("gate_up", gate_up, *lora[:2]), ("down", down, *lora[2:4])):
        if (a is None) != (b is None):
            missing, given = ("b", "a") if b is None else ("a", "b")
            raise ValueError(f"lora.{name}_{missing} must be given beside lora.{name}_{given}, got None")
        if a is not None:
            _check_pair(f"lora.{name}", weight, a, b, x)
    scale = lora.scale
    numbers = scale if isinstance(scale, (tuple, list)) else (scale, scale)
    if len(numbers) != 2 or any(isinstance(each, bool) or not isinstance(each, (int, float)) for each in numbers):
        raise TypeError(f"lora.scale must be a number or a pair of numbers, got {scale!r}")
    if not all(-math.inf < each < math.inf for each in numbers):  # of symbols, too
        raise ValueError(f"lora.scale must be finite, got {scale!r}")
    if main_grads is not None:
        raise ValueError("main_grads must be None with lora: weights under adapters add their gradients to no others")


def _check_pair(name: str, weight: Tensor, a, b, x: Tensor) -> None:
    experts, rows, columns = weight.shape
    for end, factor, at, wanted in (("a", a, 1, (experts, columns)), ("b", b, 2, (experts, rows))):
        full = f"{name}_{end}"
        check_dense(full, factor)
        shape = f"({experts}, r, {columns})" if end == "a" else f"({experts}, {rows}, r)"
        fits = factor.dim() == 3
        if fits:
            others = factor.shape[0], factor.shape[3 - at]
            fits = not any(differ(*each, f"{full} must have shape {shape}") for each in zip(others, wanted))
        if not fits:
            raise ValueError(f"{full} must have shape {shape}, got {tuple(factor.shape)}")
        check_added_dtype(full, factor, x.dtype, "x")
        if factor.device != x.device:
            raise ValueError(f"{full} must be on the device of x, {x.device}, got {factor.device}")
    if differ(b.shape[2], a.shape[1], f"{name}_b must have the rank of {name}_a"):
        raise ValueError(f"{name}_b must have the rank of {name}_a, {a.shape[1]}, got shape {tuple(b.shape)}")
    if is_number(a.shape[1]) and a.shape[1] < 1:
        raise ValueError(f"{name}_a must have a rank of at least 1, got shape {tuple(a.shape)}")


# ---- a layer's computation


class Adapter(NamedTuple):
    """The adapter of a product of rows with weights (E, N, K). It adds scale * (rows @ a[e].mT) @ b[e].mT.

    Attributes:
        a, b: (E, r, K) and (E, N, r) of x's dtype.
        scale: a factor.
    """

    a: Tensor
    b: Tensor
    scale: float

    @property
    def crossed(self) -> Adapter:
        """The adapter of the backward's product, which computes the gradient of the rows."""
        return Adapter(self.b.mT, self.a.mT, self.scale)

    def thin(self, rows: Tensor, expert: int) -> Tensor:
        """By torch alone: an expert's rows times a, rounded."""
        return (rows.float() @ self.a[expert].float().mT).to(self.a.dtype)

    def widened(self, thin: Tensor, expert: int) -> Tensor:
        """By torch alone: the adapter's part of the product, from its ``thin`` rows, in float32."""
        return self.scale * (thin.float() @ self.b[expert].float().mT)


@dataclass
class Adapters:
    """The adapters of both products in one call.

    Attributes:
        parts: of the first and of the second product; None for none.
        thin: the rows times a of either product, (T * k, r). The forward stores them here, the backward reads them.
        needs: which gradients the backward has to compute, in the order of ``NAMES``.
        gradients: those, in float32, contiguous. The backward stores them here.
    """

    parts: tuple[Adapter | None, Adapter | None]
    thin: list[Tensor | None] = field(default_factory=lambda: [None, None])
    needs: Sequence[bool] = (False,) * 4
    gradients: list[Tensor | None] = field(default_factory=lambda: [None] * 4)

    @classmethod
    def of(cls, factors: Factors, scales: Sequence[float], dtype: torch.dtype) -> Adapters:
        """Round tensors to x's dtype. Where neither columns nor rows are contiguous, as in PEFT's layout of b, kernels
        would read every element on its own: a copy is small beside one weight."""
        ready = [each if each is None else _compact(each.to(dtype)) for each in factors]
        pairs = zip(ready[::2], ready[1::2], scales)
        return cls(tuple(None if a is None else Adapter(a, b, scale) for a, b, scale in pairs))


def _compact(factor: Tensor) -> Tensor:
    return factor if 1 in factor.stride()[1:] else factor.contiguous()
