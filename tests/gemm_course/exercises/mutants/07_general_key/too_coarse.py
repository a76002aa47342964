# ruff: noqa
# check: rows
# says: \d+ rows over \d+ groups \(\d+ each\) and\n\d+ rows over \d+ groups \(\d+ each\) share the key
import math


def tuning_key(total_m, groups, N, K, dtype):
    rows = max(total_m / groups, 1)
    return round(math.log2(rows) / 2), groups, N, K, dtype
