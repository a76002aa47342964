# ruff: noqa
# check: strides
# says: `strides\[0, 0\]` is \d+; .*:\nthat is in bytes; strides are in elements, of 2 bytes
def problem_tables(inputs, weights, outputs):
    device = inputs[0].device
    problems = list(zip(inputs, weights, outputs))
    pointers = [[x.data_ptr(), w.data_ptr(), y.data_ptr()] for x, w, y in problems]
    sizes = [[x.shape[0], w.shape[0], x.shape[1]] for x, w, y in problems]
    strides = [[stride * t.element_size() for t in (x, w.t(), y) for stride in t.stride()] for x, w, y in problems]
    return (
        torch.tensor(pointers, dtype=torch.int64, device=device),
        torch.tensor(sizes, dtype=torch.int32, device=device),
        torch.tensor(strides, dtype=torch.int64, device=device),
    )
