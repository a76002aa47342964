# ruff: noqa
# check: types
# says: float16 and float32 share the key .*2 and 4 bytes
import math


def tuning_key(total_m, groups, N, K, dtype):
    rows = max(total_m / groups, 1)
    return round(2 * math.log2(rows)), groups, N, K
