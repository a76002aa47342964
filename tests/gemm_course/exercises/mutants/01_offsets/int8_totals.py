# ruff: noqa
# check: ends
# says: these are sums in int8, whose largest number is 127
def describe_groups(sizes, total_m):
    ends = torch.cumsum(sizes, 0, dtype=torch.int8)
    rows = torch.arange(total_m, device=sizes.device)
    group = torch.searchsorted(ends.int(), rows, right=True)
    return ends, torch.where(group < len(sizes), group, -1)
