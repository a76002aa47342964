"""Float8 operands with a factor for each line along what a product sums over, by torch's own operations."""

from __future__ import annotations

import torch
from torch import Tensor

from course_kernels.fp8.quantize import magnitudes_of, rounded, scale_of
from course_kernels.layout import GroupLayout


def quantize_lines(matrix: Tensor, dtype: torch.dtype, power_of_two: bool = False) -> tuple[Tensor, Tensor]:
    """Round a matrix (..., lines, D) to float8, D contiguous as tensor cores want it, with a float32 factor for each
    line. Factors, zeros, NaN and infinities are as for ``quantize_1x128``."""
    matrix = matrix.detach()
    magnitudes = magnitudes_of(matrix)
    largest = magnitudes.amax(-1) if matrix.shape[-1] else magnitudes.sum(-1)  # amax refuses lines of length 0
    scale = scale_of(largest, dtype, power_of_two)
    into = matrix.new_empty(matrix.shape, dtype=dtype)
    return rounded(matrix, scale.reciprocal()[..., None], into), scale


def quantize_group_lines(
    matrix: Tensor, offs: Tensor, dtype: torch.dtype, power_of_two: bool = False
) -> tuple[Tensor, Tensor]:
    """Round the transpose of a matrix (total_m, lines) to float8, total_m contiguous, with a float32 factor for each
    line of each group (G, lines). Values after the last group are zeros."""
    matrix, layout = matrix.detach(), GroupLayout.from_ends(offs)
    total, lines = matrix.shape
    groups = layout.row_groups(total).long() if layout.G else offs.new_full((total,), -1).long()
    groups = torch.where(groups < 0, layout.G, groups)  # the tail is one more group, dropped at the end
    largest = torch.zeros(layout.G + 1, lines, dtype=torch.float32, device=matrix.device)
    largest = largest.scatter_reduce(0, groups[:, None].expand(total, lines), magnitudes_of(matrix), "amax")
    scale = scale_of(largest, dtype, power_of_two)
    inverse, inside = scale.reciprocal()[groups].mT, groups < layout.G
    return rounded(matrix.mT, inverse, matrix.new_empty((lines, total), dtype=dtype), inside), scale[:-1]
