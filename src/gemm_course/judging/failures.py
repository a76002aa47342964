"""Why an answer gave no result: exceptions, loops, dead processes, a compiler's error; each in one message."""

from __future__ import annotations

import signal
from pathlib import Path

from gemm_course.judging.exercise import Exercise
from gemm_course.judging.feedback import in_line
from gemm_course.judging.request import MAX_FILES_MB, MAX_PRINTED, Outcome
from gemm_course.judging.untrusted import MAX_FILES, Failure
from gemm_course.runner.fork_server import MAX_THREADS


def describe_exception(error: Failure, exercise: Exercise) -> str:
    """An exception, or an endless loop, in one message."""
    name, text, where = error.type, error.text, in_line(error.line)
    program = f" (in program {error.program[0]})" if error.program else ""
    if error.kind == "refused":  # by the static check
        return text
    if error.kind == "missing":
        return f"the cell must define the function {exercise.function}"
    if error.kind == "endless":
        return f"still running after {exercise.seconds:g} s{program}, so it was stopped{_stopped(error)}"
    if name == "EOFError":
        return f"{where}this waits for typed input, and a check gives it none"
    if name == "MemoryError" or "allocate memory" in text or "not enough memory" in text:
        return f"{where}this wants more memory than an answer gets ({exercise.memory_mb} MB)"
    if name in ("SystemExit", "KeyboardInterrupt"):
        return f"{where}this ends the program ({name}); a function returns instead"
    if name in ("PermissionError", "FileNotFoundError"):  # as the one wall, or the other, says it
        return f"{where}an answer has no file to open, no process to start and no network: it computes ({text[:200]})"
    if name == "NameError":
        text += ": a check sees the cell with your function and nothing else"
    if "'function' object has no attribute" in text:
        text += ": a function stands where its result is meant: call it, as in tl.num_programs(0)"
    if "block offset start must be 16-byte aligned" in text:
        text += "; coordinates count elements, in the order of the extents"
    if "arange's arguments must be of type tl.constexpr" in text:
        text += ": the size of a block is known when a kernel is compiled, so use a tl.constexpr and a mask"
    if "'function' object is not subscriptable" in text and not error.line:
        text += ": the launch found a plain function. A kernel has @triton.jit in the line above `def`"
    if "ZeroDivisionError" in (name, text):
        text += ": what this line divides by, or takes the remainder of, is 0"
    if "make_shape_compatible" in text:
        text += ": one number for each row becomes a column by [:, None], one for each column a row by [None, :]"
    code = f"\n    {error.code}" if error.code else ""
    own = next((f"\n{why}" for known, why in exercise.exceptions if known in text), "")
    return f"{where}{name}: {text[:600]}{program}{code}{own}"


def _stopped(error: Failure) -> str:
    """Where an endless answer was when it was stopped, and which of its loops makes no progress."""
    at, loop = f" in line {error.line}: {error.code}" if error.line else "", error.loop
    if loop is None:
        return at
    why = "nothing changes from one turn to the next"
    if names := loop.names:
        listed = " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
        why = f"{listed} in its condition never {'changes' if len(names) == 1 else 'change'}"
    text = f": the loop in line {loop.line} makes no progress, as {why}\n    {loop.code}"
    return text if error.line == loop.line else f"{text}\nIt was{at}"


def describe_exit(outcome: Outcome, exercise: Exercise) -> str:
    """Why a process ended without a result."""
    if outcome.printed_too_much:
        return f"this printed more than {MAX_PRINTED >> 10} kB, so it was stopped: is there a print in a loop?"
    if outcome.malformed:
        return "what came back is no result: is something other than the exercise's function running?"
    if any(message.done for message in outcome.messages):
        return "this says that it is done, and sent no result: is something other than the exercise's function running?"
    if excess := describe_excess(outcome, exercise.memory_mb):
        return excess
    if outcome.timed_out:
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


def describe_excess(outcome: Outcome, memory_mb: int) -> str:
    """Which of what no limit of the kernel's counts a process, with those that it started, had too much of, or ""."""
    if outcome.started_too_much:
        return (
            f"this started more than {MAX_THREADS} threads, or programs that need more than {memory_mb} MB together, "
            "so it was stopped"
        )
    if outcome.wrote_too_much:
        return f"this wrote more than {MAX_FILES_MB} MB, or {MAX_FILES} files and folders, so it was stopped"
    return ""


def compiler_message(text: str, path: Path) -> str:
    """The compiler's message with the line that it is about, without the source above that line."""
    lines = text.splitlines()
    caret = next((i for i, line in enumerate(lines) if line.strip() == "^"), None)
    if not caret:
        return "\n".join(line[:200] for line in lines[:6])
    code = lines[caret - 1].strip()
    source = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    where = f"line {source.index(code) + 1}: " if source.count(code) == 1 else ""
    reasons = [line.strip()[:200] for line in lines[caret + 1 :] if line.strip()]
    return "\n".join([f"{where}{code}", *reasons[-4:]])


def malformed_reply(error: Exception) -> str:
    """The answer's process sent something that could not be examined."""
    return (
        f"what came back makes no sense ({type(error).__name__}: {error}): is something other than the exercise's "
        "function running?"
    )
