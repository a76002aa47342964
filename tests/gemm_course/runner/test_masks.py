"""Masks that went wrong, told from their source: `and` for `&`, one dimension where the block has two."""

from __future__ import annotations

import pytest

from gemm_course.judging.feedback import explain_mask
from gemm_course.runner import masks

HEAD = """
def tile(c_ptr, acc, row, M, N, ldc, BLOCK):
    rows = row + tl.arange(0, BLOCK)
    cols = tl.arange(0, BLOCK)
    c_ptrs = c_ptr + rows[:, None] * ldc + cols[None, :]
"""
LINE = HEAD.count("\n") + 1  # of what follows
SAW = "program 0 writes row 9 of C, which has rows 0 to 8"
AND = f"line {LINE}: `and` keeps only one of two masks, as Python reads it: combine them with `&`"
FLAT = f"line {LINE}: this mask has one dimension, and the block has two"


def explained(code, line=LINE, saw=SAW):
    """What stands in front of a message about a line; empty where nothing does."""
    message = f"line {line}: {saw}"
    said = explain_mask(message, masks.problems(HEAD + "".join(f"    {each}\n" for each in code.splitlines())))
    assert said.endswith(message)
    return said.removesuffix(message).removesuffix("\n")


@pytest.mark.parametrize(
    "code",
    [
        "tl.store(c_ptrs, acc, mask=(rows[:, None] < M) and (cols[None, :] < N))",
        "tl.store(c_ptrs, acc, (rows[:, None] < M) and (cols[None, :] < N))",
        "tl.store(c_ptrs, acc, mask=~((rows[:, None] < M) and (cols[None, :] < N)))",
    ],
)
def test_and_in_a_mask(code):
    assert explained(code) == AND


def test_and_in_what_a_mask_was_assigned():
    code = "both = rows[:, None] < M and cols[None, :] < N\ninside = both\ntl.store(c_ptrs, acc, mask=inside)"
    assert explained(code, LINE + 2) == AND


def test_either_of_two_masks_is_told_to_be_both():
    code = "tl.store(c_ptrs, acc, mask=(rows[:, None] < M) | (cols[None, :] < N))"
    assert explained(code) == f"line {LINE}: `|` accepts what either of two masks does: combine them with `&`"
    assert explained("tl.store(c_ptrs, acc, mask=~((rows[:, None] >= M) | (cols[None, :] >= N)))") == ""


def test_or_is_told_its_own_sign():
    code = "tl.store(c_ptrs, acc, mask=(rows[:, None] < M) or (cols[None, :] < N))"
    assert explained(code) == AND.replace("`and`", "`or`").replace("`&`", "`|`")


def test_an_and_that_no_mask_is_made_of_is_not_mentioned():
    code = "if row > 0 and row < M:\n    whole = row > 0 and row < M\ntl.store(c_ptrs, acc, mask=rows[:, None] <= M)"
    assert explained(code, LINE + 2) == ""


def test_another_line_is_not_the_one_that_is_wrong():
    code = "tl.store(c_ptrs, acc, mask=(rows[:, None] < M) and (cols[None, :] < N))\ntl.store(c_ptrs, acc)"
    assert explained(code, LINE + 1) == ""


@pytest.mark.parametrize("mask", ["(rows < M) & (cols < N)", "rows.to(tl.int64) < M", "tl.maximum(rows, cols) < M"])
def test_a_mask_of_one_dimension(mask):
    assert explained(f"tl.store(c_ptrs, acc, mask={mask})").startswith(FLAT)
    assert explained(f"tl.store(c_ptr + rows, acc, mask={mask})") == "", "a block of one dimension"


def test_a_part_of_one_dimension_masks_columns():
    code = "tl.store(c_ptrs, acc, mask=(rows < M) & (cols[None, :] < N))"
    assert explained(code) == f"line {LINE}: `rows < M` has one dimension, so it masks columns: rows take [:, None]"
    assert explained(code, saw="program 0 writes column 9 of C, which has columns 0 to 8") == ""


@pytest.mark.parametrize(
    "code",
    [
        "tl.store(c_ptrs, acc, mask=(rows[:, None] <= M) & (cols[None, :] < N))",
        "tl.store(c_ptrs, acc)",
        "inside = mask_of(rows, cols)\ntl.store(c_ptrs, acc, mask=inside)",
    ],
)
def test_nothing_is_guessed(code):
    assert explained(code, LINE + code.count("\n")) == ""


def test_other_messages_stay():
    source = "tl.store(c_ptrs, acc, mask=(rows[:, None] < M) and (cols[None, :] < N))"
    for message in ("", "tile (0, 0) of C was never written", "line 1: this load's mask leaves elements out"):
        assert explain_mask(message, source) == message


@pytest.mark.parametrize("terms", [2_000, 50_000])
def test_a_source_too_deep_to_follow_changes_nothing(terms):
    deep = "x = " + "+".join(["1"] * terms) + "\ntl.store(p, 1, mask=x)"
    assert explain_mask(f"line 2: {SAW}", masks.problems(deep)) == f"line 2: {SAW}"
