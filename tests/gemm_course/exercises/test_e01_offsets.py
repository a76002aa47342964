"""Exercise 01, ends and rows of groups: the tests of any exercise, a loop over rows, and other right answers."""

from __future__ import annotations

import pytest

from exercise_checks import *  # noqa: F403 (the tests of any exercise)

ROWS = "    rows = torch.arange(total_m, device=sizes.device)\n"
GROUP = ROWS + "    group = torch.searchsorted(ends, rows, right=True)\n"
ANSWER = "def describe_groups(sizes, total_m):\n    ends = torch.cumsum(sizes, 0)\n"


def test_a_loop_over_rows_gets_one_message(judge, exercise):
    source = ANSWER + (
        "    group = torch.full((total_m,), -1, device=sizes.device)\n"
        "    for row in range(total_m):\n"
        "        group[row] = (ends <= row).sum()\n"
        "    return ends, torch.where(group < len(sizes), group, -1)\n"
    )
    result = judge.check(exercise, source)
    (wrong,) = [each for each in result.properties if each.status != "pass"]
    assert wrong.name == "device"
    assert "a loop over rows launches at least one kernel for each row" in wrong.message


@pytest.mark.parametrize(
    "rest",
    [
        GROUP + "    group[group == len(sizes)] = -1\n    return ends, group\n",
        ROWS + "    group = torch.full_like(rows, -1)\n"
        "    for g in range(len(sizes)):\n"
        "        group = torch.where((rows >= ends[g] - sizes[g]) & (rows < ends[g]), g, group)\n"
        "    return ends, group\n",
        "    with sizes.device:\n        rows = torch.arange(total_m)\n"
        "    group = (rows[:, None] >= ends[None, :]).sum(1)\n"
        "    return [ends, group.masked_fill(group == sizes.numel(), -1)]\n",
        ROWS + "    found = torch.searchsorted(ends, rows, right=True)\n"
        "    numbers = torch.arange(len(sizes) + 1, device=sizes.device)\n"
        "    numbers = torch.where(numbers < len(sizes), numbers, -1)\n"
        "    return ends, (torch.nn.functional.one_hot(found, len(sizes) + 1) * numbers).sum(1)\n",
    ],
    ids=["a mask and a number", "a loop over groups", "comparisons", "one hot"],
)
def test_other_right_answers_pass(judge, exercise, rest):
    result = judge.check(exercise, ANSWER + rest)
    assert result.passed, result.text()


def test_a_message_names_the_result_that_is_on_the_host(judge, exercise):
    source = ANSWER + GROUP + "    return torch.tensor([0] * len(sizes)), group\n"
    result = judge.check(exercise, source)
    assert "`ends` is on the CPU" in result.text()


@pytest.mark.parametrize(("returned", "shape"), [("ends[-1], group", "()"), ("ends[:, None], group * 0", "(")])
def test_a_result_of_another_rank_is_told(judge, exercise, returned, shape):
    result = judge.check(exercise, ANSWER + GROUP + f"    return {returned}\n")
    assert "makes no sense" not in result.text()
    assert f"its shape is {shape}" in result.text()
