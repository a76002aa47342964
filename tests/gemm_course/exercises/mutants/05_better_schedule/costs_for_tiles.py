# ruff: noqa
# check: -
# says: program 0 is given tile \d\d; there are tiles 0 to \d+; the lists hold numbers of tiles, not their costs
import heapq


def assign_tiles(costs, programs):
    """The tiles of each program, a list for each."""
    schedule = [[] for _ in range(programs)]
    free = [(0, program) for program in range(programs)]
    for tile in sorted(range(len(costs)), key=lambda tile: -costs[tile]):
        total, program = free[0]
        schedule[program].append(costs[tile])
        heapq.heapreplace(free, (total + costs[tile], program))
    return schedule
