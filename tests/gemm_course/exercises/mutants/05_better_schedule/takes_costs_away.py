# ruff: noqa
# check: same
# says: the list of costs was changed, and 0 of \d+ costs are left after the call: .pop\(\)
import heapq


def assign_tiles(costs, programs):
    schedule = [[] for _ in range(programs)]
    free = [(0, program) for program in range(programs)]
    for tile in sorted(range(len(costs)), key=lambda tile: -costs[tile]):
        total, program = free[0]
        schedule[program].append(tile)
        heapq.heapreplace(free, (total + costs[tile], program))
    while costs:
        costs.pop()
    return schedule
