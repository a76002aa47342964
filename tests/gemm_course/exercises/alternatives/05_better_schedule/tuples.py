# ruff: noqa
import heapq


def assign_tiles(costs, programs):
    schedule = [() for _ in range(programs)]
    free = [(0, program) for program in range(programs)]
    for tile in sorted(range(len(costs)), key=lambda tile: -costs[tile]):
        total, program = free[0]
        schedule[program] += (tile,)
        heapq.heapreplace(free, (total + costs[tile], program))
    return tuple(schedule)
