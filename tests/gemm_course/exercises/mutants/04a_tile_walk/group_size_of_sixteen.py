# ruff: noqa
# check: place
# says: this goes through strips of 16 tile rows, as GROUP_SIZE_M = 16
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
            GROUP_SIZE_M = 16
            in_group = GROUP_SIZE_M * tiles_n
            group = own // in_group
            first = group * GROUP_SIZE_M
            high = min(tiles_m - first, GROUP_SIZE_M)
            COMPUTE_TILE(tables, g, first + (own % in_group) % high, (own % in_group) // high)
            tile += tl.num_programs(0)
        else:
            passed += tiles_m * tiles_n
            g += 1
