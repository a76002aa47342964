"""What the command prints: colour on a terminal only, and nothing that an old terminal cannot show."""

from __future__ import annotations

import dataclasses
import io
from types import SimpleNamespace

import pytest

import forked
from gemm_course.cli import terminal
from gemm_course.judging.results import Property, Result

RESULT = Result(
    "03", "Masks", "failed",
    [Property("a", "tiles", 2, "pass"), Property("b", "tail", 3, "fail", "row 3\n✗ is no mark here"),
     Property("c", "store", 1, "skip")],
    printed="hello", max_points=6,
)  # fmt: skip


class Tty(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def tty(monkeypatch):
    stream = Tty()
    monkeypatch.setattr(terminal, "sys", SimpleNamespace(stdout=stream, stderr=stream))
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    return stream


@pytest.mark.usefixtures("tty")
def test_a_terminal_gets_colour():
    assert terminal.paint("x", "bold green") == "\x1b[1;32mx\x1b[0m"
    shown = terminal.result(RESULT.text())
    assert "\x1b[1mExercise 03 · Masks\x1b[0m" in shown
    assert "  \x1b[32m✓\x1b[0m tiles" in shown
    assert "  \x1b[31m✗\x1b[0m tail" in shown
    assert "      ✗ is no mark here" in shown
    assert "\x1b[1;33mnot yet: 2 of 6 points\x1b[0m" in shown
    shown = terminal.result(dataclasses.replace(RESULT, status="unchecked").text())
    assert "\x1b[1;33mnot checked: 2 of 6 points so far\x1b[0m" in shown


@pytest.mark.usefixtures("tty")
@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb"), ("TERM", "")])
def test_a_terminal_that_wants_none_gets_none(monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    assert terminal.result(RESULT.text()) == RESULT.text()


@pytest.mark.usefixtures("tty")
def test_an_empty_no_color_means_nothing(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "")
    assert terminal.paint("x", "red") != "x"


def test_a_pipe_gets_plain_text(capsys):
    assert terminal.result(RESULT.text()) == RESULT.text()
    with terminal.Status() as status:
        status.show("checking")
    assert capsys.readouterr() == ("", "")


def test_a_status_is_one_line_and_goes_when_the_wait_is_over(tty, monkeypatch):
    monkeypatch.setenv("COLUMNS", "12")
    with terminal.Status() as status:
        status.show("a line that is longer")
        shown = tty.getvalue()
    assert "a line" in shown
    assert "longer" not in shown
    assert "\n" not in shown
    assert tty.getvalue().endswith("\r\x1b[1A\x1b[2K"), "the line is erased"
    assert "\x1b[?25h" in tty.getvalue(), "the cursor is shown again"


def test_progress_is_a_bar_on_a_terminal(tty, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    with terminal.progress("answers checked") as progress:
        progress.add_task("(ann [01])", total=4, completed=1)
    assert f"{terminal.bar(1, 4)} 1 of 4 answers checked" in tty.getvalue()
    assert "(ann [01])" in tty.getvalue(), "no markup"


def test_columns_are_aligned_and_no_line_is_wrapped(tty, monkeypatch):
    rows = [("a", "1", "first"), (terminal.paint("long", "green"), "10", "[second] and longer")]
    monkeypatch.setenv("COLUMNS", "12")
    assert terminal.columns(rows, indent=2, right=[1]).splitlines() == [
        "  a      1  first", "  \x1b[32mlong\x1b[0m  10  [second] and longer",
    ]  # fmt: skip
    monkeypatch.setattr(tty, "isatty", lambda: False)
    assert terminal.columns(rows, indent=2, right=[1]).splitlines()[1] == "  long  10  [second] and longer"


def test_text_is_wrapped_between_words_under_its_mark(monkeypatch):
    monkeypatch.setenv("COLUMNS", "30")
    text = "Exercise 03\n  ✗ the tail is not masked in the last tile\n  | a/long/path/that-has-dashes.py and more"
    assert terminal.fit(text).splitlines() == [
        "Exercise 03", "  ✗ the tail is not masked in", "    the last tile",
        "  | a/long/path/that-has-dashes.py", "  | and more",
    ]  # fmt: skip
    assert terminal.wrap("one two three four five six seven", "> ", "  ") == "> one two three four five six\n  seven"
    monkeypatch.setenv("COLUMNS", "300")
    assert terminal.width() == 100
    assert terminal.fit(text) == text


def test_a_helps_descriptions_are_aligned_or_below(monkeypatch):
    text = (
        "examples:\n  course x      does what it says it does\n  course x --with=many --options  does more of it\n\n"
        "A paragraph of\nseveral lines.\n\nexit codes: 0 done; 1 no;\n            2 wrong usage\n"
    )
    monkeypatch.setenv("COLUMNS", "34")
    assert terminal.help_text(text).splitlines() == [
        "examples:", "  course x      does what it says", "                it does", "  course x --with=many --options",
        "      does more of it", "", "A paragraph of several lines.", "", "exit codes: 0 done; 1 no; 2 wrong",
        "            usage",
    ]  # fmt: skip


@pytest.mark.parametrize(("done", "total", "shown"), [(0, 4, "░░░░"), (1, 2, "██░░"), (9, 4, "████"), (0, 0, "░░░░")])
def test_bar(done, total, shown):
    assert terminal.bar(done, total, 4) == shown


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_an_encoding_without_the_marks_gets_letters(encoding, tmp_path):
    before = f"import sys; sys.stdout.reconfigure(encoding={encoding!r})"
    done = forked.run_module("gemm_course.cli.app", "progress", before=before, XDG_STATE_HOME=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "." * 40 + "  0 of" in done.stdout
