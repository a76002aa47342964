"""The activation between a layer's two products, and its gradient: device functions, and kernels of their own.

The argument of an activation with a gate has a column of the gate and one of up for each column of the result. They are
next to each other (``STEP`` 2), or all of the gate's come first (``STEP`` 1).
"""

from __future__ import annotations

from course_kernels.kernels.codes import Function
from course_kernels.kernels.language import tl, triton

SILU = tl.constexpr(int(Function.SILU))
GELU = tl.constexpr(int(Function.GELU))
GELU_TANH = tl.constexpr(int(Function.GELU_TANH))
RELU = tl.constexpr(int(Function.RELU))
RELU2 = tl.constexpr(int(Function.RELU2))
ROOT_HALF = tl.constexpr(0.7071067811865476)
ROOT_TAU = tl.constexpr(0.3989422804014327)  # 1 / sqrt(2 * pi)
TANH_SCALE = tl.constexpr(0.7978845608028654)  # sqrt(2 / pi)
TANH_CUBE = tl.constexpr(0.044715)


@triton.jit
def value_and_slope(x, FUNCTION: tl.constexpr, ALPHA: tl.constexpr):
    """f(x) and f'(x), float32. NaN stays NaN."""
    if FUNCTION == SILU:
        share = tl.sigmoid(x * ALPHA)
        value = x * share
        slope = share + value * (1.0 - share) * ALPHA
    elif FUNCTION == GELU:
        share = 0.5 + 0.5 * tl.erf(x * ROOT_HALF)
        value = x * share
        slope = share + x * ROOT_TAU * tl.exp(-0.5 * x * x)
    elif FUNCTION == GELU_TANH:
        # (1 + tanh(y)) / 2 is the logistic function of 2 * y.
        share = tl.sigmoid((x + x * x * x * TANH_CUBE) * (2.0 * TANH_SCALE))
        value = x * share
        slope = share + value * (1.0 - share) * (x * x * (3.0 * TANH_CUBE) + 1.0) * (2.0 * TANH_SCALE)
    else:
        value = tl.where(x < 0.0, 0.0, x)
        slope = tl.where(x > 0.0, 1.0, 0.0)
        if FUNCTION != RELU:
            tl.static_assert(FUNCTION == RELU2, "an unknown Function")
            slope = 2.0 * value
            value = value * value
    return value, slope


@triton.jit
def activated(gate, up, FUNCTION: tl.constexpr, ALPHA: tl.constexpr, LIMIT: tl.constexpr, SHIFT: tl.constexpr):
    """f(gate) * (up + SHIFT), of limited arguments; f(gate) where up is None."""
    if LIMIT is not None:
        gate = tl.where(gate > LIMIT, LIMIT, gate)
    value, _ = value_and_slope(gate, FUNCTION, ALPHA)
    if up is not None:
        if LIMIT is not None:
            up = tl.where(up > LIMIT, LIMIT, tl.where(up < -LIMIT, -LIMIT, up))
        value *= up + SHIFT
    return value


@triton.jit
def gradients(
    grad, gate, up, FUNCTION: tl.constexpr, ALPHA: tl.constexpr, LIMIT: tl.constexpr, SHIFT: tl.constexpr
):  # fmt: skip
    """The activation, and the gradients of gate and up where ``grad`` is the gradient of the activation."""
    if LIMIT is not None:
        inside = gate <= LIMIT
        gate = tl.where(gate > LIMIT, LIMIT, gate)
    value, slope = value_and_slope(gate, FUNCTION, ALPHA)
    grad_gate = grad * slope
    grad_up = grad_gate
    if up is not None:
        if LIMIT is not None:
            up_inside = (up <= LIMIT) & (up >= -LIMIT)
            up = tl.where(up > LIMIT, LIMIT, tl.where(up < -LIMIT, -LIMIT, up))
        grad_gate *= up + SHIFT
        grad_up = grad * value
        value *= up + SHIFT
        if LIMIT is not None:
            grad_up = tl.where(up_inside, grad_up, 0.0)
    if LIMIT is not None:
        grad_gate = tl.where(inside, grad_gate, 0.0)
    return value, grad_gate, grad_up


@triton.jit
def row_count(offs_ptr, tokens, EXPERTS: tl.constexpr, TOP_K: tl.constexpr):
    """Rows that an expert has, of ``tokens * TOP_K``; the others come last."""
    return tl.minimum(tl.load(offs_ptr + EXPERTS - 1).to(tl.int32), tokens * TOP_K)


