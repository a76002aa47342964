# ruff: noqa
# check: turn
# says: when it is the turn of tile \(\d, \d\) of problem 1:\n`passed` grows by all tiles of a problem
@triton.jit
def walk_tiles(
    sizes_ptr, num_problems, tables, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, COMPUTE_TILE: tl.constexpr
):
    tile = tl.program_id(0)  # counted through all problems
    g, passed = 0, 0  # a problem, and how many tiles all problems before it have
    while g < num_problems:
        M, N = tl.load(sizes_ptr + g * 3), tl.load(sizes_ptr + g * 3 + 1)
        tiles_m, tiles_n = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
        own = tile - passed  # counted in this problem
        if own < tiles_m * tiles_n:
            COMPUTE_TILE(tables, g, own % tiles_m, own // tiles_m)
            tile += tl.num_programs(0)
        else:
            passed += own
            g += 1
