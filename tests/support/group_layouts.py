"""Layouts of the same groups from each description."""

import torch

from course_kernels.layout import GroupLayout

KINDS = ("sizes", "ends", "offsets", "row_groups", "masked_m")
TAIL = 3


def build(kind, sizes, dtype=torch.int32, device="cpu"):
    """The layout of these sizes, from a description computed here in plain Python."""
    ends = [sum(sizes[: g + 1]) for g in range(len(sizes))]
    ids = [g for g, m in enumerate(sizes) for _ in range(m)] + [-1] * TAIL
    values = {"sizes": sizes, "ends": ends, "offsets": [0, *ends], "row_groups": ids, "masked_m": sizes}[kind]
    source = torch.tensor(values, dtype=dtype).to(device)
    if kind == "row_groups":
        return GroupLayout.from_row_groups(source, len(sizes))
    if kind == "masked_m":
        return GroupLayout.from_masked(source, max(sizes, default=0))
    return getattr(GroupLayout, f"from_{kind}")(source)
