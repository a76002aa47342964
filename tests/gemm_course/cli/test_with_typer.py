"""Subcommands' arguments and help, as Typer reads and shows them."""

from __future__ import annotations

import importlib

import pytest

from gemm_course.cli import app as command
from gemm_course.cli import terminal


@pytest.mark.parametrize("columns", [80, 100])
@pytest.mark.parametrize("name", ["", *command.SUBCOMMANDS])
def test_help_fits_the_terminal_and_breaks_no_path(name, columns, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", str(columns))
    assert command.main([name, "--help"] if name else []) == 0
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= columns
    if name:
        examples = importlib.import_module(command.SUBCOMMANDS[name].module).EXAMPLES
        for word in examples.split():
            assert word in shown


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
