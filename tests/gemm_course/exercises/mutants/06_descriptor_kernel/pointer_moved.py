# ruff: noqa
# check: tiles
# says: ^A is read (as zero in group \d from row \d+ on: .* Coordinates count from the pointer: where it is at row 0, the extent must be|too far down: its pointer was moved to the group)
@triton.jit
def multiply_group(
    a_ptr, b_ptr, c_ptr, first, start, end, total_m, N, K, lda, ldb, ldc,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Your tiles of one group, from number `first` on: C[start:end] = A[start:end] Bᵀ."""
    a = tl.make_tensor_descriptor(a_ptr + start * lda, [end - start, K], [lda, 1], [BLOCK_M, BLOCK_K])
    b = tl.make_tensor_descriptor(b_ptr, [N, K], [ldb, 1], [BLOCK_N, BLOCK_K])
    c = tl.make_tensor_descriptor(c_ptr, [end, N], [ldc, 1], [BLOCK_M, BLOCK_N])
    tiles_n = tl.cdiv(N, BLOCK_N)
    for tile in range(first, tl.cdiv(end - start, BLOCK_M) * tiles_n, tl.num_programs(0)):
        row, col = start + tile // tiles_n * BLOCK_M, tile % tiles_n * BLOCK_N
        acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
        for k in range(0, K, BLOCK_K):
            acc = tl.dot(a.load([row, k]), b.load([col, k]).T, acc)
        c.store([row, col], acc.to(c.dtype))
