# ruff: noqa
# check: partial
# says: ^rows are counted by i
@triton.jit
def store_group_tile(c_ptr, acc, start, end, total_m, i, j, N, ldc, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    features = i * BLOCK_N + tl.arange(0, BLOCK_N)
    tokens = start + i * BLOCK_M + tl.arange(0, BLOCK_M)
    pointers = c_ptr + features[:, None] * ldc + tokens[None, :]
    inside = (features[:, None] < N) & (tokens[None, :] < end)
    tl.store(pointers, acc.to(c_ptr.dtype.element_ty), mask=inside)
