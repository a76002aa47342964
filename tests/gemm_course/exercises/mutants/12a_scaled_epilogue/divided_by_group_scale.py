# ruff: noqa
# check: group
# says: this was divided by the group's scale: multiply
@triton.jit
def scaled_tile(
    a_ptr, b_ptr, c_ptr, scale_a_ptr, scale_b_ptr, g, size, i, j, max_m, N, K, lda, ldb, ldc,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Tile (i, j) of C[g] = A[g] B[g]ᵀ, each row times its token's scale and all of it times the group's."""
    local = i * BLOCK_M + tl.arange(0, BLOCK_M)
    rows, cols = g * max_m + local, j * BLOCK_N + tl.arange(0, BLOCK_N)
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k in range(0, K, BLOCK_K):
        depth = k + tl.arange(0, BLOCK_K)
        a_ptrs = a_ptr + rows[:, None] * lda + depth[None, :]
        b_ptrs = b_ptr + (g * N + cols)[:, None] * ldb + depth[None, :]
        a = tl.load(a_ptrs, mask=(local[:, None] < size) & (depth[None, :] < K), other=0.0)
        b = tl.load(b_ptrs, mask=(cols[:, None] < N) & (depth[None, :] < K), other=0.0)
        acc = tl.dot(a, b.T, acc)
    c_ptrs = c_ptr + rows[:, None] * ldc + cols[None, :]
    inside = (local[:, None] < size) & (cols[None, :] < N)
    scale_a = tl.load(scale_a_ptr + rows, mask=local < size, other=0.0)
    scale_b = tl.load(scale_b_ptr + g)
    tl.store(c_ptrs, (acc * scale_a[:, None] / scale_b).to(c_ptr.dtype.element_ty), mask=inside)
