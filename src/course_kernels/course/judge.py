"""Checks one answer: draws inputs, has another process run the answer on them, compares what comes back as bytes.

This process never runs an answer. What it reports is computed here, from inputs that it drew itself, so replacing a
checker, forging a message or knowing a seed earns nothing: there is no other way to points than the right numbers for
these inputs. Who gets past the screen and is determined can still arrive at them otherwise than an exercise asks for:

- The probes live in the process that they watch. Code that takes them over can hide a read outside of a matrix or a
  host sync, and claim that a kernel stored what numpy computed. Canaries and NaN around every matrix do not depend on
  them: what they show is judged here.
- On a GPU there are no probes: that a kernel of the learner's wrote a result is not shown there. A grade should come
  from the interpreter.
- That an answer compiles is what the compiling process says. It sees the same source, and no inputs; its word is worth
  the points of that one check.
- The library's own kernels are in the process, and an oracle: an answer past the screen can call them. It cannot read
  solutions, other people's answers or this process, where the kernel has Landlock and system call filters.
"""

from __future__ import annotations

import contextlib
import os
import random
import select
import signal
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from course_kernels import runtime
from course_kernels.course import diagnose, distrust, screen, wire
from course_kernels.course.case import Case, Ran
from course_kernels.course.manifest import Exercise
from course_kernels.course.results import FAILED, PASSED, TODO, Property, Result
from course_kernels.course.zygote import MODES, Nursery, Zygote

GRACE_S = 2.0  # beyond an exercise's limit, before its process is killed
COMPILE_S = 7.0
COMPILE_MB = 4096
MAX_FILES_MB = 256  # that a compilation leaves in its folder
LOOK_S = 0.2  # how often a process is looked after
MAX_PRINTED = 1 << 18
KEPT_PRINTED = 4000
COMPILES = "compiles"


@dataclass
class Outcome:
    """What one process left behind."""

    messages: list = field(default_factory=list)
    status: int | None = None
    printed: str = ""
    flooded: bool = False
    late: bool = False
    garbled: bool = False
    filled: bool = False
    died: str = ""
    """Why there was no process to begin with."""


class Judge:
    """Checks answers, one at a time. Starting one takes a second or two, in the background."""

    def __init__(self):
        self._nursery: Nursery | None = None
        self._zygotes: dict[str, Zygote] = {}
        self._starting = threading.Lock()
        self._closed = False
        with contextlib.suppress(OSError):  # tried again, and told, when there is something to check
            for mode in MODES:
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
                outcome = _child(zygote, request, seconds, hopeless)
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
            compiled: list[Outcome] = []
            thread, hopeless = None, threading.Event()
            if exercise.compiles and compiling:
                thread = threading.Thread(target=lambda: compiled.append(self._compile(exercise, path, hopeless)))
                thread.start()
            try:
                self._run(exercise, path, seed, result)
                if not result.points:
                    hopeless.set()
                if thread is not None:
                    thread.join()
            except BaseException:  # Ctrl-C: else the compiler would be waited for, in a folder that is gone
                self.close()
                if thread is not None:
                    thread.join()
                raise
            if thread is not None and result.status != TODO:
                _note_compiled(result, compiled[0], str(path))
            elif thread is None and exercise.compiles:
                _note_compiled(result, Outcome(messages=[{"value": None}]), str(path))
        if result.status != TODO and all(each.status == "pass" for each in result.properties):
            result.status = PASSED
        for each in (result, *result.properties):
            each.message = distrust.printable(each.message)
        result.printed = distrust.printable(result.printed)
        return result

    def _run(self, exercise: Exercise, path: Path, seed: int, result: Result) -> None:
        module = exercise.module()
        cases = module.draw(random.Random(seed))
        request = _request(exercise, path, exercise.seconds, exercise.memory_mb)
        request["cases"] = [case.inputs for case in cases]
        outcome = self._ask("run", request, exercise.seconds)
        result.printed, result.message = outcome.printed, outcome.died
        done: set[int] = set()
        for message in outcome.messages:
            try:
                if message.get("done"):
                    break
                index, error = message.get("case"), message.get("error")
                if error is not None:
                    if error["kind"] == "todo":
                        _todo(exercise, error["text"], result)
                        return
                    result.message = result.message or _said(error, exercise)
                elif index in done or not 0 <= index < len(cases):
                    raise ValueError("an answer to no question")
                else:
                    if _examine(module, cases[index], message, result):
                        done.add(index)
            except Exception as error:
                # The answer's process sends what it likes; a bug in an exercise's module looks the same, so say it.
                result.message = result.message or (
                    f"what came back makes no sense ({type(error).__name__}: {error}): is something other than the "
                    "exercise's function running?"
                )
        if len(done) < len(cases) and not result.message:
            result.message = _ended(outcome, exercise)
        not_run = {name for index, case in enumerate(cases) if index not in done for name in case.checks}
        for each in result.properties:
            if each.status == "skip" and each.name not in not_run and each.name != COMPILES:
                each.status = "pass"

    def _compile(self, exercise: Exercise, path: Path, hopeless: threading.Event) -> Outcome:
        request = _request(exercise, path, COMPILE_S, COMPILE_MB)
        return self._ask("compile", request, COMPILE_S, hopeless)


