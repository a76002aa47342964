# ruff: noqa
# check: device
# says: line 9: indexing by a single number of a tensor reads it
def describe_groups(sizes, total_m):
    ends = torch.cumsum(sizes, 0)
    rows = torch.arange(total_m, device=sizes.device)
    group = torch.searchsorted(ends, rows, right=True)
    lookup = torch.arange(len(sizes) + 1, device=sizes.device)
    lookup[(sizes * 0).sum()] = 0
    return ends, torch.where(group < len(sizes), group, -1)
