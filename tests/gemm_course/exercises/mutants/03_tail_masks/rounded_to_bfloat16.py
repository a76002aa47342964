# ruff: noqa
# check: tiles
# says: these are the right sums, rounded to bfloat16: the type of C is
@triton.jit
def product_tile(a_ptr, b_ptr, c_ptr, row, col, M, N, K, lda, ldb, ldc, BLOCK: tl.constexpr):
    """The tile of C = Aᵀ B that begins at (row, col). A: (K, M), B: (K, N), C: (M, N), row-major."""
    rows = row + tl.arange(0, BLOCK)
    cols = col + tl.arange(0, BLOCK)
    acc = tl.zeros((BLOCK, BLOCK), dtype=tl.float32)
    for k in range(0, tl.cdiv(K, BLOCK)):
        depth = k * BLOCK + tl.arange(0, BLOCK)
        a_ptrs = a_ptr + depth[:, None] * lda + rows[None, :]
        b_ptrs = b_ptr + depth[:, None] * ldb + cols[None, :]
        a = tl.load(a_ptrs, mask=(depth[:, None] < K) & (rows[None, :] < M), other=0.0)
        b = tl.load(b_ptrs, mask=(depth[:, None] < K) & (cols[None, :] < N), other=0.0)
        acc = tl.dot(tl.trans(a), b, acc)
    c_ptrs = c_ptr + rows[:, None] * ldc + cols[None, :]
    tl.store(c_ptrs, acc.to(tl.bfloat16), mask=(rows[:, None] < M) & (cols[None, :] < N))
