"""Execute the lesson sources into the stored notebooks, the same bytes every time.

    python tools/render.py            every lesson
    python tools/render.py 03 05      these lessons
    python tools/render.py --text 03  prose only: the code is as stored, so its outputs are kept and nothing is executed
    python tools/render.py --check    compare only: do the stored cells equal the sources, and folded code its files?

A source is `notebooks/source/NN_name.py` (jupytext's py:percent); its notebook is `notebooks/NN_name.ipynb`. Its first
and last cell get links to the lessons before and after it. A code cell tagged `hide-output` shows its output after a
click, one tagged `hide-input` its code.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import hashlib
import html
import re
import sys
import sysconfig
import time
from pathlib import Path

import jupytext
import nbformat

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = ROOT / "notebooks"
SOURCES = NOTEBOOKS / "source"

CELL_TIMEOUT_S = 120
PARALLEL = 2
# Tags that Jupyter Book knows, and the metadata with the same effect in JupyterLab.
HIDDEN = {"hide-output": "outputs_hidden", "hide-input": "source_hidden"}
# What a notebook must say about its kernel, and no more: versions in here would change with the machine.
METADATA = {
    "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
# What `gemm_course.lessons.fold` leaves in an output.
FOLDED = re.compile(r'<summary><code>(.+?)</code>.*?<a href="\.\./(.+?)">.*?<pre>(.*?)</pre></details>', re.DOTALL)
PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
PNG_NOISE = {b"tEXt", b"zTXt", b"iTXt", b"tIME"}


def notebook_of(source: Path) -> Path:
    """The stored notebook that belongs to a lesson source."""
    return source.parent.parent / f"{source.stem}.ipynb"


def sources(selection: list[str]) -> list[Path]:
    """The lesson sources whose names start with one of `selection`; all of them when it is empty."""
    found = sorted(SOURCES.glob("[0-9][0-9]_*.py"))
    chosen = set()
    for prefix in selection:
        prefix = prefix.zfill(2) if prefix.isdigit() else prefix  # 3 means 03
        fitting = {path for path in found if path.name.startswith(prefix)}
        if not fitting:
            names = ", ".join(path.stem for path in found) or "none"
            raise SystemExit(f"render: no lesson starts with {prefix!r}; there are: {names}")
        chosen |= fitting
    return sorted(chosen) or found


def title_of(source: Path) -> str:
    """The lesson's title, with its number: `03 · One launch per problem`."""
    found = re.search(r"^# # (\d\d · .+)$", source.read_text(encoding="utf-8"), re.MULTILINE)
    if not found:
        raise SystemExit(f"render: {source.name} has no title: a line `# # NN · Title` in its first cell")
    return found[1]


def navigation(source: Path) -> str:
    """A line of links: the lesson before, the map, the lesson after."""
    lessons = sorted(source.parent.glob("[0-9][0-9]_*.py"))
    at = lessons.index(source)
    before, after = lessons[at - 1] if at else None, lessons[at + 1] if at + 1 < len(lessons) else None
    links = [f"← [{title_of(before)}]({before.stem}.ipynb)"] if before else []
    links += [f"[map]({lessons[0].stem}.ipynb)"] if at else []
    links += [f"[{title_of(after)}]({after.stem}.ipynb) →"] if after else []
    return " | ".join(links)


def build(source: Path) -> nbformat.NotebookNode:
    """The notebook of a source, without outputs: cells, tags and ids depend on the source text alone."""
    notebook = jupytext.read(source, fmt="py:percent")
    notebook.metadata = nbformat.from_dict(METADATA)
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    seen: dict[str, int] = {}
    for cell in notebook.cells:
        # nbval's own tag is not enough: JupyterLab's "run all" goes on past an error only with the plain one,
        # which nbval understands as well.
        tags = [tag.replace("nbval-raises", "raises") for tag in cell.metadata.get("tags", [])]
        hidden = {HIDDEN[tag]: True for tag in tags if tag in HIDDEN}
        metadata = {"jupyter": hidden, "tags": tags}
        cell.metadata = nbformat.from_dict({name: value for name, value in metadata.items() if value})
        # An id from the text, not from the position: inserting a cell leaves its neighbours' diff empty.
        digest = hashlib.sha256(f"{cell.cell_type}\n{cell.source}".encode()).hexdigest()[:12]
        seen[digest] = seen.get(digest, 0) + 1
        cell["id"] = digest if seen[digest] == 1 else f"{digest}-{seen[digest]}"
    if source.parent == SOURCES and notebook.cells[0].source.startswith("# "):
        title, _, rest = notebook.cells[0].source.partition("\n")
        notebook.cells[0].source = f"{title}\n\n{navigation(source)}\n{rest}"
        notebook.cells[-1].source += f"\n\n{navigation(source)}"
    return notebook


