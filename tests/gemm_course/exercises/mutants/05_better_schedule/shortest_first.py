# ruff: noqa
# check: last
# says: the longest tile, tile \d+, takes \d+ µs and starts after \d+
import heapq


def assign_tiles(costs, programs):
    schedule = [[] for _ in range(programs)]
    free = [(0, program) for program in range(programs)]
    for tile in sorted(range(len(costs)), key=lambda tile: costs[tile]):
        total, program = free[0]
        schedule[program].append(tile)
        heapq.heapreplace(free, (total + costs[tile], program))
    return schedule
