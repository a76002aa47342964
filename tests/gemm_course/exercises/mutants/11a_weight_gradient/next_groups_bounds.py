# ruff: noqa
# check: tokens
# says: group \d has tokens? \d+.*, and this is the sum over token.*\. That is group \d: `ends\[g\]` is where group g ends
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
    start = tl.load(ends_ptr + g)
    end = tl.load(ends_ptr + tl.minimum(g + 1, tl.num_programs(0) // (tl.cdiv(K, BLOCK_K) * tl.cdiv(N, BLOCK_N)) - 1))
    acc = tl.zeros((BLOCK_K, BLOCK_N), dtype=tl.float32)
    for first in range(start, end, BLOCK_M):
        tokens = first + tl.arange(0, BLOCK_M)
        a_ptrs = a_ptr + rows[:, None] * lda + tokens[None, :]
        b_ptrs = b_ptr + tokens[:, None] * ldb + cols[None, :]
        a = tl.load(a_ptrs, mask=(rows[:, None] < K) & (tokens[None, :] < end), other=0.0)
        b = tl.load(b_ptrs, mask=(tokens[:, None] < end) & (cols[None, :] < N), other=0.0)
        acc = tl.dot(a, b, acc)
    tl.store(c_ptrs, acc.to(c_ptr.dtype.element_ty), mask=inside)
