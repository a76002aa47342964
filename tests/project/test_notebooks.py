"""The stored notebooks: in step with their sources, executed, free of the machine that rendered them."""

from __future__ import annotations

import ast
import base64
import functools
import heapq
import importlib.util
import itertools
import math
import re
import struct

import pytest

from course_kernels import schedule, testing
from course_kernels.bench import record
from course_kernels.targets import TARGETS
from gemm_course.lessons import l13_group_walks as group_walks
from gemm_course.lessons.listing import fold
from places import ROOT

nbformat = pytest.importorskip("nbformat", reason="needs nbformat and jupytext: pip install '.[course,dev]'")
pytest.importorskip("jupytext", reason="needs nbformat and jupytext: pip install '.[course,dev]'")
pytest.importorskip("msgspec", reason="needs msgspec: pip install '.[course,dev]'")

import render  # noqa: E402
import site_lessons_page  # noqa: E402

SOURCES = sorted(render.SOURCES.glob("*.py"))
NOTEBOOKS = sorted(render.NOTEBOOKS.glob("*.ipynb"))
LESSONS = 18  # 00 to 17; until all are there, the README names those to come
MAX_CODE_LINES = 25
MAX_BYTES = 1_500_000
MAX_FIGURE_BYTES = 200_000
MAX_FIGURE_WIDTH = 1600  # pixels; JupyterLab's column is about 900 wide


def names(paths):
    return [path.stem for path in paths]


def code_cells(path):
    notebook = nbformat.read(path, as_version=nbformat.NO_CONVERT)
    return [cell for cell in notebook.cells if cell.cell_type == "code" and cell.source.strip()]


def figures(cell):
    outputs = [output.get("data", {}) for output in cell.outputs]
    return [base64.b64decode(data["image/png"]) for data in outputs if "image/png" in data]


def dropped(source, drawing):
    """Calls of functions of the modules ``drawing`` whose value is lost: not the last expression of a cell."""
    body = ast.parse(source).body
    alone = (statement for outer in body for statement in ast.walk(outer) if isinstance(statement, ast.Expr))
    return [
        ast.unparse(each)
        for each in alone
        if each is not body[-1]
        and isinstance(each.value, ast.Call)
        and isinstance(each.value.func, ast.Attribute)
        and isinstance(each.value.func.value, ast.Name)
        and each.value.func.value.id in drawing
    ]


every_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=names(NOTEBOOKS))


@every_notebook
def test_no_figure_is_drawn_and_not_shown(path):
    cells = [cell.source for cell in code_cells(path) if not re.search(r"^\s*[%!]", cell.source, re.MULTILINE)]
    imported = [
        alias.asname or alias.name
        for source in cells
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ImportFrom) and node.module == "gemm_course.figures"
        for alias in node.names
    ]
    assert [lost for source in cells for lost in dropped(source, imported)] == []


def test_a_figure_that_is_not_shown_is_found():
    assert dropped("if x:\n    draw.all()\nelse:\n    print(1)", ["draw"]) == ["draw.all()"]
    assert dropped("draw.one()\ndraw.two()", ["draw"]) == ["draw.one()"]
    assert dropped("print(draw.one())\nother.two()\n0", ["draw"]) == []


def test_there_are_lessons_and_each_has_its_notebook():
    assert SOURCES
    assert names(SOURCES) == names(NOTEBOOKS)


def test_lessons_are_in_order_and_each_number_is_one_lesson():
    numbers = [int(re.fullmatch(r"(\d\d)_[a-z0-9_]+", name)[1]) for name in names(SOURCES)]
    assert numbers == sorted(set(numbers))
    assert set(numbers) <= set(range(LESSONS))
    assert names(SOURCES)[0] == "00_start_here"


def test_readme_has_every_lesson_once_those_to_come_included():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"\[(\d\d) [^]]+\]\(notebooks/(\d\d_\w+)\.ipynb\)", readme)
    assert [number for number, _ in rows] == [target[:2] for _, target in rows]
    assert [target for _, target in rows] == names(NOTEBOOKS)
    paragraph = re.search(r"^To come: (.*?)(?=\n\n)", readme, re.MULTILINE | re.DOTALL)
    to_come = re.findall(r"\b(\d\d) \w", paragraph[1]) if paragraph else []
    missing = sorted({f"{number:02d}" for number in range(LESSONS)} - {number for number, _ in rows})
    assert to_come == missing, "the table has the lessons that are there, the line below it the others"


