# ruff: noqa
# check: rows
# says: row \d+ belongs to group \d, and `group` says -1: only rows after the last group have -1, and these begin at \d+
def describe_groups(sizes, total_m):
    """Ends of the groups (G,) and the group of every row (total_m,), on the device of `sizes`."""
    ends = torch.cumsum(sizes, 0)
    rows = torch.arange(total_m, device=sizes.device)
    group = torch.searchsorted(ends, rows, right=True)
    return ends, torch.where(group < len(sizes) - 1, group, -1)
