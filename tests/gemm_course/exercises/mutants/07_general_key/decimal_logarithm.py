# ruff: noqa
# check: rows
# says: these keys hold round\(2 \* math\.log10\(rows\)\): for twice as many rows math\.log10 is 0\.3 more
import math


def tuning_key(total_m, groups, N, K, dtype):
    """What batches of about the same shape have in common."""
    rows = max(total_m / groups, 1)
    return round(2 * math.log10(rows)), groups, N, K, dtype
