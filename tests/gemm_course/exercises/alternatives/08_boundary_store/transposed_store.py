# ruff: noqa
@triton.jit
def store_group_tile(c_ptr, acc, start, end, total_m, i, j, N, ldc, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    features = (j * BLOCK_N + tl.arange(0, BLOCK_N))[None, :]
    tokens = (start + i * BLOCK_M + tl.arange(0, BLOCK_M))[:, None]
    values = tl.trans(acc).to(c_ptr.dtype.element_ty)
    tl.store(c_ptr + features * ldc + tokens, values, mask=(tokens < end) & (features < N))
