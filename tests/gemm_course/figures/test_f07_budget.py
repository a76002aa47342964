"""The figures of what a configuration takes: to scale, against the limits, every candidate named and judged."""

from __future__ import annotations

import itertools

import pytest

from course_kernels import GemmConfig
from drawn import rectangles
from gemm_course.figures.f07_budget import Use, limits, rejection_reason, short_name, sm_budget, tile_step
from gemm_course.figures.shapes import spread_apart
from gemm_course.figures.style import RED
from gemm_course.lessons import l07_budget

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


def test_short_names_say_what_differs():
    assert short_name(LARGE) == ("128×256×64", "8w 4s 2p")
    assert short_name(TWO.config) == ("128×128×64", "4w 3s 2p 2/SM")
    assert short_name(GemmConfig(16, 128, 128, 4, 4)) == ("16×128×128", "4w 4s")


@pytest.mark.parametrize(
    "wanted, expected",
    [([0, 10, 20], [0, 10, 20]), ([10, 10], [7.5, 12.5]), ([0, 10, 10, 10, 40], [0, 5, 10, 15, 40]), ([], [])],
)
def test_labels_move_apart_and_no_further(wanted, expected):
    assert spread_apart(wanted, 5) == pytest.approx(expected)


def test_labels_never_meet_and_stay_in_order():
    places = spread_apart([0, 1, 1, 2, 6, 7, 7.5, 30], 2)
    assert all(after - before >= 2 - 1e-9 for before, after in itertools.pairwise(places))


def test_a_step_is_drawn_to_scale_and_the_used_rows_are_filled():
    figure = tile_step([(4096, LARGE), (4, LARGE), (20, GemmConfig(16, 128, 128))])
    all_rows, four, sixteen = figure.axes
    sizes = {gid: [(p.get_width(), p.get_height()) for p in rectangles(four, gid)] for gid in
             ("A block", "A used", "B block", "B used", "sums block", "sums used")}  # fmt: skip
    assert sizes == {
        "A block": [(64, 128)], "A used": [(64, 4)], "B block": [(256, 64)], "B used": [(256, 64)],
        "sums block": [(256, 128)], "sums used": [(256, 4)],
    }  # fmt: skip
    assert rectangles(all_rows, "A used")[0].get_height() == 128
    assert rectangles(sixteen, "A used")[0].get_height() == 16
    assert four.get_title(loc="left") == "group of 4 rows\nthe tile uses 4 of its 128"
    assert all(ax.get_aspect() == 1 for ax in figure.axes)


def test_the_budget_adds_up_to_what_the_compiler_said():
    registers, shared = sm_budget([FITS, SPILLS, TWO]).axes
    for y, use in enumerate((FITS, SPILLS, TWO)):
        bars = [p for p in shared.patches if round(p.get_y() + p.get_height() / 2) == y]
        assert sum(p.get_width() for p in bars) * 1024 == pytest.approx(use.sm_shared)
        assert max(p.get_x() + p.get_width() for p in bars) * 1024 == pytest.approx(use.sm_shared)
        blocks = [p for p in bars if p.get_gid() == "A"]
        assert len(blocks) == use.config.num_stages * use.config.programs_per_sm
        mine = [p for p in registers.patches if round(p.get_y() + p.get_height() / 2) == y]
        spilled = sum(p.get_width() for p in mine if p.get_gid() == "spilled")
        assert spilled == pytest.approx(use.spilled / 4)
        kept = sum(p.get_width() for p in mine if p.get_gid() != "spilled")
        assert kept == pytest.approx(max(use.registers, min(use.sums, use.registers)))
    limit = [line.get_xdata()[0] for ax in (registers, shared) for line in ax.lines]
    assert limit == [255, 228]


def test_fewer_buffers_than_stages_are_drawn_as_they_are():
    small = Use(GemmConfig(16, 128, 128, 4, 4), 102, 0, 114712)  # 3 × 36 KiB and the result
    _, shared = sm_budget([small]).axes
    assert len(rectangles(shared, "B")) == 3


def test_every_candidate_is_a_named_point_and_the_dead_are_red():
    uses = [FITS, SPILLS, TOO_MUCH, TWO, NOT_TWO]
    (ax,) = limits(uses).axes
    points = [line for line in ax.lines if line.get_gid()]
    assert sorted(line.get_gid() for line in points) == ["fits", "fits", "shared memory", "shared memory", "spills"]
    assert [line.get_ydata()[0] for line in points] == [use.sm_shared / 1024 for use in uses]
    assert {line.get_gid() for line in points if line.get_color() == RED} == {"spills", "shared memory"}
    texts = [text.get_text().replace("\n", " ") for text in ax.texts]
    assert all(" ".join(short_name(use.config)) in texts for use in uses)
    assert ax.get_title(loc="left") == "5 candidates; crosses: 1 spills, 2 too much shared memory"
    assert [label.get_text() for label in ax.get_xticklabels()] == ["128", "256"]


def test_the_title_claims_nothing_where_all_live():
    (ax,) = limits([FITS]).axes
    assert ax.get_title(loc="left") == "1 candidates"


def test_the_limits_are_those_of_the_compiled_target():
    from course_kernels.codegen import TARGETS

    assert l07_budget.SM_SHARED_BYTES - l07_budget.RESERVED_BYTES == TARGETS["sm_90"].shared_limit
