# ruff: noqa
# check: same
# says: called again with the same costs, program \d gets tiles \[.*, not \[
totals = {}


def assign_tiles(costs, programs):
    schedule = [[] for _ in range(programs)]
    free = totals.setdefault(programs, [0] * programs)
    for tile in sorted(range(len(costs)), key=lambda tile: -costs[tile]):
        program = free.index(min(free))
        schedule[program].append(tile)
        free[program] += costs[tile]
    return schedule
