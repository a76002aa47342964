"""The layer's steps that are no products: rows gathered, activations and their gradients, rows combined."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor

from course_kernels.kernels.codes import Activation
from course_kernels.moe.launching import Launch, aligned, kept, launch
from course_kernels.moe.routing import Routing

Combine: TypeAlias = Callable[[Tensor, Routing, int, Tensor | None], Tensor]  # a last step, such as ``combine``
_ELEMENTS = 4096  # of the block that a program of four warps holds


def block_columns(extent: int, most: int) -> int:
    """Columns of a block: a power of two, up to ``most``."""
    return min(most, max(16, 1 << (extent - 1).bit_length()))


def constants_of(activation: Activation, interleaved: bool) -> dict[str, int | float | None]:
    """The kernels' constants for an activation."""
    function, gated, alpha, limit, shift = activation
    return dict(
        FUNCTION=int(function), GATED=gated, STEP=1 + interleaved, ALPHA=alpha, LIMIT=limit, SHIFT=shift
    )  # fmt: skip


def _sizes(routing: Routing, cols: int) -> dict[str, int]:
    return dict(COLS=cols, EXPERTS=routing.ends.shape[0], TOP_K=routing.rows.shape[1])


def gather(
    x: Tensor, routing: Routing, weights: Tensor | None = None, dtype: torch.dtype | None = None
) -> Tensor:  # fmt: skip
    """Gather the rows of experts from tokens x (T, H): (T * k, H) of ``dtype``, x's own by default; times the float32
    ``weights`` of their choices, if those are given. Rows after the last end are not written."""
    (tokens, cols), count = x.shape, routing.tokens.shape[0]
    out = torch.empty(count, cols, dtype=dtype or x.dtype, device=x.device)
    block_n = block_columns(cols, 1024)
    block_m = max(1, _ELEMENTS // block_n)
    launch(
        "moe_rows", "gather_kernel", -(-count // block_m), tokens, x_ptr=x, index_ptr=routing.tokens,
        offs_ptr=routing.ends, slots_ptr=None if weights is None else routing.choices, weights_ptr=weights,
        out_ptr=out, stride_t=x.stride(0), stride_h=x.stride(1), **_sizes(routing, cols), BLOCK_M=block_m,
        BLOCK_N=block_n,
    )  # fmt: skip
    return out


def gather_weights(weights: Tensor, routing: Routing) -> Tensor:
    """The float32 weights (T, k) in the order of rows, (T * k,). Those after the last end are not written. torch's own
    kernel for it takes 7 µs of an H200 with 8,192 choices."""
    return gather(weights.view(-1, 1), routing._replace(tokens=routing.choices)).view(-1)


def activate(pre: Tensor, routing: Routing, tokens: int, activation: Activation, interleaved: bool) -> Tensor:
    """Compute the activation of pre (T * k, N): of its dtype, (T * k, N / 2) with a gate. Rows after the last end are
    not written."""
    count, cols = pre.shape[0], pre.shape[1] // (1 + activation.gated)
    out = torch.empty(count, cols, dtype=pre.dtype, device=pre.device)
    block_n = block_columns(cols, 256)
    block_m = max(1, _ELEMENTS // block_n)
    launch(
        "activation", "activation_kernel", -(-count // block_m) * -(-cols // block_n), tokens, pre_ptr=pre,
        offs_ptr=routing.ends, out_ptr=out, **_sizes(routing, cols),
        **constants_of(activation, interleaved), BLOCK_M=block_m, BLOCK_N=block_n,
    )  # fmt: skip
    return out


def activation_gradient(
    grad: Tensor, pre: Tensor, routing: Routing, weights: Tensor | None, tokens: int, activation: Activation,
    interleaved: bool, with_activated: bool = True,
) -> tuple[Tensor, Tensor | None, Tensor | None]:  # fmt: skip
    """From the gradient (T * k, I) of an activation, before the rows' weights, compute that of its argument.

    Returns:
        The gradient of ``pre``, shaped and stored like it; the activation times weights, (T * k, I), or None; and the
        gradient of the float32 ``weights`` (T, k), 0 for choices without a row, None where there are no weights. Rows
        after the last end are not written.
    """
    count, cols = grad.shape
    grad_pre, activated = torch.empty_like(pre), torch.empty_like(grad) if with_activated else None
    grad_weights = None if weights is None else torch.zeros_like(weights)
    block_n = block_columns(cols, 256)
    block_m = max(1, _ELEMENTS // 2 // block_n)
    launch(
        "activation", "activation_gradient_kernel", -(-count // block_m), tokens, grad_ptr=grad, pre_ptr=pre,
        offs_ptr=routing.ends, slots_ptr=None if weights is None else routing.choices, weights_ptr=weights,
        grad_pre_ptr=grad_pre, activated_ptr=activated, grad_weights_ptr=grad_weights,
        **_sizes(routing, cols), **constants_of(activation, interleaved), BLOCK_M=block_m,
        BLOCK_N=block_n,
    )  # fmt: skip
    return grad_pre, activated, grad_weights


def combine(rows: Tensor, routing: Routing, tokens: int, weights: Tensor | None = None) -> Tensor:
    """Sum each token's rows (T * k, H), times the float32 ``weights`` (T, k) if given: (T, H) of the rows' dtype, in
    float32 in the order of the choices, rounded once."""
    cols = rows.shape[1]
    out, top_k = torch.empty(tokens, cols, dtype=rows.dtype, device=rows.device), routing.rows.shape[1]
    forms = rows.dtype, rows.device, *aligned(rows, routing.rows, weights)
    key = "combine", tokens, cols, top_k, *forms
    kept(key, lambda: combining(tokens, cols, top_k))(rows, routing.rows, weights, out)
    return out


def uncombined(rows: Tensor, routing: Routing, tokens: int, weights: Tensor | None = None) -> Tensor:
    """Return the rows themselves: ``combine`` for who sums them on their way to other ranks."""
    return rows


def combining(tokens: int, cols: int, top_k: int) -> Launch:
    """The launch of ``combine``. It takes rows, their places, weights or None, and the result."""
    block_n = block_columns(cols, 512)
    block_m = max(1, _ELEMENTS // 2 // block_n)
    return Launch(
        "moe_rows", "combine_kernel", -(-tokens // block_m) * -(-cols // block_n), tokens,
        ("rows_ptr", "positions_ptr", "weights_ptr", "out_ptr"), COLS=cols, TOP_K=top_k, BLOCK_M=block_m,
        BLOCK_N=block_n,
    )  # fmt: skip


def dots(rows: Tensor, x: Tensor, routing: Routing) -> Tensor:
    """Compute the dot product of each choice's row and its token's x (T, H): float32 (T, k), 0 for choices without a
    row."""
    (tokens, cols), count = x.shape, rows.shape[0]
    out = torch.zeros(tokens, routing.rows.shape[1], dtype=torch.float32, device=x.device)
    block_n = block_columns(cols, 256)
    block_m = max(1, _ELEMENTS // block_n)
    launch(
        "moe_rows", "dots_kernel", -(-count // block_m), tokens, rows_ptr=rows, x_ptr=x, index_ptr=routing.tokens,
        offs_ptr=routing.ends, slots_ptr=routing.choices, dots_ptr=out, stride_t=x.stride(0), stride_h=x.stride(1),
        **_sizes(routing, cols), BLOCK_M=block_m, BLOCK_N=block_n,
    )  # fmt: skip
    return out


def sum_parts(parts: Tensor, routing: Routing, weights: Tensor) -> Tensor:
    """Sum each row's parts (T * k, parts), float32: the gradient of the ``weights`` (T, k), 0 for choices without a
    row."""
    out, (count, width) = torch.empty_like(weights), parts.shape
    block_n = max(2, 1 << (width - 1).bit_length())
    block_m = max(1, _ELEMENTS // 2 // block_n)
    launch(
        "moe_rows", "sum_parts_kernel", -(-count // block_m), weights.shape[0], parts_ptr=parts,
        offs_ptr=routing.ends, slots_ptr=routing.choices, grad_weights_ptr=out, PARTS=width,
        EXPERTS=routing.ends.shape[0], TOP_K=weights.shape[1], BLOCK_M=block_m, BLOCK_N=block_n,
    )  # fmt: skip
    return out
