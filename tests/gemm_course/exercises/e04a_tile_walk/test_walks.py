"""Walks over tiles: the right one is the round-robin order, and each mistake is recognised by the log it leaves."""

from __future__ import annotations

import random

import pytest

from gemm_course.exercises.e04a_tile_walk import examine
from gemm_course.exercises.e04a_tile_walk.run import BLOCK_M, BLOCK_N, grid_of
from gemm_course.exercises.e04a_tile_walk.walks import CHUNKS, Walk, explain

SIZES = [(3 * BLOCK_M - 1, 2 * BLOCK_N - 1, 20), (BLOCK_M, BLOCK_N, 7), (2 * BLOCK_M, 4 * BLOCK_N - 3, 33)]
GRIDS = [grid_of(size) for size in SIZES]
PROGRAMS = 5


def test_the_right_walk_computes_every_tile_once_in_turn():
    logs = Walk(PROGRAMS, grids=GRIDS).logs(PROGRAMS)
    every = [(g, row, col) for g, (rows, cols) in enumerate(GRIDS) for col in range(cols) for row in range(rows)]
    assert logs == [every[program::PROGRAMS] for program in range(PROGRAMS)]
    found = explain(SIZES, logs)
    assert (found.step, found.place, found.why) == (PROGRAMS, "", "")


@pytest.mark.parametrize(
    "changes, why",
    [
        (dict(late=1), "one too many"),
        (dict(late=-1), "one too small"),
        (dict(forgets=True), "of all problems before, not of one"),
        (dict(counts=False), "stays 0"),
        (dict(returns=True), "begins each problem with the program's first tile"),
        (dict(counts=False, returns=True), "starts again at 0"),
        (dict(leaves=True), "moves on to the next problem after every tile"),
        (dict(drifts=True), "is another number in each program"),
        (dict(strays=True), "goes on to the next problem after each tile: `g += 1` belongs to `else`"),
    ],
    ids=str,
)
def test_a_mistake_is_recognised_by_its_log(changes, why):
    logs = Walk(PROGRAMS, grids=GRIDS)._replace(**changes).logs(PROGRAMS)
    assert logs != Walk(PROGRAMS, grids=GRIDS).logs(PROGRAMS)
    assert why in explain(SIZES, logs).why


def test_a_condition_of_all_problems_is_told_from_tiles_that_are_not_counted():
    for seed in range(30):
        for case in examine.draw(random.Random(seed))[:2]:
            problems, programs = case.inputs["problems"], case.inputs["programs"]
            walk = Walk(programs, grids=[grid_of(size) for size in problems], mixes=True)
            assert "the condition compares `tile`" in explain(problems, walk.logs(programs)).why


def test_another_step_and_another_order_are_recognised():
    assert explain(SIZES, Walk(PROGRAMS + 1, grids=GRIDS).logs(PROGRAMS)).step == PROGRAMS + 1
    exchanged = "row and column are exchanged"
    assert explain(SIZES, Walk(PROGRAMS, exchanged, GRIDS).logs(PROGRAMS)).place == exchanged


def test_runs_of_neighbouring_tiles_are_recognised():
    every = Walk(1, grids=GRIDS).logs(1)[0]
    share = -(-len(every) // PROGRAMS)
    logs = [every[program * share : (program + 1) * share] for program in range(PROGRAMS)]
    assert explain(SIZES, logs).why == CHUNKS


def test_what_no_known_walk_leaves_has_no_explanation():
    logs = Walk(PROGRAMS, grids=GRIDS).logs(PROGRAMS)
    logs[0] = logs[0][::-1]
    assert explain(SIZES, logs) is None
