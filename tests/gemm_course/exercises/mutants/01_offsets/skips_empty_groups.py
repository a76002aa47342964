# ruff: noqa
# check: empty
# says: row \d+ belongs to group \d, and `group` says \d, which is empty
def describe_groups(sizes, total_m):
    ends = torch.cumsum(sizes, 0)
    rows = torch.arange(total_m, device=sizes.device)
    starts = torch.zeros(total_m + 1, dtype=torch.int64, device=sizes.device)
    starts = starts.scatter(0, ends.clamp(max=total_m), 1)[:total_m]
    group = torch.cumsum(starts, 0) - starts[:1]
    return ends, torch.where(group < len(sizes), group, -1)
