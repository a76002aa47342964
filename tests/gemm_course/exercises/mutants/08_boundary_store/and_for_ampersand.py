# ruff: noqa
# check: features
# says: line 10: `and` keeps only one of two masks, as Python reads it: combine them with `&`(\n    .*)?\nline 11: program \d+ writes row \d+ of C, which has rows 0 to \d+
@triton.jit
def store_group_tile(c_ptr, acc, start, end, total_m, i, j, N, ldc, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """Store tile (j, i) of a group that has columns `start` to `end` of C (N, total_m). acc: (BLOCK_N, BLOCK_M)."""
    features = j * BLOCK_N + tl.arange(0, BLOCK_N)
    tokens = start + i * BLOCK_M + tl.arange(0, BLOCK_M)
    pointers = c_ptr + features[:, None] * ldc + tokens[None, :]
    inside = (features[:, None] < N) and (tokens[None, :] < end)
    tl.store(pointers, acc.to(c_ptr.dtype.element_ty), mask=inside)
