"""The site's page of lessons: routes, and for each lesson its minutes, a small figure, and a script that runs alone."""

from __future__ import annotations

import ast
import base64
import io
import json
import re
from collections.abc import Sequence
from pathlib import Path

import jupytext
from PIL import Image

import render
from gemm_course.exercises import manifest

INTRODUCTION = render.ROOT / "site" / "parts" / "lessons.md"
# Where a reader of a certain kind begins, and what comes next.
ROUTES = {
    "I have one afternoon": ("00", "01", "02", "03"),
    "I write Triton kernels": ("02", "03", "04", "05", "06", "07"),
    "I train MoE models": ("01", "04", "08", "11", "14", "15", "16"),
    "I serve MoE models": ("01", "04", "08", "12", "14", "15"),
    "I want the last percent of a Hopper GPU": ("04", "05", "06", "09", "10", "17"),
}
# The line that tools/render.py adds: the lesson before, the map, the lesson after. Lesson 00 has the last only.
NAVIGATION = r"(?m)^.*\| \[map\]\(00_\w+\.ipynb\).*$|^\[[^\n]*\]\(\d\d_\w+\.ipynb\) →$"
GOALS = re.compile(r"\*\*About (\d+) minutes\. Afterwards you can\*\*\n\n((?:- .+\n?(?:  .+\n?)*)+)")
SMALL = (480, 300)  # most pixels of a small figure: shown at half of that, sharp on dense screens
A_STRIP = 1 / 3  # a figure that is less high for its width says nothing when it is small
DEFINITIONS = ast.Import | ast.ImportFrom | ast.FunctionDef | ast.ClassDef
MAIN = 'if __name__ == "__main__":'
SCRIPT = '''"""{title}

The lesson's cells as one script: `python {name}` prints their outputs, and saves their figures in
`{stem}_figures`. It needs the course: `pip install -e '.[course]'` in its checkout.
"""

from gemm_course.lessons import script
'''


def minutes_and_goals(first: str) -> tuple[int, str]:
    """How long a lesson takes and what a learner can do afterwards, from the text of its first cell.

    Raises:
        ValueError: it does not say so.
    """
    found = GOALS.search(first)
    if not found:
        raise ValueError(f"a lesson's first cell must say its minutes and goals, got {first[:80]!r}")
    return int(found[1]), found[2]


def small_figure(cells: Sequence[dict]) -> tuple[bytes, str]:
    """The first of a lesson's figures that is no strip, as a small PNG, and the figure's description ("" if none).

    Raises:
        ValueError: no cell has a figure.
    """
    found = []
    for cell in cells:
        for data in (output.get("data", {}).get("image/png") for output in cell.get("outputs", [])):
            if data:
                image = Image.open(io.BytesIO(base64.b64decode("".join(data)))).convert("RGB")
                found.append((image, cell["metadata"].get("mystnb", {}).get("image", {}).get("alt", "")))
    if not found:
        raise ValueError("a lesson must have a figure")
    high = [each for each in found if each[0].height >= A_STRIP * each[0].width]
    image, description = (high or found)[0]
    image.thumbnail(SMALL, Image.Resampling.LANCZOS)
    packed = io.BytesIO()
    image.quantize(64, dither=Image.Dither.NONE).save(packed, "PNG", optimize=True)
    return packed.getvalue(), description


def as_script(source: Path) -> str:
    """A lesson as one Python file that runs alone: text as comments, and what a cell would show is printed.

    Args:
        source: of the lesson, `notebooks/source/NN_name.py`.
    """
    parts = [SCRIPT.format(title=render.title_of(source), name=source.name, stem=source.stem)]
    for cell in jupytext.read(source, fmt="py:percent").cells:
        if cell.cell_type == "markdown":
            text = re.sub(r"\[([^]]*)\]\((?!https?:)[^)]*\)", r"\1", cell.source)  # the script has no neighbours
            parts.append("\n".join(f"# {line}".rstrip() for line in text.splitlines()))
        elif code := plain(cell.source):
            fails = any(tag.endswith("raises-exception") for tag in cell.metadata.get("tags", []))
            parts.append(guarded(code, fails))
    return "\n\n".join(parts) + "\n"


def plain(cell: str) -> str:
    """A cell's code without what only a notebook knows: magics, `display`, and the value of the last line."""
    cell = re.sub(r"(?m)^(?:%.*|from IPython\.display import display)\n?", "", cell).strip("\n")
    lines, edits = cell.encode().split(b"\n"), []
    statements = ast.parse(cell).body
    for node in ast.walk(ast.Module(statements, [])):
        if isinstance(node, ast.Name) and node.id == "display":
            edits += [(node.lineno, node.col_offset, node.end_col_offset, b"script.show")]
    last = statements[-1] if statements else None
    if isinstance(last, ast.Expr) and not ast.unparse(last).startswith(("print(", "display(")):
        edits += [(last.end_lineno, last.end_col_offset, last.end_col_offset, b")")]
        edits += [(last.lineno, last.col_offset, last.col_offset, b"script.show(")]
    for line, start, end, text in sorted(edits, reverse=True):
        lines[line - 1] = lines[line - 1][:start] + text + lines[line - 1][end:]
    return b"\n".join(lines).decode()


