# ruff: noqa
# check: pointers
# says: `pointers\[\d, 1\]` is not the address of W of problem \d, and .*\nIs it the address of a copy, as `\.contiguous\(\)` makes\?
def problem_tables(inputs, weights, outputs):
    device = inputs[0].device
    problems = [(x, w.t().contiguous(), y) for x, w, y in zip(inputs, weights, outputs)]
    pointers = [[x.data_ptr(), w.data_ptr(), y.data_ptr()] for x, w, y in problems]
    sizes = [[x.shape[0], w.shape[1], x.shape[1]] for x, w, y in problems]
    strides = [[*x.stride(), *w.stride(), *y.stride()] for x, w, y in problems]
    return (
        torch.tensor(pointers, dtype=torch.int64, device=device),
        torch.tensor(sizes, dtype=torch.int32, device=device),
        torch.tensor(strides, dtype=torch.int64, device=device),
    )
