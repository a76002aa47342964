# ruff: noqa
# check: rows
# says: share the key .*: is there a largest number of rows, above which all are alike
import math


def tuning_key(total_m, groups, N, K, dtype):
    rows = min(max(total_m / groups, 1), 8192)
    return round(2 * math.log2(rows)), groups, N, K, dtype
