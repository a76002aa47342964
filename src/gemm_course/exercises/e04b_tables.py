"""Exercise 04b: the tables by which a grouped kernel finds its matrices, for Y = X Wᵀ and any strides."""

from __future__ import annotations

import contextlib
import itertools
import random
from collections.abc import Iterator

import torch
from torch.overrides import TorchFunctionMode

from course_kernels import runtime, testing
from course_kernels.config import GemmConfig
from course_kernels.kernels.codes import Layout, Record
from course_kernels.testing import reference
from gemm_course.exercises.case import Case, Finding, Ran
from gemm_course.judging import feedback as diagnose
from gemm_course.runner import probes

CONFIG = GemmConfig(32, 32, 32, num_warps=4, num_stages=2)
PROGRAMS = 4
TABLES = {"pointers": (3, torch.int64), "sizes": (3, torch.int32), "strides": (6, torch.int64)}
CHECKS = ("form", "device", *TABLES, "products")
MATRICES = ("X", "W", "Y")
EXTENTS = ("M", "N", "K")
STRIDES = (
    "X goes from row to row", "X goes from column to column",
    "B = Wᵀ goes from row to row", "B = Wᵀ goes from column to column",
    "Y goes from row to row", "Y goes from column to column",
)  # fmt: skip
OPERANDS = ((0, 1, "x"), (3, 2, "w"), (4, 5, "y"))  # where a table of strides has stride(0) and stride(1) of each


def draw(rng: random.Random) -> list[Case]:
    """Two batches in which every matrix lies in a wider buffer, and X, W and Y are row-major and column-major."""
    cases = []
    for count in (3, rng.choice([2, 4])):
        problems = []
        layouts = [rng.sample(["row", "col"], 2) * 2 for _ in MATRICES]
        for g in range(count):
            m, n, k = rng.sample(range(17, 61), 3)
            x = testing.integers((m, k), generator=rng.getrandbits(31), low=1, high=3)
            w = testing.integers((n, k), generator=rng.getrandbits(31), low=1, high=3)
            problems.append({"x": x, "w": w, "layouts": [each[g] for each in layouts], "skips": g == 1})
        sizes = "; ".join(", ".join(map(str, size)) for size in map(_size, problems))
        cases.append(Case({"problems": problems}, CHECKS, label=f"M, N, K of the problems: {sizes}"))
    return cases


def _size(problem: dict) -> tuple[int, int, int]:
    return problem["x"].shape[0], problem["w"].shape[0], problem["x"].shape[1]


def matrices(problems: list, watch: probes.Watch) -> list[tuple[torch.Tensor, ...]]:
    """X, W and Y of every problem, watched."""
    found = []
    for g, problem in enumerate(problems):
        layout, x = problem["layouts"], problem["x"]
        if problem["skips"]:  # every other column of something wider
            wide = torch.full((x.shape[0], 2 * x.shape[1]), float("nan"), dtype=x.dtype)
            wide[:, ::2] = x
            x = watch.matrix(_name(g, 0), wide, layout[0])[:, ::2]
        else:
            x = watch.matrix(_name(g, 0), x, layout[0])
        w = watch.matrix(_name(g, 1), problem["w"], layout[1])
        found.append((x, w, watch.output(_name(g, 2), _size(problem)[:2], torch.float32, layout[2])))
    return found


def tables_of(problems: list[tuple[torch.Tensor, ...]]) -> dict[str, list]:
    """The right tables."""
    return {
        "pointers": [[t.data_ptr() for t in problem] for problem in problems],
        "sizes": [[x.shape[0], w.shape[0], x.shape[1]] for x, w, _ in problems],
        "strides": [[*x.stride(), *w.t().stride(), *y.stride()] for x, w, y in problems],
    }