def strip_png(data: bytes) -> bytes:
    """A PNG without its text and time chunks, which name the writing software and its version."""
    if not data.startswith(PNG_SIGNATURE):
        return data
    kept, at = [PNG_SIGNATURE], len(PNG_SIGNATURE)
    while at < len(data):
        end = at + 12 + int.from_bytes(data[at : at + 4], "big")
        if data[at + 4 : at + 8] not in PNG_NOISE:
            kept.append(data[at:end])
        at = end
    return b"".join(kept)


def strip_paths(text: str) -> str:
    """A traceback without the directories of the machine that rendered it."""
    paths = sysconfig.get_paths()
    for place, name in (
        (paths["purelib"], "site-packages"),
        (paths["platlib"], "site-packages"),
        (str(ROOT), "."),
        (paths["stdlib"], "python"),
    ):
        for spelling in {place, place.replace(str(Path.home()), "~", 1)}:
            text = text.replace(spelling + "/", name + "/")
    return text


def clean(notebook: nbformat.NotebookNode) -> None:
    """Remove from an executed notebook what differs from machine to machine."""
    notebook.metadata = nbformat.from_dict(METADATA)
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            if output.output_type == "error":
                output.traceback = [strip_paths(line) for line in output.traceback]
            png = output.get("data", {}).get("image/png")
            if png:
                output.data["image/png"] = base64.b64encode(strip_png(base64.b64decode(png))).decode()


def suspicious(notebook: nbformat.NotebookNode) -> list[str]:
    """What cannot be the same twice: object addresses, temporary files, home directories, a hidden value."""
    pattern = re.compile(r"0x[0-9a-f]{8,}|/tmp/\S+|/home/\w+|/root\b|/Users/\w+")
    found = []
    for cell in notebook.cells:
        first_line = (cell.source.splitlines() or [""])[0]
        if cell.cell_type == "code" and cell.source.rstrip().endswith(";"):
            found.append(f"{first_line!r}: nbval shows a value in spite of a final semicolon; assign it to _")
        for output in cell.get("outputs", []):
            texts = [output.get("text", ""), output.get("evalue", ""), *output.get("traceback", [])]
            texts += [v for k, v in output.get("data", {}).items() if k.startswith("text/")]
            found += [f"{first_line!r}: {hit} in its output" for text in texts for hit in pattern.findall(text)]
    return found


async def executed(notebook: nbformat.NotebookNode, folder: Path) -> str:
    """The text to store of a notebook: every cell is run in `folder`, what differs from machine to machine removed.

    Raises:
        CellExecutionError: a cell without a `raises-exception` tag failed. Other errors of nbclient: a cell took too
            long, the kernel died.
        ValueError: an output would differ from run to run or from machine to machine.
    """
    from nbclient import NotebookClient

    client = NotebookClient(
        notebook,
        timeout=CELL_TIMEOUT_S,
        kernel_name="python3",
        resources={"metadata": {"path": str(folder)}},
        extra_arguments=["--log-level=ERROR"],  # it warns of listening on loopback, once a lesson
        record_timing=False,
        coalesce_streams=True,
    )
    await client.async_execute()
    clean(notebook)
    if hits := suspicious(notebook):
        raise ValueError("\n  ".join(["outputs that differ from run to run or from machine to machine:", *hits]))
    return nbformat.writes(notebook, version=nbformat.NO_CONVERT) + "\n"


def with_stored_outputs(source: Path) -> nbformat.NotebookNode:
    """The notebook of a source with the outputs of the stored one, whose code has to be the same."""
    notebook, stored = build(source), nbformat.read(notebook_of(source), as_version=nbformat.NO_CONVERT)
    code, old = ([cell for cell in each.cells if cell.cell_type == "code"] for each in (notebook, stored))
    if [cell.source for cell in code] != [cell.source for cell in old]:
        raise ValueError("its code is not the stored one: render it without --text")
    for cell, executed_cell in zip(code, old):
        cell.outputs, cell.execution_count = executed_cell.outputs, executed_cell.execution_count
    return notebook


