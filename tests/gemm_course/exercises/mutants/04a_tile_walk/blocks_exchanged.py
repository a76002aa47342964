# ruff: noqa
# check: once
# says: program \d computes tile \(\d+, \d+\) of problem \d, which has \d × \d tiles:\na tile has BLOCK_M = 32
@triton.jit
def walk_tiles(
    sizes_ptr, num_problems, tables, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, COMPUTE_TILE: tl.constexpr
):
    tile = tl.program_id(0)
    g, passed = 0, 0
    while g < num_problems:
        M, N = tl.load(sizes_ptr + g * 3), tl.load(sizes_ptr + g * 3 + 1)
        tiles_m, tiles_n = tl.cdiv(M, BLOCK_N), tl.cdiv(N, BLOCK_M)
        if tile < passed + tiles_m * tiles_n:
            COMPUTE_TILE(tables, g, (tile - passed) % tiles_m, (tile - passed) // tiles_m)
            tile += tl.num_programs(0)
        else:
            passed += tiles_m * tiles_n
            g += 1
