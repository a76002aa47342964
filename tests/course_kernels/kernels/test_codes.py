"""The codes of host and kernels are the same, and host code reads them without Triton."""

import forked
from course_kernels.config import SCHEDULES
from course_kernels.kernels import contiguous, masked, record, round_robin
from course_kernels.kernels.codes import Layout, Record, Scales, Schedule, Store


def test_kernels_use_the_same_numbers():
    for code in (*Layout, *Schedule):
        assert getattr(round_robin, code.name).value == code
    for code in Store:
        assert getattr(contiguous, code.name).value == code
    for code in (Scales.LINES, Scales.BLOCKS):
        assert getattr(masked, code.name).value == code
    assert not Scales.NONE, "the kernel asks whether there are any"
    for code in Record:
        assert getattr(record, f"RECORD_{code.name}").value == code


def test_every_schedule_of_a_configuration_has_a_code():
    assert tuple(code.name.lower() for code in Schedule) == SCHEDULES


def test_no_two_codes_are_equal():
    for code in (Layout, Schedule, Store, Scales, Record):
        assert len(code) == 3, "a repeated value would be an alias"


def test_codes_are_read_without_triton():
    script = "import sys, course_kernels.kernels.codes; assert 'triton' not in sys.modules"
    done = forked.run(script)
    assert done.returncode == 0, done.stderr
