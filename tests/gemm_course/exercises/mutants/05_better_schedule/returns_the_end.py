# ruff: noqa
# check: -
# says: returned a int, not a list
import heapq


def assign_tiles(costs, programs):
    free = [0] * programs
    for cost in sorted(costs, reverse=True):
        heapq.heapreplace(free, free[0] + cost)
    return max(free)
