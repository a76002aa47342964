# ruff: noqa
# check: work
# says: program \d has \d+ µs of work, and program \d has \d+ µs
import heapq


def assign_tiles(costs, programs):
    schedule = [[] for _ in range(programs)]
    for tile in range(len(costs)):
        min(schedule, key=len).append(tile)
    return schedule
