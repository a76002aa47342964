"""A build is a value: equal to its like, in a set, and refused where its arguments contradict each other."""

import pytest

from course_kernels.codegen import Build
from course_kernels.kernels.codes import Layout


def test_builds_compare_by_what_is_compiled():
    one = Build("m:f", {"x": "*fp16"}, {"LAYOUT": 1, "y": None}, ("x",), label="one")
    other = Build("m:f", {"x": "*fp16"}, {"y": None, "LAYOUT": Layout.ROW_MAJOR}, ["x"], label="other")
    assert one == other
    assert len({one, other}) == 1
    assert one != Build("m:f", {"x": "*fp16"}, {"LAYOUT": 1, "y": None}, (), label="one")
    assert one != "m:f"
    assert (str(one), str(Build("m:f", {}))) == ("one", "m:f")


def test_contradictions_are_refused():
    with pytest.raises(ValueError, match="both"):
        Build("m:f", {"x": "i32"}, {"x": 1})
    with pytest.raises(ValueError, match="divisible_by_16"):
        Build("m:f", {"x": "i32"}, {}, ("y",))
    with pytest.raises(ValueError, match="kernel must be one of"):
        Build("fast", {})
