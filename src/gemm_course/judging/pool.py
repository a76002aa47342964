"""Several judges side by side, each in a process of its own."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Sequence

from gemm_course.judging.judge_process import JudgeProcess, Task

_END = object()


class JudgePool:
    """Threads that each keep a judge busy. `answers` gets (task, `Result.as_dict` or None) and, from each thread at its
    end, (`_END`, None or the exception that ended it).

    Args:
        tasks: what to check.
        jobs: number of threads.
    """

    def __init__(self, tasks: Sequence[Task], jobs: int):
        self.answers: queue.SimpleQueue = queue.SimpleQueue()
        self._tasks = iter(tasks)
        self._lock = threading.Lock()
        self._judges: set[JudgeProcess] = set()
        self._ended = False
        self._threads = [threading.Thread(target=self._work, daemon=True) for _ in range(jobs)]
        for thread in self._threads:
            thread.start()

    def _start(self) -> JudgeProcess:
        with self._lock:
            if self._ended:
                raise RuntimeError("interrupted")
            judge = JudgeProcess()
            self._judges.add(judge)
        judge.wait_until_ready()
        return judge

    def _stop(self, judge: JudgeProcess) -> None:
        judge.close()
        with self._lock:
            self._judges.discard(judge)

    def _work(self) -> None:
        judge = None
        try:
            while (task := self._next()) is not None:
                outcome = None
                for _ in range(2):
                    judge = judge or self._start()
                    try:
                        outcome = judge.check(task)
                        break
                    except (RuntimeError, TimeoutError, ValueError):
                        self._stop(judge)
                        judge = None
                self.answers.put((task, outcome))
        except BaseException as error:
            self.answers.put((_END, error))
        finally:
            if judge is not None:
                self._stop(judge)
            self.answers.put((_END, None))

    def _next(self) -> Task | None:
        with self._lock:
            return None if self._ended else next(self._tasks, None)

    def close(self) -> None:
        """End every judge, and wait for the threads."""
        with self._lock:
            self._ended = True
            judges = list(self._judges)
        for judge in judges:
            judge.end()
        for thread in self._threads:
            thread.join()
        for judge in judges:
            judge.close()


def check_all(tasks: Sequence[Task], jobs: int, waiting=None) -> Iterator[tuple[Task, dict | None]]:
    """Check many answers, several at a time. Closing the iterator, or an exception in its user, ends every process.

    Args:
        tasks: what to check.
        jobs: how many at a time.
        waiting: called about once a second while nothing comes back.

    Yields:
        Each task once, in the order in which they end, with `Result.as_dict`, without its pictures; with None where
        the judging process died of it twice.

    Raises:
        RuntimeError: judging processes do not start here.
    """
    pool = JudgePool(tasks, min(jobs, len(tasks)))
    try:
        running = min(jobs, len(tasks))
        while running:
            try:
                task, outcome = pool.answers.get(timeout=1.0)
            except queue.Empty:
                if waiting is not None:
                    waiting()
                continue
            if task is not _END:
                yield task, outcome and {**outcome, "panels": []}
            elif outcome is not None:
                raise RuntimeError(f"answers cannot be checked here: {outcome}; `course doctor` says what is missing")
            else:
                running -= 1
    finally:
        pool.close()
