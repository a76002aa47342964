# ruff: noqa
import heapq


def assign_tiles(costs, programs):
    """The tiles of each program, a list for each."""
    schedule = [[] for _ in range(programs)]
    free = [(0, program) for program in range(programs)]
    for tile in sorted(range(len(costs)), key=costs.__getitem__, reverse=True):
        total, program = free[0]
        schedule[program].append(tile)
        heapq.heapreplace(free, (total + costs[tile], program))
    return schedule
