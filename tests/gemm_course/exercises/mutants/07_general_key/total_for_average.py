# ruff: noqa
# check: hits
# says: have 2 keys; the first edge is between\n\d+ rows over \d+ groups(.|\n)*these keys hold round\(2 \* math\.log2\(total_m\)\): the rows of all groups
import math


def tuning_key(total_m, groups, N, K, dtype):
    return round(2 * math.log2(max(total_m, 1))), groups, N, K, dtype