def run(answer, inputs: dict, watch) -> dict:
    """Call the answer; hand its tables to the library's kernel where that can do no harm."""
    problems = matrices(inputs["problems"], watch)
    right, device = tables_of(problems), problems[0][0].device
    spans = [[[t.untyped_storage().data_ptr(), t.untyped_storage().nbytes()] for t in problem] for problem in problems]
    played = _PlayedGPU() if device.type == "cpu" else None
    with played or contextlib.nullcontext():
        tables = answer(*map(list, zip(*problems)))
    if not isinstance(tables, (tuple, list)) or len(tables) != 3:
        return {"returned": type(tables).__name__}
    described = {name: _describe(table, played, device) for name, table in zip(TABLES, tables)}
    ran = all(_form(name, table, len(problems)) is None for name, table in described.items())
    for name, table in described.items() if ran else ():
        # A probe stands before wrong addresses, in the interpreter; a wrong size may mean a million tiles.
        if name == "sizes" or runtime.mode() != "interpreter":
            ran = ran and table["values"].tolist() == right[name]
    if ran:
        _launch(described, watch)
    return {"tables": described, "pointers": right["pointers"], "spans": spans, "ran": ran}


def _name(g: int, which: int) -> str:
    return f"{MATRICES[which]} of problem {g}"


def _describe(table, played: _PlayedGPU | None, device: torch.device) -> dict:
    """What a table is; its values as they are, on the CPU."""
    if not isinstance(table, torch.Tensor):
        return {"kind": type(table).__name__}
    return {
        "kind": "Tensor",
        "dtype": str(table.dtype).removeprefix("torch."),
        "shape": list(table.shape),
        "contiguous": table.is_contiguous(),
        "there": played.has(table) if played else table.device == device,
        "values": table.detach().cpu().contiguous().to(torch.float64 if table.is_floating_point() else torch.int64),
    }


def _launch(described: dict, watch) -> None:
    """The library's kernel, by copies of the tables, so that reads of them are watched, too."""
    from course_kernels.kernels import round_robin
    from course_kernels.lists import launch

    pointers, sizes, strides = (described[name]["values"] for name in TABLES)
    sizes = sizes.to(torch.int32)
    columns = [watch.table(f"pointers[:, {which}]", pointers[:, which]) for which in range(3)]
    tables = watch.packed("sizes", sizes), watch.packed("strides", strides)
    options = launch.compile_time_arguments(
        "round_robin", CONFIG, dtype=torch.float16, out_dtype=torch.float32, aligned=False,
        layouts=(Layout.ANY,) * 3, record_level=Record.OFF,
    )  # fmt: skip
    tiles = sum(CONFIG.tiles(m, n) for m, n, _ in sizes.tolist())
    round_robin.round_robin_kernel[(PROGRAMS,)](*columns, *tables, len(sizes), tiles, None, None, **options)


