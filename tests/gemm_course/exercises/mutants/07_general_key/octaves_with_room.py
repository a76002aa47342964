# ruff: noqa
# check: between
# says: \d+ rows over \d+ groups \(.* each\) and\n\d+ rows over \d+ groups \(.* each\) share the key
import math


def tuning_key(total_m, groups, N, K, dtype):
    rows = max(total_m / groups, 1)
    return math.floor(math.log2(rows / 0.85)), groups, N, K, dtype
