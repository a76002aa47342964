# ruff: noqa
# check: place
# says: when it is the turn of tile \(\d, \d\) of problem \d:\na column has as many tiles as the problem has tile rows; this divides by the number of columns
@triton.jit
def walk_tiles(
    sizes_ptr, num_problems, tables, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, COMPUTE_TILE: tl.constexpr
):
    tile = tl.program_id(0)
    g, passed = 0, 0
    while g < num_problems:
        M, N = tl.load(sizes_ptr + g * 3), tl.load(sizes_ptr + g * 3 + 1)
        tiles_m, tiles_n = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
        if tile < passed + tiles_m * tiles_n:
            COMPUTE_TILE(tables, g, (tile - passed) % tiles_n, (tile - passed) // tiles_n)
            tile += tl.num_programs(0)
        else:
            passed += tiles_m * tiles_n
            g += 1
