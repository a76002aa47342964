# ruff: noqa
# check: device
# says: `pointers` is on the CPU, and the matrices are on a GPU
def problem_tables(inputs, weights, outputs):
    device = inputs[0].device
    problems = list(zip(inputs, weights, outputs))
    pointers = [[x.data_ptr(), w.data_ptr(), y.data_ptr()] for x, w, y in problems]
    sizes = [[x.shape[0], w.shape[0], x.shape[1]] for x, w, y in problems]
    strides = [[*x.stride(), *w.t().stride(), *y.stride()] for x, w, y in problems]
    return (
        torch.tensor(pointers, dtype=torch.int64),
        torch.tensor(sizes, dtype=torch.int32),
        torch.tensor(strides, dtype=torch.int64),
    )
