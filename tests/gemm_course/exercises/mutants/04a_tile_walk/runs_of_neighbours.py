# ruff: noqa
# check: turn
# says: a run of neighbouring tiles; round-robin deals tiles one by one
@triton.jit
def walk_tiles(
    sizes_ptr, num_problems, tables, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, COMPUTE_TILE: tl.constexpr
):
    g = 0
    while g < num_problems:
        M, N = tl.load(sizes_ptr + g * 3), tl.load(sizes_ptr + g * 3 + 1)
        tiles_m, tiles_n = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
        share = tl.cdiv(tiles_m * tiles_n, tl.num_programs(0))
        for own in range(tl.program_id(0) * share, tl.minimum((tl.program_id(0) + 1) * share, tiles_m * tiles_n)):
            COMPUTE_TILE(tables, g, own % tiles_m, own // tiles_m)
        g += 1
