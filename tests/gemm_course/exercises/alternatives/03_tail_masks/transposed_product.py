# ruff: noqa
@triton.jit
def product_tile(a_ptr, b_ptr, c_ptr, row, col, M, N, K, lda, ldb, ldc, BLOCK: tl.constexpr):
    rows = row + tl.arange(0, BLOCK)
    cols = col + tl.arange(0, BLOCK)
    acc = tl.zeros((BLOCK, BLOCK), dtype=tl.float32)
    for k in range(0, tl.cdiv(K, BLOCK)):
        depth = k * BLOCK + tl.arange(0, BLOCK)
        a_ptrs = a_ptr + depth[:, None] * lda + rows[None, :]
        b_ptrs = b_ptr + depth[:, None] * ldb + cols[None, :]
        a = tl.load(a_ptrs, mask=(depth[:, None] < K) & (rows[None, :] < M), other=0.0)
        b = tl.load(b_ptrs, mask=(depth[:, None] < K) & (cols[None, :] < N), other=0.0)
        acc = tl.dot(tl.trans(b), a, acc)
    c_ptrs = c_ptr + rows[:, None] * ldc + cols[None, :]
    mask = (rows[:, None] < M) & (cols[None, :] < N)
    tl.store(c_ptrs, tl.trans(acc).to(c_ptr.dtype.element_ty), mask=mask)
