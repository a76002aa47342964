"""Exercise 04b: the tables by which a grouped kernel finds its matrices, for Y = X Wᵀ and any strides."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

import torch

from course_kernels.testing import reference
from gemm_course.exercises.drawing import made_on_cpu, table_panel, whole_numbers
from gemm_course.judging import feedback
from gemm_course.judging.case import Case, Finding, Ran
from gemm_course.runner import probes
from gemm_course.runner.runs.e04b_tables import (
    CONFIG,
    MATRICES,
    TABLES,
    matrices,
    matrix_name,
    rows_of,
    size_of,
    table_problem,
)

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
            m, n, k = rng.sample(range(17, 61), 3)
            x, w = (whole_numbers(rng, extent, k) for extent in (m, n))
            problems.append({"x": x, "w": w, "layouts": [each[g] for each in layouts], "skips": g == 1})
        sizes = "; ".join(", ".join(map(str, size)) for size in map(size_of, problems))
        cases.append(Case({"problems": problems}, CHECKS, label=f"M, N, K of the problems: {sizes}"))
    return cases


def examine(case: Case, ran: Ran) -> Iterator[Finding]:
    """Check the tables one by one; then the products of the kernel."""
    problems, value = case.inputs["problems"], ran.value
    if "returned" in value:
        none = value["returned"] == "NoneType"
        text = "None: is there a `return`?" if none else f"a {value['returned']}"
        yield Finding(
            "*", f"the function must return three tensors, `pointers, sizes, strides`, and it returned {text}"
        )
        return
    # Addresses are those of the answer's process, told before the answer was loaded.
    watch = probes.Watch()
    watch.device = torch.device("cpu")
    here = matrices(problems, watch)
    true = {name: rows_of(name, here) for name in ("sizes", "strides")}
    places = [[ran.addresses[matrix_name(g, c)] for c in range(len(MATRICES))] for g in range(len(problems))]
    true["pointers"] = [[address for address, _, _ in row] for row in places]
    for name, table in value["tables"].items():
        if wrong := table_problem(name, table, len(problems)):
            yield Finding("form", wrong)
        if not table.get("there"):
            text = f"`{name}` is on the CPU, and the matrices are on a GPU, which cannot read it"
            if table["kind"] == "Tensor":
                text += f":\n{made_on_cpu('inputs[0].device')}"
            yield Finding("device", text)
        got = table["values"].tolist() if table["kind"] == "Tensor" else []
        if table.get("shape") != [len(problems), TABLES[name][0]] or "int" not in table["dtype"]:
            yield from (Finding(check, f"not judged, since `{name}` has another form") for check in (name, "device"))
        elif got == true[name]:
            if name == "pointers" and value["stale"]:
                text = (
                    "called again with other matrices of the same sizes and strides, `pointers` has the wrong addresses"
                )
                yield Finding(name, f"{text}:\ndoes the function keep anything from the first call?")
        else:
            if name == "pointers":
                text = _about_pointers(got, true[name], [[each[1:] for each in row] for row in places])
            else:
                text = _about_sizes(got, true[name]) if name == "sizes" else _about_strides(got, true)
            yield Finding(name, text, _picture(name, got, true[name]))
    if value["turned"]:
        yield Finding("strides", _about_turned(*value["turned"]))
    yield from _about_products(problems, ran)


def _about_turned(at: int, before: list, after: list) -> str:
    """A matrix of the caller's that has another shape or other strides after the call."""
    g, which = divmod(at, len(MATRICES))
    (was, steps), (shape, now) = ((tuple(each[0]), tuple(each[1])) for each in (before, after))
    text = f"{matrix_name(g, which)} was {was} with strides {steps} before the call, and is {shape} with {now} after"
    return f"{text}:\nthe matrices belong to the caller. `.t_()` changes a matrix itself; `.t()` makes a view of it"


def _first(got: list, want: list) -> tuple[int, int]:
    return next((g, c) for g, row in enumerate(want) for c, number in enumerate(row) if got[g][c] != number)


def _about_pointers(got: list, want: list, spans: list) -> str:
    for order in itertools.permutations(range(3)):
        if got == [[row[c] for c in order] for row in want]:
            return f"the columns of `pointers` are {', '.join(MATRICES[c] for c in order)}; the kernel reads X, W, Y"
    g, c = _first(got, want)
    address, text = got[g][c], f"`pointers[{g}, {c}]` is not the address of {matrix_name(g, c)}"
    copied = (
        "Is it the address of a copy, as `.contiguous()` makes? Copy no matrix. A copy is freed when\n"
        "problem_tables returns, and its memory is used for something else: a dangling pointer"
    )
    if address & 0xFFFFFFFF == want[g][c] & 0xFFFFFFFF:
        return f"{text}, only its lower 32 bits; an address has 64"
    for other, row in enumerate(want):
        if address in row:
            return f"{text}, but that of {matrix_name(other, row.index(address))}"
    for other, row in enumerate(spans):
        for which, (start, length) in enumerate(row):
            if address == start:
                return f"{text}, but of the start of its buffer; {matrix_name(other, which)} begins further on"
            if start < address < start + length:
                return f"{text}, but another place in the buffer of {matrix_name(other, which)}"
    return f"{text}, and in none of the matrices.\n{copied}"


def _about_sizes(got: list, want: list) -> str:
    g = _first(got, want)[0]
    has, should = (", ".join(map(str, table[g])) for table in (got, want))
    text = f"`sizes[{g}]` is {has}; problem {g} has M, N, K = {should}"
    for order in itertools.product(range(3), repeat=3):
        if got == [[row[e] for e in order] for row in want]:
            text += f":\nthese are {', '.join(EXTENTS[e] for e in order)}"
            return text + ("; W is (N, K), so N is its number of rows" if order == (0, 2, 2) else "")
    return text + (f":\nthese are the sizes of problem {want.index(got[g])}" if got[g] in want else "")


def _about_strides(got: list, true: dict) -> str:
    want = true["strides"]
    if got == [[*row[:2], row[3], row[2], *row[4:]] for row in want]:
        g, c = 0, 2
        why = "these are the strides of W; the kernel reads B = Wᵀ, whose rows are W's columns"
    else:
        g, c = _first(got, want)
        why = _why_stride(got, want, true["sizes"][g], g, c)
    steps = feedback.counted(want[g][c], "element")
    text = f"`strides[{g}, {c}]` is {got[g][c]}; in problem {g} {STRIDES[c]} in steps of {steps}"
    return f"{text}:\n{why}" if why else text


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
    states = [[feedback.RIGHT if a == b else feedback.WRONG for a, b in zip(*rows)] for rows in zip(got, want)]
    labels = [[str(number) if name != "pointers" else "" for number in row] for row in got]
    title = f"your {name}: {'M, N, K' if name == 'sizes' else 'X, W, Y' if name == 'pointers' else 'X, Wᵀ, Y'}"
    return [table_panel(title, states, labels)]


def _about_products(problems: list, ran: Ran) -> Iterator[Finding]:
    if not ran.value["ran"]:
        yield Finding("products", "not run: with these tables the kernel might read any address")
        return
    lines, panels = [feedback.sentence(event) for event in ran.events[:1]], []
    for g, problem in enumerate(problems):
        want = reference.gemm(problem["x"], problem["w"].T, torch.float32)
        written = ran.outputs[matrix_name(g, 2)]
        panels.append(feedback.panel(written, want, CONFIG.block[:2]))
        if text := feedback.tiles(written, want, CONFIG.block[:2]):
            lines.append(text)
    if lines:
        yield Finding("products", "\n".join(lines[:2]), panels)
