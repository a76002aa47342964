"""Exercise 13, tiles of jagged groups to workers: the tests of any exercise, what is drawn, and other right walks."""

from __future__ import annotations

import random

from exercise_checks import *  # noqa: F403 (the tests of any exercise)
from exercise_checks import source_of
from exercise_diagnoses import test_no_mutant_passes_by_luck  # noqa: F401 (stricter than the one above)

GROUP_BY_GROUP = """        passed = 0
        for g in hl.grid(group_offsets.size(0) - 1):
            start, end = group_offsets[g], group_offsets[g + 1]
            tiles_m = (end - start + BLOCK_M - 1) // BLOCK_M
            for tile in hl.grid((worker - passed) % workers, tiles_m * tiles_n, workers):
                row, col = start + tile % tiles_m * BLOCK_M, tile // tiles_m * BLOCK_N
                COMPUTE_TILE(A_packed, B, out, row, end, col, BLOCK_M, BLOCK_N)
            passed = passed + tiles_m * tiles_n
"""


def test_a_walk_over_groups_that_looks_at_its_own_tiles_passes(judge, exercise):
    source = source_of("solutions", exercise)
    head, _, _ = source.partition("        ### BEGIN SOLUTION")
    result = judge.check(
        exercise, (head if head != source else source.partition("        tile_ends")[0]) + GROUP_BY_GROUP
    )
    assert result.passed, result.text()


def test_every_draw_has_every_kind_of_batch(exercise):
    module = exercise.module()
    for seed in range(30):
        cases = module.draw(random.Random(seed))
        kinds = set()
        for case in cases:
            sizes, N, workers = (case.inputs[name] for name in ("sizes", "N", "workers"))
            tiles = sum(-(-size // module.BLOCK_M) for size in sizes) * -(-N // module.BLOCK_N)
            kinds |= {"none"} if not any(sizes) else set()
            kinds |= {"one worker"} if workers == 1 else set()
            kinds |= {"idle workers"} if 0 < tiles < workers else set()
            kinds |= {"left over"} if workers > 1 and tiles % workers and tiles > workers else set()
            if any(sizes) and not sizes[0] and not sizes[-1] and 0 in sizes[2:-2]:
                kinds.add("empty everywhere")
            assert all(size % module.BLOCK_M for size in sizes if size), "every group has a tail"
            assert N % module.BLOCK_N
            assert workers != module.HARD_CODED or tiles < workers
        assert kinds == {"none", "one worker", "idle workers", "left over", "empty everywhere"}
