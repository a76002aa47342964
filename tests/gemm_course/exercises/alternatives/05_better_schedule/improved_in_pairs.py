# ruff: noqa
def assign_tiles(costs, programs):
    schedule = [[] for _ in range(programs)]
    for tile in sorted(range(len(costs)), key=lambda tile: costs[tile], reverse=True):
        min(schedule, key=lambda tiles: sum(costs[each] for each in tiles)).append(tile)

    def work(tiles):
        return sum(costs[tile] for tile in tiles)

    for _ in range(20):
        most, least = max(schedule, key=work), min(schedule, key=work)
        gap = work(most) - work(least)
        pairs = [(a, b) for a in most for b in least if 0 < costs[a] - costs[b] < gap]
        if not pairs:
            break
        a, b = pairs[0]
        most[most.index(a)], least[least.index(b)] = b, a
    return [sorted(tiles) for tiles in schedule]
