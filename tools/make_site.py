"""Build the course's site: `python tools/make_site.py` gathers its pages and has Sphinx make HTML of them.

    python tools/make_site.py                     into site/_build/html
    python tools/make_site.py FOLDER              into FOLDER/html
    python tools/make_site.py --external-links    only ask other sites whether the addresses that pages link to exist

Gathering, not Sphinx, knows what a page is made of: `site/*.md`, the stored notebooks, each exercise with its hints and
its solution, a page for each part of the library, and a page for each file of the repository that another page links
to. Pages keep their places in the repository, and pages of `site/` become the site's root. Nothing is executed.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import importlib.util
import inspect
import json
import os
import posixpath
import pydoc
import re
import shutil
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from urllib.parse import unquote

import course_kernels
import render
import site_lessons_page
import site_plots
from gemm_course.exercises import manifest
from gemm_course.notebook import stubs
from gemm_course.notebook.cells import of_notebook

ROOT = Path(__file__).resolve().parents[1]
SITE = ROOT / "site"
BUILD = SITE / "_build"
INDEX = {
    "README.md": "index.md",
    "notebooks": "lessons.md",
    "exercises": "exercises.md",
    "site": "index.md",
    "src/course_kernels/packed/api.py": "api/packed.md",  # its docstrings
}
# Titles of the library's pages, in the order of the contents. A part that is not here comes last, under its own name.
PARTS = {
    "packed": "Packed groups",
    "fp8": "8-bit operands",
    "gmm": "Names of AITER",
    "masked": "Masked groups, for decoding",
    "jagged": "One matrix for all groups",
    "lists": "Lists of matrices",
    "layout": "Descriptions of groups",
    "config": "Configurations and the runtime",
}
PLOT = r"<!-- plot: (\w+)(?: relative to ([\w-]+))? -->"
TOGETHER = {"runtime": "config"}
TOOLS = ("codegen", "schedule", "testing", "cutlass_ops")
FIGURES = "gemm_course.figures"
# Pages that the theme brings along for its templates. Their links lead nowhere.
LEFT_OVERS = ("_static/webpack-macros.html", "_static/sbt-webpack-macros.html")
LANGUAGES = {".py": "python", ".toml": "toml", ".json": "json", ".yml": "yaml", ".ipynb": "json"}


class Gathered:
    """The folder that Sphinx reads, and the files of the repository that its pages link to."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.linked: set[str] = set()
        self.pages: set[str] = set()

    def page(self, name: str, text: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        self.pages.add(name)

    def place(self, path: str) -> str:
        """Where a file of the repository is on the site, as a path among the gathered files."""
        if path in INDEX:
            return INDEX[path]
        if path.startswith("site/"):
            return path.removeprefix("site/")
        if path.endswith((".md", ".ipynb", ".png")):
            return path
        return f"{path}.md"

    def relink(self, text: str, origin: str, name: str, html: bool = False) -> str:
        """A page's text with each link to a file of the repository made a link to its page.

        Args:
            text: Markdown, or with ``html`` the HTML of a notebook's output.
            origin: the page's own path in the repository; links are relative to it.
            name: path of the page among the gathered files.
        """

        def replace(match: re.Match) -> str:
            target, hash_, anchor = match[2].partition("#")
            path, anchor = posixpath.normpath(posixpath.join(posixpath.dirname(origin), target)), slug(anchor)
            if not target:
                return f"{match[1]}{hash_}{anchor}{match[3]}"
            if "://" in target or path.startswith("..") or not (ROOT / path).exists():
                return match[0]
            there = self.place(path)
            if there == f"{path}.md" or path.endswith((".md", ".png")):
                self.linked.add(path)
            link = posixpath.relpath(there, posixpath.dirname(name) or ".")
            if html:
                link = re.sub(r"\.(md|ipynb)$", ".html", link)
            return f"{match[1]}{link}{hash_}{anchor}{match[3]}"

        pattern = r'((?:href|src)=")([^"]+)(")' if html else r"(\]\()([^)\s]+)(\))"
        return re.sub(pattern, replace, text)

    def file(self, name: str, content: bytes) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)

    def original(self, name: str, text: str) -> str:
        """A file to download from the page of the same place; returns its address there."""
        self.file(f"originals/{name}", text.encode())
        return posixpath.relpath(f"originals/{name}", posixpath.dirname(name))

    def notebook(self, name: str, cells: list[dict], downloads: Mapping[str, str] = MappingProxyType({})) -> None:
        """A page of a notebook, with a link to download it, and more of these after it: their texts and addresses."""
        for cell in cells:
            if cell["cell_type"] == "markdown":
                cell["source"] = self.relink("".join(cell["source"]), name, name)
            for output in cell.get("outputs", []):
                html = output.get("data", {}).get("text/html")
                if html:
                    output["data"]["text/html"] = self.relink(unnested("".join(html)), name, name, html=True)
        describe_figures(name, cells)
        address = self.original(name, (ROOT / name).read_text(encoding="utf-8"))
        links = {"Download this notebook": address, **downloads}
        line = " · ".join(f"{{download}}`{text} <{each}>`" for text, each in links.items())
        cells[0]["source"] = f"{cells[0]['source'].rstrip()}\n\n{line}\n"
        whole = {"cells": cells, "metadata": render.METADATA, "nbformat": 4, "nbformat_minor": 5}
        self.page(name, json.dumps(whole))


