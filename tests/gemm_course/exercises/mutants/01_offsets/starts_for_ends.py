# ruff: noqa
# check: ends
# says: group 0 ends at \d+, and `ends` says 0; these are the rows at which groups start
def describe_groups(sizes, total_m):
    ends = torch.cumsum(sizes, 0)
    rows = torch.arange(total_m, device=sizes.device)
    group = torch.searchsorted(ends, rows, right=True)
    return ends - sizes, torch.where(group < len(sizes), group, -1)
