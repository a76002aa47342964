# ruff: noqa
# check: last
# says: longest first, but dealt back and forth
import heapq


def assign_tiles(costs, programs):
    schedule = [[] for _ in range(programs)]
    order = sorted(range(len(costs)), key=lambda tile: -costs[tile])
    for at, tile in enumerate(order):
        turn, place = divmod(at, programs)
        schedule[place if turn % 2 == 0 else programs - 1 - place].append(tile)
    return schedule