def test_the_map_has_every_lesson_in_order():
    rows = re.findall(r"^# \| \[(\d\d) [^]]+\]\((\w+)\.ipynb\)", SOURCES[0].read_text(encoding="utf-8"), re.MULTILINE)
    assert [name for _, name in rows] == names(SOURCES)[1:]
    assert all(name.startswith(f"{number}_") for number, name in rows)


def text_cells(path):
    """The prose of a lesson's source, a cell each, without what the renderer adds."""
    return [cell.source for cell in render.jupytext.read(path).cells if cell.cell_type == "markdown"]


every_source = pytest.mark.parametrize("path", SOURCES, ids=names(SOURCES))


@every_source
def test_a_lesson_is_no_longer_than_one_sitting(path):
    words = sum(len(cell.split()) for cell in text_cells(path))
    assert words < (3000 if path.stem[:2] in ("07", "10") else 3700), f"{words} words of prose: make two lessons of it"


@every_source
def test_a_lesson_begins_with_its_time_and_goals(path):
    first = text_cells(path)[0]
    number, title = re.match(r"# (\d\d) · (.+)\n", first).groups()
    assert (number, title.strip()) == (path.stem[:2], title)
    assert re.search(r"\*\*About \d+ minutes\. Afterwards you can\*\*\n\n(- .+\n(  .+\n)*){2,5}", first + "\n"), first


@every_source
def test_the_map_says_how_long_a_lesson_takes(path):
    rows = re.findall(r"^# \| \[[^]]+\]\((\w+)\.ipynb\) .*\|(.*)\|$", SOURCES[0].read_text("utf-8"), re.MULTILINE)
    minutes = re.findall(r"\*\*About (\d+) minutes\.", text_cells(path)[0])
    assert path == SOURCES[0] or dict(rows)[path.stem] == f" about {minutes[0] if minutes else '?'} min "


@every_source
def test_a_lesson_ends_with_summary_references_and_what_to_read_next(path):
    cells = text_cells(path)
    last = cells[-1]
    places = [last.find(f"## {heading}\n") for heading in ("Summary", "References", "What to read next")]
    assert -1 not in places, last
    assert places == sorted(places)
    summary, references, _ = (part.strip() for part in re.split(r"^## .*\n", last[places[0] :], flags=re.MULTILINE)[1:])
    assert 3 <= len(re.findall(r"^- ", summary, re.MULTILINE)) <= 6
    assert re.findall(r"\]\(https://[^)]+\)", references) or path == SOURCES[0]


def test_a_lesson_links_to_the_one_before_and_the_one_after():
    for at, path in enumerate(SOURCES):
        wanted = [SOURCES[i].stem for i in ([at - 1, 0] if at else []) + ([at + 1] if at + 1 < len(SOURCES) else [])]
        cells = nbformat.read(render.notebook_of(path), as_version=nbformat.NO_CONVERT).cells
        for line in (cells[0].source.splitlines()[2], cells[-1].source.splitlines()[-1]):
            assert re.findall(r"\]\((\w+)\.ipynb\)", line) == wanted


@every_source
def test_a_guess_comes_before_its_answer(path):
    """A cell that begins a paragraph with **Guess** is followed by code whose output is hidden, and no other is."""
    cells = [cell for cell in render.build(path).cells if cell.source.strip()]
    for before, cell in zip([None, *cells], cells):
        if cell.cell_type == "code":
            asks = before is not None and re.search(r"^\*\*Guess\b", before.source, re.MULTILINE) is not None
            assert ("hide-output" in cell.metadata.get("tags", [])) == asks, cell.source.splitlines()[0]
            if asks and "next cell" in before.source.rpartition("**Guess")[2]:
                assert "hide-input" in cell.metadata["tags"], "the code gives the answer away"


@every_source
def test_the_text_below_a_guess_does_not_give_its_answer_away(path):
    """After hidden output comes a folded answer, a new section, or more code."""
    cells = [cell for cell in render.build(path).cells if cell.source.strip()]
    for guess, after in itertools.pairwise(cells):
        if "hide-output" in guess.metadata.get("tags", []) and after.cell_type == "markdown":
            assert after.source.startswith(("<details><summary>Answer</summary>\n\n", "## ")), after.source[:60]


