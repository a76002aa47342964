"""The second wall: where Bubblewrap works, answers see no file of the user's and no process but their own."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from gemm_course.exercises import manifest
from gemm_course.isolation import bubblewrap
from gemm_course.judging.judge import Judge
from hand_ins import PREFIX, RIGHT

LOOK = """
import os
for path in ({home!r}, {file!r}):
    try: print(os.listdir(path) if os.path.isdir(path) else open(path).read())
    except OSError as error: print(type(error).__name__)
others = [name for name in os.listdir("/proc") if name.isdigit() and int(name) > 99]
print(others, open("/proc/net/dev").read().count(":"))
"""


@pytest.fixture
def fresh():
    bubblewrap.works.cache_clear()
    yield
    bubblewrap.works.cache_clear()


@pytest.mark.parametrize("script", [None, "exit 1", "exec sleep 60"])
def test_where_it_is_missing_or_not_allowed_there_is_no_wall(tmp_path, monkeypatch, fresh, script):
    if script is not None:
        (tmp_path / "bwrap").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "bwrap").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin" if script else str(tmp_path))
    monkeypatch.setattr(bubblewrap, "_TRIAL_S", 0.2)
    assert bubblewrap.command("/tmp/course-x") == []


def test_what_is_seen_inside(tmp_path):
    if not bubblewrap.works():
        pytest.skip("Bubblewrap is not installed here, or not allowed")
    (tmp_path / "secret").write_text("another student's")
    inside = tmp_path / "inside"
    inside.mkdir()
    script = LOOK.format(home=os.path.expanduser("~"), file=str(tmp_path / "secret"))
    script += f"open({str(inside / 'made')!r}, 'w').write('x')"
    command = [*bubblewrap.command(str(inside)), sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20)
    assert (done.returncode, done.stderr) == (0, "")
    home, file, others = done.stdout.splitlines()
    assert "secret" not in home
    assert (file, others) == ("FileNotFoundError", "[] 1")
    assert (inside / "made").exists()
    with Judge(manifest.examiner) as judge:
        assert judge._server._process.args[0] == "bwrap"
        assert judge.check(manifest.find("01")[0], PREFIX + RIGHT).passed
        assert judge.check(manifest.find("01")[0], f"{PREFIX}while True: pass", 1).points == 0
