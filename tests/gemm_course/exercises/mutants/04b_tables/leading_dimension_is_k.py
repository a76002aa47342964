# ruff: noqa
# check: strides
# says: `strides\[\d, \d\]` is \d+; in problem \d .* in steps of \d+ elements?:\nthat is the extent [NK], but \w is a view of a wider tensor
def problem_tables(inputs, weights, outputs):
    device = inputs[0].device
    problems = list(zip(inputs, weights, outputs))
    pointers = [[x.data_ptr(), w.data_ptr(), y.data_ptr()] for x, w, y in problems]
    sizes = [[x.shape[0], w.shape[0], x.shape[1]] for x, w, y in problems]
    strides = [[x.shape[1], 1, 1, w.shape[1], y.shape[1], 1] for x, w, y in problems]
    return (
        torch.tensor(pointers, dtype=torch.int64, device=device),
        torch.tensor(sizes, dtype=torch.int32, device=device),
        torch.tensor(strides, dtype=torch.int64, device=device),
    )