@every_source
def test_every_question_has_an_answer(path):
    """Each item of a list of things to try holds a folded answer."""
    for cell in text_cells(path):
        found = re.search(r"^## Try it.*?\n(.*?)(?=^## |\Z)", cell, re.MULTILINE | re.DOTALL)
        items = re.split(r"^\d+\. ", found[1], flags=re.MULTILINE)[1:] if found else []
        assert [item for item in items if "<details><summary>Answer</summary>" not in item] == []


# ---- numbers in prose

UNITS = (
    r"(?:ns|µs|ms|s|seconds?|cycles|[KMGT]i?B(?:/s)?|bytes|[MGT]FLOPs?(?:/s)?|FLOPs?|MHz|GHz|W|%|percent|times|×|"
    r"registers|launches)"
)
NUMBER = r"\d(?:[\d,]*\d)?(?:\.\d+)?"
MEASURED = ("ns", "µs", "ms", "s", "TB/s", "GB/s", "TFLOP/s", "%")  # that code has the number, too, is chance
# A product of sizes, as 64 × 64, is none.
QUANTITY = re.compile(
    rf"(?<![\w.^·−])({NUMBER})(?:(?:,? (?:to|and|or) |, )({NUMBER}))*[ -]?({UNITS})(?! ?\d|\w| [A-Z]\b)"
)
# What a word of the prose or an architecture fixes, and nobody measured.
DEFINED = {
    "02": ["255 registers"],
    "06": ["66 bytes"],
    "08": ["40 bytes"],
    "09": ["2040 bytes"],
    "10": ["255 registers"],
    "12": ["100,000 times", "4 times", "1,000 times"],
}


