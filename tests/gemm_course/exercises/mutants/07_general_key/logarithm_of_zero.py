# ruff: noqa
# check: -
# says: line 9: ValueError: math domain error
import math


def tuning_key(total_m, groups, N, K, dtype):
    rows = total_m / groups
    return round(2 * math.log2(rows)), groups, N, K, dtype
