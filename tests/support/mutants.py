r"""Wrong answers (mutants): each is an exercise's solution with a few things written otherwise.

`mutants/<exercise>.toml`, beside the exercises' tests, has a table for each:

    [start_ignored]
    check = "tokens"
    says = 'this is the sum over tokens 0 to \d+: is `start` used\?'
    changes = [['start, end', '0, end']]

`check` is the name of the check that must fail, or "-" for the whole run. Its message must match the regular expression
`says`; a long one is a list of its parts. In it, `line {tl.store}` is the number of the mutant's line with `tl.store`.
No message may match `never`, where there is one: another mistake's words, which an effect of this one has called up.

The interpreter rejects every mutant. Where a GPU alone is asked, one with `no_trace` may pass: its sentence, or a list
of the sentence's parts, says why the numbers on a GPU do not show the mistake, or not every time. A GPU test wants all
others rejected. Another table's mutant of the same name is another mutant, and needs a reason of its own.

`changes` are made one after the other. Each is [old, new] or [old, new, how often `old` is there]. An answer that has
little in common with the solution gives an `answer` instead: the lines that stand between the solution's markers.
"""

from __future__ import annotations

import ast
import functools
import itertools
import re
from typing import NamedTuple

import msgspec

from gemm_course.exercises import manifest
from gemm_course.exercises.manifest import tomllib
from gemm_course.notebook import cells, stubs
from places import MUTANTS, ROOT


class Change(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    old: str
    new: str
    times: int = 1


class Row(msgspec.Struct, forbid_unknown_fields=True):
    check: str
    says: str | list[str]
    changes: list[Change] = []
    answer: str = ""
    never: str = ""
    no_trace: str | list[str] | None = None


class Mutant(NamedTuple):
    name: str
    check: str
    says: str
    source: str
    never: str
    no_trace: str  # why a GPU does not show it; empty if a GPU must reject it


@functools.cache
def of(exercise: str) -> dict[str, Mutant]:
    """The mutants of an exercise by their names. Raises ValueError if one does not fit the solution."""
    (found,) = manifest.find(exercise)
    cell = cells.of_notebook(ROOT / "solutions" / f"{exercise}.ipynb", found.function)
    return made((MUTANTS / f"{exercise}.toml").read_text(encoding="utf-8"), cell, gpu=found.gpu)


def made(table: str, cell: str, *, gpu: bool = True) -> dict[str, Mutant]:
    """The mutants in the text of a table, made from the cell of a solution. `gpu`: whether it is checked on a GPU."""
    rows = msgspec.convert(tomllib.loads(table), dict[str, Row])
    for name, row in rows.items():
        if row.no_trace is not None:
            _refuse_no_reason(name, "".join(row.no_trace), gpu)
    lines = stubs.solution_lines(cell)
    solution = ast.dump(ast.parse(_with_answer(lines, "")))
    return {name: _mutant(name, row, lines, solution) for name, row in rows.items()}


def _refuse_no_reason(name, reason, gpu):
    if not gpu:
        raise ValueError(f"mutant {name}: no answer to this exercise runs on a GPU, so `no_trace` says nothing")
    if not re.fullmatch(r"[A-Z](?=(\S* ){4})[^\n]*\S\.", reason):
        raise ValueError(f"mutant {name}: `no_trace` must be a sentence that says why, got {reason!r}")


def _mutant(name, row, lines, solution):
    try:
        source = _with_answer(lines, row.answer)
        for change in row.changes:
            if (there := source.count(change.old)) != change.times:
                raise ValueError(f"{change.old!r} is there {there} times, not {change.times}")
            source = source.replace(change.old, change.new)
        if ast.dump(ast.parse(source)) == solution:
            raise ValueError("this is the solution")
        says = re.sub(r"(?<=line )\{(.+?)\}", lambda code: _line_of(code[1], source), "".join(row.says))
    except (ValueError, SyntaxError) as error:
        raise ValueError(f"mutant {name}: {error}") from error
    return Mutant(name, row.check, says, source, row.never, "".join(row.no_trace or ""))


def _with_answer(lines, answer):
    """The solution without its markers, with an answer, if there is one, in place of what is between them."""
    parts = [(inside, [line for line, _ in part]) for inside, part in itertools.groupby(lines, lambda line: line[1])]
    if answer and sum(inside for inside, _ in parts) != 1:
        raise ValueError("an `answer` needs a solution with one pair of markers")
    return "".join(f"{answer}\n" if answer and inside else "\n".join([*part, ""]) for inside, part in parts)


def _line_of(code, source):
    """The number, as text, of the only line that holds `code`."""
    numbers = [number for number, line in enumerate(source.splitlines(), 1) if code in line]
    if len(numbers) != 1:
        raise ValueError(f"`says` needs one line with {code!r}, and there are {len(numbers)}")
    return str(numbers[0])
