# ruff: noqa
@triton.jit
def gathered_tile(
    x_ptr, w_ptr, out_ptr, tokens_ptr, g, start, end, i, j, N, H, ldx, ldw, ldo,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Tile (i, j) of expert g's product: row r of `out` is the row of `x` of token `tokens[r]`, times W[g]ᵀ."""
    cols = j * BLOCK_N + tl.arange(0, BLOCK_N)
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    first = start + i * BLOCK_M
    if first < end:
        # Rows past the end take the expert's last token, which is ours.
        rows = tl.minimum(first + tl.arange(0, BLOCK_M), end - 1)
        x_ptrs = x_ptr + tl.load(tokens_ptr + rows)[:, None].to(tl.int64) * ldx
        for k in range(0, H, BLOCK_K):
            depth = k + tl.arange(0, BLOCK_K)
            x = tl.load(x_ptrs + depth[None, :], mask=depth[None, :] < H, other=0.0)
            w_ptrs = w_ptr + (g * N + cols)[:, None] * ldw + depth[None, :]
            w = tl.load(w_ptrs, mask=(cols[:, None] < N) & (depth[None, :] < H), other=0.0)
            acc = tl.dot(x, w.T, acc)
        rows = first + tl.arange(0, BLOCK_M)
        tl.store(out_ptr + rows[:, None] * ldo + cols[None, :], acc, mask=(rows < end)[:, None] & (cols[None, :] < N))
