# ruff: noqa
# check: rows
# says: row \d+ belongs to group 1, and `group` says 0: that group ends at \d+, exclusive
def describe_groups(sizes, total_m):
    ends = torch.cumsum(sizes, 0)
    rows = torch.arange(total_m, device=sizes.device)
    group = torch.searchsorted(ends, rows, right=False)
    return ends, torch.where(group < len(sizes), group, -1)
