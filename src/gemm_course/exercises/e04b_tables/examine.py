"""Exercise 04b: the tables by which a grouped kernel finds its matrices, for Y = X Wᵀ and any strides."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

import torch

from course_kernels.testing import reference
from gemm_course.exercises.e04b_tables.run import (
    BLOCK_M,
    BLOCK_N,
    FIRST,
    LARGEST,
    MATRICES,
    SECOND,
    TABLES,
    matrices,
    matrix_name,
)
from gemm_course.exercises.inputs import whole_numbers
from gemm_course.judging import diagnosis
from gemm_course.judging.case import Case, Finding, Ran
from gemm_course.judging.cause_sentences import counted
from gemm_course.judging.causes import Causes, MadeOnCPU, Observed, Words
from gemm_course.judging.panels import RIGHT, WRONG, panel, table_panel
from gemm_course.runner import probes
from gemm_course.runner.fake_gpu import FakeGPU

CHECKS = ("form", "device", *TABLES, "products")
EXTENTS = ("M", "N", "K")
STRIDES = (
    "X goes from row to row", "X goes from column to column",
    "B = Wᵀ goes from row to row", "B = Wᵀ goes from column to column",
    "Y goes from row to row", "Y goes from column to column",
)  # fmt: skip
OPERANDS = ((0, 1, "x"), (3, 2, "w"), (4, 5, "y"))  # columns of stride(0) and stride(1) of each in the table


def draw(rng: random.Random) -> list[Case]:
    """Two batches; every matrix is part of a wider buffer, and X, W and Y are row-major and column-major."""
    cases = []
    for count in (3, rng.choice([2, 4])):
        problems = []
        layouts = [rng.sample(["row", "col"], 2) * 2 for _ in MATRICES]
        for g in range(count):
            m, n, k = rng.sample(range(17, LARGEST + 1), 3)
            x, w = (whole_numbers(rng, extent, k) for extent in (m, n))
            problems.append({"x": x, "w": w, "layouts": [each[g] for each in layouts], "skips": g == 1})
        sizes = "; ".join(", ".join(map(str, size)) for size in map(size_of, problems))
        cases.append(Case({"problems": problems}, CHECKS, label=f"M, N, K of the problems: {sizes}"))
    return cases


def examine(case: Case, ran: Ran) -> Iterator[Finding]:
    """Check the tables one by one; then the products of the kernel, which count if the tables are right."""
    problems, value = case.inputs["problems"], ran.value
    first, second = value["first"], value["second"]
    if isinstance(first, str):
        text = "None: is there a `return`?" if first == "NoneType" else f"a {first[:40]}"
        yield Finding(
            "*", f"the function must return three tensors, `pointers, sizes, strides`, and it returned {text}"
        )
        return
    watch = probes.Watch()
    watch.device = torch.device("cpu")
    here = matrices(problems, watch)
    true = {
        "pointers": _addresses(ran, len(problems), FIRST),
        "sizes": [list(size_of(problem)) for problem in problems],
        "strides": [[*x.stride(), *w.t().stride(), *y.stride()] for x, w, y in here],
    }
    later = {**true, "pointers": _addresses(ran, len(problems), SECOND)}
    malformed, right = 0, 0
    for at, (name, table) in enumerate(zip(TABLES, first, strict=True)):
        if wrong := _wrong_form(name, table, len(problems)):
            malformed += 1
            yield Finding("form", wrong)
        if table.get("device") != str(FakeGPU.GPU):
            text = f"`{name}` is on the CPU, and the matrices are on a GPU, which cannot read it"
            made_there = MadeOnCPU("inputs[0].device") if "numbers" in table else ""
            yield Finding("device", Words(text, because=made_there))
        got = _rows(name, table, len(problems))
        if got is None:
            yield from (Finding(check, f"not judged, since `{name}` has another form") for check in (name, "device"))
        elif got != true[name]:
            about = _about(name, got, true, later, ran)
            if name == "pointers" and isinstance(value.get("objects"), list) and _shares(got, value["objects"]):
                about = "id() gives the address of Python's object; data_ptr() gives that of the first element"
            yield Finding(name, about, _picture(name, got, true[name]))
        else:
            right += 1
            if isinstance(second, str) or _rows(name, second[at], len(problems)) != later[name]:
                yield Finding(name, _about_second(name))
    if not right:
        yield from (Finding(check, "not judged, since no table is right") for check in ("form", "device"))
    yield from _about_turned(here, value["after"])
    yield from _about_products(problems, ran, right == len(TABLES) and not malformed)


def size_of(problem: dict) -> tuple[int, int, int]:
    """M, N and K of a problem."""
    return problem["x"].shape[0], problem["w"].shape[0], problem["x"].shape[1]


def _addresses(ran: Ran, count: int, batch: str) -> list[list[int]]:
    """Addresses in the answer's process, reported before the answer was loaded."""
    return [[ran.addresses[matrix_name(g, c, batch)][0] for c in range(len(MATRICES))] for g in range(count)]


