# ruff: noqa
@triton.jit
def column_sums(
    grad_ptr, ends_ptr, out_ptr, N, stride_grad, stride_out, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr
):  # fmt: skip
    """One program's sums: some columns of `grad` (total_m, N), over the rows of a group, into `out` (G, N)."""
    g = tl.program_id(0)
    cols = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    start = tl.load(ends_ptr + g - 1, mask=g > 0, other=0)
    end = tl.load(ends_ptr + g)
    acc = tl.zeros((BLOCK_N,), dtype=tl.float32)
    for first in range(start, end, BLOCK_M):
        rows = first + tl.arange(0, BLOCK_M)
        inside = (rows[:, None] < end) & (cols[None, :] < N)
        block = tl.load(grad_ptr + rows[:, None] * stride_grad + cols[None, :], mask=inside)
        block = tl.where(inside, block, 0.0)
        acc += tl.sum(block.to(tl.float32), axis=0)
    tl.store(out_ptr + g * stride_out + cols, acc, mask=cols < N)


def bias_gradient(grad, ends, out):
    """out[g] = the sum of group g's rows of `grad`."""
    N, BLOCK_M, BLOCK_N = grad.shape[1], 16, 32
    grid = (len(ends), triton.cdiv(N, BLOCK_N))
    column_sums[grid](grad, ends, out, N, grad.stride(0), out.stride(0), BLOCK_M, BLOCK_N)
