"""Exercise 16, the sends of each rank: the tests of any exercise, and one cause for what follows from it."""

from __future__ import annotations

import re

import pytest

import mutants
from exercise_checks import *  # noqa: F403 (the tests of any exercise)
from exercise_checks import source_of
from exercise_scores import earned

VARIED = [
    "a_row_for_each_choice", "one_expert_of_each_row", "others_numbered_from_the_rank", "received_is_sent",
    "tokens_with_strangers_dropped", "expert_0_is_nobodys", "the_last_expert_is_nobodys",
]  # fmt: skip


@pytest.mark.parametrize("name", VARIED)
def test_a_mistake_earns_the_same_whatever_is_drawn(judge, exercise, name):
    assert len(earned(judge, exercise, name, range(20))) == 1


def test_what_follows_from_wrong_rows_is_not_told_again(judge, exercise):
    result = judge.check(exercise, mutants.of(exercise.name)["a_row_for_each_choice"].source)
    told = {each.name: each.message for each in result.properties if each.status == "fail"}
    assert told.keys() == {"once", "experts"}
    assert "wrong for the reason above" in told["experts"]
    assert "one row is enough" in result.message, "one rank is no place to tell id % ranks from the right rule"


def test_a_rank_that_does_not_call_costs_the_others_nothing(judge, exercise):
    result = judge.check(exercise, mutants.of(exercise.name)["leaves_early_without_tokens"].source)
    assert [each.name for each in result.properties if each.status == "fail"] == ["everyone"]


@pytest.mark.parametrize(
    ("given", "plan"),
    [
        ("[0] * ranks", "[], [], [0] * ranks, [0] * ranks, []"),
        (
            "[1] * ranks",
            "[0] * ranks, [[0] * ids.shape[1]] * ranks, [1] * ranks, [1] * ranks, [[0] * ranks] * len(ids)",
        ),
        (
            "[len(ids)] * ranks",
            "list(range(len(ids))) * ranks, [[-1] * ids.shape[1]] * len(ids) * ranks, [len(ids)] * ranks, given, "
            "[[-1] * ranks] * len(ids)",
        ),
    ],
    ids=["nothing", "token 0 to each rank", "all tokens to each rank, without experts"],
)
def test_a_plan_without_one_right_row_earns_nothing(judge, exercise, given, plan):
    hole = r"raise NotImplementedError\(.*\)"
    source = re.sub(hole, f"given = exchange({given})\n    return {plan}", source_of("exercises", exercise))
    assert [judge.check(exercise, source, seed, compiling=False).points for seed in range(3)] == [0] * 3