def _wrong_form(name: str, table: dict, count: int) -> str | None:
    """The mistake in the form of a table; None if the kernel can read it."""
    columns, dtype = TABLES[name]
    wanted, numbers = str(dtype).removeprefix("torch."), table.get("numbers")
    if isinstance(numbers, dict):
        got = str(numbers["not"])[:60].replace(" on cpu", "")  # where the device may be presented as a GPU
        return f"`{name}` must be a dense tensor of {wanted}, got: {got}"
    if not isinstance(numbers, torch.Tensor):
        return f"`{name}` must be a tensor, and it is a {table['kind'][:40]}: a kernel cannot read Python's memory"
    if numbers.shape != (count, columns):
        text = f"`{name}` must have a row for each of {count} problems, ({count}, {columns})"
        return f"{text}; its shape is ({', '.join(map(str, numbers.shape))})"
    if numbers.dtype != dtype:
        has = str(numbers.dtype).removeprefix("torch.")
        return f"`{name}` must be {wanted}, and it is {has}: the kernel reads {dtype.itemsize} bytes for each number"
    if not table["contiguous"]:
        return f"`{name}` is a view in another order: the kernel reads its memory, and knows nothing of its strides"
    return None


def _rows(name: str, table: dict, count: int) -> list[list[int]] | None:
    """The rows of a table of whole numbers, also of other than the kernel reads; None if it has another shape."""
    numbers = table.get("numbers")
    if not isinstance(numbers, torch.Tensor) or numbers.shape != (count, TABLES[name][0]):
        return None
    return numbers.tolist() if "int" in str(numbers.dtype) else None


def _about(name: str, got: list, true: dict, later: dict, ran: Ran) -> Causes:
    """The mistake in the numbers of a table."""
    if name == "sizes":
        return _about_sizes(got, true[name])
    return _about_strides(got, true) if name == "strides" else _about_pointers(got, true[name], later[name], ran)


def _about_second(name: str) -> Words:
    noun = "addresses" if name == "pointers" else "numbers"
    text = f"called again with other matrices of the same sizes and strides, `{name}` has the wrong {noun}"
    return Words(text, because="does the function keep anything from the first call?")


def _about_turned(here: list, after: list) -> Iterator[Finding]:
    """The first matrix of the caller's that has another shape or other strides after the call."""
    for g, (problem, looks) in enumerate(zip(here, after, strict=True)):
        for which, (matrix, look) in enumerate(zip(problem, looks, strict=True)):
            (shape, strides), was = map(tuple, look), (tuple(matrix.shape), matrix.stride())
            if (shape, strides) == was:
                continue
            text = f"{matrix_name(g, which)} was {was[0]} with strides {was[1]} before the call, and is {shape} with "
            rule = "the matrices belong to the caller. `.t_()` changes a matrix itself; `.t()` makes a view of it"
            yield Finding("strides", Words(f"{text}{strides} after", because=rule))
            return


def _first(got: list, want: list) -> tuple[int, int]:
    return next((g, c) for g, row in enumerate(want) for c, number in enumerate(row) if got[g][c] != number)


def _shares(got: list, objects: list) -> bool:
    """True if a table has one of the objects' addresses in its place."""
    return any(number == other for row, others in zip(got, objects) for number, other in zip(row, others))


