# ruff: noqa
# check: tail
# says: row \d+ is after the last group, so its group is -1, and `group` says \d
def describe_groups(sizes, total_m):
    ends = torch.cumsum(sizes, 0)
    rows = torch.arange(total_m, device=sizes.device)
    group = torch.searchsorted(ends, rows, right=True)
    return ends, group
