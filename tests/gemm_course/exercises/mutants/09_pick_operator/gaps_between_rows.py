# ruff: noqa
# check: aligned
# says: mat_[ab] must be packed, without gaps; got shape .* with strides .*: columns of zeros belong to K
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
    if short := -mat_a.shape[1] % picked.divisibility:
        mat_a, K = pad(mat_a, (0, short))[:, : mat_a.shape[1]], mat_a.shape[1]
    if short and picked.b_stride[1] == 1:
        mat_b = pad(mat_b.mT, (0, short))[:, :, :K].mT
    else:
        mat_b = mat_b.mT.contiguous().mT if picked.b_stride[1] == 1 else mat_b.contiguous()
    return picked, mat_a, mat_b, offs.to(picked.offsets)
