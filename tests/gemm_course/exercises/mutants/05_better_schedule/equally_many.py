# ruff: noqa
# check: last
# says: all programs have about equally many tiles: share the time
import heapq


def assign_tiles(costs, programs):
    """The tiles of each program, a list for each."""
    schedule = [[] for _ in range(programs)]
    free = [(0, program) for program in range(programs)]
    most = -(-len(costs) // programs)
    for tile in sorted(range(len(costs)), key=lambda tile: -costs[tile]):
        total, program = min(f for f in free if len(schedule[f[1]]) < most)
        schedule[program].append(tile)
        free[[p for _, p in free].index(program)] = (total + costs[tile], program)
    return schedule