class _PlayedGPU(TorchFunctionMode):
    """Lets the CPU's matrices pass for a GPU's, so that it shows where a table was put.

    Their `device` reads "cuda:0"; what is made there is made on the CPU. What is made without saying where belongs to
    the host, as on a machine with a GPU.
    """

    GPU = torch.device("cuda", 0)

    def __init__(self):
        super().__init__()
        self._host: dict[int, torch.Tensor] = {}  # keeps them: a number is a tensor's as long as it lives

    def has(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor lies on the GPU."""
        return id(tensor) not in self._host

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        name = getattr(function, "__name__", "")
        if function == torch.Tensor.device.__get__:
            return self.GPU if self.has(args[0]) else torch.device("cpu")
        if name == "pin_memory":
            return args[0]
        kwargs.pop("pin_memory", None)
        if name == "cuda":
            name, function, args, kwargs = "to", torch.Tensor.to, (args[0], self.GPU), {}
        asked = kwargs.get("device")
        if asked is None and name == "to":
            asked = next((each for each in args[1:] if isinstance(each, (str, int, torch.device))), None)
        if asked is not None:
            here = torch.device("cpu")
            args = tuple(here if each is asked else each for each in args)
            kwargs = {key: here if each is asked else each for key, each in kwargs.items()}
        result = function(*args, **kwargs)
        if not isinstance(result, torch.Tensor):
            return result
        flat = [each for arg in args for each in (arg if isinstance(arg, (list, tuple)) else (arg,))]
        sources = [each for each in flat if isinstance(each, torch.Tensor)]
        if asked is not None:
            there = isinstance(asked, int) or torch.device(asked).type == "cuda"
        elif name == "to" and len(sources) > 1:
            there = self.has(sources[1])
        else:
            there = bool(sources) and name != "tensor" and self.has(sources[0])
        if any(result is each for each in sources) and there != self.has(result):
            result = result.clone()  # on another device it would be a copy
        self._host.pop(id(result), None)
        if not there:
            self._host[id(result)] = result
        return result


def examine(case: Case, ran: Ran) -> Iterator[Finding]:
    """Look at the tables one by one; then at what the kernel made of them."""
    problems, value = case.inputs["problems"], ran.value
    if "returned" in value:
        none = value["returned"] == "NoneType"
        text = "None: is there a `return`?" if none else f"a {value['returned']}"
        yield Finding(
            "*", f"the function must return three tensors, `pointers, sizes, strides`, and it returned {text}"
        )
        return
    # Strides and sizes are this process's own; only the other one knows where its matrices were.
    watch = probes.Watch()
    watch.device = torch.device("cpu")
    true = {**tables_of(matrices(problems, watch)), "pointers": value["pointers"]}
    for name, table in value["tables"].items():
        if wrong := _form(name, table, len(problems)):
            yield Finding("form", wrong)
        if not table.get("there"):
            text = f"`{name}` lies on the CPU, and the matrices on a GPU, which cannot read it"
            if table["kind"] == "Tensor":
                text += ":\na tensor is made on the CPU unless it is told where (`device=inputs[0].device`)"
            yield Finding("device", text)
        got = table["values"].tolist() if table["kind"] == "Tensor" else []
        if table.get("shape") != [len(problems), TABLES[name][0]] or "int" not in table["dtype"]:
            yield from (Finding(check, f"not judged, since `{name}` has another form") for check in (name, "device"))
        elif got != true[name]:
            if name == "pointers":
                text = _about_pointers(got, true[name], value["spans"])
            else:
                text = _about_sizes(got, true[name]) if name == "sizes" else _about_strides(got, true)
            yield Finding(name, text, _picture(name, got, true[name]))
    yield from _about_products(problems, ran)


def _form(name: str, table: dict, count: int) -> str | None:
    """What is wrong with a table before its numbers are read."""
    columns, dtype = TABLES[name]
    wanted = str(dtype).removeprefix("torch.")
    if table["kind"] != "Tensor":
        return f"`{name}` must be a tensor, and it is a {table['kind']}: a kernel cannot read Python's memory"
    if table["shape"] != [count, columns]:
        return (
            f"`{name}` must have a row for each of {count} problems, ({count}, {columns}); its shape is {_shape(table)}"
        )
    if table["dtype"] != wanted:
        size = getattr(torch, wanted).itemsize
        return f"`{name}` must be {wanted}, and it is {table['dtype']}: the kernel reads {size} bytes for each number"
    if not table["contiguous"]:
        return f"`{name}` is a view in another order: the kernel reads its memory, and knows nothing of its strides"
    return None


def _shape(table: dict) -> str:
    return f"({', '.join(map(str, table['shape']))})"


def _first(got: list, want: list) -> tuple[int, int]:
    """Row and column of the first number that differs."""
    return next((g, c) for g, row in enumerate(want) for c, number in enumerate(row) if got[g][c] != number)


def _about_pointers(got: list, want: list, spans: list) -> str:
    for order in itertools.permutations(range(3)):
        if got == [[row[c] for c in order] for row in want]:
            return f"the columns of `pointers` are {', '.join(MATRICES[c] for c in order)}; the kernel reads X, W, Y"
    g, c = _first(got, want)
    address, text = got[g][c], f"`pointers[{g}, {c}]` is not the address of {_name(g, c)}"
    copied = (
        "Is it that of a copy, as `.contiguous()` makes? Nobody holds the copy when problem_tables has returned,\n"
        "and its memory goes to whoever asks next: a dangling pointer"
    )
    if address & 0xFFFFFFFF == want[g][c] & 0xFFFFFFFF:
        return f"{text}, only its lower 32 bits: an address has 64"
    for other, row in enumerate(want):
        if address in row:
            return f"{text}, but that of {_name(other, row.index(address))}"
    for other, row in enumerate(spans):
        for which, (start, length) in enumerate(row):
            if address == start:
                return f"{text}, but of the buffer in which {_name(other, which)} begins further on"
            if start < address < start + length:
                return f"{text}, but lies somewhere in the buffer of {_name(other, which)}"
    return f"{text}, and lies in none of the matrices.\n{copied}"


def _about_sizes(got: list, want: list) -> str:
    g = _first(got, want)[0]
    has, should = (", ".join(map(str, table[g])) for table in (got, want))
    text = f"`sizes[{g}]` is {has}, and problem {g} has M, N, K = {should}"
    for order in itertools.product(range(3), repeat=3):
        if got == [[row[e] for e in order] for row in want]:
            text += f":\nthese are {', '.join(EXTENTS[e] for e in order)}"
            return text + ("; W is (N, K), so N is its number of rows" if order == (0, 2, 2) else "")
    return text + (f":\nthese are those of problem {want.index(got[g])}" if got[g] in want else "")


def _about_strides(got: list, true: dict) -> str:
    want = true["strides"]
    if got == [[*row[:2], row[3], row[2], *row[4:]] for row in want]:
        g, c = 0, 2
        why = "these are W's own strides; the kernel reads B = Wᵀ, whose rows are W's columns"
    else:
        g, c = _first(got, want)
        why = _why_stride(got, want, true["sizes"][g], g, c)
    steps = diagnose.counted(want[g][c], "element")
    text = f"`strides[{g}, {c}]` is {got[g][c]}, and in problem {g} {STRIDES[c]} in steps of {steps}"
    return f"{text}:\n{why}" if why else text


def _why_stride(got: list, want: list, size: list, g: int, c: int) -> str:
    """Where a wrong stride may come from."""
    number = got[g][c]
    first, second, name = next(each for each in OPERANDS if c in each[:2])
    down, across = want[g][first], want[g][second]
    if got[g][first] == across and got[g][second] == down:
        return f"{name}.stride(0) and {name}.stride(1) are exchanged"
    if number == (across if c == first else down):
        return f"that is {name}.stride({int(c == first)}), and {name}.stride({int(c != first)}) is asked for"
    if number in size:
        extent = EXTENTS[size.index(number)]
        return f"that is {extent}, an extent: {name} is a view of something wider, and only {name}.stride() knows it"
    itemsize = 4 if name == "y" else 2
    if number == want[g][c] * itemsize:
        return f"that counts bytes; the kernel counts elements, of {itemsize} bytes each"
    other = next((o for o, row in enumerate(want) if row[c] == number), None)
    return f"that is the stride in problem {other}" if other is not None else ""


def _picture(name: str, got: list, want: list) -> list[dict]:
    """A table, wrong numbers marked; of an address it is enough to know whether it is right."""
    states = [[diagnose.RIGHT if a == b else diagnose.WRONG for a, b in zip(*rows)] for rows in zip(got, want)]
    labels = [[str(number) if name != "pointers" else "" for number in row] for row in got]
    title = f"your {name}: {'M, N, K' if name == 'sizes' else 'X, W, Y' if name == 'pointers' else 'X, Wᵀ, Y'}"
    return [{"title": title, "shape": [len(got), len(got[0])], "block": [1, 1], "states": states, "labels": labels}]


def _about_products(problems: list, ran: Ran) -> Iterator[Finding]:
    if not ran.value["ran"]:
        yield Finding("products", "not run: these tables might lead the kernel anywhere")
        return
    lines, panels = [diagnose.sentence(event) for event in ran.events[:1]], []
    for g, problem in enumerate(problems):
        want = reference.gemm(problem["x"], problem["w"].T, torch.float32)
        written = ran.outputs[_name(g, 2)]
        panels.append(diagnose.panel(written, want, CONFIG.block[:2]))
        if text := diagnose.tiles(written, want, CONFIG.block[:2]):
            lines.append(text)
    if lines:
        yield Finding("products", "\n".join(lines[:2]), panels)