def slug(anchor: str) -> str:
    """The anchor of a heading on the site, which is GitHub's, from GitHub's or JupyterLab's, which keeps capitals."""
    return re.sub(r"[^\w-]", "", unquote(anchor).lower())


def unnested(html: str) -> str:
    """HTML with the links of a summary below it: a click on a summary opens it, and cannot follow a link as well."""

    def below(found: re.Match) -> str:
        links = re.findall(r"<a .*?</a>", found[1], re.S)
        plain = re.sub(r"</?a\b[^>]*>", "", found[1])
        return f"<summary>{plain}</summary>" + "".join(f"<p>{link}</p>" for link in links)

    return re.sub(r"<summary>(.*?)</summary>", below, html, flags=re.S)


def describe_figures(name: str, cells: list[dict]) -> None:
    """Give each cell with a picture a description of it, for readers who cannot see it.

    The description is the first paragraph of the docstring of the function that draws, with the title and the names of
    panels in the call.

    Raises:
        ValueError: a cell with a picture does not call exactly one function of the course's figures that draws.
    """
    imported: dict[str, str] = {}
    for cell in cells:
        if cell["cell_type"] != "code":
            continue
        tree = ast.parse(re.sub(r"(?m)^%.*$", "", "".join(cell["source"])))
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(FIGURES):
                imported |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
        if not any("image/png" in output.get("data", {}) for output in cell.get("outputs", [])):
            continue
        drawn = [text for node in ast.walk(tree) if isinstance(node, ast.Call) and (text := described(node, imported))]
        if len(drawn) != 1:
            raise ValueError(f"{name}: cell {cell['id']} must call one function that draws, got {len(drawn)}")
        cell["metadata"]["mystnb"] = {"image": {"alt": drawn[0]}}


def described(call: ast.Call, imported: dict[str, str]) -> str:
    """What a call of the course's figures draws; "" for any other call."""
    local, dot, rest = ast.unparse(call.func).partition(".")
    function = pydoc.locate(imported[local] + dot + rest) if local in imported else None
    start, _, what = (inspect.getdoc(function) or "").partition("\n\n")[0].replace("`", "").partition(" ")
    if start != "Draw":
        return ""
    titles = [
        each.value.value for each in call.keywords if each.arg == "title" and isinstance(each.value, ast.Constant)
    ]
    panels = call.args[0].keys if call.args and isinstance(call.args[0], ast.Dict) else []
    names = [str(key.value) for key in panels if isinstance(key, ast.Constant)]
    listed = f" ({'; '.join(names)})" if names and len(names) == len(panels) else ""
    what = " ".join(what.split()).rstrip(".")
    return ". ".join([*titles, f"{what[0].upper()}{what[1:]}{listed}."])


def details(summary: str, text: str) -> str:
    """Markdown that a reader sees after a click."""
    return f"<details><summary>{summary}</summary>\n\n{text}\n\n</details>\n"


