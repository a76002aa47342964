"""`check(function)`, for the cell under a hole: sends the function's source to another process and shows the result.

The notebook's own process has run the learner's code, so it does not judge. The judging process starts in the
background when `gemm_course.check` is imported, never runs the learner's code, and stays for the next check.
"""

from __future__ import annotations

import atexit
import threading

from course_kernels.child_process import ServiceDied
from gemm_course import progress
from gemm_course.exercises import manifest
from gemm_course.exercises.judge_process import JudgeProcess, Task
from gemm_course.judging.exercise import Exercise
from gemm_course.judging.results import FAILED, TODO, UNCHECKED, Result
from gemm_course.notebook import cells, current_exercise, kernel, locations, stubs

_lock = threading.Lock()
_process: JudgeProcess | None = None


def start() -> JudgeProcess:
    """The judging process, started if none runs. Returns at once."""
    global _process
    with _lock:
        if _process is None or not _process.alive:
            _process = JudgeProcess()
        return _process


@atexit.register
def stop() -> None:
    """End the judging process. The next check starts another."""
    global _process
    with _lock:
        if _process is not None:
            _process.close()
        _process = None


def judge(exercise: Exercise, source: str) -> Result:
    """Have the other process check an answer. Raises RuntimeError if it died twice."""
    for _ in range(2):
        try:
            return Result.from_dict(start().check(Task("", exercise, source)))
        except (ServiceDied, TimeoutError) as error:
            why = error
    raise RuntimeError(f"{why}\n`course doctor` says what this machine lacks")


def check(function) -> Result | None:
    """Check the answer to an exercise, its function: print what was found, draw what is wrong.

    Returns the result, which a notebook does not show again at the end of a cell; None if there was nothing to check.
    """
    name = getattr(function, "__name__", "")
    exercise = next((each for each in manifest.exercises() if each.function == name), None)
    if exercise is None:
        known = ", ".join(each.function for each in manifest.exercises())
        print(f"check wants the function of an exercise: {known}; got {name or type(function).__name__}")
        return None
    current_exercise.note_checked(exercise)
    try:
        source = cells.of_function(function, name, kernel.cells_run())
    except (TypeError, ValueError) as error:
        print(error)
        return None
    try:
        result = judge(exercise, source)
    except (OSError, RuntimeError) as error:
        print(f"this could not be checked: {error}")
        return None
    print(_highlight(result))
    if result.status not in (TODO, UNCHECKED):
        # Not to stderr: graders, nbgrader for one, take that for a failure of the cell.
        progress.note_result(exercise.id, result.points, result.passed, tell=print)
    if result.passed:
        _show_next_step(exercise)
    if result.panels:
        _draw(result.panels)
    return result


def _highlight(result: Result) -> str:
    """The result's text; a notebook shows mistakes in bold. A pass is plain, like the output that is stored."""
    if result.status not in (FAILED, UNCHECKED) or kernel.shell() is None:
        return result.text()
    lines = []
    for kind, line in result.lines():
        if kind == "fail":
            line = f"  \x1b[31m✗\x1b[0m {kernel.bold(line[4:])}"
        elif kind == "message" and line:
            line = kernel.bold(line)
        lines.append(line)
    return "\n".join(lines)


def _show_next_step(exercise: Exercise) -> None:
    """After a pass, show a reader how many exercises are solved, where the solution is, and a link to what comes next.

    Stored outputs and graders get nothing: it depends on the learner.
    """
    if kernel.notebook_name() is None:
        return
    every = manifest.exercises()
    unsolved = progress.unsolved(every, progress.load(tell=print))
    solved, link = len(every) - len(unsolved), stubs.next_step(locations.stub(exercise))
    if unsolved and not link:
        after = next((each for each in unsolved if each.id > exercise.id), unsolved[0])
        link = f"Next: [Exercise {after.id}, {after.title}]({after.name}.ipynb)"
    text = f'{solved} of {len(every)} exercises solved. `solution("{exercise.id}")` shows one way to write this one.'
    kernel.show_markdown("\n\n".join(filter(None, [text, link])))


def _draw(panels: list[dict]) -> None:
    try:
        from IPython.display import display

        from gemm_course.judging import picture
    except ImportError:  # at a prompt without matplotlib or IPython the text has to do
        return
    display(picture.tiles(panels))
