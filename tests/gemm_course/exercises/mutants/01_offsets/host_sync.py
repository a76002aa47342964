# ruff: noqa
# check: device
# says: line 5: item\(\) reads values
def describe_groups(sizes, total_m):
    ends = torch.tensor([sizes[: g + 1].sum().item() for g in range(len(sizes))], device=sizes.device)
    rows = torch.arange(total_m, device=sizes.device)
    group = torch.searchsorted(ends, rows, right=True)
    return ends, torch.where(group < len(sizes), group, -1)
