# ruff: noqa
@triton.jit
def store_group_tile(c_ptr, acc, start, end, total_m, i, j, N, ldc, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    left = end - start - i * BLOCK_M
    if left <= 0:
        return
    features, own = j * BLOCK_N + tl.arange(0, BLOCK_N)[:, None], tl.arange(0, BLOCK_M)[None, :]
    pointers = c_ptr + features * ldc + start + i * BLOCK_M + own
    tl.store(pointers, acc, mask=(features < N) & (own < left))
