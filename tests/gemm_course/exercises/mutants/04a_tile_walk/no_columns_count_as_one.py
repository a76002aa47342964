# ruff: noqa
# check: empty
# says: program \d computes tile \(\d, 0\) of problem \d, which is \d+ × 0, so it has no tiles
@triton.jit
def walk_tiles(
    sizes_ptr, num_problems, tables, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, COMPUTE_TILE: tl.constexpr
):
    tile = tl.program_id(0)
    g, passed = 0, 0
    while g < num_problems:
        M, N = tl.load(sizes_ptr + g * 3), tl.load(sizes_ptr + g * 3 + 1)
        tiles_m, tiles_n = tl.cdiv(M, BLOCK_M), tl.maximum(tl.cdiv(N, BLOCK_N), 1)
        own = tile - passed
        if own < tiles_m * tiles_n:
            COMPUTE_TILE(tables, g, own % tiles_m, own // tiles_m)
            tile += tl.num_programs(0)
        else:
            passed += tiles_m * tiles_n
            g += 1
