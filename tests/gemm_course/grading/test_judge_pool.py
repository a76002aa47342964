"""Judges in processes of their own: one that dies costs one answer at most."""

from __future__ import annotations

import types

import pytest

from gemm_course.grading import judge_pool
from hand_ins import OFFSETS


class Mortal:
    """A judge that dies when it is asked about what kills it; `lives` counts down."""

    lives: dict[str, int]

    def wait_until_ready(self):
        if self.lives.get("start", 1) == 0:
            raise RuntimeError("the process that checks answers died")

    def check(self, task):
        if self.lives.get(task.source, 0) > 0:
            self.lives[task.source] -= 1
            raise RuntimeError("the process that checks answers died")
        return {"of": task.source}

    def end(self):
        pass

    close = end


@pytest.mark.parametrize("jobs", [1, 3])
def test_a_judge_that_dies_costs_one_answer_at_most(monkeypatch, jobs):
    monkeypatch.setattr(judge_pool, "JudgeProcess", type("Fresh", (Mortal,), {"lives": {"b": 1, "c": 5}}))
    tasks = [judge_pool.Task(text, OFFSETS, text, 0) for text in "abcd"]
    found = {
        task.source: result if isinstance(result, str) else result["of"]
        for task, result, _ in judge_pool.check_all(tasks, jobs)
    }
    assert found == {"a": "a", "b": "b", "c": "the process that checks answers died", "d": "d"}


def test_a_judge_that_does_not_answer_is_not_asked_again(monkeypatch):
    asked = []

    class Slow(Mortal):
        def check(self, task):
            asked.append(task.source)
            raise TimeoutError("the process that checks answers did not answer within 96 s")

    monkeypatch.setattr(judge_pool, "JudgeProcess", type("Slow", (Slow,), {"lives": {}}))
    ((_, result, _),) = judge_pool.check_all([judge_pool.Task("a", OFFSETS, "a", 0)], 1)
    assert (result, asked) == ("the process that checks answers did not answer within 96 s", ["a"])


def test_a_task_that_is_skipped_asks_no_judge(monkeypatch):
    asked = []

    class Asked(Mortal):
        def check(self, task):
            asked.append(task.source)
            return super().check(task)

    monkeypatch.setattr(judge_pool, "JudgeProcess", type("Asked", (Asked,), {"lives": {}}))
    tasks = [judge_pool.Task(text, OFFSETS, text, 0) for text in "ab"]
    found = list(judge_pool.check_all(tasks, 1, reason_to_skip=lambda task: "no" if task.source == "b" else ""))
    assert (tasks[1], "no", 0.0) in found
    assert len(found) == 2
    assert asked == ["a"]


def test_the_start_of_a_judge_is_not_in_the_seconds_of_a_check(monkeypatch):
    now = [0.0]

    class Timed(Mortal):
        def wait_until_ready(self):
            now[0] += 100.0

        def check(self, task):
            now[0] += 2.0
            return super().check(task)

    monkeypatch.setattr(judge_pool, "JudgeProcess", type("Timed", (Timed,), {"lives": {}}))
    monkeypatch.setattr(judge_pool, "time", types.SimpleNamespace(monotonic=lambda: now[0]))
    found = list(judge_pool.check_all([judge_pool.Task(text, OFFSETS, text, 0) for text in "ab"], 1))
    assert [seconds for _, _, seconds in found] == [2.0, 2.0]


def test_judges_that_do_not_start_say_so(monkeypatch):
    monkeypatch.setattr(judge_pool, "JudgeProcess", type("Dead", (Mortal,), {"lives": {"start": 0}}))
    with pytest.raises(RuntimeError, match=r"cannot be checked here.*course doctor"):
        list(judge_pool.check_all([judge_pool.Task("a", OFFSETS, "a", 0)], 2))
