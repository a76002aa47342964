# ruff: noqa
# check: programs
# says: program \d+ of \d+ computes 1 tile; its share is 0
@triton.jit
def walk_tiles(
    sizes_ptr, num_problems, tables, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, COMPUTE_TILE: tl.constexpr
):
    every = 0
    for g in range(num_problems):
        every += tl.cdiv(tl.load(sizes_ptr + g * 3), BLOCK_M) * tl.cdiv(tl.load(sizes_ptr + g * 3 + 1), BLOCK_N)
    tile = tl.program_id(0) % tl.maximum(every, 1)
    g, passed = 0, 0
    while g < num_problems:
        M, N = tl.load(sizes_ptr + g * 3), tl.load(sizes_ptr + g * 3 + 1)
        tiles_m, tiles_n = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
        own = tile - passed
        if own < tiles_m * tiles_n:
            COMPUTE_TILE(tables, g, own % tiles_m, own // tiles_m)
            tile += tl.num_programs(0)
        else:
            passed += tiles_m * tiles_n
            g += 1
