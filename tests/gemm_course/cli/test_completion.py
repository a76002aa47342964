"""Words that the shell offers at Tab, and the scripts that ask for them."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest

from gemm_course.cli import app as command
from gemm_course.cli import completion


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["che"], ["check"]),
        (["--v"], ["--version"]),
        (["check", "04"], ["04a", "04b"]),
        (["check", "04a", "--w"], ["--watch"]),
        (["grade", "hand-ins", "--o"], ["--out", "--only", "--one-student"]),
        (["grade", "0"], []),
        (["doctor", "--he"], ["--help"]),
        (["nope", "-"], []),
    ],
)
def test_words_that_may_replace_the_last(words, offered, capsys):
    assert command.main(["--complete", *words]) == 0
    assert capsys.readouterr().out.split() == offered


def test_no_word_yet_is_any_subcommand():
    assert completion.candidates([], ["check", "list"], {}.get) == ["check", "list", "--help", "--version"]


@pytest.mark.parametrize("shell", completion.SCRIPTS)
def test_each_shell_reads_its_script(shell, capsys):
    assert command.main(["--completion", shell]) == 0
    script = capsys.readouterr().out
    assert script == completion.SCRIPTS[shell]
    assert script.startswith("# in ~/.")
    if shutil.which(shell):
        done = subprocess.run([shell, "-n"], input=script, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_bash_completes():
    course = f'course() {{ {sys.executable} -m gemm_course.cli.app "$@"; }}'
    words = "COMP_WORDS=(course check 04); COMP_CWORD=2; _course; echo ${COMPREPLY[@]}"
    done = subprocess.run(["bash", "-c", f"{course}\n{completion.SCRIPTS['bash']}\n{words}"], capture_output=True)
    assert done.stdout.split() == [b"04a", b"04b"]


@pytest.mark.parametrize("shells", [[], ["tcsh"], ["bash", "zsh"]])
def test_an_unknown_shell_is_refused_with_those_known(shells, capsys):
    assert command.main(["--completion", *shells]) == command.USAGE
    assert "bash, zsh, fish" in capsys.readouterr().err
