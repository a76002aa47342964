"""The library is typed: mypy and pyright, in strict mode, know every expression of a client, and find its mistakes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import pytest

from places import ROOT

# Of torch only what the client's types come from: with all the rest mypy reads 2,265 modules, and takes 12 s. Where one
# is missing, the client's expressions become `Any`, which is a mistake.
SETTINGS = """
[mypy]
[mypy-torch.*,numpy.*,matplotlib.*,IPython.*]
follow_imports = skip
[mypy-torch,torch._C.*,torch._tensor,torch.types,torch.nn.*]
follow_imports = silent
"""


def test_a_client_is_checked_in_strict_mode(tmp_path):
    pytest.importorskip("mypy", reason="needs mypy, which the extra `dev` brings")
    (tmp_path / "mypy.ini").write_text(SETTINGS)
    command = [sys.executable, "-m", "mypy", "--strict", "--disallow-any-expr", "--follow-imports=silent"]
    done = subprocess.run(
        [*command, "--config-file=mypy.ini", "--cache-dir=/dev/null", str(ROOT / "tests/support/typed_client.py")],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env=os.environ | {"MYPYPATH": str(ROOT / "src")},
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_pyright_agrees(tmp_path):
    pytest.importorskip("pyright", reason="needs pyright, which the extra `dev` brings")
    shutil.copy(ROOT / "tests/support/typed_client.py", tmp_path)
    settings = dict(
        include=["typed_client.py"], extraPaths=[str(ROOT / "src")], typeCheckingMode="strict",
        enableTypeIgnoreComments=True, reportUnnecessaryTypeIgnoreComment="error",
    )  # fmt: skip
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, "-p", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 errors" in done.stdout


def test_the_package_says_that_it_is_typed():
    assert (ROOT / "src/course_kernels/py.typed").is_file()
