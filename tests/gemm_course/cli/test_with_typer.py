"""Subcommands' arguments and help, as Typer reads and shows them."""

from __future__ import annotations

import importlib
import re

import pytest

from gemm_course.cli import app as command
from gemm_course.cli import terminal


@pytest.mark.parametrize("styles", [False, True], ids=["plain", "as on a terminal"])
@pytest.mark.parametrize("columns", [80, 100])
@pytest.mark.parametrize("name", ["", *command.SUBCOMMANDS])
def test_help_fits_the_terminal_and_breaks_no_path(name, columns, styles, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr(terminal, "has_styles", lambda stream: styles)
    assert command.main([name, "--help"] if name else []) == 0
    shown = capsys.readouterr().out
    assert max(len(re.sub("\x1b\\[[0-9;]*m", "", line)) for line in shown.splitlines()) <= columns
    examples = importlib.import_module(command.SUBCOMMANDS[name].module).EXAMPLES if name else command.EXAMPLES
    assert terminal.help_text(examples).rstrip() in shown
    for word in examples.split():
        assert word in shown
    assert "bool" not in re.sub("\x1b\\[[0-9;]*m", "", shown), "a flag takes no value"


@pytest.mark.parametrize("line", ["docter", "--json", "check nope.ipynb", "check 03 --no-such-option", "--completion"])
def test_a_complaint_on_a_narrow_terminal_breaks_no_word(line, monkeypatch, capsys):
    assert command.main(line.split()) == command.USAGE
    whole = capsys.readouterr().err
    monkeypatch.setenv("COLUMNS", "40")
    assert command.main(line.split()) == command.USAGE
    narrow = capsys.readouterr().err
    assert max(map(len, narrow.splitlines())) <= 40 < max(map(len, whole.splitlines()))
    assert narrow.split() == whole.split()


@pytest.mark.parametrize("line", ["list", "progress", "bench --list", "tune --list", "doctor --quick"])
def test_a_page_on_a_narrow_terminal_breaks_no_word(line, monkeypatch, capsys):
    assert command.main(line.split()) == 0
    words = capsys.readouterr().out.split()
    monkeypatch.setenv("COLUMNS", "80")
    assert command.main(line.split()) == 0
    narrow = capsys.readouterr().out
    assert [each for each in narrow.splitlines() if len(each) > 80 and each.strip().count(" ")] == []
    assert narrow.split() == words


@pytest.mark.parametrize("name", command.SUBCOMMANDS)
def test_every_subcommand_keeps_the_contract(name, capsys):
    module = importlib.import_module(command.SUBCOMMANDS[name].module)
    assert command.main([name, "--help"]) == 0
    direct = capsys.readouterr().out
    assert f"Usage: course {name} [OPTIONS]" in direct
    assert module.run.__doc__.splitlines()[0].split()[0] in direct
    assert terminal.help_text(module.EXAMPLES) in direct
    assert "\033" not in direct
    for same in ([name, "-h"], ["help", name]):
        assert command.main(same) == 0
        assert capsys.readouterr().out == direct
    assert command.main([name, "03", "--no-such-option"]) == command.USAGE
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith(f"course {name}: ")
    assert f"course {name} --help shows the options" in printed.err
