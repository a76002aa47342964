"""The `course` command: its first screen, its table of subcommands, and exit codes that scripts can use."""

from __future__ import annotations

import importlib
import os
import re
import sys
from types import SimpleNamespace
from typing import Annotated

import pytest
import typer

import forked
from gemm_course.cli import app as command
from gemm_course.cli.exit_codes import CANNOT, FAILED, INTERRUPTED, OK, USAGE
from places import ROOT

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


@pytest.fixture
def subcommand(monkeypatch):
    """Adds a subcommand `probe` made of this test's functions."""

    def add(run, **names):
        module = SimpleNamespace(run=run, **names)
        monkeypatch.setitem(sys.modules, "probe_module", module)
        monkeypatch.setitem(command.SUBCOMMANDS, "probe", command.Subcommand("probe_module", "a probe"))

    return add


def test_pyproject_installs_it():
    entry = PROJECT["scripts"]["course"]
    module, function = entry.split(":")
    assert getattr(importlib.import_module(module), function) is command.main


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"], ["help"]])
def test_first_screen_says_what_there_is_and_what_to_do(arguments, capsys):
    assert command.main(arguments) == 0
    shown = capsys.readouterr().out
    assert shown.rstrip() == command.overview()
    for name, each in command.SUBCOMMANDS.items():
        assert re.search(rf"^  {name} +{re.escape(each.help)}$", shown, re.MULTILINE)
    for code in (OK, FAILED, USAGE, CANNOT, INTERRUPTED):
        assert re.search(rf"\b{code} \w", shown.split("exit codes:")[1]), code
    first, then = shown.split("start here:")[1].split("at an exercise:")
    assert "course doctor" in first
    assert "course check 03" in then


def test_subcommands_are_loaded_when_asked_for():
    script = (
        "import sys; from gemm_course.cli import app as command; command.main([]);"
        "loaded = [each.module for each in command.SUBCOMMANDS.values() if each.module in sys.modules];"
        "assert not loaded, loaded; assert 'triton' not in sys.modules"
    )
    done = forked.run(script)
    assert done.returncode == 0, done.stderr


def test_neither_the_library_nor_a_notebooks_checks_need_typer_or_rich():
    script = (
        "import sys; import course_kernels, gemm_course.judging.judge;"
        "loaded = {'typer', 'rich', 'pydantic'} & sys.modules.keys(); assert not loaded, loaded"
    )
    done = forked.run(script)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("wrong", "hint"),
    [
        ("benhc", "did you mean bench?"),
        ("docter", "did you mean doctor?"),
        ("zzz", "there are: "),
        ("watch", "did you mean `course check --watch`?"),
    ],
)
def test_unknown_subcommand_names_the_nearest(wrong, hint, capsys):
    assert command.main([wrong]) == command.USAGE
    printed = capsys.readouterr()
    assert printed.out == ""
    assert repr(wrong) in printed.err
    assert hint in printed.err


@pytest.mark.parametrize(
    ("option", "says"),
    [
        ("--json", "no option --json; options follow a subcommand, as in `course list --json`"),
        ("-x", "no option -x; options follow"),
        ("--install-completion", "no option --install-completion; `course --completion bash` prints the script"),
    ],
)
def test_an_option_before_the_subcommand_is_named(option, says, capsys):
    assert command.main([option]) == command.USAGE
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith(f"course: {says}")


def test_options_reach_the_subcommand_and_its_code_comes_back(subcommand, capsys):
    def run(code: int = 0) -> int:
        """Ends with a code."""
        return code

    subcommand(run, EXAMPLES="examples:\n  course probe --code 5")
    assert command.main(["probe", "--code", "5"]) == 5
    assert command.main(["probe", "--help"]) == 0
    assert "course probe --code 5" in capsys.readouterr().out
    assert "a probe" in command.overview()
    assert command.main(["probe", "--code", "five"]) == command.USAGE
    assert "--code" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words", ["--rows a b --flag --ops c", "--rows a --rows b --flag --ops c", "--ops c --flag --rows a b"]
)
def test_an_option_takes_several_values(subcommand, words):
    taken = {}

    def run(
        rows: Annotated[list[str], typer.Option()],
        ops: Annotated[list[str], typer.Option()],
        flag: Annotated[bool, typer.Option("--flag")] = False,
    ) -> int:
        taken.update(rows=rows, ops=ops, flag=flag)
        return 0

    subcommand(run, MANY=("--rows", "--ops"))
    assert command.main(["probe", *words.split()]) == 0
    assert taken == {"rows": ["a", "b"], "ops": ["c"], "flag": True}


def test_interrupted(subcommand, capsys):
    def run() -> int:
        raise KeyboardInterrupt

    subcommand(run)
    assert command.main(["probe"]) == command.INTERRUPTED == 130
    assert "interrupted" in capsys.readouterr().err


def test_an_error_of_a_subcommand_is_not_swallowed(subcommand):
    def run() -> int:
        raise ZeroDivisionError

    subcommand(run)
    with pytest.raises(ZeroDivisionError):
        command.main(["probe"])


@pytest.mark.parametrize("words", ["", "check --help", "list"])
def test_a_reader_who_has_seen_enough_is_no_error(words):
    done = forked.run_module("gemm_course.cli.app", *words.split(), before=forked.NO_READER)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
@pytest.mark.parametrize("words", ["", "list", "list --json", "check --help"])
def test_a_full_disk_is_reported_in_a_line(words):
    full = "import os\nos.dup2(os.open('/dev/full', os.O_WRONLY), 1)"
    done = forked.run_module("gemm_course.cli.app", *words.split(), before=full)
    assert done.returncode == command.CANNOT
    assert done.stderr == "course: the output cannot be written: No space left on device\n"


@pytest.mark.parametrize("streams", [["stdout"], ["stderr"], ["stdout", "stderr"]])
@pytest.mark.parametrize(("words", "code"), [("list", 0), ("--version", 0), ("nope", 2)])
def test_a_closed_stream_is_no_traceback(streams, words, code):
    closed = "import sys\n" + "\n".join(f"sys.{stream} = None" for stream in streams)  # as Python has it after `>&-`
    done = forked.run_module("gemm_course.cli.app", words, before=closed)
    assert done.returncode == code
    assert "Traceback" not in done.stderr
    if "stderr" in streams:
        assert done.stderr == ""


@pytest.mark.parametrize("option", ["--version", "-V"])
def test_version(option, capsys):
    import course_kernels

    assert command.main([option]) == 0
    assert capsys.readouterr().out == f"course {course_kernels.__version__}\n"
