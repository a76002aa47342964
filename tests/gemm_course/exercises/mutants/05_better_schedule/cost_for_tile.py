# ruff: noqa
# check: once
# says: tile \d+ of \d+ is computed (\d+ times|by no program)(.|\n)*equal costs
import heapq


def assign_tiles(costs, programs):
    schedule = [[] for _ in range(programs)]
    free = [(0, program) for program in range(programs)]
    for cost in sorted(costs, reverse=True):
        total, program = free[0]
        schedule[program].append(costs.index(cost))
        heapq.heapreplace(free, (total + cost, program))
    return schedule
