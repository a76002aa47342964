# ruff: noqa
# check: hits
# says: 12 batches of about the same size have \d+ keys; the first edge is between\n\d+ rows(.|\n)*is an exact number of rows in it
import math


def tuning_key(total_m, groups, N, K, dtype):
    return total_m, groups, N, K, dtype
