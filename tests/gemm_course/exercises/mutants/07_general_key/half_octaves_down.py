# ruff: noqa
# check: hits
# says: have 2 keys; the first edge is between\n\d+ rows over \d+ groups(.|\n)*these keys hold int\(2 \* math\.log2\(rows\)\): int has an edge
import math


def tuning_key(total_m, groups, N, K, dtype):
    rows = max(total_m / groups, 1)
    return math.floor(2 * math.log2(rows)), groups, N, K, dtype
