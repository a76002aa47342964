# ruff: noqa
# check: sizes
# says: `sizes\[1\]` is .*; problem 1 has M, N, K = .*:\nthese are the sizes of problem 0
def problem_tables(inputs, weights, outputs):
    device = inputs[0].device
    problems = list(zip(inputs, weights, outputs))
    pointers = [[x.data_ptr(), w.data_ptr(), y.data_ptr()] for x, w, y in problems]
    sizes = [[*outputs[0].shape, inputs[0].shape[1]] for x, w, y in problems]
    strides = [[*x.stride(), *w.t().stride(), *y.stride()] for x, w, y in problems]
    return (
        torch.tensor(pointers, dtype=torch.int64, device=device),
        torch.tensor(sizes, dtype=torch.int32, device=device),
        torch.tensor(strides, dtype=torch.int64, device=device),
    )
