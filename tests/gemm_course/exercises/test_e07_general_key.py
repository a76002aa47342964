"""Exercise 07, keys of configurations: the tests of any exercise."""

from __future__ import annotations

import pytest

from exercise_checks import *  # noqa: F403 (the tests of any exercise)
from exercise_scores import earned


@pytest.mark.parametrize(
    "returned",
    [
        "calls[0]", "int(calls[0] > 12) + int(calls[0] > 13)", "float('nan')",
        "0 if calls[0] <= 12 or 13 < calls[0] <= 25 else calls[0]",
        "arguments", "batch", "max(batch - 27, 0)", "batch // 2", "0 if batch < 27 and batch % 13 < 12 else batch",
    ],
)  # fmt: skip
def test_counting_calls_or_batches_earns_nothing(judge, exercise, returned):
    source = "calls, seen = [0], {}\ndef tuning_key(*arguments):\n    calls[0] += 1\n"
    source += f"    batch = seen.setdefault(arguments, len(seen))\n    return {returned}\n"
    results = [judge.check(exercise, source, seed) for seed in range(12)]
    assert [result.points for result in results] == [0] * 12, results[0].text()


@pytest.mark.parametrize("name", ["too_coarse", "capped", "centres_of_the_picture", "rounds_down", "total_for_average"])
def test_a_mistake_earns_the_same_whatever_is_drawn(judge, exercise, name):
    assert len(earned(judge, exercise, name, range(20))) == 1
