# ruff: noqa
# check: once
# says: tile \d+ of \d+ is computed by no program; in all, \d+ tiles? lost and 0 tiles repeated
import heapq


def assign_tiles(costs, programs):
    schedule = [[] for _ in range(programs)]
    longest = sorted(range(len(costs)), key=lambda tile: -costs[tile])
    for start in range(0, len(costs) // programs * programs, programs):
        by_work = sorted(range(programs), key=lambda program: sum(costs[tile] for tile in schedule[program]))
        for program, tile in zip(by_work, longest[start:]):
            schedule[program].append(tile)
    return schedule
