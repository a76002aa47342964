"""A judge in a process of its own, for callers that run a learner's code themselves or check several answers at a time.

A judge runs no answer, but it reads what answers send. Should one ever die of that, only that answer is affected.
"""

from __future__ import annotations

import json
import os
from typing import NamedTuple

import msgspec

from course_kernels.child_process import Service
from gemm_course.isolation.landlock import PATIENCE
from gemm_course.judging.exercise import Exercise

SLACK_S = 180.0  # beyond the answer's own time: that of a GPU which hangs, and of a trial whether it does


class Task(NamedTuple):
    """One answer to check, under a key of the caller's own; without a seed, inputs are drawn afresh."""

    key: str
    exercise: Exercise
    source: str
    seed: int | None = None


class JudgeProcess(Service):
    """A `Judge` in another process. Starts at once, in the background; ends with the process that started it."""

    def __init__(self):
        environment = dict(os.environ, OMP_NUM_THREADS="1")  # the answers' processes need the cores
        super().__init__(f"{__package__}.judge_service", "the process that checks answers", environment)

    def check(self, task: Task) -> dict:
        """`Result.as_dict`. Raises ServiceDied if the process died, TimeoutError if it did not answer."""
        # Not msgspec's JSON, which cannot encode half of a surrogate pair: an answer may hold one.
        request = json.dumps(msgspec.to_builtins(task)).encode()
        return json.loads(self.ask(request, PATIENCE * task.exercise.seconds + SLACK_S))

    def close(self, grace: float = 5.0) -> None:
        """End it, and what it started."""
        super().close(grace)
