# ruff: noqa
# check: tail
# says: ^the ends are exchanged in the mask: rows of C end at N, and columns at `end`\n
@triton.jit
def store_group_tile(c_ptr, acc, start, end, total_m, i, j, N, ldc, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """Store tile (j, i) of a group that has columns `start` to `end` of C (N, total_m). acc: (BLOCK_N, BLOCK_M)."""
    features = j * BLOCK_N + tl.arange(0, BLOCK_N)
    tokens = start + i * BLOCK_M + tl.arange(0, BLOCK_M)
    pointers = c_ptr + features[:, None] * ldc + tokens[None, :]
    inside = (features[:, None] < end) & (tokens[None, :] < N)
    tl.store(pointers, acc.to(c_ptr.dtype.element_ty), mask=inside)
