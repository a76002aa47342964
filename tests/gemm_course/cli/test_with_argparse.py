"""The library installed alone has a command: the same answers, without the course's packages."""

from __future__ import annotations

import importlib
import re
import sys

import pytest
import torch

import forked
from course_kernels import runtime
from gemm_course.cli import app as command
from gemm_course.cli import terminal
from places import ROOT

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


# What the library installed alone lacks; NumPy is the interpreter's, which runs kernels here.
OF_THE_COURSE = {re.match(r"[\w-]+", each)[0] for each in PROJECT["optional-dependencies"]["course"]}
LACKING = f"import sys\nfor name in {sorted(OF_THE_COURSE - {'torch', 'triton', 'numpy'})}: sys.modules[name] = None"
FOR_THE_LIBRARY = [name for name, each in command.SUBCOMMANDS.items() if not each.needs_course]


def with_the_library_alone(*words, before=""):
    return forked.run_module("gemm_course.cli.app", *words, before=f"{LACKING}\n{before}")


@pytest.mark.parametrize(
    "line",
    [
        "--version",
        "-V",
        "tune --list --limit-seconds 3",
        "bench --list --rows equal12 decode --repeats 5",
        "bench --list --zoo dbrx --tokens 64 4096 --routing zipf",
        "bench --list --zoo",
        "bench --tokens 64",
        "bench --passes forward sideways",
        "tune --limit-seconds -1",
        "tune --out /absent/x.json",
        *(f"--complete {name} --" for name in FOR_THE_LIBRARY),
        "--completion zsh",
        "docter",
    ],
)
def test_the_library_alone_has_a_command_that_answers_alike(line, capsys):
    code = command.main(line.split())
    printed = capsys.readouterr()
    done = with_the_library_alone(*line.split())
    assert (done.returncode, done.stdout, done.stderr) == (code, printed.out, printed.err)


def test_the_library_alone_has_the_subcommands_that_it_needs():
    assert FOR_THE_LIBRARY == ["doctor", "bench", "tune"]
    done = with_the_library_alone()
    assert (done.returncode, done.stderr) == (0, "")
    assert re.findall(r"^  (\w+) {2,}", done.stdout, re.MULTILINE) == FOR_THE_LIBRARY
    assert "pip install '.[course]' in a checkout" in done.stdout
    for name in ("list", "check"):
        done = with_the_library_alone(name, "--help")
        assert (done.returncode, done.stdout) == (command.CANNOT, "")
        assert done.stderr.startswith(f"course {name}: not installed: msgspec, rich, ")
        assert "pip install '.[course]' in a checkout" in done.stderr


@pytest.mark.parametrize("name", FOR_THE_LIBRARY)
def test_the_library_alone_has_the_same_help(name, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    module = importlib.import_module(command.SUBCOMMANDS[name].module)
    done = with_the_library_alone(name, "-h")
    assert (done.returncode, done.stderr) == (0, "")
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert terminal.help_text(module.EXAMPLES).rstrip() in done.stdout
    for option in command.reader.words(name, module):
        assert re.search(rf"^ .*{option}\b", done.stdout, re.MULTILINE)
    wrong = with_the_library_alone(name, "--no-such-option")
    assert (wrong.returncode, wrong.stdout) == (command.USAGE, "")
    assert re.fullmatch(rf"course {name}: .*--no-such-option\ncourse {name} --help shows the options.\n", wrong.stderr)


def test_the_library_alone_has_a_doctor():
    done = with_the_library_alone("doctor", "--quick")
    assert "Traceback" not in done.stderr
    assert re.search(r"^  torch +2\.", done.stdout, re.MULTILINE)
    assert "isolation" not in done.stdout, "of answers, which come with the course"


@pytest.mark.skipif(torch.cuda.is_available(), reason="with a GPU, NumPy is not needed")
def test_where_no_kernel_can_be_defined_a_line_says_why():
    done = with_the_library_alone("tune", "--list", before="sys.modules['numpy'] = None")
    assert (done.returncode, done.stdout) == (command.CANNOT, "")
    assert done.stderr == f"course tune: {runtime.LACKS_NUMPY}\n"
