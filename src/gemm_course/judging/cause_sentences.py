"""From causes to the messages that a learner reads: which tile, which row, which line, and a likely reason.

Every sentence about a cause is here, but for an exercise's own words.
"""

from __future__ import annotations

import functools
import re
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import msgspec

from gemm_course.isolation.landlock import PATIENCE
from gemm_course.judging import causes
from gemm_course.judging.causes import Cause, Event, Failure, MaskProblem, Observed
from gemm_course.judging.request import GRACE_S, MAX_FILES_MB, MAX_PRINTED
from gemm_course.judging.results import NOT_ON_GPU, ONLY_ON_GPU, REASON_ABOVE, REASON_BELOW
from gemm_course.judging.untrusted import MAX_FILES, printable
from gemm_course.runner.fork_server import MAX_THREADS

_VERBS = {"load": "reads", "store": "writes"}
_NOUNS = {"rows": ("row", "rows"), "columns": ("column", "columns"), "entries": ("entry", "entries")}
_LINE_ENDS = re.compile("\r\n|\r|\n")
_MOST_QUOTED = 160
LESS_OR_EQUAL = ", as `<=` in place of `<` gives"  # left out where an answer compares nothing so


@dataclass(frozen=True)
class Line:
    """One line of a message."""

    text: str
    about: int = 0  # the line of the answer that it is about; 0: none
    leads: bool = False  # whether the next line is its reason


def counted(number: int, noun: str) -> str:
    """3 tiles, 1 tile."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _about(line: int, text: str, leads: bool = False) -> Line:
    return Line(f"line {line}: {text}" if line else text, line, leads)


# ---- each cause


_TEMPLATES: dict[type[Cause], str] = {
    causes.WrongStride: "the rows of {matrix} are {stride} elements apart, and those of the pointers {pointers}",
    causes.NotStored: "{matrix} changed, and no kernel's tl.store did it: the exercise asks for a kernel that stores",
    causes.MadeOnCPU: "torch makes a tensor on the CPU unless the call names a device: `device={device}`",
    causes.Drawn: "({label})",
    causes.Malformed: "what came back makes no sense ({error}): is something other than the exercise's function "
    "running?",
    causes.CompilesToOther: "where it is compiled, the cell makes something else of {name}",
    causes.NotOnGPU: f"{NOT_ON_GPU}: {{problem}}",
    causes.NotStarted: "{text}",
    causes.Hole: "{text}",
    causes.ReasonAbove: REASON_ABOVE,
    causes.ReasonBelow: REASON_BELOW,
}


@functools.singledispatch
def lines_of(cause: Cause) -> list[Line]:
    """A cause in words: those of its template, or of the functions below."""
    return [Line(_TEMPLATES[type(cause)].format(**msgspec.structs.asdict(cause)))]


@lines_of.register
def _(cause: causes.Words) -> list[Line]:
    reason = [line for each in causes.causes_of(cause.because) for line in lines_of(each)]
    return [_about(cause.line, f"{cause.text}:" if reason else cause.text, bool(reason)), *reason]


@lines_of.register
def _(cause: Observed) -> list[Line]:
    event = cause.event
    stride = lines_of(event.wrong_stride) if event.wrong_stride and event.side else []
    found = [_about(event.line, _sentence(event, bool(stride) or cause.single)), *stride]
    return [*found[:-1], Line(found[-1].text + cause.note, found[-1].about)]


def _sentence(event: Event, explained: bool) -> str:
    """A probe's observation; `explained`: not by `<=` in a mask, since something else explains it."""
    if event.kind == "sync":
        return f"{event.what}, so the CPU has to wait for the GPU"
    if event.kind == "changed":
        return f"{event.matrix} holds numbers that Python code put there: a kernel has to compute what it stores"
    if event.kind == "undefined":
        return "this load's mask leaves elements out and no `other=` says what they are: anything may be there"
    program = f"program {event.program[0]}"
    if event.kind == "atomic":
        return f"{program} updates {event.matrix} by an atomic operation"
    verb = _VERBS[event.kind]
    if event.matrix is None:
        return f"{program} {verb} an address that belongs to no matrix"
    if event.side == "gap":
        return f"{program} {verb} between the elements of {event.matrix}: is a stride wrong?"
    axis, (noun, nouns) = list(_NOUNS).index(event.side), _NOUNS["entries" if event.of_table else event.side]
    extent, at = event.shape[axis], event.place[axis]
    has = f"which has {nouns} 0 to {extent - 1}" if extent else f"which has no {nouns}"
    text = f"{program} {verb} {noun} {at} of {event.matrix}, {has}"
    if not explained and event.far[axis] == extent and at >= extent:
        text += f": one too many{LESS_OR_EQUAL}"
    return text