def exercises(gathered: Gathered) -> None:
    """Each exercise as a learner gets it, then its hints and its solution, folded; and a list of all."""
    overview = ["# Exercises", (SITE / "parts" / "exercises.md").read_text(encoding="utf-8")]
    rows = []
    for e in manifest.exercises():
        lesson = f"[{e.lesson[:2]}](notebooks/{e.lesson}.ipynb)"
        rows.append(f"| [{e.id} {e.title}](exercises/{e.name}.ipynb) | {lesson} | {e.points} |")
    overview.append("\n".join(["| exercise | lesson | points |", "| --- | ---: | ---: |", *rows]))
    overview.append("```{toctree}\n:hidden:\n:glob:\n\nexercises/*\n```\n")
    gathered.page("exercises.md", "\n\n".join(overview))
    for exercise in manifest.exercises():
        name = f"exercises/{exercise.name}.ipynb"
        cells = json.loads((ROOT / name).read_text(encoding="utf-8"))["cells"]
        for cell in cells:
            cell["metadata"].pop("nbgrader", None)
        read_only = (
            f"```{{note}}\nTo solve it, open `{name}` in the course's JupyterLab: there, `check(...)` says what is "
            f"right and what is wrong. The checks: {'; '.join(check.title for check in exercise.checks)}.\n```"
        )
        answer = of_notebook(ROOT / "solutions" / f"{exercise.name}.ipynb", exercise.function)
        code = "\n".join(line for line, _ in stubs.solution_lines(answer))
        hints = "\n".join(details(f"Hint {i}", hint) for i, hint in enumerate(exercise.hints, 1))
        texts = [read_only, f"## Hints\n\n{hints}", f"## Solution\n\n{details('Show it', fenced(code, 'python'))}"]
        added = [{"cell_type": "markdown", "id": f"site-{i}", "metadata": {}, "source": t} for i, t in enumerate(texts)]
        gathered.notebook(name, [cells[0], added[0], *cells[1:], *added[1:]])


def fenced(text: str, language: str, option: str = "") -> str:
    ticks = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", text)), default=0))
    return f"{ticks}{language}\n{option}{text.rstrip()}\n{ticks}"


def reference(gathered: Gathered) -> None:
    """A page for each part of the library, from what `course_kernels.__all__` lists; and one for its tools."""
    parts: dict[str, list[str]] = {part: [] for part in PARTS}
    for name in course_kernels.__all__:
        value = getattr(course_kernels, name)
        part = getattr(value, "__module__", None) or value.__name__
        part = part.split(".")[1]
        parts.setdefault(TOGETHER.get(part, part), []).append(name)
    for part, names in parts.items():
        if not names:
            continue
        intro = SITE / "parts" / f"{part}.md"
        lines = [f"# {PARTS.get(part, part)}", intro.read_text(encoding="utf-8") if intro.exists() else ""]
        for name in names:
            value = getattr(course_kernels, name)
            kind = "class" if isinstance(value, type) else "function" if callable(value) else "module"
            lines += [f"## {name}", directive(f"auto{kind}", f"course_kernels.{name}", members=kind != "function")]
        gathered.page(f"api/{part}.md", "\n\n".join(lines) + "\n")
    shown = [part for part, names in parts.items() if names]
    for part in TOOLS:
        intro = (SITE / "parts" / f"{part}.md").read_text(encoding="utf-8")
        there = part != "cutlass_ops" or importlib.util.find_spec("cutlass") is not None
        lines = [f"# course_kernels.{part}", intro]
        if there:
            importlib.import_module(f"course_kernels.{part}")
            lines.append(directive("automodule", f"course_kernels.{part}", members=True))
        gathered.page(f"api/{part}.md", "\n\n".join(lines) + "\n")
    contents = "\n".join(f"api/{part}" for part in [*shown, *TOOLS])
    listed = "\n".join(
        f"- [{PARTS.get(part, part)}](api/{part}.md): {', '.join(f'`{each}`' for each in parts[part])}"
        for part in shown
    )
    tools = "\n".join(f"- [`course_kernels.{part}`](api/{part}.md)" for part in TOOLS)
    text = f"# Reference\n\n## Functions and classes\n\n{listed}\n\n## Tools\n\n{tools}\n"
    gathered.page("reference.md", f"{text}\n```{{toctree}}\n:hidden:\n\n{contents}\n```\n")


