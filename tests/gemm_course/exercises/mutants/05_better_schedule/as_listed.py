# ruff: noqa
# check: last
# says: program \d ends after \d+ µs, and longest-tile-first ends after \d+ µs\nthe longest tile, tile \d+, takes \d+ µs and starts after \d+
import heapq


def assign_tiles(costs, programs):
    schedule = [[] for _ in range(programs)]
    free = [(0, program) for program in range(programs)]
    for tile in range(len(costs)):
        total, program = free[0]
        schedule[program].append(tile)
        heapq.heapreplace(free, (total + costs[tile], program))
    return schedule
