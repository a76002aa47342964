# ruff: noqa
# check: layer
# says: in a row their digits are the same, so put something between the numbers
import math


def tuning_key(total_m, groups, N, K, dtype):
    """What batches of about the same shape have in common."""
    rows = max(total_m / groups, 1)
    return f"{round(2 * math.log2(rows))}{groups}{N}{K}{dtype}"
