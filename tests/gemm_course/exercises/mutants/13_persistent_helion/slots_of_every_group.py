# ruff: noqa
# check: own
# says: worker \d+ looks at \d+ numbers, and \d+ of them are tiles of its own
def visit_tiles(
    A_packed: torch.Tensor,
    B: torch.Tensor,
    group_offsets: torch.Tensor,
    out: torch.Tensor,
    workers: int,
    WIDTH: hl.constexpr,
    BLOCK_M: hl.constexpr,
    BLOCK_N: hl.constexpr,
    COUNT_TILE_ROWS,
    COMPUTE_TILE,
):
    total_m, N = out.shape
    for worker in hl.grid(workers):
        ends, tile_row_ends = COUNT_TILE_ROWS(group_offsets, WIDTH, BLOCK_M)
        tiles_n = (N + BLOCK_N - 1) // BLOCK_N
        G = group_offsets.size(0) - 1
        for g in hl.grid(G):
            start, end = group_offsets[g], group_offsets[g + 1]
            tiles_m = (end - start + BLOCK_M - 1) // BLOCK_M
            for slot in hl.grid(tiles_m * tiles_n):
                tile = slot * workers + worker
                if tile < tiles_m * tiles_n:
                    row = start + tile % tiles_m * BLOCK_M
                    col = tile // tiles_m * BLOCK_N
                    COMPUTE_TILE(A_packed, B, out, row, end, col, BLOCK_M, BLOCK_N)
