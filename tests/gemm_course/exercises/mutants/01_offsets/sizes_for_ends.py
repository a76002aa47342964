# ruff: noqa
# check: ends
# says: group 1 ends at \d+, and `ends` says \d+; these are the sizes
def describe_groups(sizes, total_m):
    ends = torch.cumsum(sizes, 0)
    rows = torch.arange(total_m, device=sizes.device)
    group = torch.searchsorted(ends, rows, right=True)
    return sizes, torch.where(group < len(sizes), group, -1)
