"""The sizes of groups as exclusive ends, on the device."""

from __future__ import annotations

import torch
from torch import Tensor

from course_kernels.contexts import is_plain
from course_kernels.layout import GroupLayout

_library = torch.library.Library("course_kernels", "FRAGMENT")
# The ends come from the operator that checks: without a use of its result, a compiler would drop it.
_library.define(
    "checked_group_ends(Tensor group_sizes, SymInt rows, str extent) -> Tensor",
    tags=(torch.Tag.pt2_compliant_tag,),
)


def group_ends(group_sizes: Tensor, rows: int, extent: str, check: bool) -> Tensor:
    """The exclusive end of each group, int32; computed on the device, without waiting for it unless ``check`` is set.

    Args:
        group_sizes: (G,) int32 or int64.
        rows: what the sizes should sum to.
        extent: what ``rows`` is, for the message.
        check: validate the values, also where ``torch.compile`` traces the call.

    Raises:
        ValueError: ``check`` finds a negative size, or another sum.
    """
    if not check:
        if group_sizes.is_meta:  # of which torch's cumsum imports Triton
            return group_sizes.new_empty(group_sizes.shape, dtype=torch.int32)
        return torch.cumsum(group_sizes, 0, dtype=torch.int32)
    if is_plain(group_sizes):
        return _checked_ends(group_sizes, rows, extent)
    return torch.ops.course_kernels.checked_group_ends(group_sizes, rows, extent)


def _checked_ends(group_sizes: Tensor, rows: int, extent: str) -> Tensor:
    try:
        GroupLayout.from_sizes(group_sizes).validate()
    except ValueError as error:
        raise ValueError(str(error).replace("sizes", "group_sizes", 1)) from None
    total = sum(group_sizes.tolist())  # of Python's integers, which do not wrap
    if total != rows:
        raise ValueError(f"group_sizes must sum to {rows}, {extent}, got {total}")
    return torch.cumsum(group_sizes, 0, dtype=torch.int32)


_library.impl("checked_group_ends", _checked_ends, "CompositeExplicitAutograd")
torch.library.register_fake(
    "course_kernels::checked_group_ends",
    lambda group_sizes, rows, extent: group_sizes.new_empty(group_sizes.shape, dtype=torch.int32),
    lib=_library,
)