@triton.jit(do_not_specialize=["tokens"])
def activation_kernel(
    pre_ptr, offs_ptr, out_ptr, tokens, COLS: tl.constexpr, EXPERTS: tl.constexpr, TOP_K: tl.constexpr,
    GATED: tl.constexpr, STEP: tl.constexpr, FUNCTION: tl.constexpr, ALPHA: tl.constexpr, LIMIT: tl.constexpr,
    SHIFT: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """out = the activation of pre, in float32, rounded once; for the rows of experts. One program has a block.

    Args:
        pre_ptr: (rows, COLS, or 2 * COLS where GATED), out_ptr: (rows, COLS); both contiguous.
        offs_ptr: (EXPERTS,) ends.
    """
    tiles_n = tl.cdiv(COLS, BLOCK_N)
    rows = tl.program_id(0) // tiles_n * BLOCK_M + tl.arange(0, BLOCK_M)
    cols = tl.program_id(0) % tiles_n * BLOCK_N + tl.arange(0, BLOCK_N)
    inside = (rows < row_count(offs_ptr, tokens, EXPERTS, TOP_K))[:, None] & (cols < COLS)[None, :]
    line = rows.to(tl.int64)[:, None] * COLS
    if GATED:
        gates = pre_ptr + 2 * line + cols[None, :] * STEP
        gate = tl.load(gates, mask=inside, other=0.0).to(tl.float32)
        up = tl.load(gates + (COLS if STEP == 1 else 1), mask=inside, other=0.0).to(tl.float32)
        value = activated(gate, up, FUNCTION, ALPHA, LIMIT, SHIFT)
    else:
        gate = tl.load(pre_ptr + line + cols[None, :], mask=inside, other=0.0).to(tl.float32)
        value = activated(gate, None, FUNCTION, ALPHA, LIMIT, SHIFT)
    tl.store(out_ptr + line + cols[None, :], value.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["tokens"])
def activation_gradient_kernel(
    grad_ptr, pre_ptr, offs_ptr, slots_ptr, weights_ptr, grad_pre_ptr, activated_ptr, grad_weights_ptr, tokens,
    COLS: tl.constexpr, EXPERTS: tl.constexpr, TOP_K: tl.constexpr, GATED: tl.constexpr, STEP: tl.constexpr,
    FUNCTION: tl.constexpr, ALPHA: tl.constexpr, LIMIT: tl.constexpr, SHIFT: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):  # fmt: skip
    """The gradients of an activation's argument and of the rows' weights, and the weighted activation.

    One program has BLOCK_M rows, all columns of them: a row's dot product is summed in one order.

    Args:
        grad_ptr: (rows, COLS), the gradient of the activation before weights; pre_ptr: as for ``activation_kernel``.
        slots_ptr: (rows,) where a row's weight is in weights_ptr, float32; None where weights are not applied here.
        grad_pre_ptr: like pre; activated_ptr: (rows, COLS), weight times activation, or None.
        grad_weights_ptr: float32, like weights: the dot product of gradient and activation, or None.
    """
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    valid = rows < row_count(offs_ptr, tokens, EXPERTS, TOP_K)
    if slots_ptr is not None:
        slots = tl.load(slots_ptr + rows, mask=valid, other=0)
        weight = tl.load(weights_ptr + slots, mask=valid, other=0.0)[:, None]
    dots = tl.zeros((BLOCK_M,), dtype=tl.float32)
    for first in range(0, COLS, BLOCK_N):
        cols = first + tl.arange(0, BLOCK_N)
        inside = valid[:, None] & (cols < COLS)[None, :]
        line = rows.to(tl.int64)[:, None] * COLS
        grad = tl.load(grad_ptr + line + cols[None, :], mask=inside, other=0.0).to(tl.float32)
        if GATED:
            at = 2 * line + cols[None, :] * STEP
            gate = tl.load(pre_ptr + at, mask=inside, other=0.0).to(tl.float32)
            up = tl.load(pre_ptr + at + (COLS if STEP == 1 else 1), mask=inside, other=0.0).to(tl.float32)
        else:
            at = line + cols[None, :]
            gate = tl.load(pre_ptr + at, mask=inside, other=0.0).to(tl.float32)
            up = None
        if slots_ptr is not None:
            value, grad_gate, grad_up = gradients(grad * weight, gate, up, FUNCTION, ALPHA, LIMIT, SHIFT)
            dots += tl.sum(tl.where(inside, grad * value, 0.0), 1)
            value *= weight
        else:
            value, grad_gate, grad_up = gradients(grad, gate, up, FUNCTION, ALPHA, LIMIT, SHIFT)
        kind = grad_pre_ptr.dtype.element_ty
        tl.store(grad_pre_ptr + at, grad_gate.to(kind), mask=inside)
        if GATED:
            tl.store(grad_pre_ptr + at + (COLS if STEP == 1 else 1), grad_up.to(kind), mask=inside)
        if activated_ptr is not None:
            tl.store(activated_ptr + line + cols[None, :], value.to(activated_ptr.dtype.element_ty), mask=inside)
    if grad_weights_ptr is not None:
        tl.store(grad_weights_ptr + slots, dots, mask=valid)
