# ruff: noqa
def tuning_key(total_m, groups, N, K, dtype):
    rows = max(total_m / groups, 1)
    centres = [base << i for i in range(40) for base in (2, 3)]
    nearest = min(centres, key=lambda centre: max(rows * 2 / centre, centre / (rows * 2)))
    return f"{nearest}/{groups}/{N}/{K}/{dtype}"
