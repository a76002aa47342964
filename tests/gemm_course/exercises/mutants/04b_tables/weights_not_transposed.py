# ruff: noqa
# check: strides
# says: `strides\[0, 2\]` is \d+; in problem 0 B = Wᵀ goes .*:\nthese are the strides of W; the kernel reads B = Wᵀ
def problem_tables(inputs, weights, outputs):
    device = inputs[0].device
    problems = list(zip(inputs, weights, outputs))
    pointers = [[x.data_ptr(), w.data_ptr(), y.data_ptr()] for x, w, y in problems]
    sizes = [[x.shape[0], w.shape[0], x.shape[1]] for x, w, y in problems]
    strides = [[*x.stride(), *w.stride(), *y.stride()] for x, w, y in problems]
    return (
        torch.tensor(pointers, dtype=torch.int64, device=device),
        torch.tensor(sizes, dtype=torch.int32, device=device),
        torch.tensor(strides, dtype=torch.int64, device=device),
    )
