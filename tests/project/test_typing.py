"""The library is typed: mypy, in strict mode, knows every expression of a small client, and finds each mistake in it.

pyright agrees in strict mode (``pyright tests/support/typed_client.py``). It is not run here: it needs Node.
"""

from __future__ import annotations

import os
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


def test_the_package_says_that_it_is_typed():
    assert (ROOT / "src/course_kernels/py.typed").is_file()
