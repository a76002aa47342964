"""A judge in another process: tasks go there and results come back, whatever is in them."""

from __future__ import annotations

import time

import pytest

from answers import OFFSETS as RIGHT
from course_kernels.child_process import ServiceDied
from gemm_course.exercises import manifest
from gemm_course.exercises.judge_process import JudgeProcess, Task
from gemm_course.judging.results import Result

(OFFSETS,) = manifest.find("01")


@pytest.fixture(scope="module")
def process():
    found = JudgeProcess()
    yield found
    found.close()


def test_an_answer_is_checked_with_its_seed(process):
    assert Result.from_dict(process.check(Task("", OFFSETS, RIGHT))).passed
    wrong = RIGHT.replace("right=True", "right=False")
    first, again = (process.check(Task("", OFFSETS, wrong, 7)) for _ in range(2))
    assert first == again
    assert (first["seed"], first["status"]) == (7, "failed")
    assert first["panels"]


def test_one_that_is_ended_twice_leaves_no_folder(tmp_path, monkeypatch):
    """`JudgePool.close` asks every judge to end, and then closes each."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    found = JudgeProcess()
    found.wait_until_ready()
    assert list(tmp_path.glob("course-*"))
    while found.alive:
        found.end()
        time.sleep(0.001)
    found.close()
    assert list(tmp_path.glob("course-*")) == []


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("\ud800", "cannot be read as Python"),
        (RIGHT.replace("return", "raise ValueError(chr(0xd800))\n    return"), "\ud800"),
    ],
)
def test_half_of_a_surrogate_pair_travels_both_ways(process, source, says):
    result = Result.from_dict(process.check(Task("", OFFSETS, source)))
    assert (result.status, result.points) == ("failed", 0)
    assert says in result.message


def test_one_that_dies_says_so_and_is_gone():
    process = JudgeProcess()
    process.wait_until_ready()
    process._process.kill()
    with pytest.raises(ServiceDied, match="the process that checks answers died"):
        process.check(Task("", OFFSETS, RIGHT))
    assert not process.alive
