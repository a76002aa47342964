# ruff: noqa
@triton.jit
def gradient_tile(
    a_ptr, b_ptr, c_ptr, ends_ptr, g, i, j, K, N, lda, ldb, ldc,
    BLOCK_K: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_M: tl.constexpr,
):  # fmt: skip
    """Tile (i, j) of C[g] = A[:, start:end] B[start:end]. `c_ptr` is C[g]'s first element."""
    rows = i * BLOCK_K + tl.arange(0, BLOCK_K)
    cols = j * BLOCK_N + tl.arange(0, BLOCK_N)
    c_ptrs = c_ptr + rows[:, None] * ldc + cols[None, :]
    inside = (rows[:, None] < K) & (cols[None, :] < N)
    start = tl.load(ends_ptr + g - 1, mask=g > 0)
    start = tl.where(g > 0, start, 0)
    end = tl.load(ends_ptr + g)
    acc = tl.zeros((BLOCK_K, BLOCK_N), dtype=tl.float32)
    for first in range(start, end, BLOCK_M):
        tokens = first + tl.arange(0, BLOCK_M)
        a_ptrs = a_ptr + rows[:, None] * lda + tokens[None, :]
        b_ptrs = b_ptr + tokens[:, None] * ldb + cols[None, :]
        a = tl.load(a_ptrs, mask=(rows[:, None] < K) & (tokens[None, :] < end))
        a = tl.where((rows[:, None] < K) & (tokens[None, :] < end), a, 0.0)
        b = tl.load(b_ptrs, mask=(tokens[:, None] < end) & (cols[None, :] < N), other=0.0)
        acc = tl.dot(a, b, acc)
    tl.store(c_ptrs, acc.to(c_ptr.dtype.element_ty), mask=inside)
