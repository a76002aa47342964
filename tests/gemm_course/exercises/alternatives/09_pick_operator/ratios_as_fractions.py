# ruff: noqa
import math
from fractions import Fraction

from torch.nn.functional import pad


def pick_operator(catalogue, target, sizes, mat_a, mat_b, offs):
    best = None
    for operator in catalogue:
        if target not in operator.targets or operator.dtype != mat_a.dtype:
            continue
        rows = operator.tile[0] * operator.cluster[0] // operator.ctas
        columns = operator.tile[1] * operator.cluster[1]
        work = sum(-(-size // rows) for size in sizes) * rows * (-(-mat_b.shape[-1] // columns)) * columns
        rank = (work, -Fraction(rows * columns, rows + columns))
        if best is None or rank < best[0]:
            best = rank, operator
    if best is None:
        return None
    operator = best[1]
    more = math.ceil(mat_a.size(1) / operator.divisibility) * operator.divisibility - mat_a.size(1)
    if more:
        mat_a = torch.cat([mat_a, mat_a.new_zeros(len(mat_a), more)], dim=1)
        mat_b = torch.cat([mat_b, mat_b.new_zeros(len(mat_b), more, mat_b.size(2))], dim=1)
    want = operator.b_stride.index(1)
    if mat_b.stride(want) != 1 or more:
        mat_b = mat_b.transpose(-1, want).contiguous().transpose(-1, want)
    return operator, mat_a, mat_b, offs.type(operator.offsets)
