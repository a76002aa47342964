# ruff: noqa
# check: -
# says: a number for each row, and the second for each group: return `ends, group`, in this order
def describe_groups(sizes, total_m):
    ends = torch.cumsum(sizes, 0)
    rows = torch.arange(total_m, device=sizes.device)
    group = torch.searchsorted(ends, rows, right=True)
    return torch.where(group < len(sizes), group, -1), ends
