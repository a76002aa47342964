# ruff: noqa
# check: tail
# says: row \d+ lies behind the last group, and `group` says \d, not -1
def describe_groups(sizes, total_m):
    ends = torch.cumsum(sizes, 0)
    rows = torch.arange(total_m, device=sizes.device)
    group = torch.searchsorted(ends, rows, right=True)
    return ends, group