def _request(exercise: Exercise, path: Path, seconds: float, memory_mb: int) -> dict:
    return {
        "path": str(path), "exercise": exercise.name, "function": exercise.function, "seconds": seconds,
        "memory_mb": memory_mb, "scratch": tempfile.mkdtemp(dir=path.parent),
    }  # fmt: skip


def _child(zygote: Zygote, request: dict, seconds: float, hopeless: threading.Event | None = None) -> Outcome:
    """Have a forked process answer a request; never takes longer than the limit and the grace, nor once hopeless."""
    outcome = Outcome()
    results, results_end = os.pipe()
    prints, prints_end = os.pipe()
    try:
        with tempfile.TemporaryFile() as file:
            file.write(wire.pack(request))
            file.seek(0)
            pid = zygote.fork([file.fileno(), results_end, prints_end])
    except BaseException:
        os.close(results)
        os.close(prints)
        raise
    finally:
        os.close(results_end)
        os.close(prints_end)
    reader, printed = wire.Reader(results), bytearray()
    stop = time.monotonic() + seconds + GRACE_S
    open_ends = {results, prints}
    try:
        while results in open_ends and not outcome.flooded:
            left = stop - time.monotonic()
            outcome.late = left <= 0
            outcome.filled = distrust.bytes_in(request["scratch"]) > MAX_FILES_MB << 20
            if outcome.late or outcome.filled or (hopeless is not None and hopeless.is_set()):
                break
            ready = select.select(list(open_ends), [], [], min(left, LOOK_S))[0]
            if results in ready:
                reader.pump()
                if reader.closed:
                    open_ends.discard(results)
                outcome.messages += map(distrust.message, reader.messages())
                if outcome.messages and outcome.messages[-1].get("done"):
                    break
            if prints in ready:
                data = os.read(prints, 1 << 16)
                printed += data
                if not data:
                    open_ends.discard(prints)
                outcome.flooded = len(printed) > MAX_PRINTED
    except ValueError:
        outcome.garbled = True
    finally:
        outcome.status = zygote.finish(pid)
        while not outcome.flooded and select.select([prints], [], [], 0)[0]:
            data = os.read(prints, 1 << 16)
            printed += data
            if not data or len(printed) > MAX_PRINTED:
                break
        os.close(results)
        os.close(prints)
    text = printed[:KEPT_PRINTED].decode(errors="replace")
    outcome.printed = text + ("…" if len(printed) > KEPT_PRINTED else "")
    return outcome


def _note_compiled(result: Result, outcome: Outcome, path: str) -> None:
    which = next(each for each in result.properties if each.name == COMPILES)
    error = next((m["error"] for m in outcome.messages if m.get("error")), None)
    if not any(each.status == "pass" for each in result.properties):
        return  # nothing of it works yet: that an empty function compiles earns nothing
    if error is None and any("value" in message for message in outcome.messages):
        which.status = "pass"
    elif outcome.died:
        which.status, which.message = "fail", outcome.died
    else:
        which.status = "fail"
        text = _compiler_message(error["text"] if error else outcome.printed[:300], Path(path))
        if (error and error["kind"] == "endless") or outcome.late:
            text = f"not compiled within {COMPILE_S:g} s"
        elif outcome.filled:
            text = f"more than {MAX_FILES_MB} MB of files were written"
        which.message = f"it runs in the interpreter, but the compiler refuses it:\n{text or 'the compiler died'}"


