# ruff: noqa
def tuning_key(total_m, groups, N, K, dtype):
    rows = max(total_m * 8 // (groups * 7), 1)  # so that edges lie between the centres
    length = rows.bit_length()
    return length, rows >> max(length - 2, 0) & 1, groups, N, K, dtype
