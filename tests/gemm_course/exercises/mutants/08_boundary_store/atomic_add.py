# ruff: noqa
# check: -
# says: line 11: program 0 updates C by an atomic operation, which combines a number with what C holds
@triton.jit
def store_group_tile(c_ptr, acc, start, end, total_m, i, j, N, ldc, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """Store tile (j, i) of the group that has columns `start` to `end` of C (N, total_m). acc: (BLOCK_N, BLOCK_M)."""
    features = j * BLOCK_N + tl.arange(0, BLOCK_N)
    tokens = start + i * BLOCK_M + tl.arange(0, BLOCK_M)
    pointers = c_ptr + features[:, None] * ldc + tokens[None, :]
    inside = (features[:, None] < N) & (tokens[None, :] < end)
    tl.atomic_add(pointers, acc.to(c_ptr.dtype.element_ty), mask=inside)
