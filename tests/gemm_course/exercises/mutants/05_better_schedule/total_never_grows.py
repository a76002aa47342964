# ruff: noqa
# check: work
# says: program 0 has \d+ µs of work, and program 1 has 0 µs(.|\n)*all of it went to one program
import heapq


def assign_tiles(costs, programs):
    schedule = [[] for _ in range(programs)]
    free = [(0, program) for program in range(programs)]
    for tile in sorted(range(len(costs)), key=lambda tile: -costs[tile]):
        total, program = free[0]
        schedule[program].append(tile)
        heapq.heapreplace(free, (total, program))
    return schedule
