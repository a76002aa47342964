"""Checks one answer: draws inputs, has another process run the answer on them, and compares the returned bytes.

This process never runs an answer, and parses none. It computes its report itself, from inputs that it drew itself. The
process that runs an answer (see `worker`) holds no expected value and nothing of ours that could compute one, and our
files are closed to it. Assume that an answer runs any code there. It can still earn this, property by property:

- Returned numbers (products, sums, logs of tiles, tables, keys, schedules, walks): right numbers for these inputs earn
  their points, however they were computed: perhaps by torch in place of a kernel. Knowing a seed or a checker, counting
  calls or forging messages earns nothing. The form of outputs and the addresses of matrices are noted before the answer
  is loaded. A kernel reads only numbers that were laid out or that kernels stored: one that passes on what Python code
  put into a matrix gets the matrix's NaN, and wrong numbers. Python code finds the numbers of a matrix in a random
  order, so what torch computes from them is wrong, also as an argument of a launch. Zeros that Python code writes are
  not noticed.
- Returned PTX (10): this process follows its arithmetic on sums that it keeps to itself, without executing any of it.
  Forged PTX that computes the same earns the same.
- Observations of the probes in that process (accesses outside of a matrix, loads without a value, how often and by
  which program an element was stored, pointers beside descriptors, host syncs): the points of these properties. They
  are in the memory of the code that they watch, as are the canaries around an output, so it can hide what it did, and
  claim that a kernel stored what torch computed.
- Properties that are examined there after the call (04b: whether a table is on the GPU and contiguous, and whether a
  matrix still has its strides; 05: whether the caller's list is unchanged; 09 and 12b: whether an operand is; 07:
  whether a key is valid): the points of that property.
- Products of 04b, where the library's kernel reads the tables in that process: nothing, unless all tables are right.
  The tables hold attributes of the matrices, and code that reads these there has the right tables.
- "compiles": its points. Another process compiles the same source, without inputs. It has to define the same there.
- On a GPU: nothing. There are no probes, but what runs there has run in the interpreter, whose verdict counts first.

All but the first need code that gets past the static check and the builtins of an answer (see `own_builtins`), into
the insides of Python. No number can show them: whoever is there reads the true inputs, which kernels must find in that
process, and computes from them. None is worth points alone: where no number is right, examiners give none.
"""

from __future__ import annotations

import contextlib
import fcntl
import glob
import os
import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from course_kernels import runtime
from gemm_course.isolation import bubblewrap
from gemm_course.judging import isolation_report, request
from gemm_course.judging.case import Case, Examiner, Ran
from gemm_course.judging.causes import (
    CannotCheck,
    CompilesToOther,
    Drawn,
    Ended,
    Hole,
    Malformed,
    NotCompiled,
    NotOnGPU,
    NotStarted,
    NotStored,
    Observed,
    OnlyOnGPU,
    Raised,
    causes_of,
)
from gemm_course.judging.exercise import COMPILES, Exercise
from gemm_course.judging.isolation_report import GPU_MB
from gemm_course.judging.request import Outcome
from gemm_course.judging.results import FAILED, PASSED, TODO, UNCHECKED, Result
from gemm_course.judging.untrusted import Layout, Reply, changed_without_store, parse_watched, remove
from gemm_course.judging.verdict import Verdict
from gemm_course.runner import fork_server
from gemm_course.runner.fork_server import MODES, ForkServer, Template

COMPILE_S = 7.0
COMPILE_MB = 4096
GPU_S = 20.0  # beyond an exercise's limit: CUDA has to start, and kernels are compiled
LEFT_BEHIND_S = 600.0
_PREFIX = "course-judge-"
_BROKEN_LOOP = "can be converted to Python scalars"  # an interpreter with a problem says this of any loop's bound


