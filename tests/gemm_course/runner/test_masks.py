"""Masks that went wrong, told from their source: `and` for `&`, one dimension where the block has two."""

from __future__ import annotations

import msgspec
import pytest

from gemm_course.judging.cause_sentences import Writer
from gemm_course.judging.causes import Event, MaskProblem, Observed
from gemm_course.runner import masks

HEAD = """
def tile(c_ptr, acc, row, M, N, ldc, BLOCK):
    rows = row + tl.arange(0, BLOCK)
    cols = tl.arange(0, BLOCK)
    c_ptrs = c_ptr + rows[:, None] * ldc + cols[None, :]
"""
LINE = HEAD.count("\n") + 1  # of what follows
AND = f"line {LINE}: `and` keeps only one of two masks, as Python reads it: combine them with `&`"
FLAT = f"line {LINE}: this mask has one dimension, and the block has two"


def explained(code, line=LINE, side="rows"):
    """The explanation before a message about a store in a line; empty without one."""
    return before(masks.problems(HEAD + "".join(f"    {each}\n" for each in code.splitlines())), line, side)


def before(problems, line=LINE, side="rows"):
    store = Observed(Event("store", "C", line, side, (9, 9), (12, 12), (9, 9)))
    alone, told = (Writer("", each).write([store])[0] for each in ([], msgspec.convert(problems, list[MaskProblem])))
    assert told.endswith(alone)
    return told.removesuffix(alone).removesuffix("\n")


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
    assert explained(code, side="columns") == ""


@pytest.mark.parametrize(
    "code",
    [
        "tl.store(c_ptrs, acc, mask=(rows[:, None] <= M) & (cols[None, :] < N))",
        "tl.store(c_ptrs, acc)",
        "inside = mask_of(rows, cols)\ntl.store(c_ptrs, acc, mask=inside)",
        "ours = rows < M\ntl.store(c_ptrs, acc, mask=ours[:, None] & (cols[None, :] < N))",
        "tl.store(c_ptrs, acc, mask=(rows < M)[:, None] & (cols[None, :] < N))",
        "tokens = tl.load(t_ptr + rows)\ntl.store(c_ptr + tokens[:, None] * ldc + cols[None, :], acc, "
        "mask=(rows < M)[:, None] & (cols[None, :] < N))",
        "tl.store(c_ptrs, tl.trans(acc), mask=tl.trans((cols[:, None] < N) & (rows[None, :] < M)))",
        "there = cols % N\ntl.store(c_ptr + rows[:, None] * ldc + there[None, :], acc, mask=cols[None, :] < N)",
    ],
)
def test_nothing_is_guessed(code):
    assert explained(code, LINE + code.count("\n")) == ""


def test_a_mask_of_other_indices_than_the_pointers_have():
    turned = "tl.store(c_ptrs, acc, mask=(cols[:, None] < N) & (rows[None, :] < M))"
    has = "`cols[:, None]` where the pointers have `rows[:, None]`"
    assert explained(turned) == f"line {LINE}: rows and columns are exchanged in the mask: it has {has}"
    foreign = "tl.store(c_ptrs, acc, mask=(rows[:, None] < M) & (rows[None, :] < M))"
    assert explained(foreign) == f"line {LINE}: the mask has `rows[None, :]` where the pointers have `cols[None, :]`"


def test_a_call_over_several_lines_is_found_by_each_of_them():
    code = "tl.store(c_ptrs, acc,\n         mask=(rows[:, None] < M) and (cols[None, :] < N))"
    for line in (LINE, LINE + 1):
        assert explained(code, line) == AND.replace(f"line {LINE}", f"line {LINE + 1}")


def first_of_all(code, decorator="@triton.jit"):
    source = f"{decorator}\ndef tile(a_ptr, sizes_ptr, M, N):\n" + "".join(
        f"    {line}\n" for line in code.splitlines()
    )
    return [each["kind"] for each in masks.problems(source) if each["kind"] in ("brackets", "dropped", "index", "step")]


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("inside = rows[:, None] < M & cols[None, :] < N", "brackets"),
        ("inside = (rows < M) & cols < N", "brackets"),
        ("M = sizes_ptr[0]", "index"),
        ("while tile < M:\n    tile += tl.program_id(0)", "step"),
        ("for k in range(M):\n    tl.dot(a, b, acc)", "dropped"),
    ],
)
def test_what_is_wrong_in_any_kernel_comes_first_of_all(code, kind):
    assert first_of_all(code) == first_of_all(code, "@triton.jit(do_not_specialize=['M'])") == [kind]
    assert first_of_all(code, "") == [], "this is no kernel"


@pytest.mark.parametrize(
    "code",
    [
        "even = tile & 1 == 0",
        "low = 0 <= tile & 7 < N",
        "a_ptr = (a_ptr, a_ptr + 1)\nfirst = a_ptr[0]",
        "pairs_ptr = tl.load(a_ptr)\nfirst = pairs_ptr[0]",
        "column = a_ptr[:, None]",
        "for g in range(N):\n    row = g * M\n    row += tl.program_id(0)",
        "while first < N:\n    tile = first\n    tile += tl.program_id(0)\n    first += M",
        "both = (rows < M) & (cols < N)",
        "acc += tl.dot(a, b)",
    ],
)
def test_right_code_is_not_advised(code):
    assert first_of_all(code) == []


@pytest.mark.parametrize("terms", [2_000, 50_000])
def test_a_source_too_deep_to_follow_changes_nothing(terms):
    deep = "x = " + "+".join(["1"] * terms) + "\ntl.store(p, 1, mask=x)"
    assert masks.problems(deep) == []
