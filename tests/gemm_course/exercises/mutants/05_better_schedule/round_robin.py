# ruff: noqa
# check: work
# says: program 0 has \d+ µs of work, and program \d has \d+ µs(.|\n)*that is round-robin
import heapq


def assign_tiles(costs, programs):
    return [list(range(program, len(costs), programs)) for program in range(programs)]
