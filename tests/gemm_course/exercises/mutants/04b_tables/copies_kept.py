# ruff: noqa
# check: pointers
# says: `pointers\[0, 2\]` is not the address of Y of problem 0, and in none of the matrices.\n.*\n.* A copy that is kept gets the product, and Y of problem 0 does not
kept = []


def problem_tables(inputs, weights, outputs):
    device = inputs[0].device
    problems = list(zip(inputs, weights, outputs))
    kept.extend(y.clone() for y in outputs)
    problems = list(zip(inputs, weights, kept[-len(outputs) :]))
    pointers = [[x.data_ptr(), w.data_ptr(), y.data_ptr()] for x, w, y in problems]
    sizes = [[x.shape[0], w.shape[0], x.shape[1]] for x, w, y in problems]
    strides = [[*x.stride(), *w.t().stride(), *y.stride()] for x, w, y in problems]
    return (
        torch.tensor(pointers, dtype=torch.int64, device=device),
        torch.tensor(sizes, dtype=torch.int32, device=device),
        torch.tensor(strides, dtype=torch.int64, device=device),
    )
