# ruff: noqa
# check: between
# says: these keys hold round\(2 \* math\.log\(rows\)\): for twice as many rows math\.log is 0\.69 more
import math


def tuning_key(total_m, groups, N, K, dtype):
    """What batches of about the same shape have in common."""
    rows = max(total_m / groups, 1)
    return round(2 * math.log(rows)), groups, N, K, dtype
