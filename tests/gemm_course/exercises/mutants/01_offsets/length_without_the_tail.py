# ruff: noqa
# check: -
# says: line 7: RuntimeError: allocated size does not match required size
def describe_groups(sizes, total_m):
    ends = torch.cumsum(sizes, 0)
    numbers = torch.arange(len(sizes), device=sizes.device)
    return ends, torch.repeat_interleave(numbers, sizes, output_size=total_m)
