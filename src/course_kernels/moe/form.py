"""A layer of experts without its computation: what it computes, its tensors, their gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from torch import Tensor

from course_kernels.dtypes import dtype_name
from course_kernels.engine.gradient_layout import gradient_like
from course_kernels.engine.options import Options
from course_kernels.engine.product import Pieces
from course_kernels.kernels.codes import Activation


class Form(NamedTuple):
    """What a layer computes, beside its tensors.

    Attributes:
        activation: between the products.
        interleaved: columns of gate and up take turns; False without a gate.
        on_input: a choice's weight multiplies its row of x, not its row of the result.
        backend: one of ``engine.product_checks.BACKENDS``.
        num_sms: SMs that products may use; None for all.
    """

    activation: Activation
    interleaved: bool = False
    on_input: bool = False
    backend: str = "auto"
    num_sms: int | None = None

    @property
    def options(self) -> Options:
        """Options of the layer's products."""
        return Options(backend=self.backend, num_sms=self.num_sms)


class Operands(NamedTuple):
    """The tensors of a layer; shapes as in ``moe_feed_forward``."""

    x: Tensor
    gate_up: Tensor
    down: Tensor
    weights: Tensor
    gate_up_bias: Tensor | None = None
    down_bias: Tensor | None = None

    def in_words(self) -> str:
        """The sizes, for the log."""
        (tokens, hidden), (experts, _, inner) = self.x.shape, self.down.shape
        return f"a layer of {experts} experts, H {hidden}, I {inner}; {tokens} tokens in {dtype_name(self.x.dtype)}"


class Arriving(NamedTuple):
    """Rows of tokens that are still on their way from other GPUs.

    Attributes:
        pieces: makes the pieces of experts' rows, for a product of so many columns that waits for each itself.
        settle: makes the current stream wait for all, before the rows are used in another way, or after such a product.
            A second call does nothing.
    """

    pieces: Callable[[int], Pieces]
    settle: Callable[[], None]


class Gradients(NamedTuple):
    """The gradients of ``Operands``; None where they are not asked for, or were added to main gradients. Those of
    weights are stored like the weights, the others contiguously, however the operands are stored."""

    x: Tensor | None = None
    gate_up: Tensor | None = None
    down: Tensor | None = None
    weights: Tensor | None = None
    gate_up_bias: Tensor | None = None
    down_bias: Tensor | None = None

    @classmethod
    def empty(cls, operands: Operands, needs: Sequence[bool]) -> Gradients:
        """Memory for the gradients of the operands that ``needs`` selects."""
        of_weights = "gate_up", "down"
        made = {
            name: gradient_like(each, None, each.dtype) if name in of_weights else each.new_empty(each.shape)
            for (name, each), need in zip(operands._asdict().items(), needs)
            if need
        }
        return cls(**made)

    def zeroed(self) -> Gradients:
        """The same memory, of zeros."""
        for each in self:
            if each is not None:
                each.zero_()
        return self