def directive(kind: str, name: str, members: bool) -> str:
    return f"```{{eval-rst}}\n.. {kind}:: {name}\n" + "   :members:\n" * members + "```"


def pages(gathered: Gathered) -> None:
    """The pages in `site/`, with their plots."""
    for path in sorted(SITE.glob("*.md")):
        text = re.sub(PLOT, lambda found: site_plots.plot(found[1], found[2] or ""), path.read_text("utf-8"))
        gathered.page(path.name, gathered.relink(text, f"site/{path.name}", path.name))


def linked_files(gathered: Gathered) -> None:
    """A page for each file of the repository that a page links to, and for those that these link to."""
    done: set[str] = set()
    while left := sorted(gathered.linked - done):
        for path in left:
            done.add(path)
            place = gathered.place(path)
            if place in gathered.pages or path.startswith("site/"):
                continue
            if path.endswith(".png"):
                (gathered.folder / place).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / path, gathered.folder / place)
                continue
            if (ROOT / path).is_dir():
                inside = sorted(each.name for each in (ROOT / path).iterdir() if not each.name.startswith((".", "_")))
                gathered.page(place, aside(path, "\n".join(f"- `{each}`" for each in inside)))
                continue
            text = (ROOT / path).read_text(encoding="utf-8")
            if path.endswith(".md"):
                gathered.page(place, f"---\norphan: true\n---\n{gathered.relink(text, path, place)}")
            else:
                language = LANGUAGES.get(Path(path).suffix, "text")
                gathered.page(place, aside(path, fenced(text, f"{{code-block}} {language}", ":linenos:\n\n")))


def aside(path: str, text: str) -> str:
    """A page that is in no list of contents, and whose text the search leaves out."""
    return f"---\norphan: true\nnosearch: true\n---\n# `{path}`\n\n{text}\n"


def gather(folder: Path) -> None:
    """Write everything that Sphinx reads into a folder, which is made anew."""
    shutil.rmtree(folder, ignore_errors=True)
    gathered = Gathered(folder)
    site_lessons_page.lessons(gathered)
    exercises(gathered)
    reference(gathered)
    pages(gathered)
    linked_files(gathered)


def build(work: Path, builder: str = "html") -> int:
    """Gather the pages in ``work``/source and have Sphinx read them there; a warning is an error.

    Args:
        work: a folder; what was made in it before is replaced.
        builder: of Sphinx, and the name of the folder in ``work`` with its result.
    """
    from sphinx.cmd.build import main as sphinx

    started, target = time.perf_counter(), work / builder
    gather(work / "source")
    shutil.rmtree(target, ignore_errors=True)
    options = ["-q", "-W", "--keep-going", "-b", builder, "-c", str(SITE), "-d", str(work / "doctrees")]
    code = sphinx([*options, str(work / "source"), str(target)])
    if code == 0:
        tidy(target)
        print(f"{os.path.relpath(target)}: {time.perf_counter() - started:.0f} s", flush=True)
        if builder == "html":
            print(f"Open {os.path.relpath(target / 'index.html')}", flush=True)
    return code


def tidy(target: Path) -> None:
    """Take away what the theme leaves over, and name the arrows of its menu."""
    for name in LEFT_OVERS:
        (target / name).unlink(missing_ok=True)
    arrow = r'(<a class="[^"]*" href="[^"]*">([^<]*)</a><details[^>]*>)<summary>(?=<span class="toctree-toggle")'
    for path in target.rglob("*.html"):
        text = path.read_text(encoding="utf-8")
        named = re.sub(arrow, r'\1<summary aria-label="Pages below: \2">', text)
        if named != text:
            path.write_text(named, encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=BUILD)
    parser.add_argument("--external-links", action="store_true")
    arguments = parser.parse_args()
    try:
        (arguments.folder / "source").mkdir(parents=True, exist_ok=True)
        os.utime(arguments.folder / "source")
    except OSError as error:
        print(f"The site needs a folder that can be written: {error}. Name another one: {sys.argv[0]} FOLDER")
        return 1
    return build(arguments.folder, "linkcheck" if arguments.external_links else "html")


if __name__ == "__main__":
    sys.exit(main())
