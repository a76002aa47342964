# ruff: noqa
# check: pointers
# says: `pointers\[0, 0\]` is not the address of X of problem 0, but of the start of its buffer; X of problem 0 begins further on
def problem_tables(inputs, weights, outputs):
    device = inputs[0].device
    problems = list(zip(inputs, weights, outputs))
    pointers = [[t.untyped_storage().data_ptr() for t in (x, w, y)] for x, w, y in problems]
    sizes = [[x.shape[0], w.shape[0], x.shape[1]] for x, w, y in problems]
    strides = [[*x.stride(), *w.t().stride(), *y.stride()] for x, w, y in problems]
    return (
        torch.tensor(pointers, dtype=torch.int64, device=device),
        torch.tensor(sizes, dtype=torch.int32, device=device),
        torch.tensor(strides, dtype=torch.int64, device=device),
    )
