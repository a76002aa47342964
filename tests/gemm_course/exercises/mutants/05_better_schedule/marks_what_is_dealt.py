# ruff: noqa
# check: same
# says: took \d+ µs before the call, and 0 µs after.\nThe caller keeps this list
import heapq


def assign_tiles(costs, programs):
    schedule = [[] for _ in range(programs)]
    totals = [0] * programs
    for _ in range(len(costs)):
        tile = max(range(len(costs)), key=lambda tile: costs[tile])
        program = min(range(programs), key=lambda program: totals[program])
        schedule[program].append(tile)
        totals[program] += costs[tile]
        costs[tile] = 0
    return schedule
