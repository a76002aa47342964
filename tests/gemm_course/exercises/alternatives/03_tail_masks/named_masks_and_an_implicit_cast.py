# ruff: noqa
@triton.jit
def product_tile(a_ptr, b_ptr, c_ptr, row, col, M, N, K, lda, ldb, ldc, BLOCK: tl.constexpr):
    rows = row + tl.arange(0, BLOCK)
    cols = col + tl.arange(0, BLOCK)
    acc = tl.zeros((BLOCK, BLOCK), dtype=tl.float32)
    of_m, of_n = rows < M, cols < N
    for k in range(0, K, BLOCK):
        depth = k + tl.arange(0, BLOCK)
        of_k = (depth < K)[:, None]
        a = tl.load(a_ptr + depth[:, None] * lda + rows[None, :], mask=of_k & of_m[None, :], other=0)
        b = tl.load(b_ptr + depth[:, None] * ldb + cols[None, :], mask=of_k & of_n[None, :], other=0)
        acc += tl.dot(tl.trans(a), b)
    tl.store(c_ptr + rows[:, None] * ldc + cols[None, :], acc, mask=of_m[:, None] & of_n[None, :])
