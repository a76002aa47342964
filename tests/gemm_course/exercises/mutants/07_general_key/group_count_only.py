# ruff: noqa
# check: rows
# says: \d+ rows over \d+ groups \(\d+ each\) and\n\d+ rows over \d+ groups \(\d+ each\) share the key \(\d+, torch.float16\)|share the key \(\d+, 'torch.float16'\)
import math


def tuning_key(total_m, groups, N, K, dtype):
    return groups, dtype
