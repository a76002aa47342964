# ruff: noqa
# check: place
# says: this goes through strips of 2 tile rows
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
            height = tl.minimum(tiles_m - own // (2 * tiles_n) * 2, 2)
            COMPUTE_TILE(
                tables, g, own // (2 * tiles_n) * 2 + own % (2 * tiles_n) % height, own % (2 * tiles_n) // height
            )
            tile += tl.num_programs(0)
        else:
            passed += tiles_m * tiles_n
            g += 1