def guarded(code: str, fails: bool = False) -> str:
    """A cell's code with all but imports, functions, classes and constants under ``if __name__ == "__main__":``.

    The compiler of `course_kernels.codegen` imports the file of a kernel, and must not run the lesson again.

    Args:
        code: of one cell.
        fails: the lesson shows an error here.
    """
    lines, parts, above = code.split("\n"), [], 0
    for node in ast.parse(code).body:
        inside = not (isinstance(node, DEFINITIONS) or is_constant(node))
        chunk = lines[above : node.end_lineno]
        if inside:
            within = {i for text in ast.walk(node) if isinstance(text, ast.Constant | ast.JoinedStr)
                      for i in range(text.lineno, text.end_lineno)}  # fmt: skip
            indent = "        " if fails else "    "
            chunk = [indent + line if line and above + i not in within else line for i, line in enumerate(chunk)]
        if parts and parts[-1][0] == inside:
            parts[-1][1].extend(chunk)
        else:
            parts.append((inside, chunk))
        above = node.end_lineno
    head = MAIN + "\n    with script.expected_error():" * fails
    blocks = ["\n".join(([head] if inside else []) + strip_blank(chunk)) for inside, chunk in parts]
    return "\n\n".join([*blocks, *filter(None, ["\n".join(lines[above:]).strip("\n")])])


def strip_blank(lines: list[str]) -> list[str]:
    """Lines without the empty ones before and after them."""
    return "\n".join(lines).strip("\n").split("\n")


def is_constant(node: ast.stmt) -> bool:
    """Whether a statement gives names in capitals values that need no other name: functions may need them early."""
    if not isinstance(node, ast.Assign):
        return False
    names = [each.id if isinstance(each, ast.Name) else "" for each in node.targets]
    needed = {each.id for each in ast.walk(node.value) if isinstance(each, ast.Name)}
    return all(name.isupper() for name in names) and needed <= {"tl", "torch", "triton"}


def routes(minutes: dict[str, int], titles: dict[str, str]) -> str:
    """A table of the routes; ``minutes`` and ``titles`` (links) of lessons by their numbers."""
    rows = [
        f"| {name} | {' · '.join(titles[number] for number in route)} | {hours(sum(minutes[n] for n in route))} |"
        for name, route in {**ROUTES, "I want all of it": tuple(minutes)}.items()
    ]
    return "\n".join(["| | lessons | time |", "| --- | --- | ---: |", *rows])


def hours(minutes: int) -> str:
    """Minutes in half hours, as a table says it."""
    halves = round(minutes / 30)
    return f"{halves // 2 or ''}{'½' * (halves % 2)} h"


def lessons(gathered) -> None:
    """The stored lessons, without the links to their neighbours, which the site makes itself; and an overview.

    Args:
        gathered: the site's pages, a `make_site.Gathered`.
    """
    overview, minutes, titles = [], {}, {}
    for source in render.sources([]):
        path, number = render.notebook_of(source), source.stem[:2]
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        for cell in cells:
            cell["source"] = re.sub(NAVIGATION, "", "".join(cell["source"]))
        script = gathered.original(f"notebooks/{source.name}", as_script(source))
        minutes[number], goals = minutes_and_goals(cells[0]["source"])
        goals = gathered.relink(goals, f"notebooks/{path.name}", "lessons.md")
        titles[number] = f"[{number}](notebooks/{path.name})"
        gathered.notebook(f"notebooks/{path.name}", cells, {"as a script": script})
        picture, description = small_figure(cells)
        gathered.file(f"thumbnails/{path.stem}.png", picture)
        tried = [e for e in manifest.exercises() if e.lesson == path.stem]
        links = "; ".join(f"[{e.id} {e.title}](exercises/{e.name}.ipynb), {e.points} points" for e in tried)
        overview.append(
            f"## [{render.title_of(source)}](notebooks/{path.name})\n\n"
            f"```{{image}} thumbnails/{path.stem}.png\n:alt: Lesson {number}, a figure. {description}\n"
            f":target: notebooks/{path.stem}.html\n:class: lesson-figure\n```\n\n"
            f"{minutes[number]} minutes. Afterwards you can\n\n{goals}\n\n"
            + f"Exercises: {links}.\n\n" * bool(tried)
            + f"{{download}}`Download it as a script <originals/notebooks/{source.name}>`\n"
        )
    introduction = INTRODUCTION.read_text(encoding="utf-8").replace("<!-- routes -->", routes(minutes, titles))
    gathered.page("lessons.md", "\n".join(["# The lessons", "", introduction, *overview]) + "\n")
    gathered.linked.add("notebooks/glossary.md")