@lines_of.register
def _(cause: causes.UnwrittenTile) -> list[Line]:
    text = f"tile {cause.tile} of {cause.matrix} was {'never' if cause.whole else 'only partly'} written"
    return [Line(text + (f", and {cause.more} more like it" if cause.more else ""))]


@lines_of.register
def _(cause: causes.WrongTile) -> list[Line]:
    text = f"tile {cause.tile} of {cause.matrix} is wrong: at {cause.place} there is {cause.got:g}, not {cause.want:g}"
    if cause.program >= 0:
        text += f"; program {cause.program} wrote it"
    if cause.wrong > 1:
        text += f"; {counted(cause.wrong, 'tile')} of {cause.tiles} are wrong"
    return [Line(text)]


@lines_of.register
def _(cause: causes.ChangedAround) -> list[Line]:
    text = f"{counted(cause.count, 'element')} around {cause.matrix} changed: something was written outside of it"
    return [Line(text + cause.note)]


@lines_of.register
def _(problem: MaskProblem) -> list[Line]:
    if problem.kind == "brackets":
        text = f"`{problem.code}` binds tighter than `<`: put each comparison in brackets, as in (a < b) & (c < d)"
    elif problem.kind == "index":
        text = f"a pointer has no elements: tl.load({problem.code} + …) reads one"
    elif problem.kind == "step":
        text = f"this adds the program's own number to `{problem.code}`, 0 in program 0: step by tl.num_programs(0)"
    elif problem.kind == "dropped":
        verb = "assign" if problem.code.startswith("tl.dot") else "add"
        text = f"nothing takes the sum that {problem.code[:_MOST_QUOTED]} returns: {verb} it to `acc`"
    elif problem.kind in ("and", "or"):
        sign = "&" if problem.kind == "and" else "|"
        text = f"`{problem.kind}` keeps only one of two masks, as Python reads it: combine them with `{sign}`"
    elif problem.kind == "either":
        text = "`|` accepts what either of two masks does: combine them with `&`"
    elif problem.kind in ("turned", "foreign"):
        has = "rows and columns are exchanged in the mask: it has" if problem.kind == "turned" else "the mask has"
        text = f"{has} `{problem.code}` where the pointers have `{problem.other}`"
    elif problem.kind == "flat":
        text = (
            "this mask has one dimension, and the block has two: the same columns are masked in every row. Give each "
            "part both, as in [:, None] and [None, :]"
        )
    else:
        text = f"`{problem.code}` has one dimension, so it masks columns: rows take [:, None]"
    return [_about(problem.line, text)]


# ---- no result


