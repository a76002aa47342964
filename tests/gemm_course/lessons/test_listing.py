"""Excerpts of sources: whole, by number, by text, folded, through Triton's wrappers."""

from __future__ import annotations

import html

import pytest
import triton

from course_kernels.kernels import common
from gemm_course.lessons import listing
from gemm_course.lessons.listing import fold, show


def test_a_kernel_is_shown_whole_with_its_decorator_and_module(capsys):
    show(common.store_tile)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "# course_kernels.kernels.common.store_tile"
    assert lines[1] == "@triton.jit"
    assert lines[2].startswith("def store_tile(c_ptr, acc,")
    assert "tl.store(" in lines[-1]
    assert "..." not in lines


def test_an_excerpt_by_text_ends_at_the_first_match_after_its_start(capsys):
    show(common.accumulate_tile, "for k in range", "b_ptrs +=")
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].strip() == "..."
    assert lines[2].strip().startswith("for k in range(")
    assert lines[-2].strip().startswith("b_ptrs += ")
    assert lines[-1] == "        ...", "the mark of what is left out is indented as its neighbour"


def test_numbers_count_from_the_decorator(capsys):
    show(common.tile_position, 1, 2)
    assert capsys.readouterr().out.splitlines()[1:] == [
        "@triton.jit",
        "def tile_position(tile, tiles_m, tiles_n, GROUP_M: tl.constexpr):",
        "...",
    ]
    show(common.tile_position, 2, 2)
    assert [line.startswith("def") for line in capsys.readouterr().out.splitlines()[1:]] == [False, True, False]


def test_an_autotuned_kernel_and_a_python_function_are_shown(capsys):
    tuned = triton.autotune(configs=[triton.Config({})], key=[])(common.store_tile)
    show(tuned, 2, 2)
    assert "def store_tile" in capsys.readouterr().out
    show(listing.show, 1, 1)
    assert "def show(function" in capsys.readouterr().out


def test_a_decorator_stays_after_the_compiler_of_cute_dsl(capsys):
    pytest.importorskip("cutlass", reason="needs CuTe DSL: pip install '.[cutlass]'")
    from gemm_course.lessons import hopper_kernel

    for _ in range(2):
        show(hopper_kernel.round_sums)
        assert capsys.readouterr().out.splitlines()[1] == "@cute.jit"
        hopper_kernel.compile_product(tile_n=64)


def test_a_method_loses_its_indentation(capsys):
    class Thing:
        def method(self):
            return 1

    show(Thing.method)
    assert capsys.readouterr().out.splitlines()[1] == "def method(self):"


@pytest.mark.parametrize(
    ("first", "last", "error", "message"),
    [
        (0, None, ValueError, "first must be a line from 1 to"),
        (None, 10_000, ValueError, "last must be a line"),
        (3, 2, ValueError, "last must not come before first"),
        ("no such text", None, ValueError, "first must be a text of the source"),
        ("tl.store", "def store_tile", ValueError, "last must be a text of the source from line"),
        (1.5, None, TypeError, "first must be a line number or a text"),
        (True, None, TypeError, "first must be"),
    ],
)
def test_a_place_that_does_not_exist_is_named(first, last, error, message):
    with pytest.raises(error, match=message):
        show(common.store_tile, first, last)


def test_something_without_source_is_refused():
    with pytest.raises(TypeError, match="function must have Python source"):
        show(len)


def test_a_folded_kernel_is_whole_with_a_link_to_its_file():
    folded = fold(common.store_tile)
    page = folded._repr_html_()
    assert page.startswith("<details><summary><code>store_tile</code>")
    assert 'href="../src/course_kernels/kernels/common.py"' in page
    show_whole = page[page.index("<pre>") + 5 : page.index("</pre>")]
    assert "&lt;" in show_whole
    assert "<" not in show_whole
    assert html.unescape(show_whole).splitlines()[0] == "@triton.jit"
    assert html.unescape(show_whole).splitlines()[-1].strip().startswith("tl.store(")
    assert repr(folded) == f"store_tile: {len(show_whole.splitlines())} lines, src/course_kernels/kernels/common.py"


def test_what_is_in_no_file_of_ours_is_not_folded():
    with pytest.raises(TypeError, match="function must be of a file in src"):
        fold(pytest.fixture)


def test_columns_keep_every_word_and_line_up():
    left, right = "    add.s32   %r1, %r2;\n    a long line that does not fit into its column;", "one;"
    rows = listing.side_by_side(left, right, ("left", "right"), width=20).splitlines()
    assert rows[0] == f"{'left':<22}right"
    assert rows[2] == f"{'add.s32 %r1, %r2':<22}one"
    assert " ".join(" ".join(rows[3:]).split()) == "a long line that does not fit into its column"
    assert all(len(row) <= 42 for row in rows)
