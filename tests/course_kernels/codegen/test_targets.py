"""Targets: their names, and what each has."""

from __future__ import annotations

import pytest

from course_kernels.codegen.targets import TARGETS, find_target


def test_names_say_the_backend():
    assert {name.partition("_")[0].rstrip("0123456789")[:3] for name in TARGETS} == {"sm", "gfx"}
    for name, target in TARGETS.items():
        assert find_target(name) is target
        assert target.backend == ("cuda" if name.startswith("sm_") else "hip")


def test_an_unknown_name_lists_those_there_are():
    with pytest.raises(ValueError, match=r"target must be one of sm_75.*gfx942.*, got 'sm_13'"):
        find_target("sm_13")
