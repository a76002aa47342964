# ruff: noqa
# check: pointers
# says: `pointers\[0, 0\]` is not the address of X of problem 0, but how far it is from X of problem 0
def problem_tables(inputs, weights, outputs):
    """The tables `pointers, sizes, strides` by which a kernel computes Y = X Wᵀ for every problem."""
    problems = list(zip(inputs, weights, outputs))
    pointers = [
        [
            x.data_ptr() - inputs[0].data_ptr(),
            w.data_ptr() - weights[0].data_ptr(),
            y.data_ptr() - outputs[0].data_ptr(),
        ]
        for x, w, y in problems
    ]
    sizes = [[x.shape[0], w.shape[0], x.shape[1]] for x, w, _ in problems]
    strides = [[*x.stride(), *w.t().stride(), *y.stride()] for x, w, y in problems]
    device = inputs[0].device
    return (
        torch.tensor(pointers, dtype=torch.int64, device=device),
        torch.tensor(sizes, dtype=torch.int32, device=device),
        torch.tensor(strides, dtype=torch.int64, device=device),
    )
