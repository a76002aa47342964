# ruff: noqa
# check: turn
# says: program 0 of \d computes tile \(-?\d, -?\d\) of problem 1 when it is the turn of tile \(\d, \d\) of problem 1:\nthis begins each problem with the program.s very first tile
@triton.jit
def walk_tiles(
    sizes_ptr, num_problems, tables, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, COMPUTE_TILE: tl.constexpr
):
    tile = tl.program_id(0)
    g, passed = 0, 0
    while g < num_problems:
        M, N = tl.load(sizes_ptr + g * 3), tl.load(sizes_ptr + g * 3 + 1)
        tiles_m, tiles_n = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
        for turn in range(tile, passed + tiles_m * tiles_n, tl.num_programs(0)):
            COMPUTE_TILE(tables, g, (turn - passed) % tiles_m, (turn - passed) // tiles_m)
        passed += tiles_m * tiles_n
        g += 1
