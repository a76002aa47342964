# ruff: noqa
# check: sums
# says: are the grid's two numbers, and program_id\(0\) and program_id\(1\), in the same order\?
@triton.jit
def column_sums(
    grad_ptr, ends_ptr, out_ptr, N, stride_grad, stride_out, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr
):  # fmt: skip
    g = tl.program_id(0)
    cols = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    start = tl.load(ends_ptr + g - 1, mask=g > 0, other=0)
    end = tl.load(ends_ptr + g)
    acc = tl.zeros((BLOCK_N,), dtype=tl.float32)
    for first in range(start, end, BLOCK_M):
        rows = first + tl.arange(0, BLOCK_M)
        inside = (rows[:, None] < end) & (cols[None, :] < N)
        block = tl.load(grad_ptr + rows[:, None] * stride_grad + cols[None, :], mask=inside, other=0.0)
        acc += tl.sum(block.to(tl.float32), axis=0)
    tl.store(out_ptr + g * stride_out + cols, acc, mask=cols < N)


def bias_gradient(grad, ends, out):
    N, BLOCK_M, BLOCK_N = grad.shape[1], 16, 16
    grid = (triton.cdiv(N, BLOCK_N), len(ends))
    column_sums[grid](grad, ends, out, N, grad.stride(0), out.stride(0), BLOCK_M, BLOCK_N)
