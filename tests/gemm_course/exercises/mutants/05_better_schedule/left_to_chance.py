# ruff: noqa
# check: same
# says: called again with the same costs, program \d gets tiles \[.*, not \[(.|\n)*use random numbers
import heapq


def assign_tiles(costs, programs):
    schedule = [[] for _ in range(programs)]
    free = [(0, program) for program in range(programs)]
    for tile in sorted(torch.randperm(len(costs)).tolist(), key=lambda tile: -costs[tile]):
        total, program = free[0]
        schedule[program].append(tile)
        heapq.heapreplace(free, (total + costs[tile], program))
    return schedule
