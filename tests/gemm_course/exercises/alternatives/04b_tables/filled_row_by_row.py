# ruff: noqa
def problem_tables(inputs, weights, outputs):
    count, device = len(inputs), inputs[0].device
    pointers = torch.empty(count, 3, dtype=torch.int64, device=device)
    sizes = torch.empty(count, 3, dtype=torch.int32, device=device)
    strides = torch.empty(count, 6, dtype=torch.int64, device=device)
    for g, (x, w, y) in enumerate(zip(inputs, weights, outputs)):
        pointers[g] = torch.tensor([x.data_ptr(), w.data_ptr(), y.data_ptr()])
        sizes[g] = torch.tensor([y.shape[0], y.shape[1], x.shape[1]])
        strides[g] = torch.tensor([*x.stride(), w.stride(1), w.stride(0), *y.stride()])
    return pointers, sizes, strides
