# ruff: noqa
import functools

import torch


def pick_operator(catalogue, target, sizes, mat_a, mat_b, offs):
    columns_of_c = mat_b.shape[2]

    def cost(each):
        rows, columns = each.tile[0] // each.ctas * each.cluster[0], each.tile[1] * each.cluster[1]
        area = sum(-(-size // rows) * rows for size in sizes) * (-(-columns_of_c // columns) * columns)
        return area, rows, columns

    def order(one, other):
        (area, m, n), (least, k, l) = cost(one), cost(other)
        # More products for each fetched element come first: m n / (m + n) > k l / (k + l), in whole numbers.
        return area - least or k * l * (m + n) - m * n * (k + l)

    fitting = [each for each in catalogue if target in each.targets and each.dtype == mat_a.dtype]
    if not fitting:
        return None
    picked = sorted(fitting, key=functools.cmp_to_key(order))[0]
    short = -mat_a.shape[1] % picked.divisibility
    if short:
        mat_a = torch.cat([mat_a, mat_a.new_zeros(mat_a.shape[0], short)], 1)
        mat_b = torch.cat([mat_b, mat_b.new_zeros(mat_b.shape[0], short, columns_of_c)], 1)
    mat_b = mat_b.transpose(1, 2).contiguous().transpose(1, 2) if picked.b_stride[1] == 1 else mat_b.contiguous()
    return picked, mat_a, mat_b, offs.to(picked.offsets)
