# ruff: noqa
# check: device
# says: line 7: repeat_interleave\(\) without output_size
def describe_groups(sizes, total_m):
    ends = torch.cumsum(sizes, 0)
    group = torch.full((total_m,), -1, device=sizes.device)
    known = torch.repeat_interleave(torch.arange(len(sizes), device=sizes.device), sizes)
    group[: len(known)] = known
    return ends, group