def _compiler_message(text: str, path: Path) -> str:
    """The compiler's message with the line that it is about, without the source above that line."""
    lines = text.splitlines()
    caret = next((i for i, line in enumerate(lines) if line.strip() == "^"), None)
    if not caret:
        return "\n".join(line[:200] for line in lines[:6])
    code = lines[caret - 1].strip()
    source = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    where = f"line {source.index(code) + 1}: " if source.count(code) == 1 else ""
    said = [line.strip()[:200] for line in lines[caret + 1 :] if line.strip()]
    return "\n".join([f"{where}{code}", *said[-4:]])


def _examine(module, case: Case, message: dict, result: Result) -> bool:
    """Note what is wrong with one input's outcome; returns whether there was anything to look at."""
    watched = message["watched"]
    outputs = distrust.outputs(watched)
    strange = [text for each in outputs.values() if (text := distrust.not_stored(each))]
    if strange and runtime.MODE == "interpreter":
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


def _said(error: dict, exercise: Exercise) -> str:
    """An exception, or an endless loop, in one message."""
    kind, name, text = error["kind"], error["type"], error["text"]
    where = diagnose.in_line(error["line"])
    program = f" (in program {error['program'][0]})" if error["program"] else ""
    if kind == "missing":
        return f"the cell must define the function {exercise.function}"
    if kind == "endless":
        at = f" in line {error['line']}: {error['code']}" if error["line"] else ""
        stuck = (
            "\nNothing changes from one turn of this loop to the next: it makes no progress." if error["stuck"] else ""
        )
        return f"still running after {exercise.seconds:g} s{program}, so it was stopped{at}{stuck}"
    if name == "EOFError":
        return f"{where}this waits for typed input, and a check gives it none"
    if name == "MemoryError" or "allocate memory" in text or "not enough memory" in text:
        return f"{where}this wants more memory than an answer gets ({exercise.memory_mb} MB)"
    if name in ("SystemExit", "KeyboardInterrupt"):
        return f"{where}this ends the program ({name}); a function returns instead"
    if name == "PermissionError":
        return f"{where}an answer has no file to open, no process to start and no network: it computes ({text[:200]})"
    if name == "NameError":
        text += ": a check sees the cell with your function and nothing else"
    code = f"\n    {error['code']}" if error["code"] else ""
    text = text[:600]
    return f"{where}{name}: {text}{program}{code}"


def _ended(outcome: Outcome, exercise: Exercise) -> str:
    """Why a process ended without a result."""
    if outcome.flooded:
        return f"this printed more than {MAX_PRINTED >> 10} kB, so it was stopped: is there a print in a loop?"
    if outcome.garbled:
        return "what came back is no result: is something other than the exercise's function running?"
    if any(message.get("done") for message in outcome.messages):
        return "this says that it is done, and sent no result: is something other than the exercise's function running?"
    if outcome.filled:
        return f"this wrote more than {MAX_FILES_MB} MB of files, so it was stopped"
    if outcome.late:
        return f"still running after {exercise.seconds:g} s and deaf to a signal, so it was killed: an endless loop?"
    status = outcome.status or 0
    if status in (-signal.SIGSEGV, -signal.SIGBUS):
        return "this crashed its process (segmentation fault): it used memory far outside of its matrices"
    if status == -signal.SIGABRT:
        return "this crashed its process (abort): memory beside a matrix was overwritten"
    if status == -signal.SIGXCPU:
        return f"this used more than {exercise.seconds:g} s of processor time, so it was stopped: an endless loop?"
    if status < 0:
        return f"this was ended by {signal.Signals(-status).name} before a result came back"
    return f"this ended its own process (exit code {status}) before a result came back"