def _about_pointers(got: list, want: list, later: list, ran: Ran) -> str:
    for order in itertools.permutations(range(3)):
        if got == [[row[c] for c in order] for row in want]:
            return f"the columns of `pointers` are {', '.join(MATRICES[c] for c in order)}; the kernel reads X, W, Y"
    if got == later:
        return "the second call has put its addresses into the `pointers` of the first call: return a new tensor"
    g, c = _first(got, want)
    name = matrix_name(g, c)
    address, text = got[g][c], f"`pointers[{g}, {c}]` is not the address of {name}"
    if size := next((size for size in (2, 4, 8) if address == want[g][c] // size), 0):
        return f"{text}, but that divided by {size}: addresses count bytes, and the table holds them as they are"
    if address & 0xFFFFFFFF == want[g][c] & 0xFFFFFFFF:
        return f"{text}, only its lower 32 bits; an address has 64"
    if base := next((each for each, (begins, *_) in ran.addresses.items() if address == want[g][c] - begins), ""):
        return f"{text}, but how far it is from {base}: an address is what data_ptr() returns, with nothing subtracted"
    for other, (begins, start, length) in ran.addresses.items():
        if address == begins:
            return f"{text}, but that of {other}"
        if address == start:
            return f"{text}, but of the start of its buffer; {other} begins further on"
        if start < address < start + length:
            return f"{text}, but another place in the buffer of {other}"
    kept = f"gets the product, and {name} does not" if MATRICES[c] == "Y" else f"misses later changes of {name}"
    return (
        f"{text}, and in none of the matrices.\n"
        "Is it the address of a copy, as `.contiguous()` makes? Copy no matrix. A copy that nothing keeps is freed\n"
        f"before the kernel starts, and leaves a dangling pointer. A copy that is kept {kept}"
    )


def _about_sizes(got: list, want: list) -> Words:
    g = _first(got, want)[0]
    has, should = (", ".join(map(str, table[g])) for table in (got, want))
    text = f"`sizes[{g}]` is {has}; problem {g} has M, N, K = {should}"
    for order in itertools.product(range(3), repeat=3):
        if got == [[row[e] for e in order] for row in want]:
            rule = "; W is (N, K), so N is its number of rows" if order == (0, 2, 2) else ""
            return Words(text, because=f"these are {', '.join(EXTENTS[e] for e in order)}{rule}")
    return Words(text, because=f"these are the sizes of problem {want.index(got[g])}" if got[g] in want else "")


def _about_strides(got: list, true: dict) -> Words:
    want = true["strides"]
    if got == [[*row[:2], row[3], row[2], *row[4:]] for row in want]:
        g, c = 0, 2
        why = "these are the strides of W; the kernel reads B = Wᵀ, whose rows are W's columns"
    elif taken := _taken_strides(got, want):
        g, c, why = taken
    else:
        g, c = _first(got, want)
        why = _why_stride(got, want, true["sizes"][g], g, c)
    steps = counted(want[g][c], "element")
    text = f"`strides[{g}, {c}]` is {got[g][c]}; in problem {g} {STRIDES[c]} in steps of {steps}"
    return Words(text, because=why)


def _taken_strides(got: list, want: list) -> tuple[int, int, str] | None:
    """The first wrong place of a matrix that has another one's strides in all problems, and the reason."""
    for (*at, name), (*there, other) in itertools.permutations(OPERANDS, 2):
        wrong = [(g, c) for g, row in enumerate(want) for c in sorted(at) if got[g][c] != row[c]]
        has = [[row[c] for c in at] for row in got]
        if wrong and any(has == [[row[c] for c in order] for row in want] for order in (there, there[::-1])):
            return *wrong[0], f"that is a stride of {other}; the table needs the strides of {name} here"
    return None


def _why_stride(got: list, want: list, size: list, g: int, c: int) -> str:
    """A likely mistake that gives this stride."""
    number = got[g][c]
    first, second, name = next(each for each in OPERANDS if c in each[:2])
    down, across = want[g][first], want[g][second]
    if got[g][first] == across and got[g][second] == down:
        return f"{name}.stride(0) and {name}.stride(1) are exchanged"
    if number == (across if c == first else down):
        return f"that is {name}.stride({int(c == first)}); the table needs {name}.stride({int(c != first)})"
    if number in size:
        extent = EXTENTS[size.index(number)]
        return f"that is the extent {extent}, but {name} is a view of a wider tensor: use {name}.stride()"
    itemsize = 4 if name == "y" else 2
    if number == want[g][c] * itemsize:
        return f"that is in bytes; strides are in elements, of {itemsize} bytes each"
    other = next((o for o, row in enumerate(want) if row[c] == number), None)
    return f"that is the stride in problem {other}" if other is not None else ""


def _picture(name: str, got: list, want: list) -> list[dict]:
    """A table with wrong numbers marked; addresses have no labels."""
    states = [[RIGHT if a == b else WRONG for a, b in zip(*rows)] for rows in zip(got, want)]
    labels = [[str(number) if name != "pointers" else "" for number in row] for row in got]
    title = f"your {name}: {'M, N, K' if name == 'sizes' else 'X, W, Y' if name == 'pointers' else 'X, Wᵀ, Y'}"
    return [table_panel(title, states, labels)]


def _about_products(problems: list, ran: Ran, tables_are_right: bool) -> Iterator[Finding]:
    if not ran.value["launched"]:
        yield Finding("products", "not run: with these tables the kernel might read any address")
        return
    wrong, panels = [Observed(event) for event in ran.events[:1]], []
    for g, problem in enumerate(problems):
        want = reference.gemm(problem["x"], problem["w"].T, torch.float32)
        written = ran.outputs[matrix_name(g, 2)]
        panels.append(panel(written, want, (BLOCK_M, BLOCK_N)))
        if different := diagnosis.tiles(written, want, (BLOCK_M, BLOCK_N)):
            wrong.append(different)
    if wrong:
        yield Finding("products", wrong[:2], panels)
    elif not tables_are_right:
        yield Finding("products", "not judged, since not all tables are right")
