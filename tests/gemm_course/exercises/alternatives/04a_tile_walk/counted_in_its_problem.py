# ruff: noqa
@triton.jit
def walk_tiles(
    sizes_ptr, num_problems, tables, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, COMPUTE_TILE: tl.constexpr
):
    own, g = tl.program_id(0), 0
    while g < num_problems:
        M, N = tl.load(sizes_ptr + g * 3), tl.load(sizes_ptr + g * 3 + 1)
        tiles_m, tiles = tl.cdiv(M, BLOCK_M), tl.cdiv(M, BLOCK_M) * tl.cdiv(N, BLOCK_N)
        while own < tiles:
            COMPUTE_TILE(tables, g, own % tiles_m, own // tiles_m)
            own += tl.num_programs(0)
        own -= tiles
        g += 1
