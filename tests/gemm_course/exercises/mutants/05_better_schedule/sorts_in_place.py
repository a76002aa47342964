# ruff: noqa
# check: same
# says: tile \d+ took \d+ µs before the call, and \d+ µs after
import heapq


def assign_tiles(costs, programs):
    costs.sort(reverse=True)
    schedule = [[] for _ in range(programs)]
    free = [(0, program) for program in range(programs)]
    for tile in range(len(costs)):
        total, program = free[0]
        schedule[program].append(tile)
        heapq.heapreplace(free, (total + costs[tile], program))
    return schedule
