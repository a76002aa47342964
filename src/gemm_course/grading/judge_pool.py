"""Several judges side by side, each in a process of its own."""

from __future__ import annotations

import concurrent.futures
import threading
import time
from collections.abc import Callable, Iterator, Sequence

from gemm_course.exercises.judge_process import JudgeProcess, Task


class JudgePool:
    """Threads that each keep a judge busy."""

    def __init__(self, jobs: int):
        self._threads = concurrent.futures.ThreadPoolExecutor(jobs)
        self._own = threading.local()
        self._lock = threading.Lock()
        self._judges: set[JudgeProcess] = set()
        self._closed = False

    def submit(self, task: Task, reason_to_skip: Callable[[Task], str]) -> concurrent.futures.Future:
        """Have an answer checked: `Result.as_dict`, or why its judge died, and the seconds that it took.

        `reason_to_skip` is asked when its turn has come; a reason takes the place of the result. RuntimeError if no
        judge starts.
        """
        return self._threads.submit(self._timed, task, reason_to_skip)

    def _timed(self, task: Task, reason_to_skip: Callable[[Task], str]) -> tuple[dict | str, float]:
        if reason := reason_to_skip(task):
            return reason, 0.0
        self._judge()  # Start the judge first: its start does not count.
        started = time.monotonic()
        return self._check(task), time.monotonic() - started

    def _check(self, task: Task) -> dict | str:
        why = ""
        for _ in range(2):  # a judge may die of the machine
            judge = self._judge()
            try:
                return judge.check(task)
            except (RuntimeError, TimeoutError, ValueError) as error:
                judge.close()
                with self._lock:
                    self._judges.discard(judge)
                self._own.judge = None
                why = " ".join(str(error).split()) or type(error).__name__
                if isinstance(error, TimeoutError):
                    break  # it has had its time
        return why

    def _judge(self) -> JudgeProcess:
        """This thread's."""
        if getattr(self._own, "judge", None) is None:
            with self._lock:
                if self._closed:
                    raise RuntimeError("interrupted")
                judge = JudgeProcess()
                self._judges.add(judge)
            judge.wait_until_ready()
            self._own.judge = judge
        return self._own.judge

    def close(self) -> None:
        """End every judge, and wait for the threads."""
        with self._lock:
            self._closed = True
            judges = list(self._judges)
        for judge in judges:
            judge.end()
        self._threads.shutdown(cancel_futures=True)
        for judge in judges:
            judge.close()


def check_all(
    tasks: Sequence[Task],
    jobs: int,
    waiting: Callable[[], None] | None = None,
    reason_to_skip: Callable[[Task], str] = lambda task: "",
) -> Iterator[tuple[Task, dict | str, float]]:
    """Check many answers, several at a time. Closing the iterator, or an exception in its user, ends every process.

    Yields each task once, in the order in which they end, with `Result.as_dict`, without its pictures, and the seconds
    that it took; with a text if the judging process died of it, or did not answer, or if `reason_to_skip` gave one
    when the task's turn came. Calls `waiting` about once a second while nothing comes back.
    Raises RuntimeError if judging processes do not start here.
    """
    if not tasks:
        return
    pool = JudgePool(min(jobs, len(tasks)))
    try:
        left = {pool.submit(task, reason_to_skip): task for task in tasks}
        while left:
            done, _ = concurrent.futures.wait(left, 1.0, concurrent.futures.FIRST_COMPLETED)
            if not done and waiting is not None:
                waiting()
            for future in done:
                try:
                    outcome, seconds = future.result()
                except Exception as error:
                    text = f"answers cannot be checked here: {error}; `course doctor` says what is missing"
                    raise RuntimeError(text) from error
                yield left.pop(future), outcome if isinstance(outcome, str) else {**outcome, "panels": []}, seconds
    finally:
        pool.close()
