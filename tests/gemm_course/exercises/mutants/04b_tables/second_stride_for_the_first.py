# ruff: noqa
# check: strides
# says: `strides\[0, 0\]` is \d+; in problem 0 X goes from row to row in steps of \d+ elements?:\nthat is x.stride\(1\); the table needs x.stride\(0\)
def problem_tables(inputs, weights, outputs):
    device = inputs[0].device
    problems = list(zip(inputs, weights, outputs))
    pointers = [[x.data_ptr(), w.data_ptr(), y.data_ptr()] for x, w, y in problems]
    sizes = [[x.shape[0], w.shape[0], x.shape[1]] for x, w, y in problems]
    strides = [[x.stride(1), x.stride(1), w.stride(1), w.stride(1), y.stride(1), y.stride(1)] for x, w, y in problems]
    return (
        torch.tensor(pointers, dtype=torch.int64, device=device),
        torch.tensor(sizes, dtype=torch.int32, device=device),
        torch.tensor(strides, dtype=torch.int64, device=device),
    )
