# ruff: noqa
# check: -
# says: returned None: is there a `return`
def describe_groups(sizes, total_m):
    ends = torch.cumsum(sizes, 0)
    rows = torch.arange(total_m, device=sizes.device)
    group = torch.searchsorted(ends, rows, right=True)
    group = torch.where(group < len(sizes), group, -1)
