# ruff: noqa
# check: strides
# says: W of problem \d was .* before the call, and is .* after:\n.*`.t_\(\)` changes a matrix itself
def problem_tables(inputs, weights, outputs):
    problems = list(zip(inputs, weights, outputs))
    pointers = [[x.data_ptr(), w.data_ptr(), y.data_ptr()] for x, w, y in problems]
    sizes = [[x.shape[0], w.shape[0], x.shape[1]] for x, w, _ in problems]
    strides = [[*x.stride(), *w.t_().stride(), *y.stride()] for x, w, y in problems]
    device = inputs[0].device
    made = (
        torch.tensor(pointers, dtype=torch.int64, device=device),
        torch.tensor(sizes, dtype=torch.int32, device=device),
        torch.tensor(strides, dtype=torch.int64, device=device),
    )
    return made
