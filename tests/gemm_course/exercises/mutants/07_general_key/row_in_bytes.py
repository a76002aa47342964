# ruff: noqa
# check: types
# says: float32 with K = \d+ and float16 with K = \d+ share the key .*:\ntheir rows have equally many bytes
import math


def tuning_key(total_m, groups, N, K, dtype):
    rows = max(total_m / groups, 1)
    return round(2 * math.log2(rows)), groups, N, K * dtype.itemsize, dtype.itemsize == 1
