# ruff: noqa
# check: ends
# says: these are sums in float16, which holds every whole number only up to 2048
def describe_groups(sizes, total_m):
    ends = torch.cumsum(sizes, 0, dtype=torch.float16).to(torch.int32)
    rows = torch.arange(total_m, device=sizes.device)
    group = torch.searchsorted(ends, rows, right=True)
    return ends, torch.where(group < len(sizes), group, -1)
