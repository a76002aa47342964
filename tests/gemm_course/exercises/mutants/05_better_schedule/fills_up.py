# ruff: noqa
# check: uniform
# says: program 0 has \d+ tiles of \d+ equal ones, and program \d has \d+; round-robin gives no program more than \d
import heapq


def assign_tiles(costs, programs):
    schedule = [[] for _ in range(programs)]
    share, total, program = sum(costs) / programs, 0, 0
    for tile in range(len(costs)):
        schedule[program].append(tile)
        total += costs[tile]
        if total > share and program < programs - 1:
            total, program = 0, program + 1
    return schedule
