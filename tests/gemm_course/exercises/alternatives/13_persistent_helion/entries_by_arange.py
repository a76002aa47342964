# ruff: noqa
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
    """A_packed (total_m, K), B (K, N), group_offsets (G + 1,), out (total_m, N)."""
    total_m, N = out.shape
    for worker in hl.grid(workers):
        ends, tile_row_ends = COUNT_TILE_ROWS(group_offsets, WIDTH, BLOCK_M)
        tiles_n = (N + BLOCK_N - 1) // BLOCK_N
        tile_ends, entries = tile_row_ends * tiles_n, hl.arange(WIDTH)
        for tile in hl.grid(worker, torch.amax(tile_ends), workers):
            passed = tile_ends <= tile
            first = torch.amax(torch.where(passed, tile_ends, 0))
            start = torch.sum(torch.where(entries == torch.sum(passed.to(torch.int32)) - 1, ends, 0))
            end = torch.amin(torch.where(passed, total_m, ends))
            tiles_m = (end - start + BLOCK_M - 1) // BLOCK_M
            row = start + (tile - first) % tiles_m * BLOCK_M
            col = (tile - first) // tiles_m * BLOCK_N
            COMPUTE_TILE(A_packed, B, out, row, end, col, BLOCK_M, BLOCK_N)
