"""Judges in processes of their own: several side by side, none the worse for what another met.

A judge runs no answer, but it reads what answers send; should one ever die of that, it costs that answer only.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from gemm_course.exercises import manifest
from gemm_course.exercises.manifest import Exercise

START_S = 120.0
SLACK_S = 90.0  # beyond the answer's own time; the judge kills a compilation after 20 s
_END = object()


class Task(NamedTuple):
    """One answer to check.

    Attributes:
        key: the caller's own.
        exercise: from the manifest.
        source: of the answer's cell.
        seed: of the inputs.
    """

    key: str
    exercise: Exercise
    source: str
    seed: int


class JudgeProcess:
    """A `Judge` in another process. Starts at once, in the background."""

    def __init__(self):
        self._buffer = b""
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            # One thread each: the answers' processes need the cores.
            env=dict(os.environ, OMP_NUM_THREADS="1"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for the process in front
        )

    def wait_until_ready(self) -> None:
        """Wait for the process to have imported what it needs.

        Raises:
            RuntimeError: it died.
        """
        self._line(START_S)

    def check(self, task: Task) -> dict:
        """Have an answer checked.

        Args:
            task: what to check.

        Returns:
            `Result.as_dict`, without the pictures.

        Raises:
            RuntimeError: the process died, or did not answer.
        """
        request = {"exercise": task.exercise.name, "source": task.source, "seed": task.seed}
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        except OSError:
            raise RuntimeError("the process that checks answers died") from None
        return json.loads(self._line(task.exercise.seconds + SLACK_S))

    def _line(self, seconds: float) -> bytes:
        stop = time.monotonic() + seconds
        pipe = self._process.stdout
        while b"\n" not in self._buffer:
            left = stop - time.monotonic()
            if left <= 0 or not select.select([pipe], [], [], left)[0]:
                raise RuntimeError("the process that checks answers did not answer")
            data = os.read(pipe.fileno(), 1 << 16)
            if not data:
                raise RuntimeError("the process that checks answers died")
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def end(self) -> None:
        """Ask it to end; a thread that waits for its answer is told that it died."""
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()

    def close(self) -> None:
        """End it, and what it started."""
        self.end()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):
                stream.close()


class _Bench:
    """Threads that each keep a judge busy."""

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
                    except (RuntimeError, ValueError):
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
        Each task once, in the order in which they end, with `Result.as_dict`; with None where the judging process
        died of it twice.

    Raises:
        RuntimeError: judging processes do not start here.
    """
    bench = _Bench(tasks, min(jobs, len(tasks)))
    try:
        running = min(jobs, len(tasks))
        while running:
            try:
                task, outcome = bench.answers.get(timeout=1.0)
            except queue.Empty:
                if waiting is not None:
                    waiting()
                continue
            if task is not _END:
                yield task, outcome
            elif outcome is not None:
                raise RuntimeError(f"answers cannot be checked here: {outcome}; `course doctor` says what is missing")
            else:
                running -= 1
    finally:
        bench.close()


def serve() -> None:
    """Answer requests, a line of JSON each, until the other end is closed."""
    from gemm_course.judging.judge import Judge

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # so that folders and processes are cleared away
    exercises = {each.name: each for each in manifest.exercises()}
    with Judge() as judge:
        print(flush=True)
        for line in sys.stdin:
            request = json.loads(line)
            result = judge.check(exercises[request["exercise"]], request["source"], request["seed"]).as_dict()
            print(json.dumps({**result, "panels": []}), flush=True)


if __name__ == "__main__":
    # Started by path, so that the caller's working directory cannot shadow a module; that puts this folder first.
    sys.path[0] = str(Path(__file__).resolve().parents[2])
    import gemm_course.judging.pool as this_module

    this_module.serve()
