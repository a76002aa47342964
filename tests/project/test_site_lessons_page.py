"""The site's page of lessons: a script of each that runs alone, small figures, routes."""

from __future__ import annotations

import ast
import base64
import io
import os
import subprocess
import sys

import pytest

from places import ROOT

for module in ("jupytext", "PIL"):
    pytest.importorskip(module, reason="needs the extra `course`: pip install '.[course]'")

from PIL import Image  # noqa: E402

import render  # noqa: E402
import site_lessons_page  # noqa: E402

SOURCES = render.sources([])


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem[:2])
def test_each_lesson_is_a_script(source):
    text = site_lessons_page.as_script(source)
    compile(text, source.name, "exec")
    assert "display(" not in text
    assert "](../" not in text
    assert ast.get_docstring(ast.parse(text)).startswith(render.title_of(source))


@pytest.mark.parametrize("number", ["00", "02"])  # an error on purpose; kernels that the compiler imports
def test_a_script_runs_alone(tmp_path, number):
    (source,) = render.sources([number])
    (tmp_path / source.name).write_text(site_lessons_page.as_script(source), "utf-8")
    variables = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, source.name]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, env=variables)
    assert done.returncode == 0, done.stderr[-3000:]
    assert f"{source.stem}_figures/01.png\n" in done.stdout
    assert (tmp_path / f"{source.stem}_figures" / "01.png").stat().st_size > 1000
    if number == "00":
        assert "RuntimeError: stack expects each tensor to be equal size" in done.stdout


@pytest.mark.parametrize(
    ("cell", "code"),
    [
        ("%matplotlib inline\nx = 1", "x = 1"),
        ("a = 1\na.f(\n    2\n)", "a = 1\nscript.show(a.f(\n    2\n))"),
        ("print(1)", "print(1)"),
        ("from IPython.display import display\ndisplay('ü', *b)", "script.show('ü', *b)"),
    ],
)
def test_what_a_notebook_does_by_itself_is_written_out(cell, code):
    assert site_lessons_page.plain(cell) == code


def test_a_lesson_runs_only_as_the_main_program():
    cell = 'import a\nWARPS = 4\nn = 1\n\n\ndef f():\n    return n\n\n\n# why\ng("""x\ny""")'
    text = site_lessons_page.guarded(cell)
    main = site_lessons_page.MAIN
    assert text.split("\n\n") == [
        "import a\nWARPS = 4",
        f"{main}\n    n = 1",
        "def f():\n    return n",
        f'{main}\n    # why\n    g("""x\ny""")',
    ]
    assert site_lessons_page.guarded("f()", fails=True) == f"{main}\n    with script.expected_error():\n        f()"
    assert site_lessons_page.guarded("A = n").startswith(main), "n is known to the main program only"


def picture(width, height):
    packed = io.BytesIO()
    Image.new("RGB", (width, height)).save(packed, "PNG")
    data = {"image/png": base64.b64encode(packed.getvalue()).decode()}
    return {"outputs": [{"data": data}], "metadata": {"mystnb": {"image": {"alt": f"{width} wide."}}}}


def test_the_small_figure_is_the_first_that_is_no_strip():
    data, description = site_lessons_page.small_figure(
        [{"metadata": {}}, picture(900, 100), picture(800, 400), picture(9, 9)]
    )
    assert description == "800 wide."
    assert Image.open(io.BytesIO(data)).size == (480, 240)
    assert site_lessons_page.small_figure([picture(900, 100)])[1] == "900 wide."
    with pytest.raises(ValueError, match="must have a figure"):
        site_lessons_page.small_figure([])


def test_routes_name_lessons_and_their_time():
    numbers = [source.stem[:2] for source in SOURCES]
    assert {number for route in site_lessons_page.ROUTES.values() for number in route} <= set(numbers)
    table = site_lessons_page.routes(dict.fromkeys(numbers, 20), {number: f"[{number}](x)" for number in numbers})
    assert (
        "| I train MoE models | [01](x) · [04](x) · [08](x) · [11](x) · [14](x) · [15](x) · [16](x) | 2½ h |" in table
    )
    assert [site_lessons_page.hours(minutes) for minutes in (30, 50, 90)] == ["½ h", "1 h", "1½ h"]
    with pytest.raises(ValueError, match="must say its minutes"):
        site_lessons_page.minutes_and_goals("# A lesson")
