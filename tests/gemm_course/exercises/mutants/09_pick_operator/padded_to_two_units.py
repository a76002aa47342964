# ruff: noqa
# check: aligned
# says: K = \d+ is a multiple of 8, so mat_a can be taken as it is, and it was copied
import math

from torch.nn.functional import pad


def pick_operator(catalogue, target, sizes, mat_a, mat_b, offs):
    """The operator that computes least, and the operands as it takes them."""
    fitting = [each for each in catalogue if target in each.targets and each.dtype == mat_a.dtype]
    if not fitting:
        return None

    def score(each):
        rows, columns = each.tile[0] // each.ctas * each.cluster[0], each.tile[1] * each.cluster[1]
        blocks = sum(math.ceil(size / rows) for size in sizes) * math.ceil(mat_b.shape[2] / columns)
        return blocks * rows * columns, -rows * columns / (rows + columns)

    picked = min(fitting, key=score)
    if short := -mat_a.shape[1] % (2 * picked.divisibility):
        mat_a, mat_b = pad(mat_a, (0, short)), pad(mat_b, (0, 0, 0, short))
    mat_b = mat_b.mT.contiguous().mT if picked.b_stride[1] == 1 else mat_b.contiguous()
    return picked, mat_a, mat_b, offs.to(picked.offsets)
