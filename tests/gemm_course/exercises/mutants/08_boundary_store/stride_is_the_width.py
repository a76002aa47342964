# ruff: noqa
# check: tail
# says: the rows of C are 1\d\d elements apart, and those of the pointers \d\d\b
@triton.jit
def store_group_tile(c_ptr, acc, start, end, total_m, i, j, N, ldc, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """Store tile (j, i) of the group that has columns `start` to `end` of C (N, total_m). acc: (BLOCK_N, BLOCK_M)."""
    features = j * BLOCK_N + tl.arange(0, BLOCK_N)
    tokens = start + i * BLOCK_M + tl.arange(0, BLOCK_M)
    pointers = c_ptr + features[:, None] * total_m + tokens[None, :]
    inside = (features[:, None] < N) & (tokens[None, :] < end)
    tl.store(pointers, acc.to(c_ptr.dtype.element_ty), mask=inside)
