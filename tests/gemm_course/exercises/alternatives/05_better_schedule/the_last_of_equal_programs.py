# ruff: noqa
def assign_tiles(costs, programs):
    schedule, left = [[] for _ in range(programs)], list(range(len(costs)))
    totals = [0] * programs
    while left:
        tile = max(left, key=lambda tile: costs[tile])
        left.remove(tile)
        least = min(totals)
        program = max(p for p in range(programs) if totals[p] == least)
        schedule[program].append(tile)
        totals[program] += costs[tile]
    return schedule
