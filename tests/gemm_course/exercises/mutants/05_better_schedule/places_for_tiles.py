# ruff: noqa
# check: work
# says: the lists hold places in the sorted list of costs
import heapq


def assign_tiles(costs, programs):
    schedule = [[] for _ in range(programs)]
    free = [(0, program) for program in range(programs)]
    costs = sorted(costs, reverse=True)
    for tile in range(len(costs)):
        total, program = free[0]
        schedule[program].append(tile)
        heapq.heapreplace(free, (total + costs[tile], program))
    return schedule
