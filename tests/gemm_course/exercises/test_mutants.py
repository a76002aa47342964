"""Tables of mutants: each fits its solution and is there once; one that does not fit is refused, with the reason."""

from __future__ import annotations

import ast

import pytest

import mutants
from gemm_course.exercises import manifest

CELL = """def f(x):
    total = 0
    ### BEGIN SOLUTION
    for each in x:
        total += each
    return total
    ### END SOLUTION
"""
ROW = "[one]\ncheck = 'sum'\nsays = 'a'\n"


@pytest.mark.parametrize("exercise", manifest.exercises(), ids=lambda exercise: exercise.name)
def test_every_mutant_fits_and_is_there_once(exercise):
    found = [ast.dump(ast.parse(each.source)) for each in mutants.of(exercise.name).values()]
    assert len(set(found)) == len(found)


def test_changes_are_made_one_after_the_other():
    (made,) = mutants.made(ROW + "changes = [['each', 'one', 2], ['total += one', 'total = one']]", CELL).values()
    assert made[:3] == ("one", "sum", "a")
    assert made.source == "def f(x):\n    total = 0\n    for one in x:\n        total = one\n    return total\n"


def test_an_answer_stands_between_the_markers():
    (made,) = mutants.made(ROW + "answer = '    return sum(x[1:])'", CELL).values()
    assert made.source == "def f(x):\n    total = 0\n    return sum(x[1:])\n"


def test_a_line_is_told_by_what_it_holds():
    says = "says = ['line {each in}: 1', '\\d+ and line {return}']\n"
    (made,) = mutants.made(ROW.replace("says = 'a'\n", says) + "changes = [['+=', '=']]", CELL).values()
    assert made.says == r"line 3: 1\d+ and line 5"


@pytest.mark.parametrize(
    ("changed", "cell", "reason"),
    [
        ("changes = [['tota', 'a']]", CELL, "mutant one: 'tota' is there 3 times, not 1"),
        ("changes = [['each', 'a', 3]]", CELL, "mutant one: 'each' is there 2 times, not 3"),
        ("changes = [['sum', 'a']]", CELL, "mutant one: 'sum' is there 0 times, not 1"),
        ("changes = [['return total', 'return (total)']]", CELL, "mutant one: this is the solution"),
        ("", CELL, "mutant one: this is the solution"),
        ("changes = [['for each in', 'for each']]", CELL, "mutant one: invalid syntax"),
        ("answer = '    return 1'", CELL * 2, "mutant one: an `answer` needs a solution with one pair of markers"),
        ("change = [['+=', '=']]", CELL, "unknown field `change`"),
        ("changes = [['+=', '=', 1, 2]]", CELL, "Expected `array` of at most length 3"),
    ],
)
def test_one_that_does_not_fit_is_refused(changed, cell, reason):
    with pytest.raises(ValueError, match=reason):
        mutants.made(ROW + changed, cell)


@pytest.mark.parametrize(("code", "lines"), [("total", 3), ("sum", 0)])
def test_a_line_has_to_be_clear(code, lines):
    row = ROW.replace("'a'", f"'line {{{code}}}: a'") + "changes = [['+=', '=']]"
    with pytest.raises(ValueError, match=f"mutant one: `says` needs one line with '{code}', and there are {lines}"):
        mutants.made(row, CELL)


def test_the_reason_for_no_trace_is_kept():
    row = ROW + "changes = [['+=', '=']]\nno_trace = ['Both sums are ', 'the same.']\n"
    assert mutants.made(row, CELL)["one"].no_trace == "Both sums are the same."
    assert mutants.made(ROW + "changes = [['+=', '=']]", CELL)["one"].no_trace == ""


@pytest.mark.parametrize(
    "reason",
    ["''", "[]", "['']", "' '", "'yes'", "'Race.'", "'both sums are the same.'", "'Both sums are the same'", "'.'"],
)
def test_no_trace_needs_a_sentence(reason):
    with pytest.raises(ValueError, match="mutant one: `no_trace` must be a sentence that says why, got"):
        mutants.made(f"{ROW}changes = [['+=', '=']]\nno_trace = {reason}\n", CELL)


def test_no_trace_needs_an_exercise_on_a_gpu():
    row = ROW + "changes = [['+=', '=']]\nno_trace = 'Both sums are the same.'\n"
    with pytest.raises(ValueError, match="mutant one: no answer to this exercise runs on a GPU"):
        mutants.made(row, CELL, gpu=False)
