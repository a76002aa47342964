# ruff: noqa
@triton.jit
def one_row(x_ptr, y_ptr, N, BLOCK_N: tl.constexpr):
    at = tl.arange(0, BLOCK_N)
    x = tl.load(x_ptr + at, mask=at < N, other=float("-inf")).to(tl.float32)
    e = tl.exp2((x - tl.max(x)) * 1.4426950408889634)
    tl.store(y_ptr + at, e / tl.sum(e), mask=at < N)


@triton.jit
def row_softmax(x_ptr, y_ptr, M, N, ldx, ldy, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    first = tl.program_id(0) * BLOCK_M
    for row in range(first, tl.minimum(first + BLOCK_M, M)):
        one_row(x_ptr + row * ldx, y_ptr + row * ldy, N, BLOCK_N)
