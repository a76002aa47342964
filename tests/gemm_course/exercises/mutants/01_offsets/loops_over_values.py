# ruff: noqa
# check: device
# says: line 6: tolist\(\) reads values
def describe_groups(sizes, total_m):
    ends = torch.cumsum(sizes, 0)
    bounds = ends.tolist()
    rows = torch.arange(total_m, device=sizes.device)
    group = torch.searchsorted(ends, rows, right=True)
    return ends, torch.where(group < len(sizes), group, -1)
