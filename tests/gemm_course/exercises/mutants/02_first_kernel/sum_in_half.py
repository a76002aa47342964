# ruff: noqa
# check: rows
# says: right to about three digits, so something here has 16 bits: convert what you load
@triton.jit
def row_softmax(x_ptr, y_ptr, M, N, ldx, ldy, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    cols = tl.arange(0, BLOCK_N)
    mask = (rows[:, None] < M) & (cols[None, :] < N)
    x = tl.load(x_ptr + rows[:, None] * ldx + cols[None, :], mask=mask, other=float("-inf")).to(tl.float32)
    e = tl.exp(x - tl.max(x, axis=1)[:, None])
    tl.store(y_ptr + rows[:, None] * ldy + cols[None, :], e / tl.sum(e.to(tl.float16), axis=1)[:, None], mask=mask)