class Judge:
    """Checks answers, one at a time. Starting one takes a second or two, in the background.

    Args:
        examiner_of: gives the examiner of an exercise, as `gemm_course.exercises.manifest.examiner` does.
    """

    def __init__(self, examiner_of: Callable[[Exercise], Examiner]):
        self._examiner_of = examiner_of
        self._server: ForkServer | None = None
        _remove_left_behind()
        self._folder = tempfile.mkdtemp(prefix=_PREFIX)  # the only one that answers' processes see
        self._lock = os.open(self._folder, os.O_RDONLY)  # held for as long as this process lives
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self._templates: dict[tuple[str, ...], Template] = {}
        self._starting = threading.Lock()
        self._closed = False
        self._gpu_works = False  # as far as is known
        with contextlib.suppress(OSError):  # the first check tries again, and reports it
            for mode in MODES:
                if mode != "gpu" or _has_gpu():
                    self._template(mode)

    def __enter__(self) -> Judge:
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def close(self) -> None:
        """End the processes that it keeps. It cannot check anything after that."""
        with self._starting:
            self._closed = True
            if self._server is not None:
                self._server.close()
                self._server = None
            self._templates.clear()
        remove(self._folder)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _template(self, mode: str, *libraries: str) -> Template:
        with self._starting:
            if self._closed:
                raise RuntimeError("the judge is closed")
            if self._server is None or not self._server.alive:
                if self._server is not None:
                    self._server.close()
                self._templates.clear()  # another thread may still be reading from one
                walls = () if _has_gpu() else bubblewrap.command(self._folder, [os.path.dirname(fork_server.__file__)])
                self._server = ForkServer(walls)
            template = self._templates.get(key := (mode, *libraries))
            if template is None or not template.alive:
                template = self._templates[key] = Template(self._server, mode, libraries)
            return template

    def ask(self, mode: str, wanted: dict, seconds: float, cancelled: threading.Event | None = None) -> Outcome:
        """As `request.ask`, in one of `fork_server.MODES`. If the process that forks has died, start another, once."""
        why, libraries = "", [name for name in wanted.get("imports", ()) if name not in sys.stdlib_module_names]
        for _ in range(2):
            template = None
            try:
                template = self._template(mode, *libraries)
                outcome = request.ask(template, wanted, seconds, cancelled)
                if template.alive:
                    return outcome
                why = "the process that starts checks has died during one"
            except (OSError, RuntimeError) as error:
                why = str(error)
            if template is not None:
                template.close()
        text = f"this could not be checked, twice: {why}\n`course doctor` says what this machine lacks."
        return Outcome(not_started=text)

    def check(self, exercise: Exercise, source: str, seed: int | None = None, *, compiling: bool = True) -> Result:
        """Check an answer. Nothing that an answer does makes this raise.

        Without a seed, inputs are drawn afresh. If not `compiling`, the check that the answer compiles counts as held.
        """
        seed = int.from_bytes(os.urandom(4), "little") if seed is None else seed
        verdict = Verdict(exercise)
        with self._new_folder() as folder:
            path = Path(folder) / "answer.py"
            path.write_bytes(source.encode("utf-8", "surrogatepass"))
            examiner = self._examiner_of(exercise)
            cases = examiner.draw(random.Random(seed))
            cancelled = threading.Event()
            with ThreadPoolExecutor(len(MODES)) as alongside:
                try:
                    futures = {
                        mode: alongside.submit(self._run, mode, exercise, path, cases, cancelled)
                        for mode in _modes_alongside(exercise, compiling)
                    }
                    outcome = self._run_first(examiner, path, cases, verdict)
                    if not verdict.earns:
                        cancelled.set()
                    outcomes = {mode: future.result() for mode, future in futures.items()}
                except BaseException:  # Ctrl-C: the others would otherwise go on in a folder that is gone
                    self.close()
                    raise
            if exercise.compiles and not compiling:
                outcomes["compile"] = Outcome(messages=[Reply(case=0)], defined=outcome.defined)
            if verdict.status != TODO and "compile" in outcomes:
                _note_compiled(verdict, outcomes["compile"], outcome.defined, source)
            if verdict.status != TODO and "gpu" in outcomes:
                self._note_gpu(examiner, cases, outcomes["gpu"], verdict)
        if verdict.status == FAILED and verdict.holds:
            verdict.status = PASSED
        return verdict.result(source, outcome.masks, seed)

    @contextlib.contextmanager
    def _new_folder(self) -> Iterator[str]:
        """A folder for one check; whatever an answer leaves there goes with it."""
        folder = tempfile.mkdtemp(dir=self._folder)
        try:
            yield folder
        finally:
            remove(folder)

    def _run(self, mode: str, exercise: Exercise, path: Path, cases: list[Case], cancelled=None) -> Outcome:
        exercise = _limited(exercise, mode)
        wanted = {
            "path": str(path), "module": exercise.run, "function": exercise.function,
            "imports": list(exercise.imports),
            "seconds": exercise.seconds, "memory_mb": exercise.memory_mb, "files_mb": exercise.files_mb,
            "scratch": tempfile.mkdtemp(dir=path.parent),
            "cases": [case.inputs for case in cases if mode != "compile"],
        }  # fmt: skip
        return self.ask(mode, wanted, exercise.seconds, cancelled)

    def _run_first(self, examiner: Examiner, path: Path, cases: list[Case], verdict: Verdict) -> Outcome:
        """Run the answer where its verdict counts first, and note the findings. Returns what came back."""
        exercise = verdict.exercise
        mode = _first_mode(exercise)
        outcome = self._run(mode, exercise, path, cases)
        verdict.printed = outcome.printed
        errors = [message.error for message in outcome.messages if message.error]
        if todo := [error.text for error in errors if error.kind == "todo"]:
            verdict.status, verdict.checks, verdict.printed = TODO, {}, ""
            verdict.stop(Hole(todo[0] if todo[0].startswith("TODO") else f"TODO {exercise.id}: {exercise.todo}"))
            return outcome
        _note_outcome(mode, examiner, cases, outcome, verdict)
        problem = runtime.interpreter_problem()
        if mode == "run" and problem and any(_BROKEN_LOOP in error.text for error in errors):
            verdict.status, verdict.stopped = UNCHECKED, (CannotCheck(problem),)
        elif mode == "gpu" and verdict.stopped and (gpu_problem := self._gpu_problem(outcome)):
            verdict.status, verdict.stopped = UNCHECKED, (CannotCheck(problem, gpu_problem),)
        elif mode == "run" and outcome.setup_error:
            verdict.status, verdict.stopped = UNCHECKED, (CannotCheck(outcome.setup_error),)
        elif outcome.not_started:
            verdict.status = UNCHECKED
        return outcome

    def _note_gpu(self, examiner: Examiner, cases: list[Case], outcome: Outcome, verdict: Verdict) -> None:
        """Note what is wrong on the GPU with an answer that is right in the interpreter."""
        if not verdict.holds:
            return  # the interpreter says more about the same mistakes
        on_gpu = Verdict(verdict.exercise)
        _note_outcome("gpu", examiner, cases, outcome, on_gpu)
        if on_gpu.stopped and (problem := self._gpu_problem(outcome)):
            verdict.stopped = (NotOnGPU(problem),)
            return
        for name, held in on_gpu.checks.items():
            if held.status == "fail" or (held.status == "skip" and name != COMPILES):
                verdict.checks[name].fail(OnlyOnGPU(held.causes or on_gpu.stopped))
                verdict.show(on_gpu.panels)

    def _gpu_problem(self, outcome: Outcome) -> str:
        """The machine's reason for giving no result on the GPU, on one line; empty if the answer is the reason.

        If the answer was reached, one of the library's kernels is tried in the same confinement, until one has worked.
        A problem is not remembered: it may pass, as a full memory does.
        """
        if not outcome.ready:
            return outcome.reason
        problem = "" if self._gpu_works else isolation_report.try_gpu(self.ask)
        self._gpu_works = not problem
        return problem


