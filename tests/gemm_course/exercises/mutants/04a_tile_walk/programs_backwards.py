# ruff: noqa
# check: turn
# says: program 0 computes the tiles of program \d
@triton.jit
def walk_tiles(
    sizes_ptr, num_problems, tables, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, COMPUTE_TILE: tl.constexpr
):
    """Compute every tile that is this program's. sizes_ptr: int32 (G, 3), M, N and K of each problem."""
    tile = tl.num_programs(0) - 1 - tl.program_id(0)  # counted through all problems
    g, passed = 0, 0  # a problem, and how many tiles all problems before it have
    while g < num_problems:
        M, N = tl.load(sizes_ptr + g * 3), tl.load(sizes_ptr + g * 3 + 1)
        tiles_m, tiles_n = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
        own = tile - passed  # counted in this problem
        if own < tiles_m * tiles_n:
            COMPUTE_TILE(tables, g, own % tiles_m, own // tiles_m)
            tile += tl.num_programs(0)
        else:
            passed += tiles_m * tiles_n
            g += 1