@lines_of.register
def _(cause: causes.Raised) -> list[Line]:
    error, exercise = cause.failure, cause.exercise
    name, text = error.type, error.text
    program = f" (in program {error.program[0]})" if error.program else ""
    if error.kind == "refused":  # by the static check
        return [_about(error.line, text)]
    if error.kind == "missing" and name:
        text = (
            f"{exercise.function} is of type {name}, and the check needs the function: one decorator, as it was given"
        )
        return [Line(text)]
    if error.kind == "missing":
        return [Line(f"the cell must define the function {exercise.function}")]
    if error.kind == "endless":
        after = f"{error.waited_s:.0f} s, nearly all of them waiting" if error.waited_s else f"{exercise.seconds:g} s"
        return _endless(error, f"still running after {after}{program}, so it was stopped")
    if name == "EOFError":
        return [_about(error.line, "this waits for typed input, and a check gives it none")]
    if name == "MemoryError" or "allocate memory" in text or "not enough memory" in text:
        return [_about(error.line, f"this wants more memory than an answer gets ({exercise.memory_mb} MB)")]
    if name in ("SystemExit", "KeyboardInterrupt"):
        return [_about(error.line, f"this ends the program ({name}); a function returns instead")]
    if name in ("PermissionError", "FileNotFoundError"):  # Landlock raises the first; Bubblewrap hides the file
        words = f"an answer has no file to open, no process to start and no network: it computes ({text[:200]})"
        return [_about(error.line, words)]
    if name == "NameError":
        text += ": a check sees the cell with your function and nothing else"
    if "ZeroDivisionError" in (name, text):
        text += ": what this line divides by, or takes the remainder of, is 0"
    if "'function' object is not subscriptable" in text and not error.line:
        text += ": the launch found a plain function. A kernel has @triton.jit in the line above `def`"
    if mixed := re.match(r"cannot convert .* of type <class '(tuple|list)'> to tensor", text, re.DOTALL):
        what = "two masks become one by `&`, as in (a < b) & (c < d), and not by a comma"
        if mixed[1] == "list":
            what = "tl.load and tl.store take pointers, and a descriptor has its own, as in a.load([row, k])"
        text = f"a {mixed[1]} is no block: {what}"
    text = _without_numbers(text)
    if text.startswith("cannot cast "):
        text = "cannot cast to this type"
        if pointer := re.search(r"\b\w+_ptrs?\.dtype\b(?!\.)", error.code):
            text += f": {pointer[0]} is the type of a pointer, and {pointer[0]}.element_ty that of its elements"
    if "invalid operands of type" in text and "pointer<" in text:
        address = re.search(r"[<>=] *(\w+_ptr)\b|\b(\w+_ptr) *[<>=]", error.code)
        pointer = address and (address[1] or address[2])
        text += f": {pointer} is an address; tl.load({pointer}) is the number there" if pointer else _ADDRESS
    if "softmax" in error.code and "make_shape_compatible" in text:
        text = "tl.softmax needs keep_dims=True to subtract each row's maximum from its row"
    if text.startswith((f"{exercise.function}() missing", f"{exercise.function}() takes")):
        text += _FIRST_LINE
    text += "".join(advice for mark, advice in _ADVICE.items() if mark in text)
    found = [_about(error.line, f"{name}: {text[:600]}{program}")]
    found += [Line(f"    {error.code}")] * bool(error.code)
    reasons = [Line(reason) for mark, reason in exercise.exceptions if mark in text]
    return [*found, *reasons[:1]]


def _without_numbers(text: str) -> str:
    """An exception's text without the numbers of a block, which the interpreter prints in full."""
    return _MANY_NUMBERS.sub("[…]", text)


_NUMBER = r"[-+]?(?:\d[\d.]*(?:e[-+]?\d+)?|nan|inf)"
_MANY_NUMBERS = re.compile(rf"\[[\[\s]*(?:{_NUMBER}[\s,\[\]]+){{14,}}{_NUMBER}[,\]]*")
_ADDRESS = ": one of them is an address; tl.load gives the number there"
_FIRST_LINE = ": the arguments are those of the given first line of the function, so leave it as it was"
# Part of an exception's text → what it means here.
_ADVICE = {
    "'function' object has no attribute": (
        ": a function stands where its result is meant: call it, as in tl.num_programs(0)"
    ),
    "acc.type.element_ty == out_dtype": ": `acc` has the type of what tl.dot gives, float32",
    "accumulator shape is incompatible": (
        ": `acc` has the rows of the first operand of tl.dot, and the columns of the second"
    ),
    "must be Tensor, not tensor": ": torch's functions take no block of a kernel; tl has its own, such as tl.exp",
    "block offset start must be 16-byte aligned": "; coordinates count elements, in the order of the extents",
    "arange's arguments must be of type tl.constexpr": (
        ": the size of a block is known when a kernel is compiled, so use a tl.constexpr and a mask"
    ),
    "make_shape_compatible": (
        ": one number for each row becomes a column by [:, None], one for each column a row by [None, :]"
    ),
}


