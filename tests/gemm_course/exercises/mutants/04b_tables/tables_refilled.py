# ruff: noqa
# check: pointers
# says: the second call has put its addresses into the `pointers` of the first call: return a new tensor
KEPT = {}


def problem_tables(inputs, weights, outputs):
    device = inputs[0].device
    problems = list(zip(inputs, weights, outputs))
    pointers = [[x.data_ptr(), w.data_ptr(), y.data_ptr()] for x, w, y in problems]
    sizes = [[x.shape[0], w.shape[0], x.shape[1]] for x, w, _ in problems]
    strides = [[*x.stride(), *w.t().stride(), *y.stride()] for x, w, y in problems]
    if len(problems) not in KEPT:
        KEPT[len(problems)] = (
            torch.empty(len(problems), 3, dtype=torch.int64, device=device),
            torch.empty(len(problems), 3, dtype=torch.int32, device=device),
            torch.empty(len(problems), 6, dtype=torch.int64, device=device),
        )
    tables = KEPT[len(problems)]
    for table, rows in zip(tables, (pointers, sizes, strides)):
        table.copy_(torch.tensor(rows))
    return tables
