# ruff: noqa
# check: hits
# says: 12 batches of about the same size have \d+ keys
import math


def tuning_key(total_m, groups, N, K, dtype):
    return total_m // groups // 64, groups, N, K, dtype