def _remove_left_behind() -> None:
    """Remove folders of judges that were killed: nobody locks them, and for some time nobody has used them."""
    for folder in glob.glob(os.path.join(glob.escape(tempfile.gettempdir()), f"{_PREFIX}*")):
        with contextlib.suppress(OSError):
            handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                status = os.fstat(handle)
                if status.st_uid == os.getuid() and time.time() - status.st_mtime > LEFT_BEHIND_S:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    remove(folder)
            finally:
                os.close(handle)


def _first_mode(exercise: Exercise) -> str:
    """The mode in which an answer runs first: the interpreter, or a GPU if the interpreter does not work."""
    return "gpu" if exercise.gpu and _has_gpu() and runtime.interpreter_problem() else "run"


def _modes_alongside(exercise: Exercise, compiling: bool) -> list[str]:
    found = ["compile"] if exercise.compiles and compiling else []
    return [*found, "gpu"] if exercise.gpu and _has_gpu() and _first_mode(exercise) == "run" else found


def _has_gpu() -> bool:
    return runtime.mode() == "gpu"


def _limited(exercise: Exercise, mode: str) -> Exercise:
    """The exercise with the limits that its answer has in one of `fork_server.MODES`."""
    seconds, memory_mb = {
        "run": (exercise.seconds, exercise.memory_mb),
        "compile": (COMPILE_S, COMPILE_MB),
        "gpu": (exercise.seconds + GPU_S, GPU_MB),
    }[mode]
    return msgspec.structs.replace(exercise, seconds=seconds, memory_mb=memory_mb)


