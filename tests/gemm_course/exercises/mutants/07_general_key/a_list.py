# ruff: noqa
# check: -
# says: returned a list: a key of a dict
import math


def tuning_key(total_m, groups, N, K, dtype):
    rows = max(total_m / groups, 1)
    return [round(2 * math.log2(rows)), groups, N, K, dtype]