def _endless(error: Failure, text: str) -> list[Line]:
    """The loop of an endless answer that makes no progress, and the line at which it was stopped."""
    at, loop = f" in line {error.line}: {error.code}" if error.line else "", error.loop
    if loop is None:
        return [Line(text + at)]
    why = "nothing changes from one turn to the next"
    if names := loop.names:
        listed = " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
        why = f"{listed} in its condition never {'changes' if len(names) == 1 else 'change'}"
    found = [Line(f"{text}: the loop in line {loop.line} makes no progress, as {why}"), Line(f"    {loop.code}")]
    return found if error.line == loop.line else [*found, Line(f"It was{at}")]


@lines_of.register
def _(cause: causes.Ended) -> list[Line]:
    how, status = cause.how, cause.status
    if how in _ENDS:
        killed_s = PATIENCE * cause.seconds + GRACE_S
        return [Line(_ENDS[how].format(killed_s=killed_s, memory_mb=cause.memory_mb))]
    if status < 0 and -status not in _CRASHES:
        return [Line(f"this was ended by {signal.Signals(-status).name} before a result came back")]
    if status < 0:
        return [Line(_CRASHES[-status].format(seconds=cause.seconds))]
    return [Line(f"this ended its own process (exit code {status}) before a result came back")]


_ENDS = {
    "printed": f"this printed more than {MAX_PRINTED >> 10} kB, so it was stopped: is there a print in a loop?",
    "malformed": "what came back is no result: is something other than the exercise's function running?",
    "done": "this says that it is done, and sent no result: is something other than the exercise's function running?",
    "threads": f"this started more than {MAX_THREADS} threads, or programs that need more than {{memory_mb}} MB "
    "together, so it was stopped",
    "files": f"this wrote more than {MAX_FILES_MB} MB, or {MAX_FILES} files and folders, so it was stopped",
    "endless": "still running after {killed_s:.0f} s and deaf to a signal, so it was killed: an endless loop?",
}
_SEGMENTATION = "this crashed its process (segmentation fault): it used memory far outside of its matrices"
_CRASHES = {
    signal.SIGSEGV: _SEGMENTATION,
    signal.SIGBUS: _SEGMENTATION,
    signal.SIGKILL: "this process was killed before a result came back: it used too much memory, or closed the "
    "pipe for its result",
    signal.SIGABRT: "this crashed its process (abort): memory beside a matrix was overwritten",
    signal.SIGXCPU: "this used more than {seconds:g} s of processor time, so it was stopped: an endless loop?",
}


@lines_of.register
def _(cause: causes.NotCompiled) -> list[Line]:
    if cause.how == "endless":
        found = [Line(f"not compiled within {cause.seconds:g} s")]
    elif cause.how in ("threads", "files"):
        found = [Line(_ENDS[cause.how].format(memory_mb=cause.memory_mb))]
    else:
        found = _compilers_words(cause.text, cause.source) or [Line("the compiler died")]
    return [Line("it runs in the interpreter, but the compiler refuses it:", leads=True), *found]


def _compilers_words(text: str, source: str) -> list[Line]:
    """The compiler's message with the line that it is about, without the source above that line."""
    lines = text.splitlines()
    caret = next((i for i, line in enumerate(lines) if line.strip() == "^"), None)
    if not caret:
        return [Line(line[:200]) for line in lines[:6]]
    code, own = lines[caret - 1].strip(), [line.strip() for line in source.splitlines()]
    reasons = [line.strip()[:200] for line in lines[caret + 1 :] if line.strip()]
    return [_about(own.index(code) + 1 if own.count(code) == 1 else 0, code), *map(Line, reasons[-4:])]


