"""Exercise 04a: messages speak of what the learner wrote."""

from __future__ import annotations

from exercise_checks import *  # noqa: F403 (the tests of any exercise)
from gemm_course.exercises import manifest

ANSWER = """
@triton.jit
def walk_tiles(
    sizes_ptr, num_problems, tables, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, COMPUTE_TILE: tl.constexpr
):
    tile = tl.program_id(0)
    g, passed = 0, 0
    while g < num_problems:
        M, N = tl.load(sizes_ptr + g * 3), tl.load(sizes_ptr + g * 3 + 1)
        rows, tiles = tl.cdiv(M, BLOCK_M), tl.cdiv(M, BLOCK_M) * tl.cdiv(N, BLOCK_N)
        if tile < passed + tiles:
            COMPUTE_TILE(tables, g, (tile - passed) % rows, (tile - passed) // rows)
            tile += tl.num_programs(0)
        else:
            passed += tiles
            g += 1
"""


def checked(judge, old, new):
    """The result of the answer above, with one thing wrong."""
    assert ANSWER.count(old) == 1
    (found,) = manifest.find("04a")
    return judge.check(found, ANSWER.replace(old, new), seed=0, compiling=False)


def test_what_only_more_programs_show_is_told(judge):
    """Up to five programs this is right."""
    result = checked(
        judge, "            COMPUTE_TILE(tables, g, (tile - passed) % rows, (tile - passed) // rows)\n",
        "            own = tile - passed\n"
        "            if tl.num_programs(0) > 5:\n"
        "                own = tiles - 1 - own\n"
        "            COMPUTE_TILE(tables, g, own % rows, own // rows)\n",
    )  # fmt: skip
    assert result.status == "failed"
    (wrong,) = [each for each in result.properties if each.status == "fail"]
    assert wrong.name == "place"
    assert "when it is the turn of tile" in wrong.message
    assert "a problem's tiles are in another order" in wrong.message


def test_a_forgotten_argument_is_told_with_the_name_that_the_answer_calls(judge):
    result = checked(judge, "COMPUTE_TILE(tables, g,", "COMPUTE_TILE(g,")
    assert "TypeError: COMPUTE_TILE() missing 1 required positional argument" in result.message


def test_a_function_that_is_not_called_is_told_to_be_one(judge):
    result = checked(judge, "tl.num_programs(0)", "tl.num_programs")
    assert "a function stands where its result is meant: call it" in result.message
    assert "tile += tl.num_programs" in result.message


def test_what_the_interpreter_warns_of_is_not_what_an_answer_printed(judge):
    divides_by_zero = checked(judge, "        if tile <", "        own = tile // rows\n        if tile <")
    assert divides_by_zero.status == "passed", divides_by_zero.text()
    assert divides_by_zero.printed == ""
