# ruff: noqa
# check: device
# says: line 9: masked_fill\(\) takes a number, and reads it in Python from a tensor
def describe_groups(sizes, total_m):
    ends = torch.cumsum(sizes, 0)
    rows = torch.arange(total_m, device=sizes.device)
    group = torch.searchsorted(ends, rows, right=True)
    none = torch.full_like(sizes[:1], -1)[0]
    return ends, group.masked_fill(group == len(sizes), none)
