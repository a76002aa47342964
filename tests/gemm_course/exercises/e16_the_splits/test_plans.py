"""The form of a plan: parts of tensors and lists, those that are malformed, and the ranks of experts."""

from __future__ import annotations

import pytest
import torch

from gemm_course.exercises.e16_the_splits.plans import owners_of, parts_of, plan_of

IDS = [[0, 3], [1, 9]]
GOOD = [torch.tensor([0, 1, 0]), [[0, -1], [1, -1], [-1, 1]], torch.tensor([2, 1]), [2, 1], [[0, 2], [1, -1]]]


def test_tensors_and_lists_become_lists():
    parts, wrong = parts_of(GOOD, 2, IDS, 2)
    assert wrong == {}
    assert parts[0] == [0, 1, 0]
    plan = plan_of(0, [IDS, []], 4, [[2, 1]], parts)
    assert plan.owners == [[0, 1], [0, -1]]
    assert plan.goals == [[0, 1], [0]]
    assert plan.strange(1) == [9]
    assert plan.back == [[0, 2], [1, -1]]


@pytest.mark.parametrize(
    ("at", "part", "name", "says"),
    [
        (0, torch.tensor(3), "tokens", "one number for each row"),
        (0, torch.tensor([0.0, 1.0, 0.0]), "tokens", "it is a tensor of torch.float32"),
        (1, [[0], [1], [1]], "local", "a row of k = 2 columns for each of the 3 entries of `tokens`"),
        (2, [3], "sent", "a rank that gets nothing has a 0, too"),
        (3, {"not": "generator"}, "received", "it is a generator"),
        (4, [[0, 1], [2]], "back", "a list of other things"),
    ],
)
def test_a_malformed_part_is_named(at, part, name, says):
    _, wrong = parts_of([*GOOD[:at], part, *GOOD[at + 1 :]], 2, IDS, 2)
    assert says in wrong[name]


def test_nothing_may_be_an_empty_list():
    assert parts_of([[], [], [0, 0], [0, 0], []], 0, [], 2)[1] == {}


def test_another_rule_for_owners():
    assert owners_of([[5, -1]], 6, 3, lambda e: e % 3) == [[2, -1]]