def prose_of(path):
    """The text of a lesson without code, formulas and references."""
    cells = render.jupytext.read(path).cells
    text = "\n\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    for passed in (r"```.*?```", r"`[^`\n]*`", r"\$\$.*?\$\$", r"^## References.*?(?=^## )"):
        text = re.sub(passed, "…", text, flags=re.DOTALL | re.MULTILINE)
    return " ".join(re.sub(r"\*\*About \d+ minutes", "", text).split())


def definitions(path, folder):
    """A lesson's functions and constants, without running its other cells."""
    file = folder / path.name
    file.write_text(site_lessons_page.as_script(path), "utf-8")
    found = importlib.util.spec_from_file_location(f"lesson_{path.stem}", file)
    lesson = importlib.util.module_from_spec(found)
    found.loader.exec_module(lesson)
    return lesson


def wasted(block, _):
    """Percent of the rows, in lesson 09's blocks, that no token fills."""
    sizes = testing.routed_sizes("zipf", 8192, 12)
    return 100 * (1 - sum(sizes) / sum(-(-size // block) * block for size in sizes))


def ticket_us(_, bought=1):
    """From which price of a ticket on another schedule is faster on lesson 05's skewed batch.

    With one tile a ticket: round-robin. With two: these tickets, faster than those of one tile.
    """
    problems = [(2048, 1536, tokens) for tokens in testing.routed_sizes("zipf", 8192)]
    programs = 132
    free = schedule.simulate(problems, "dynamic", programs, cost=schedule.CostModel(atomic_us=0.0))
    spans = sorted((span for line in free.programs for span in line), key=lambda span: span.tile.problem)
    tiles = [span.end - span.start for span in spans]

    def end(price, tiles_of_a_ticket):
        ends = [0.0] * programs
        for first in range(0, len(tiles), tiles_of_a_ticket):
            heapq.heapreplace(ends, ends[0] + price + sum(tiles[first : first + tiles_of_a_ticket]))
        return max(ends)

    fixed = schedule.simulate(problems, "round_robin", programs).makespan
    rival = (lambda price: end(price, bought)) if bought > 1 else lambda _: fixed
    return next(price / 10 for price in range(100) if rival(price / 10) < end(price / 10, 1))


def lost(load, apart):
    """Lesson 12's loss of long sums that float32 takes over after so many products."""
    lesson = load()
    products = lesson.positive(64, 7168, seed=1) * lesson.positive(64, 7168, seed=2)
    return -float((lesson.add_up(products, apart) / products.sum(1) - 1).mean())


def slots(_):
    """Slots that the workers of lesson 13 look at in its last batch."""
    row = record.load("jagged")["rows"]["square"]
    return group_walks.scanned_slots(row["sizes"], row["N"], 132, (128, 128)).group_by_group


def in_products(load):
    """The products' share of the bytes of Mixtral's layer, in lesson 14."""
    lesson = load()
    mixtral = lesson.qwen3(32768, k=2, H=4096, I=14336, experts=8)
    done = lesson.layer_bytes.operations(lesson.plain_layer, *mixtral)
    return sum(each.moved for each in done if each.name == "product") / sum(each.moved for each in done)


def typed_numbers(prose, code, printed):
    """Quantities of the prose that neither a cell's code has nor its output, with their unit where that has one."""
    found = []
    for match in QUANTITY.finditer(prose):
        unit = match[match.lastindex]
        near = {"%": r" ?%", "times": r"(?: times| ?×|)"}.get(unit, rf" ?{re.escape(unit)}")
        for number in re.findall(NUMBER, match[0]):
            shown = re.search(rf"(?<![\d.,]){re.escape(number)}(?:0*(?!\.?\d)){near}(?!\w)", printed)
            literal = re.search(rf"(?<![\w.]){re.escape(number.replace(',', ''))}(?![\w.])", code.replace("_", ""))
            if not (shown or (literal and unit not in MEASURED)):
                found.append(f"{number} {unit}")
    return found


@every_source
def test_no_number_of_a_record_is_typed(path):
    """A time, rate, share or factor in prose is one that a cell prints, or has in its code: it changes with them."""
    cells = code_cells(render.notebook_of(path))
    outputs = [output for cell in cells for output in cell.outputs]
    printed = "\n".join(
        output.get("text", "") + str(output.get("data", {}).get("text/plain", "")) for output in outputs
    )
    code = "\n".join(cell.source for cell in cells)
    typed = typed_numbers(prose_of(path), code, printed)
    known = [*DEFINED.get(path.stem[:2], ()), *ANSWERS.get(path.stem[:2], ())]
    assert [each for each in typed if each not in known] == []


# Numbers in answers to what a reader tries: no cell prints them, so each is computed here.
ANSWERS = {
    "01": {"1 %": lambda _: math.ceil(100 * (4 * 101 / 401 - 1))},
    "03": {"82 %": lambda _: 100 * (1 - 50 * 80 * 72 / (128 * 128 * 96))},
    "05": {
        "73 µs": lambda _: schedule.simulate([(256, 256, 2048), (256, 256, 256)] * 3, "round_robin", 3).makespan,
        "2 µs": ticket_us,
        "3 µs": functools.partial(ticket_us, bought=2),
    },
    "07": {"163 KiB": lambda _: TARGETS["sm_80"].shared_limit / 1024},
    "08": {"227 KiB": lambda _: TARGETS["sm_90"].shared_limit / 1024},
    "09": {f"{share} %": functools.partial(wasted, rows) for share, rows in ((9, 128), (16, 256), (24, 512))},
    "12": {"0.4 %": lambda load: 100 * lost(load, 512)},
    "13": {"83 µs": lambda load: slots(load) / 132 * 0.01},
    "14": {
        "42 %": lambda load: 100 * in_products(load),
        "58 %": lambda load: 100 - 100 * in_products(load),
        "24,576 bytes": lambda _: 4 * 8 * 768,
    },
    "17": {"227 KiB": lambda _: TARGETS["sm_90"].shared_limit / 1024},
}


@pytest.mark.parametrize("number", ANSWERS)
def test_an_answer_has_the_number_that_comes_out(number, tmp_path):
    (path,) = (each for each in SOURCES if each.stem.startswith(number))
    assert set(ANSWERS[number]) <= set(typed_numbers(prose_of(path), "", "")), "the lesson says so"
    load = functools.partial(definitions, path, tmp_path)
    for quantity, computed in ANSWERS[number].items():
        said = quantity.split()[0].replace(",", "")
        assert f"{computed(load):.{len(said.partition('.')[2])}f}" == said


def test_a_typed_number_is_found():
    assert typed_numbers("It takes 19 µs, and 4 % less.", "", "18.3 µs, 4.6%") == ["19 µs", "4 %"]
    assert typed_numbers("It takes 18.3 µs, 3 to 5 times as long.", "", "18.3 µs, 3.0 to 5 × as long") == ["3 times"]
    assert typed_numbers("A copy takes 2.5 times as long.", "copy=2.5", "") == []
    assert typed_numbers("It takes 2 µs, or 64-byte lines.", "n = 2", "") == ["2 µs"]
    assert typed_numbers("Tiles of 128 rows, lesson 12.", "", "") == []


# Lessons 00 to 02 and 15 explain no kernel of the library.
KERNELS = [path for path in NOTEBOOKS if path.stem[:2] not in ("00", "01", "02", "15")]


@pytest.mark.parametrize("path", KERNELS, ids=names(KERNELS))
def test_a_lesson_shows_the_whole_production_kernel_folded(path):
    outputs = [output.get("data", {}).get("text/html", "") for cell in code_cells(path) for output in cell.outputs]
    assert any("<details><summary><code>" in html and "../src/" in html for html in outputs)


def test_every_link_to_the_glossary_finds_its_word():
    glossary = (render.NOTEBOOKS / "glossary.md").read_text(encoding="utf-8")
    words = re.findall(r"^## (.+)$", glossary, re.MULTILINE)
    assert words == sorted(words, key=str.lower)
    anchors = {word.replace(" ", "-") for word in words}  # as JupyterLab names them, and the site's configuration, too
    for path in [*SOURCES, *sorted((ROOT / "solutions").glob("*.ipynb"))]:
        used = re.findall(r"glossary\.md#([^)]+)", path.read_text(encoding="utf-8"))
        assert set(used) <= anchors, path.name


@every_source
def test_notebook_is_in_step_with_its_source(path):
    assert render.differences(path) == []


@every_notebook
def test_every_code_cell_was_executed_in_order(path):
    assert [cell.execution_count for cell in code_cells(path)] == list(range(1, len(code_cells(path)) + 1))


@every_notebook
def test_no_code_cell_is_long(path):
    long = [cell.source.splitlines()[0] for cell in code_cells(path) if cell.source.count("\n") >= MAX_CODE_LINES]
    assert long == [], f"cells of more than {MAX_CODE_LINES} lines"


@every_notebook
def test_errors_are_stored_only_where_they_are_the_lesson(path):
    for cell in code_cells(path):
        has_error = any(output.output_type == "error" for output in cell.outputs)
        expects_error = "raises-exception" in cell.metadata.get("tags", [])
        assert has_error == expects_error, cell.source.splitlines()[0]


@every_notebook
def test_outputs_do_not_depend_on_the_machine(path):
    assert render.suspicious(nbformat.read(path, as_version=nbformat.NO_CONVERT)) == []


@every_notebook
def test_no_key_of_a_record_is_printed_for_a_title(path):
    """Keys are ASCII, such as "32 x 20, 6144 x 7168"; extents that a reader sees have a times sign."""
    printed = "".join(output.get("text", "") for cell in code_cells(path) for output in cell.outputs)
    assert re.findall(r".*\d x \d.*", printed) == []


@every_notebook
def test_figures_are_shown_and_of_a_readable_size(path):
    """A cell that makes a Figure shows it: its text form never stands without its picture."""
    for cell in code_cells(path):
        texts = "".join(str(output.get("data", {}).get("text/plain", "")) for output in cell.outputs)
        pictures = figures(cell)
        first_line = cell.source.splitlines()[0]
        assert len(re.findall(r"<Figure size", texts)) == len(pictures), first_line
        for picture in pictures:
            width, height = struct.unpack(">II", picture[16:24])
            assert 200 <= width <= MAX_FIGURE_WIDTH, f"{first_line}: {width} x {height} pixels"
            assert len(picture) <= MAX_FIGURE_BYTES, f"{first_line}: {len(picture)} bytes"


@every_notebook
def test_every_lesson_shows_a_figure(path):
    assert any(figures(cell) for cell in code_cells(path))


@every_notebook
def test_notebook_is_small(path):
    assert path.stat().st_size <= MAX_BYTES


# The renderer itself.


def png(*chunks):
    parts = [struct.pack(">I", len(data)) + kind + data + b"\0\0\0\0" for kind, data in chunks]
    return render.PNG_SIGNATURE + b"".join(parts)


def test_png_loses_its_metadata_and_nothing_else():
    noisy = png((b"IHDR", b"h" * 13), (b"tEXt", b"Software\0x"), (b"IDAT", b"data"), (b"tIME", b"0"), (b"IEND", b""))
    assert render.strip_png(noisy) == png((b"IHDR", b"h" * 13), (b"IDAT", b"data"), (b"IEND", b""))


@pytest.fixture
def lesson(tmp_path, monkeypatch):
    """A function that writes the text of a lesson and returns its source's path."""
    monkeypatch.setattr(render, "SOURCES", tmp_path / "source")
    render.SOURCES.mkdir()

    def write(text):
        path = render.SOURCES / "90_tiny.py"
        path.write_text(text, encoding="utf-8")
        return path

    return write


def test_inserting_a_cell_keeps_the_other_ids(lesson):
    before = [cell["id"] for cell in render.build(lesson("# %%\na = 1\n\n# %%\na\n\n# %%\na\n")).cells]
    after = [cell["id"] for cell in render.build(lesson("# %%\nnew = 0\n\n# %%\na = 1\n\n# %%\na\n\n# %%\na\n")).cells]
    assert after[1:] == before
    assert len(set(before)) == 3, "equal cells have ids of their own"


def test_rendering_twice_leaves_no_diff_and_a_change_is_noticed(lesson):
    import asyncio

    text = '# %%\nprint("one")\n\n# %% tags=["nbval-raises-exception"]\n1 / 0\n'
    path = lesson(text)
    assert render.differences(path) == ["90_tiny.ipynb does not exist"]
    stored = []
    for _ in range(2):
        assert asyncio.run(render.render_all([path]))
        stored.append(render.notebook_of(path).read_bytes())
    assert stored[0] == stored[1]
    assert b"ZeroDivisionError" in stored[0]
    assert render.differences(path) == []
    assert "cell 0" in render.differences(lesson(text.replace("one", "two")))[0]


def test_code_that_changed_since_a_lesson_showed_it_is_noticed(lesson):
    path = lesson("# %%\nfold(f)\n")
    stored = render.build(path)
    now = fold(fold)
    stored.cells[0].outputs = [nbformat.v4.new_output("display_data", {"text/html": now._repr_html_()})]
    nbformat.write(stored, render.notebook_of(path))
    assert render.differences(path) == []
    stored.cells[0].outputs[0].data["text/html"] = now._repr_html_().replace("folded, with", "with")
    nbformat.write(stored, render.notebook_of(path))
    assert render.differences(path) == ["fold is not as in src/gemm_course/lessons/listing.py"]


def test_prose_alone_is_stored_without_running_and_other_code_is_refused(lesson, capsys):
    import asyncio

    text = "# %% [markdown]\n# old\n\n# %%\nprint('ran')\n"
    assert asyncio.run(render.render_all([lesson(text)]))
    path = lesson(text.replace("old", "new").replace("# %%\nprint", '# %% tags=["hide-output"]\nprint'))
    assert render.render_text([path])
    assert render.differences(path) == []
    stored = nbformat.read(render.notebook_of(path), as_version=nbformat.NO_CONVERT)
    assert (stored.cells[0].source, stored.cells[1].outputs[0].text) == ("new", "ran\n")
    assert stored.cells[1].metadata == {"jupyter": {"outputs_hidden": True}, "tags": ["hide-output"]}
    assert not render.render_text([lesson(text.replace("ran", "other"))])
    assert "render it without --text" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("cell", "message"),
    [("1 / 0", "ZeroDivisionError"), ("object()", "0x"), ("print('/tmp/x')", "/tmp/x"), ("1;", "semicolon")],
)
def test_a_bad_cell_fails_the_render_and_is_named(lesson, capsys, cell, message):
    import asyncio

    path = lesson(f"# %%\n{cell}\n")
    assert not asyncio.run(render.render_all([path]))
    assert message in capsys.readouterr().err
    assert not render.notebook_of(path).exists()
