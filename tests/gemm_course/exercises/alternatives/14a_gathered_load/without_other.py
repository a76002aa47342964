# ruff: noqa
@triton.jit
def gathered_tile(
    x_ptr, w_ptr, out_ptr, tokens_ptr, g, start, end, i, j, N, H, ldx, ldw, ldo,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Tile (i, j) of expert g's product: row r of `out` is the row of `x` of token `tokens[r]`, times W[g]ᵀ."""
    cols = j * BLOCK_N + tl.arange(0, BLOCK_N)
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    local = i * BLOCK_M + tl.arange(0, BLOCK_M)
    ours = local < end - start
    token = tl.load(tokens_ptr + start + local, mask=ours)
    for k in range(0, H, BLOCK_K):
        depth = k + tl.arange(0, BLOCK_K)
        inside = ours[:, None] & (depth[None, :] < H)
        x = tl.load(x_ptr + tl.cast(token, tl.int64)[:, None] * ldx + depth[None, :], mask=inside)
        x = tl.where(inside, x, 0.0)
        w_ptrs = w_ptr + (g * N + cols)[:, None] * ldw + depth[None, :]
        w = tl.load(w_ptrs, mask=(cols[:, None] < N) & (depth[None, :] < H), other=0.0)
        acc = tl.dot(x, w.T, acc)
    tl.store(out_ptr + (start + local)[:, None] * ldo + cols[None, :], acc, mask=ours[:, None] & (cols[None, :] < N))
