# ruff: noqa
# check: device
# says: line 7: searchsorted\(\) gets a tensor on the CPU and one on the GPU
def describe_groups(sizes, total_m):
    ends = torch.cumsum(sizes, 0)
    rows = torch.arange(total_m)
    group = torch.searchsorted(ends, rows, right=True)
    return ends, torch.where(group < len(sizes), group, -1)
