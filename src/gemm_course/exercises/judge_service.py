"""The main loop of a `JudgeProcess`. It gives the judge the examiners of exercises."""

from __future__ import annotations

import json
import signal
import sys
from multiprocessing.connection import Connection

import msgspec

from course_kernels.child_process import answer_all
from gemm_course.exercises import manifest
from gemm_course.exercises.judge_process import Task
from gemm_course.judging.judge import Judge


def serve(connection: Connection) -> None:
    """Check each `Task` that arrives, until the other end is closed."""

    def end(*_) -> None:  # ignore the second signal, so that the judge removes all its folders and processes
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        sys.exit(0)

    signal.signal(signal.SIGTERM, end)
    with Judge(manifest.examiner) as judge:

        def answer(data: bytes) -> bytes:
            task = msgspec.convert(json.loads(data), Task)
            return json.dumps(judge.check(task.exercise, task.source, task.seed).as_dict()).encode()

        answer_all(connection, answer)
