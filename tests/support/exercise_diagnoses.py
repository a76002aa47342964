"""A stricter test of an exercise's mutants: whatever is drawn, each is told its own mistake.

A test module imports it after `exercise_checks`, whose test of the same name it replaces.
"""

from __future__ import annotations

import re

from exercise_checks import bearing_on, drawn_for, expected, judged_alone

SEEDS = range(12)


def test_no_mutant_passes_by_luck(judge, exercise, mutant, monkeypatch):
    check, says = expected(mutant)
    if check == "compiles":
        return  # it does not depend on the inputs
    source = mutant.read_text(encoding="utf-8")
    cases = {seed: drawn_for(exercise, seed) if check == "-" else bearing_on(check, exercise, seed) for seed in SEEDS}
    first = judged_alone(judge, exercise, source, check, {0: cases[0]}, monkeypatch)
    # The first input with a message is the one that a learner reads about.
    place = next(i for i, (_, said) in enumerate(first) if said)
    others = {seed: found[place : place + 1] for seed, found in cases.items() if seed}
    said = dict([first[place], *judged_alone(judge, exercise, source, check, others, monkeypatch)])
    assert said.keys() == set(SEEDS)
    assert {seed: text for seed, text in said.items() if not re.search(says, text)} == {}
