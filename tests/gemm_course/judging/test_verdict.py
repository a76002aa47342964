"""A verdict: what stops a check, which checks hold, and the result in words."""

from __future__ import annotations

from gemm_course.exercises import manifest
from gemm_course.judging.causes import BELOW, Event, MaskProblem, NotCompiled, Observed, Words
from gemm_course.judging.exercise import COMPILES
from gemm_course.judging.results import FAILED, TODO
from gemm_course.judging.verdict import Verdict

(MASKS,) = manifest.find("03")


def test_a_new_verdict_decides_nothing():
    verdict = Verdict(MASKS)
    assert (verdict.status, verdict.earns, verdict.holds) == (FAILED, False, False)
    result = verdict.result("", seed=7)
    assert [each.status for each in result.properties] == ["skip"] * len(MASKS.checks)
    assert (result.exercise, result.title, result.points, result.max_points) == ("03", MASKS.title, 0, MASKS.points)
    assert (result.message, result.seed) == ("", 7)


def test_the_first_reason_and_the_first_picture_stay():
    verdict = Verdict(MASKS)
    for number in (1, 2):
        verdict.stop(None, f"reason {number}")
        verdict.show([{"title": f"picture {number}"}])
    verdict.show([])
    result = verdict.result("")
    assert (result.message, result.panels) == ("reason 1", [{"title": "picture 1"}])


def test_checks_whose_inputs_ran_hold_unless_something_broke_them():
    verdict = Verdict(MASKS)
    verdict.checks["store"].fail("too far", "and again")
    verdict.pass_the_others({"zeros"})
    found = {each.name: (each.status, each.message) for each in verdict.result("").properties}
    assert found["store"] == ("fail", "too far\nand again")
    assert found["zeros"] == found[COMPILES] == ("skip", "")
    assert found["tiles"] == ("pass", "")
    assert (verdict.earns, verdict.holds) == (True, False)


def test_a_reason_that_is_with_another_check_is_marked():
    verdict = Verdict(MASKS)
    verdict.checks["tiles"].fail("tile 3 is wrong", BELOW)
    verdict.checks["zeros"].fail("tile 3 is wrong")
    result = verdict.result("")
    first, second = (each for each in result.properties if each.status == "fail")
    assert (first.follows, second.follows) == (True, False)
    assert (second.message, second.shown) == ("tile 3 is wrong", "wrong for the reason above")
    assert result.first_failure is second


def test_below_a_mistake_that_explains_all_only_the_compiler_says_more_than_a_line():
    verdict = Verdict(MASKS)
    verdict.checks["tiles"].fail(Words("tile 3 is wrong", because="it has ones\nand twos"))
    verdict.checks[COMPILES].fail(NotCompiled("ended", "one word\nand another", "", 7.0, 100))
    event = Event("store", "C", 4, "columns", (0, 9), (0, 9), (2, 9))
    verdict.checks["store"].fail(Observed(event, ": mask it"))
    lead = MaskProblem(3, 3, 3, "brackets", "&")
    found = {each.name: each for each in verdict.result("", [lead]).properties}
    assert found["tiles"].shown == "tile 3 is wrong"
    assert found["store"].shown == "line 4: program 0 writes column 9 of C, which has columns 0 to 8"
    assert found[COMPILES].shown.split("\n")[1:] == ["one word", "and another"]
    assert all(found[name].message.startswith("line 3: `&` binds") for name in ("tiles", COMPILES))


def test_masks_that_are_not_combined_stand_before_what_they_look_like():
    verdict, event = Verdict(MASKS), Event("store", "C", 4, "columns", (0, 9), shape=(2, 9))
    verdict.suspects = [Words("no column is masked")]
    verdict.checks["store"].fail(Observed(event))
    either = MaskProblem(3, 5, 3, "either")
    assert (
        verdict.result("", [either]).message
        == "line 3: `|` accepts what either of two masks does: combine them with `&`"
    )
    for other in (MaskProblem(5, 5, 5, "either"), MaskProblem(3, 5, 3, "flat")):
        assert verdict.result("", [other]).message == "no column is masked"


def test_a_sum_that_nothing_takes_is_the_only_cause():
    verdict = Verdict(MASKS)
    verdict.stop(None, "C is 0 everywhere: does the loop run?")
    dropped = MaskProblem(3, 3, 3, "dropped", "tl.dot(a, b)")
    assert (
        verdict.result("", [dropped]).message
        == "line 3: nothing takes the sum that tl.dot(a, b) returns: assign it to `acc`"
    )


def test_a_hole_leaves_no_checks():
    verdict = Verdict(MASKS)
    verdict.status, verdict.checks = TODO, {}
    assert verdict.result("").properties == []


def test_what_an_answer_printed_cannot_move_the_cursor():
    assert Verdict(MASKS, printed="a\x1b[2Jb").result("").printed == "a�[2Jb"