def store(source: Path, text: str, seconds: float = 0.0) -> None:
    """Write the notebook of a source where it differs, and say so."""
    target, state = notebook_of(source), "unchanged"
    if not target.exists() or text != target.read_text(encoding="utf-8"):
        target.write_text(text, encoding="utf-8", newline="\n")
        state = "written"
    print(f"{source.stem}: {state}, {seconds:.1f} s, {len(text) / 1e3:.0f} kB", flush=True)


def render_text(found: list[Path]) -> bool:
    """Store the prose of lessons whose code has not changed; returns whether all of them could be."""
    good = True
    for source in found:
        try:
            store(source, nbformat.writes(with_stored_outputs(source), version=nbformat.NO_CONVERT) + "\n")
        except (OSError, ValueError) as error:
            print(f"{source.stem}: FAILED\n{error}", file=sys.stderr, flush=True)
            good = False
    return good


async def render(source: Path, slots: asyncio.Semaphore) -> bool:
    """Render one lesson; says what happened, returns whether it worked."""
    target = notebook_of(source)
    async with slots:
        started = time.perf_counter()
        try:
            text = await executed(build(source), target.parent)
        except Exception as error:  # nbclient raises its own classes for errors, timeouts and dead kernels
            print(f"{source.stem}: FAILED\n{error}", file=sys.stderr, flush=True)
            return False
    store(source, text, time.perf_counter() - started)
    return True


async def render_all(found: list[Path]) -> bool:
    slots = asyncio.Semaphore(PARALLEL)
    return all(await asyncio.gather(*(render(source, slots) for source in found)))


def skeleton(notebook: nbformat.NotebookNode) -> list[tuple]:
    """What a source decides about each cell of its notebook."""
    return [(c["id"], c.cell_type, c.source, dict(c.metadata)) for c in notebook.cells]


def unindented(code: str) -> str:
    return "\n".join(line.strip() for line in code.splitlines())


def outdated(notebook: nbformat.NotebookNode) -> list[str]:
    """The functions whose code, folded in an output, is no longer that of their files."""
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    shown = "".join(output.get("data", {}).get("text/html", "") for output in outputs)
    return [
        f"{html.unescape(name)} is not as in {path}"
        for name, path, code in FOLDED.findall(shown)
        if unindented(html.unescape(code)) not in unindented((ROOT / path).read_text(encoding="utf-8"))
    ]


def differences(source: Path) -> list[str]:
    """How the stored notebook departs from its source, and from the code that it shows; empty when it is in step."""
    target = notebook_of(source)
    if not target.exists():
        return [f"{target.name} does not exist"]
    stored = nbformat.read(target, as_version=nbformat.NO_CONVERT)
    expected, got = skeleton(build(source)), skeleton(stored)
    found = [] if stored.metadata == METADATA else [f"metadata is {dict(stored.metadata)}, not {METADATA}"]
    if len(expected) != len(got):
        found.append(f"the source has {len(expected)} cells, {target.name} has {len(got)}")
    for index, (want, have) in enumerate(zip(expected, got, strict=False)):
        if want != have:
            first_line = (want[2].splitlines() or [""])[0]
            found.append(f"cell {index} ({want[1]}, {first_line!r}) differs from the source")
            break
    return found + outdated(stored)


def check(found: list[Path]) -> bool:
    problems = {source.stem: "; ".join(differences(source)) for source in found}
    for name, text in problems.items():
        if text:
            print(f"{name}: out of step: {text}", file=sys.stderr)
    good = not any(problems.values())
    print("in step" if good else "run `make render` (or tools/render.py with the lesson's number)")
    return good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("lessons", nargs="*", metavar="NN", help="lessons by number; all when none is given")
    parser.add_argument("--check", action="store_true", help="compare only, execute nothing")
    parser.add_argument("--text", action="store_true", help="keep the stored outputs, execute nothing")
    arguments = parser.parse_args()
    found = sources(arguments.lessons)
    if arguments.check:
        return int(not check(found))
    return int(not (render_text(found) if arguments.text else asyncio.run(render_all(found))))


if __name__ == "__main__":
    sys.exit(main())
