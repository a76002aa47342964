# ruff: noqa
# check: between
# says: have 2 keys; the first edge is between\n\d+ rows over \d+ groups(.|\n)*these keys hold round\(math\.log2\(rows\)\): 1 for each factor of two
import math


def tuning_key(total_m, groups, N, K, dtype):
    rows = max(total_m / groups, 1)
    return round(math.log2(rows)), groups, N, K, dtype