@lines_of.register
def _(cause: causes.OnlyOnGPU) -> list[Line]:
    first, *rest = [line for each in cause.causes for line in lines_of(each)] or [Line("")]
    return [Line(f"{ONLY_ON_GPU}{first.text}", first.about, first.leads), *rest]


@lines_of.register
def _(cause: causes.CannotCheck) -> list[Line]:
    also = f". And no answer runs on the GPU: {cause.on_gpu}" if cause.on_gpu else ""
    return [Line(f"this cannot be checked here: {cause.problem}{also}")]


# ---- messages


_ANYWHERE = ("brackets", "index", "step", "dropped")


def first_of_all(masks: Sequence[MaskProblem]) -> tuple[MaskProblem, ...]:
    """The problems of an answer's source that are wrong wherever they stand: they are named first of all."""
    return tuple(each for each in masks if each.kind in _ANYWHERE)


class Writer:
    """Writes the messages of one check, in the order in which they are shown.

    Args:
        source: of the answer; the lines that a message is about are quoted.
        masks: explain accesses outside of a matrix.
    """

    def __init__(self, source: str, masks: Sequence[MaskProblem] = ()):
        self._code = [line.strip() for line in _LINE_ENDS.split(source)]
        self._not_said = LESS_OR_EQUAL if source and not re.search("<=|[^-]>", source) else ""
        self._masks = masks
        self._shown: set[Line] = set()

    def write(self, found: Sequence[Cause]) -> tuple[str, str]:
        """A message, and its part that no earlier message has shown: an explanation of several checks is shown once."""
        said = [*self._mask_problem(found), *(line for each in found for line in lines_of(each))]
        lines = list(self._quoted([replace(line, text=line.text.replace(self._not_said, "")) for line in said]))
        kept = [line for line in lines if line not in self._shown]
        new = [self._ended(line, lines) for line in kept]
        self._shown.update(lines)
        if kept[:1] != lines[:1]:
            new.insert(0, Line(REASON_ABOVE))
        return tuple(printable("\n".join(line.text for line in each)) for each in (lines, new))

    def _ended(self, line: Line, lines: list[Line]) -> Line:
        """A line, with an end of its own if the reason to which it leads has been shown before."""
        later = lines[lines.index(line) + 1 :]
        reason = next((each for each in later if not each.text.startswith("    ")), None)
        shown = line.leads and (reason is None or reason in self._shown)
        return Line(f"{line.text} for the reason above") if shown else line

    def _mask_problem(self, found: Sequence[Cause]) -> list[Line]:
        """The mistake in the mask of the access that a message begins with."""
        event = found[0].event if found and isinstance(found[0], Observed) else None
        if event is None or event.kind not in _VERBS or not event.line:
            return []
        fits = (each for each in self._masks if each.first <= event.line <= each.last and each.kind not in _ANYWHERE)
        return next((lines_of(each) for each in fits if each.side in (None, event.side)), [])

    def _quoted(self, lines: list[Line]) -> Iterator[Line]:
        """Put below each line of a message the line of the answer that it is about, unless the message quotes it."""
        lines = [part for line in lines for part in _split(line)]
        message, done = "\n".join(line.text for line in lines), set()
        for line in lines:
            yield line
            code = self._code[line.about - 1] if 0 < line.about <= len(self._code) else ""
            if code and code not in message and code not in done:
                done.add(code)
                yield Line(f"    {code[:_MOST_QUOTED]}")


def _split(line: Line) -> list[Line]:
    """Split a text of several lines. The first keeps the line that it is about; the last leads to the next line."""
    *texts, last = printable(line.text).split("\n")
    found = [*map(Line, texts), Line(last, leads=line.leads)]
    return [Line(found[0].text, line.about, found[0].leads), *found[1:]]
