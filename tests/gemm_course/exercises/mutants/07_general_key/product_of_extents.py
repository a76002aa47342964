# ruff: noqa
# check: layer
# says: two layers share the key .*; they differ in N = \d+ and \d+, K = \d+ and \d+
import math


def tuning_key(total_m, groups, N, K, dtype):
    rows = max(total_m / groups, 1)
    return round(2 * math.log2(rows)), groups, N * K, dtype
