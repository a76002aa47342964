"""The figures of lesson 06 carry the data that they are given."""

from __future__ import annotations

import io
import re

import pytest

from course_kernels import schedule
from course_kernels.codegen import ptx
from drawn import boxes
from gemm_course.figures import f06_descriptors as descriptors
from gemm_course.figures import instructions
from gemm_course.figures.style import BLUE, WRONG

LOOP = """
$L__BB0_1:
    cp.async.commit_group;
    wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {%r448,%r449}, %rd160, %rd161, %p51, 1, 1;
    add.s64     %rd1, %rd1, 64;
    add.s64     %rd1, %rd1, 64;
    @%p1 bra    $L__BB0_1;
"""


def words(figure):
    return [text.get_text() for axes in figure.axes for text in (*axes.texts, axes.title, axes._left_title)]


def test_descriptor_clips_the_block_at_the_matrix_and_names_its_numbers():
    figure = descriptors.descriptor(shape=(40, 56), leading=64, block=(16, 16), at=(30, 48))
    axes = figure.axes[0]
    assert boxes(axes, "matrix") == [(0, 0, 56, 40)]
    assert boxes(axes, "gap") == [(0, 0, 64, 40)]
    assert boxes(axes, "block") == [(48, 30, 16, 16)]
    assert boxes(axes, "inside") == [(48, 30, 8, 10)]
    text = " ".join(words(figure))
    for expected in ("40 × 56", "64 × 2 = 128 bytes", "16 × 16", "load block at (30, 48)", "128 bytes"):
        assert expected in text


def test_descriptor_of_a_block_inside_shows_no_zeros():
    figure = descriptors.descriptor(shape=(40, 56), leading=56, block=(8, 8), at=(0, 0))
    assert boxes(figure.axes[0], "inside") == [(0, 0, 8, 8)]
    assert not {"zeros", "gap"} & {text.get_text() for text in figure.axes[0].texts}


def test_loop_instructions_draws_one_square_each_and_counts_them():
    figure = instructions.loop_instructions(
        {"first": LOOP, "second": LOOP.replace("add.s64     %rd1, %rd1, 64;\n", "", 1)}
    )
    for axes, addresses in zip(figure.axes, (2, 1)):
        drawn = [patch.get_gid() for patch in axes.patches]
        assert {kind: drawn.count(kind) for kind in ptx.PURPOSES} == {
            "multiply": 1, "copy": 0, "wait": 1, "mask": 1, "address": addresses,
        }  # fmt: skip
        counts = [text.get_text() for text in axes.texts[::2]]
        assert counts == ["1", "0", "1", "1", str(addresses)]
        colors = {patch.get_gid(): patch.get_facecolor() for patch in axes.patches}
        assert len(set(colors.values())) == len(colors)
    assert "first: 5 instructions for one block of K" in words(figure)


PROBLEMS = [(64, 64, 64)] * 2 + [(32, 32, 64)]


def test_visits_counts_arrivals_at_a_problem():
    walks = {order: schedule.walk(PROBLEMS, order, 4, (32, 32)) for order in ("round_robin", "chunks")}
    assert descriptors.visits(walks["round_robin"]) == [3, 2, 2, 2]
    assert descriptors.visits(walks["chunks"]) == [1, 2, 2, 0]


def test_switches_marks_every_visit_of_the_programs_it_draws():
    walks = {order: schedule.walk(PROBLEMS, order, 4, (32, 32)) for order in ("round_robin", "chunks")}
    figure = descriptors.switches(walks, programs=3)
    for axes, walk in zip(figure.axes, walks.values()):
        assert len(boxes(axes, "made")) == sum(descriptors.visits(walk)[:3])
        for problem in range(3):
            expected = sum(tile.problem == problem for own in walk[:3] for tile in own)
            assert len(boxes(axes, f"problem {problem}")) == expected
    assert {"round_robin: 9 switches of all programs", "chunks: 5 switches of all programs"} <= set(words(figure))


def test_reach_draws_groups_overhang_and_wrong_rows():
    wrong = [4 <= row < 8 for row in range(12)]
    figure = descriptors.reach([4, 8], 8, {"attempt": wrong, "repaired": [False] * 12})
    axes = figure.axes[0]
    assert [boxes(axes, f"group {g}")[0][1::2] for g in (0, 1)] == [(0, 4), (4, 8)]
    assert [box[1::2] for box in boxes(axes, "past the end")] == [(4, 4)]
    assert [box[1] for box in boxes(axes, "wrong")] == [4, 5, 6, 7]
    assert len(boxes(axes, "right")) == 8 + 12
    assert {"attempt:\n4 wrong rows", "repaired:\n0 wrong rows"} <= set(words(figure))


def test_fp8_rounding_draws_the_numbers_of_the_type():
    figure = descriptors.fp8_rounding(8, 20)
    line, error = figure.axes
    drawn = [segment[0][0] for segment in line.collections[0].get_segments()]
    assert drawn == [8, 9, 10, 11, 12, 13, 14, 15, 16, 18, 20], "steps of 1 up to 16, then of 2"
    worst = {curve.get_label(): max(curve.get_ydata()) for curve in error.lines}
    assert worst["float8_e4m3fn"] == pytest.approx(100 / 17, rel=0.01), "half a step from 16 to 18"
    assert worst["bfloat16"] < worst["float8_e4m3fn"] / 10


@pytest.mark.parametrize(("low", "high"), [(-1, 10), (5, 5), (0, 500)])
def test_fp8_rounding_refuses_what_the_type_does_not_reach(low, high):
    with pytest.raises(ValueError, match="low and high"):
        descriptors.fp8_rounding(low, high)


def test_recorded_ratio_points_left_where_descriptors_are_faster():
    rows = {
        "small": {"tma": {"median_us": 12.0}, "round_robin": {"median_us": 10.0}},
        "large": {"tma": {"median_us": 60.0}, "round_robin": {"median_us": 80.0}},
    }
    figure = descriptors.recorded_ratio(rows)
    bars = figure.axes[0].patches
    assert [bar.get_width() for bar in bars] == pytest.approx([0.2, -0.25])
    assert [bar.get_facecolor()[:3] for bar in bars] == [pytest.approx(rgb(color)) for color in (WRONG, BLUE)]
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["small", "large"]
    assert "12.0 µs, not 10.0 µs" in words(figure)


def rgb(color):
    return [int(part, 16) / 255 for part in re.findall("..", color[1:])]


def test_figures_are_small_enough_for_a_notebook():
    walks = {order: schedule.walk([(2048, 2048, 64)] * 4, order, 132) for order in ("round_robin", "chunks")}
    for figure in (
        descriptors.fp8_rounding(),
        descriptors.switches(walks),
        instructions.loop_instructions({"a": LOOP}),
    ):
        assert figure.get_figwidth() <= 9
        picture = io.BytesIO()
        figure.savefig(picture, dpi=100)
        assert len(picture.getvalue()) < 120_000
