"""A stricter test of an exercise's mutants: on every seed, a learner first sees the message written for that mutant.

A test module imports it after `exercise_checks`, whose test of the same name it replaces.
"""

from __future__ import annotations

import re

from exercise_checks import SEEDS, drawn_for, judged_alone


def test_no_mutant_passes_by_luck(judge, exercise, mutant, monkeypatch):
    check, says, source = mutant.check, mutant.says, mutant.source
    if check == "compiles" or (check == "-" and re.search("Error(Impl)?: ", says)):
        return  # neither the compiler nor an exception depends on the inputs
    # With seed 0 all inputs together are judged by `test_a_mutant_is_told_what_is_wrong_and_where`.
    drawn = {seed: drawn_for(exercise, seed) for seed in SEEDS if seed != 0}
    cases = {seed: [case for case in found if check in ("-", *case.checks)] for seed, found in drawn.items()}
    said, place = {}, 0
    # The first input with a message is the one that a learner reads about.
    while left := {seed: found[place : place + 1] for seed, found in cases.items() if seed not in said}:
        assert any(left.values()), f"nothing is said with seeds {list(left)}"
        said |= judged_alone(judge, exercise, source, check, left, monkeypatch)
        place += 1
    assert {seed: text for seed, text in said.items() if not re.search(says, text)} == {}
