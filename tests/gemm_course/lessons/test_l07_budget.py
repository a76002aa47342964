"""What a configuration uses of an SM, and why it is rejected."""

from __future__ import annotations

from course_kernels import GemmConfig
from course_kernels.codegen import TARGETS
from gemm_course.lessons import l07_budget as budget
from gemm_course.lessons.l07_budget import Use, rejection_reason

LARGE = GemmConfig(128, 256, 64, 8, 4, store_parts=2)
FITS = Use(LARGE, 162, 0, 229408)
SPILLS = Use(GemmConfig(128, 256, 64, 4, 3), 255, 640, 213016)
TOO_MUCH = Use(GemmConfig(128, 256, 64, 8, 4), 159, 0, 262176)
TWO = Use(GemmConfig(128, 128, 64, 4, 3, programs_per_sm=2, store_parts=2), 162, 0, 114712)
NOT_TWO = Use(GemmConfig(128, 128, 64, 4, 4, programs_per_sm=2, store_parts=2), 166, 0, 147488)


def test_causes_of_death():
    assert [rejection_reason(use) for use in (FITS, TWO)] == ["", ""]
    assert rejection_reason(SPILLS) == "spills"
    assert rejection_reason(SPILLS._replace(spilled=16)) == "", "a few bytes, saved once, kill nothing"
    assert rejection_reason(TOO_MUCH) == "shared memory"
    assert rejection_reason(NOT_TWO) == "shared memory", "one program would fit, two do not"
    assert rejection_reason(Use(GemmConfig(64, 64, 64, 8, programs_per_sm=2), 200, 0, 1000)) == "registers"


def test_the_system_takes_a_kib_of_each_program_and_the_limit_is_that_of_one_program():
    one, two = GemmConfig(), GemmConfig(programs_per_sm=2)
    assert rejection_reason(Use(one, 64, 0, 227 * 1024)) == ""
    assert rejection_reason(Use(one, 64, 0, 227 * 1024 + 1)) == "shared memory"
    assert rejection_reason(Use(two, 64, 0, 113 * 1024)) == ""
    assert rejection_reason(Use(two, 64, 0, 113 * 1024 + 1)) == "shared memory"


def test_sums_per_thread():
    assert (FITS.sums, SPILLS.sums, TWO.sums) == (128, 256, 128)


def test_the_limits_are_those_of_the_compiled_target():
    assert budget.SM_SHARED_BYTES - budget.RESERVED_BYTES == TARGETS["sm_90"].shared_limit
