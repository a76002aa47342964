# ruff: noqa
# check: -
# says: still running after 4 s \(in program 0\), so it was stopped: the loop in line 10 makes no progress, as g in its condition never changes\n    while g < num_problems:(\nIt was in line \d+:|$)
@triton.jit
def walk_tiles(
    sizes_ptr, num_problems, tables, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, COMPUTE_TILE: tl.constexpr
):
    tile = tl.program_id(0)
    g, passed = 0, 0
    while g < num_problems:
        M, N = tl.load(sizes_ptr + g * 3), tl.load(sizes_ptr + g * 3 + 1)
        tiles_m, tiles_n = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
        if tile < passed + tiles_m * tiles_n:
            COMPUTE_TILE(tables, g, (tile - passed) % tiles_m, (tile - passed) // tiles_m)
            tile += tl.num_programs(0)
        elif tiles_m * tiles_n > 0:
            passed += tiles_m * tiles_n
            g += 1
