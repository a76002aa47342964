# ruff: noqa
# check: ends
# says: group 0 ends at \d+, .* an exclusive end is one further
def describe_groups(sizes, total_m):
    ends = torch.cumsum(sizes, 0)
    rows = torch.arange(total_m, device=sizes.device)
    group = torch.searchsorted(ends, rows, right=True)
    return ends - 1, torch.where(group < len(sizes), group, -1)