def _note_outcome(mode: str, examiner: Examiner, cases: list[Case], outcome: Outcome, verdict: Verdict) -> None:
    """Note the outcome of running an answer. A check holds if all its inputs ran and none led to a finding.

    All checks must be undecided. In mode "run" the interpreter's probes record which program stored an output.
    """
    exercise = _limited(verdict.exercise, mode)
    examined: set[int] = set()
    answered: set[int] = set()
    for message in outcome.messages:
        try:
            if message.done:
                break
            if message.error is not None:
                verdict.stop(Raised(message.error, exercise))
            if message.case is None or message.case in answered or not 0 <= message.case < len(cases):
                raise ValueError("a result for no input")
            answered.add(message.case)
            if _examine(examiner, cases[message.case], message, outcome.layouts, verdict, mode == "run"):
                examined.add(message.case)
        except Exception as error:
            # The answer's process sends what it likes. A bug in an examiner looks the same, so report it.
            verdict.stop(Malformed(f"{type(error).__name__}: {error}"))
    if len(examined) < len(cases):
        ended = Ended(outcome.how_it_ended, outcome.status or 0, exercise.seconds, exercise.memory_mb)
        verdict.stop(NotStarted(outcome.not_started) if outcome.not_started else ended)
    verdict.pass_the_others({name for index, case in enumerate(cases) if index not in examined for name in case.checks})


def _note_compiled(verdict: Verdict, outcome: Outcome, defined: dict[str, str], source: str) -> None:
    """Note whether the answer compiled, and defined the same there as where it ran, which is `defined`."""
    held = verdict.checks[COMPILES]
    error = next((message.error for message in outcome.messages if message.error), None)
    if not verdict.earns:
        return  # nothing of it works yet: an empty function earns nothing because it compiles
    if error is None and any(message.is_result for message in outcome.messages):
        names = [name for name in {**defined, **outcome.defined} if defined.get(name) != outcome.defined.get(name)]
        held.status = "pass"
        if names:
            held.fail(CompilesToOther(names[0]))
    elif outcome.not_started:
        verdict.status, verdict.stopped = UNCHECKED, (NotStarted(outcome.not_started), *verdict.stopped)
    else:
        how = "endless" if error and error.kind == "endless" else outcome.how_it_ended
        held.fail(NotCompiled(how, error.text if error else outcome.printed[:300], source, COMPILE_S, COMPILE_MB))


def _examine(
    examiner: Examiner, case: Case, message: Reply, layouts: list[Layout], verdict: Verdict, probed: bool
) -> bool:
    """Note the mistakes in one input's outcome. Returns whether there was anything to examine.

    `probed`: whether the interpreter's probes say which program stored an output.
    """
    layout = layouts[message.case]
    outputs, events = parse_watched(message.watched, layout)
    without_store = [each.name for each in outputs.values() if changed_without_store(each)]
    if without_store and probed:
        # Most often an output that Python sets to zero, for atomics to add to.
        atomics = [Observed(event) for event in events if event.kind == "atomic"]
        verdict.stop(atomics[:1], NotStored(without_store[0]))
        return False
    if changed := [Observed(event) for event in events if event.kind == "changed"]:
        verdict.stop(changed[:1])
        return False
    drawn = Drawn(case.label) if case.label else None
    unread = [name for event in events if event.kind == "unread" for name in event.what.split(", ")]
    events = [event for event in events if event.kind != "unread"]
    for finding in examiner.examine(case, Ran(message.value, outputs, events, unread, layout.addresses)):
        causes = causes_of((finding.cause, drawn))
        verdict.suspect(finding.leads)
        if finding.check == "*":
            verdict.stop(causes)
            verdict.show(finding.panels)
            return False
        held = verdict.checks[finding.check]
        if held.status == "fail":
            continue  # one example of a mistake is enough
        held.fail(causes)
        verdict.show(finding.panels)
    return True
