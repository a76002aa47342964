"""Checks one answer: draws inputs, has another process run the answer on them, compares what comes back as bytes.

This process never runs an answer. What it reports is computed here, from inputs that it drew itself, so replacing a
checker, forging a message or knowing a seed earns nothing: there is no other way to points than the right numbers for
these inputs. Who gets past the screen and is determined can still arrive at them otherwise than an exercise asks for:

- The probes live in the process that they watch. Code that takes them over can hide a read outside of a matrix or a
  host sync, and claim that a kernel stored what numpy computed. Canaries and NaN around every matrix do not depend on
  them: what they show is judged here.
- On a GPU there are no probes: that a kernel of the learner's wrote a result is not shown there. So what runs there
  runs in the interpreter as well, whose word counts first.
- That an answer compiles is what the compiling process says. It sees the same source, and no inputs; its word is worth
  the points of that one check.
- The library's own kernels are in the process, and an oracle: an answer past the screen can call them. It cannot read
  solutions, other people's answers or this process, where the kernel has Landlock and system call filters.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import random
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path

from course_kernels import runtime
from gemm_course.exercises.case import Case, Ran
from gemm_course.exercises.manifest import Exercise
from gemm_course.isolation import static_check as screen
from gemm_course.judging import isolation_report as sandbox_report
from gemm_course.judging import mask_feedback as masks
from gemm_course.judging import request as child
from gemm_course.judging import untrusted as distrust
from gemm_course.judging.failures import compiler_message, ended, said, senseless
from gemm_course.judging.isolation_report import GPU_MB, one_line
from gemm_course.judging.request import MAX_FILES_MB, Outcome
from gemm_course.judging.results import FAILED, NOT_ON_GPU, ONLY_ON_GPU, PASSED, TODO, UNCHECKED, Property, Result
from gemm_course.runner.fork_server import MODES, Nursery, Zygote

COMPILE_S = 7.0
COMPILE_MB = 4096
GPU_S = 20.0  # beyond an exercise's limit: a GPU has to be taken up, and kernels compiled for it
COMPILES = "compiles"
_BROKEN_LOOP = "can be converted to Python scalars"  # said of any loop's bound by an interpreter that has a problem


class Judge:
    """Checks answers, one at a time. Starting one takes a second or two, in the background."""

    def __init__(self):
        self._nursery: Nursery | None = None
        self._zygotes: dict[str, Zygote] = {}
        self._starting = threading.Lock()
        self._closed = False
        self._gpu_works = False  # as far as is known
        with contextlib.suppress(OSError):  # tried again, and told, when there is something to check
            for mode in MODES:
                if mode != "gpu" or _has_gpu():
                    self._zygote(mode)

    def __enter__(self) -> Judge:
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def close(self) -> None:
        """End the processes that it keeps. It checks nothing any more."""
        with self._starting:
            self._closed = True
            if self._nursery is not None:
                self._nursery.close()
                self._nursery = None
            self._zygotes.clear()

    def _zygote(self, mode: str) -> Zygote:
        with self._starting:
            if self._closed:
                raise RuntimeError("the judge is closed")
            if self._nursery is None or not self._nursery.alive:
                if self._nursery is not None:
                    self._nursery.close()
                self._zygotes.clear()  # another thread may still be reading from one
                self._nursery = Nursery()
            zygote = self._zygotes.get(mode)
            if zygote is None or not zygote.alive:
                zygote = self._zygotes[mode] = Zygote(self._nursery, mode)
            return zygote

    def _ask(self, mode: str, request: dict, seconds: float, hopeless: threading.Event | None = None) -> Outcome:
        """Have a forked process answer a request. Where what forks has died, another is started, once."""
        why = ""
        for _ in range(2):
            zygote = None
            try:
                zygote = self._zygote(mode)
                outcome = child.ask(zygote, request, seconds, hopeless)
                if zygote.alive:
                    return outcome
                why = "the process that starts checks has died during one"
            except (OSError, RuntimeError) as error:
                why = str(error)
            if zygote is not None:
                zygote.close()
        return Outcome(died=f"this could not be checked, twice: {why}\n`course doctor` says what this machine lacks.")

    def check(self, exercise: Exercise, source: str, seed: int | None = None, *, compiling: bool = True) -> Result:
        """Check an answer.

        Args:
            exercise: from the manifest.
            source: of the learner's cell.
            seed: of the inputs; drawn afresh by default.
            compiling: whether to compile the answer, too, where the exercise asks for it; without, the check counts
                as held.

        Returns:
            The result. Nothing that an answer does makes this raise.
        """
        seed = int.from_bytes(os.urandom(4), "little") if seed is None else seed
        result = Result(
            exercise.id, exercise.title, FAILED, seed=seed, max_points=exercise.points,
            properties=[Property(c.name, c.title, c.points, "skip") for c in exercise.checks],
        )  # fmt: skip
        if complaint := screen.complain(source, exercise.function, exercise.imports):
            result.message = complaint
            return result
        with tempfile.TemporaryDirectory(prefix="course-", ignore_cleanup_errors=True) as folder:
            path = Path(folder) / "answer.py"
            path.write_text(source, encoding="utf-8")
            cases = exercise.module().draw(random.Random(seed))
            hopeless = threading.Event()
            beside: dict[str, Outcome] = {}
            if exercise.compiles and not compiling:
                beside["compile"] = Outcome(messages=[{"value": None}])
            threads = []
            try:
                for mode in _modes_beside(exercise, compiling):
                    arguments = (mode, exercise, path, cases, hopeless, beside)
                    threads.append(threading.Thread(target=self._beside, args=arguments))
                    threads[-1].start()
                self._run(exercise, path, cases, result)
                if not result.points:
                    hopeless.set()
                for thread in threads:
                    thread.join()
            except BaseException:  # Ctrl-C: else the others would be waited for, in a folder that is gone
                self.close()
                for thread in threads:
                    thread.join()
                raise
            if result.status != TODO and "compile" in beside:
                _note_compiled(result, beside["compile"], str(path))
            if result.status != TODO and "gpu" in beside:
                self._note_gpu(exercise, cases, beside["gpu"], result)
        if result.status == FAILED and all(each.status == "pass" for each in result.properties):
            result.status = PASSED
        for each in result.properties:
            each.message = masks.explained(each.message, source)
        for each in (result, *result.properties):
            each.message = distrust.printable(each.message)
        result.printed = distrust.printable(result.printed)
        return result

    def _run(self, exercise: Exercise, path: Path, cases: list[Case], result: Result) -> None:
        """Where the answer runs first."""
        mode = _mode(exercise)
        exercise = _limited(exercise, mode)
        request = _request(exercise, path, cases)
        outcome = self._ask(mode, request, request["seconds"])
        result.printed = outcome.printed
        errors = [message["error"] for message in outcome.messages if message.get("error")]
        if todo := [error["text"] for error in errors if error["kind"] == "todo"]:
            _todo(exercise, todo[0], result)
            return
        _look(exercise, cases, outcome, result, probed=mode == "run")
        problem = runtime.interpreter_problem()
        if mode == "run" and problem and any(_BROKEN_LOOP in error["text"] for error in errors):
            result.status, result.message = UNCHECKED, f"this cannot be checked here: {problem}"
        elif mode == "gpu" and result.message and (unfit := self._unfit(outcome)):
            result.status = UNCHECKED
            result.message = f"this cannot be checked here: {problem}. And no answer runs on the GPU: {unfit}"
        elif outcome.died:
            result.status = UNCHECKED

    def _note_gpu(self, exercise: Exercise, cases: list[Case], outcome: Outcome, result: Result) -> None:
        """What is wrong on the GPU with an answer of which nothing was wrong in the interpreter."""
        if any(each.status != "pass" for each in result.properties):
            return  # the interpreter says more about the same mistakes
        properties = [dataclasses.replace(each, status="skip") for each in result.properties]
        there = dataclasses.replace(result, message="", panels=[], properties=properties)
        _look(_limited(exercise, "gpu"), cases, outcome, there, probed=False)
        if there.message and (unfit := self._unfit(outcome)):
            result.message = f"{NOT_ON_GPU}: {unfit}"
            return
        for here, each in zip(result.properties, there.properties):
            if each.status == "fail" or (each.status == "skip" and each.name != COMPILES):
                here.status = "fail"
                here.message = f"{ONLY_ON_GPU}{each.message or there.message}"
                result.panels = result.panels or there.panels

    def _unfit(self, outcome: Outcome) -> str:
        """Why it is not the answer's fault that there is no result from a GPU, on one line; empty where it is.

        Where the answer was reached, a kernel of the library's is tried in the same confinement. Once that has worked
        it is not tried again; a problem may pass, as a GPU whose memory was full shows, so it holds for one answer.
        """
        if not outcome.ready:
            return one_line(outcome)
        problem = "" if self._gpu_works else sandbox_report.try_gpu(self._ask)
        self._gpu_works = not problem
        return problem

    def _beside(self, mode: str, exercise: Exercise, path: Path, cases, hopeless: threading.Event, outcomes: dict):
        """What runs while the interpreter does: compiling, or the same inputs on a GPU."""
        request = _request(_limited(exercise, mode), path, () if mode == "compile" else cases)
        outcomes[mode] = self._ask(mode, request, request["seconds"], hopeless)


def _mode(exercise: Exercise) -> str:
    """Where an answer runs first: in the interpreter, unless a GPU has to make up for one that does not work."""
    return "gpu" if exercise.gpu and _has_gpu() and runtime.interpreter_problem() else "run"


def _modes_beside(exercise: Exercise, compiling: bool) -> list[str]:
    found = ["compile"] if exercise.compiles and compiling else []
    return [*found, "gpu"] if exercise.gpu and _has_gpu() and _mode(exercise) == "run" else found


def _has_gpu() -> bool:
    return runtime.mode() == "gpu"


def _limited(exercise: Exercise, mode: str) -> Exercise:
    """The exercise with the limits that its answer has in one of `zygote.MODES`."""
    seconds, memory_mb = {
        "run": (exercise.seconds, exercise.memory_mb),
        "compile": (COMPILE_S, COMPILE_MB),
        "gpu": (exercise.seconds + GPU_S, GPU_MB),
    }[mode]
    return dataclasses.replace(exercise, seconds=seconds, memory_mb=memory_mb)


def _request(exercise: Exercise, path: Path, cases: Sequence[Case]) -> dict:
    return {
        "path": str(path), "exercise": exercise.name, "function": exercise.function, "seconds": exercise.seconds,
        "memory_mb": exercise.memory_mb, "scratch": tempfile.mkdtemp(dir=path.parent),
        "cases": [case.inputs for case in cases],
    }  # fmt: skip


def _look(exercise: Exercise, cases: list[Case], outcome: Outcome, result: Result, probed: bool) -> None:
    """Note what came back from running an answer: a check holds if all inputs that bear on it ran, without a finding.

    Args:
        exercise: that it answers.
        cases: its inputs.
        outcome: what the process left behind.
        result: whose properties are "skip"; what is wrong is noted there.
        probed: whether the interpreter's probes say who stored an output.
    """
    done: set[int] = set()
    for message in outcome.messages:
        try:
            if message.get("done"):
                break
            index, error = message.get("case"), message.get("error")
            if error is not None:
                result.message = result.message or said(error, exercise)
            elif index in done or not 0 <= index < len(cases):
                raise ValueError("an answer to no question")
            elif _examine(exercise.module(), cases[index], message, result, probed):
                done.add(index)
        except Exception as error:
            # The answer's process sends what it likes; a bug in an exercise's module looks the same, so say it.
            result.message = result.message or senseless(error)
    if len(done) < len(cases) and not result.message:
        result.message = outcome.died or ended(outcome, exercise)
    not_run = {name for index, case in enumerate(cases) if index not in done for name in case.checks}
    for each in result.properties:
        if each.status == "skip" and each.name not in not_run and each.name != COMPILES:
            each.status = "pass"


def _note_compiled(result: Result, outcome: Outcome, path: str) -> None:
    which = next(each for each in result.properties if each.name == COMPILES)
    error = next((m["error"] for m in outcome.messages if m.get("error")), None)
    if not any(each.status == "pass" for each in result.properties):
        return  # nothing of it works yet: that an empty function compiles earns nothing
    if error is None and any("value" in message for message in outcome.messages):
        which.status = "pass"
    elif outcome.died:
        result.status, result.message = UNCHECKED, f"{outcome.died}\n{result.message}".strip()
    else:
        which.status = "fail"
        text = compiler_message(error["text"] if error else outcome.printed[:300], Path(path))
        if (error and error["kind"] == "endless") or outcome.late:
            text = f"not compiled within {COMPILE_S:g} s"
        elif outcome.filled:
            text = f"more than {MAX_FILES_MB} MB of files were written"
        which.message = f"it runs in the interpreter, but the compiler refuses it:\n{text or 'the compiler died'}"


def _examine(module, case: Case, message: dict, result: Result, probed: bool) -> bool:
    """Note what is wrong with one input's outcome; returns whether there was anything to look at."""
    watched = message["watched"]
    outputs = distrust.outputs(watched)
    strange = [text for each in outputs.values() if (text := distrust.not_stored(each))]
    if strange and probed:
        result.message = result.message or strange[0]
        return False
    ran = Ran(message["value"], outputs, distrust.events(watched))
    for finding in module.examine(case, ran):
        if finding.check == "*":
            result.message = result.message or finding.message + (f"\n({case.label})" if case.label else "")
            result.panels = result.panels or list(finding.panels)
            return False
        which = next(each for each in result.properties if each.name == finding.check)
        if which.status == "fail":
            continue  # one example of a mistake is enough
        which.status = "fail"
        which.message = finding.message + (f"\n({case.label})" if case.label else "")
        if not result.panels:
            result.panels = list(finding.panels)
    return True


def _todo(exercise: Exercise, text: str, result: Result) -> None:
    result.status, result.properties, result.printed = TODO, [], ""
    result.message = text if text.startswith("TODO") else f"TODO {exercise.id}: {exercise.todo}"
