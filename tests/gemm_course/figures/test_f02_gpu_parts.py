"""The pictures of lesson 02: a GPU has its parts, and a vector's blocks are those of its programs."""

from __future__ import annotations

import itertools

import pytest
from matplotlib.colors import to_hex

from drawn import boxes, rectangles, texts, title
from gemm_course.figures import f02_gpu_parts as gpu_parts
from gemm_course.figures.style import color_of


@pytest.mark.parametrize("num_warps", [1, 4, 8])
def test_a_gpu_has_its_sms_and_a_program_its_warps_and_threads(num_warps):
    (axes,) = gpu_parts.gpu_parts(num_warps).axes
    assert len(set(boxes(axes, "SM"))) == 132
    assert len(boxes(axes, "tensor core")) == 4
    assert len(set(boxes(axes, "thread"))) == num_warps * 32
    assert [text for text in texts(axes) if text.startswith("warp ")] == [f"warp {i}" for i in range(num_warps)]
    assert f"num_warps={num_warps}: {num_warps * 32} threads" in texts(axes)
    for size in ("50 MB", "80 GB", "256 KiB", "227 KiB"):
        assert any(size in text for text in texts(axes))


def test_parts_of_a_gpu_do_not_overlap_and_words_are_large_enough():
    figure = gpu_parts.gpu_parts(8)
    (axes,) = figure.axes
    parts = [box for gid in ("SM", "L2", "HBM") for box in boxes(axes, gid)]
    parts.sort(key=lambda box: (-box[1], box[0]))
    for (x, y, width, height), (other_x, other_y, _, other_height) in itertools.pairwise(parts):
        assert other_x >= x + width or other_y + other_height <= y, "beside it, or below it"
        assert 0 < y < y + height < 4.7
    assert min(text.get_fontsize() for text in axes.texts) >= 9


def test_a_program_is_drawn_around_its_share_of_registers_and_shared_memory():
    (axes,) = gpu_parts.gpu_parts(4).axes
    (frame,) = boxes(axes, "program")
    for part in ("registers", "shared memory"):
        ((whole,), (share,)) = boxes(axes, part), boxes(axes, f"share of {part}")
        for outside in (whole, frame):
            assert outside[0] <= share[0] <= share[0] + share[2] <= outside[0] + outside[2]
            assert outside[1] <= share[1] <= share[1] + share[3] <= outside[1] + outside[3]


def test_a_program_of_another_number_of_warps_is_refused():
    with pytest.raises(ValueError, match="num_warps must be 1, 2, 4 or 8, got 3"):
        gpu_parts.gpu_parts(3)


def test_each_element_has_its_programs_colour_and_the_rest_of_the_last_block_is_hatched():
    (axes,) = gpu_parts.vector_blocks(10, 4).axes
    for program, count in enumerate((4, 4, 2)):
        found = rectangles(axes, f"program {program}")
        assert len(found) == count
        assert {to_hex(each.get_facecolor()).upper() for each in found} == {color_of(program)}
    masked = rectangles(axes, "masked")
    assert len(masked) == 2
    assert all(each.get_hatch() for each in masked)
    assert [text for text in texts(axes) if text.isdigit()] == [str(i) for i in range(12)]
    assert "2 · 4 + (0 … 3)" in texts(axes)
    assert title(axes).endswith("10 elements, BLOCK = 4; mask i < 10 leaves out 2")


def test_whole_blocks_have_nothing_masked():
    (axes,) = gpu_parts.vector_blocks(8, 4).axes
    assert rectangles(axes, "masked") == []
    assert title(axes).endswith("8 elements, BLOCK = 4")


@pytest.mark.parametrize(
    ("n", "block", "says"), [(0, 4, "at least 1, got 0 and 4"), (47, 32, "at most 48 places in whole blocks, got 64")]
)
def test_vectors_that_cannot_be_drawn_are_refused(n, block, says):
    with pytest.raises(ValueError, match=says):
        gpu_parts.vector_blocks(n, block)
