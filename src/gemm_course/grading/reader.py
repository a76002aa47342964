"""Reads the files of each student, in a process for each that can do little else.

All parsers of student files run there: of zip files, of JSON, of Python. If one takes too long, needs too much memory
or ends the process, that student gets a message, and the others' files are read as usual.
"""

from __future__ import annotations

import concurrent.futures
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import msgspec

from gemm_course.exercises import manifest
from gemm_course.grading import hand_in
from gemm_course.grading.class_folder import Submission
from gemm_course.isolation import bubblewrap, landlock
from gemm_course.runner import fork_server

CPU_S, WAIT_S, MEMORY_MB, RESULT_MB = 20, 90.0, 1024, 16


def read_all(
    students: Mapping[str, Sequence[Path]], jobs: int = 2, one_student: Collection[str] = ()
) -> list[Submission]:
    """Everybody's submission, in order. A student whose files cannot be read has a note on why, and no answers.

    Several hand-ins in the entry of a student in `one_student` are that student's versions.
    """
    threads = concurrent.futures.ThreadPoolExecutor(jobs)
    try:
        return list(threads.map(lambda pair: _read(*pair, pair[0] in one_student), students.items()))
    finally:
        threads.shutdown(cancel_futures=True)  # after Ctrl-C nobody else is read


def _read(student: str, paths: Sequence[Path], one_student: bool) -> Submission:
    with tempfile.TemporaryFile() as request, tempfile.TemporaryFile() as result, tempfile.TemporaryFile() as errors:
        here = [str(path.absolute()) for path in paths]
        ours = os.path.dirname(fork_server.__file__)
        walls = bubblewrap.command(readable=[ours, *here])
        names = [os.fsencode(path).hex() for path in here]
        request.write(json.dumps([student, names, one_student]).encode())
        request.seek(0)
        process = subprocess.Popen(
            [*walls, sys.executable, fork_server.__file__, __name__],
            stdin=request, stdout=result, stderr=errors, start_new_session=True,
        )  # fmt: skip
        try:
            process.wait(WAIT_S)
        except subprocess.TimeoutExpired:
            pass
        finally:
            timed_out = process.poll() is None
            process.kill()
            process.wait()
        result.seek(0)
        try:
            return msgspec.convert(json.loads(result.read(RESULT_MB << 20)), Submission)
        except (ValueError, RecursionError):
            errors.seek(0)
            return Submission(student, notes=[_why(process.returncode, timed_out, errors.read(1 << 16))])


def _why(status: int, timed_out: bool, errors: bytes) -> str:
    if status > 128:  # Bubblewrap's way to say by which signal
        status = 128 - status
    if timed_out or status in (-signal.SIGXCPU, -signal.SIGKILL):
        return f"reading took more than {CPU_S} s and was stopped"
    last = errors.decode(errors="replace").strip().rpartition("\n")[2]
    return f"reading failed: {last or f'the process ended with status {status}'}"


def main() -> None:
    """The life of the process that reads: one student, named on stdin; the submission goes to stdout."""
    student, names, one_student = json.load(sys.stdin)
    paths = [Path(os.fsdecode(bytes.fromhex(name))) for name in names]
    exercises = manifest.exercises()
    landlock.die_with_parent()
    landlock.confine([str(path) for path in paths if not path.is_symlink()])
    landlock.limit(MEMORY_MB, CPU_S, file_mb=RESULT_MB)
    try:
        found = hand_in.read(student, paths, exercises, one_student)
    except MemoryError:
        found = Submission(student, notes=[f"reading takes more than {MEMORY_MB:,} MB of memory"])
    text = json.dumps(msgspec.to_builtins(found))  # ASCII
    if len(text) > RESULT_MB << 20:
        notes = [f"the answers have {len(text) >> 20:,} MB; {RESULT_MB} are allowed"]
        text = json.dumps(msgspec.to_builtins(Submission(student, notes=notes)))
    sys.stdout.write(text)
