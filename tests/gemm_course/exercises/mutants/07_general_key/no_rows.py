# ruff: noqa
# check: rows
# says: \d+ rows over \d+ groups \(\d+ each\) and\n\d+ rows over \d+ groups \(\d+ each\) share the key
import math


def tuning_key(total_m, groups, N, K, dtype):
    return groups, N, K, dtype
