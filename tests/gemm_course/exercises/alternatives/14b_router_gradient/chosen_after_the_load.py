# ruff: noqa
@triton.jit
def row_products(
    pre_ptr, grad_ptr, places_ptr, count_ptr, out_ptr, positions, I, k, stride_pre, stride_grad, stride_out,
    BLOCK_M: tl.constexpr, BLOCK_I: tl.constexpr,
):  # fmt: skip
    """The gradients of some positions' routing weights, from `pre` (positions, 2 I) and `grad` (positions, I)."""
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    there = rows < positions
    acc = tl.zeros((BLOCK_M, BLOCK_I), dtype=tl.float32)
    cols = tl.arange(0, BLOCK_I)
    while tl.min(cols) < I:
        inside = there[:, None] & (cols < I)[None, :]
        gate = tl.load(pre_ptr + rows[:, None] * stride_pre + cols, mask=inside, other=0.0).to(tl.float32)
        up = tl.load(pre_ptr + rows[:, None] * stride_pre + I + cols, mask=inside, other=0.0)
        grad = tl.load(grad_ptr + rows[:, None] * stride_grad + cols, mask=inside, other=0.0)
        acc += tl.where(gate > 0, gate, 0.0) * up * grad
        cols += BLOCK_I
    count = tl.load(count_ptr)
    result = tl.where(rows < count, tl.sum(acc, axis=1), 0.0)
    place = tl.load(places_ptr + rows, mask=there)
    token = place // k
    tl.store(out_ptr + token * stride_out + (place - token * k), result, mask=there)


def router_gradient(pre, grad, places, count, out):
    """out[token, slot] = the gradient of the routing weight at that place, for every position."""
    (positions, I), k, BLOCK_M, BLOCK_I = grad.shape, out.shape[1], 16, 32
    strides = pre.stride(0), grad.stride(0), out.stride(0)
    grid = ((positions + BLOCK_M - 1) // BLOCK_M,)
    row_products[grid](pre, grad, places, count, out, positions, I, k, *strides, BLOCK_M, BLOCK_I)
