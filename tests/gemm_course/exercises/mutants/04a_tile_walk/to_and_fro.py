# ruff: noqa
# check: place
# says: every turn goes to the right problem, but a problem's tiles are in another order; column by column is
@triton.jit
def walk_tiles(
    sizes_ptr, num_problems, tables, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, COMPUTE_TILE: tl.constexpr
):
    tile = tl.program_id(0)
    g, passed = 0, 0
    while g < num_problems:
        M, N = tl.load(sizes_ptr + g * 3), tl.load(sizes_ptr + g * 3 + 1)
        tiles_m, tiles_n = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
        own = tile - passed
        if own < tiles_m * tiles_n:
            col, row = own // tiles_m, own % tiles_m
            row = tl.where(col % 2 == 1, tiles_m - 1 - row, row)
            COMPUTE_TILE(tables, g, row, col)
            tile += tl.num_programs(0)
        else:
            passed += tiles_m * tiles_n
            g += 1
