"""Sanitizers' cases are shared by processes, and every one of them has to have run. Stand-ins run the commands."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

import verify  # isort: skip

CASES = [f"case-{i}" for i in range(3 * max(verify.SHARES.values()) - 1)]


@pytest.fixture
def commands(monkeypatch):
    """Commands that were run; each prints what compute-sanitizer and the cases print, for as many as ``lost`` less."""
    run = []

    def stand_in(command, tell=None, gpu=None):
        if "--list" in command:
            return "\n".join(CASES) + "\nwarning: something has spaces\n"
        names = [each for each in command[command.index("--kernels") + 2 :] if each != "--racecheck"]
        tool = command[2] if command[0] == "compute-sanitizer" else "none"
        assert ("--racecheck" in command) == (tool == "racecheck")
        run.append((tool, names))
        return f"{len(names) - stand_in.lost} cases ran in mode gpu\n{stand_in.said[tool]}\n"

    stand_in.lost, stand_in.commands = 0, run
    stand_in.said = {"memcheck": "ERROR SUMMARY: 0 errors", "racecheck": "RACECHECK SUMMARY: 0 hazards displayed"}
    stand_in.said["none"] = ""
    monkeypatch.setattr(verify, "run", stand_in)
    return stand_in


def test_every_case_runs_once_under_each_tool(commands):
    assert verify.sanitizers("triton") == {
        tool: {"cases": len(CASES), "errors": 0} for tool in ("racecheck", "memcheck")
    }
    for tool in ("racecheck", "memcheck"):
        shares = [names for ran, names in commands.commands if ran == tool]
        assert len(shares) == verify.SHARES[tool]
        assert sorted(name for names in shares for name in names) == sorted(CASES)


def test_processes_are_dealt_to_every_gpu(monkeypatch):
    """Those that the caller may see, and none is named where there is none."""
    code = [sys.executable, "-c", "import os; print(os.environ.get('CUDA_VISIBLE_DEVICES'))"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,5")
    assert [verify.run(code, gpu=i) for i in range(3)] == ["2\n", "5\n", "2\n"]
    assert verify.run(code) == "2,5\n"
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    monkeypatch.setattr(verify.torch.cuda, "device_count", lambda: 3)
    assert [verify.run(code, gpu=i) for i in (0, 2, 3, None)] == ["0\n", "2\n", "0\n", "0,1,2\n"]
    monkeypatch.setattr(verify.torch.cuda, "device_count", lambda: 0)
    assert verify.run(code, gpu=1) == "None\n"


@pytest.mark.parametrize(("worker", "named", "wanted"), [("gw4", "0,1,3", "1,3,0"), ("gw1", "2", "2"), ("gw1", "", "")])
def test_each_worker_begins_with_another_gpu(worker, named, wanted):
    code = "import conftest, os; print(os.environ['CUDA_VISIBLE_DEVICES'])"
    env = os.environ | dict(PYTEST_XDIST_WORKER=worker, CUDA_VISIBLE_DEVICES=named)
    printed = subprocess.run([sys.executable, "-c", code], cwd=verify.ROOT, env=env, capture_output=True, text=True)
    assert printed.stdout == f"{wanted}\n"


def test_a_failure_says_why_where_it_is_named(tmp_path):
    """So that a run on a GPU that is cut off has told its errors."""
    tests = "import pytest\n@pytest.fixture\ndef bad():\n    raise OSError('no\\n  room')\n"
    tests += "def test_a():\n    assert 1 == 2\ndef test_b(bad):\n    pass\ndef test_c():\n    pass\n"
    (tmp_path / "test_bad.py").write_text(tests)
    (tmp_path / "conftest.py").write_text((verify.ROOT / "conftest.py").read_text())
    command = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", "--tb=no", "--rootdir=.", "."]
    printed = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True).stdout
    assert "test_bad.py::test_a FAILED (assert 1 == 2)" in printed
    assert "test_bad.py::test_b ERROR (OSError: no room)" in printed
    assert "test_bad.py::test_c PASSED" in printed


def test_every_case_is_compiled_before_the_tools_run(commands):
    verify.sanitizers("triton")
    without = [names for tool, names in commands.commands if tool == "none"]
    assert sorted(name for names in without for name in names) == sorted(CASES)
    assert commands.commands[: len(without)] == [("none", names) for names in without]


def test_a_case_that_did_not_run_is_an_error(commands):
    commands.lost = 1
    with pytest.raises(RuntimeError, match="not every case ran"):
        verify.sanitizers("triton")


@pytest.mark.parametrize(
    ("tool", "said"), [("memcheck", "ERROR SUMMARY: 2 errors"), ("racecheck", "RACECHECK SUMMARY: 1 hazard displayed")]
)
def test_what_a_tool_finds_is_an_error_and_printed_at_once(commands, capsys, tool, said):
    commands.said[tool] = said
    with pytest.raises(RuntimeError, match=f"{tool} is not clean"):
        verify.sanitizers("triton")
    assert said in capsys.readouterr().out


def test_an_error_tells_the_first_report_and_the_case_before_it():
    """Even if hundreds of other reports follow: the first error may have caused them."""
    printed = ["========= COMPUTE-SANITIZER", "case-1: exact; ran", "case-2: exact; ran"]
    printed += ["========= Invalid __global__ read of size 4 bytes", "=========     at a_kernel"]
    printed += ["========= Program hit an error on a call"] * 2000 + ["========= ERROR SUMMARY: 2001 errors"]
    command = [sys.executable, "-c", "import sys; print(sys.argv[1]); sys.exit(1)", "\n".join(printed)]
    with pytest.raises(RuntimeError) as raised:
        verify.run(command)
    told = str(raised.value).split("failed:\n")[1]
    assert "case-2: exact; ran\n========= Invalid __global__ read" in told[:200]
    assert told.rstrip().endswith("========= ERROR SUMMARY: 2001 errors")
    assert len(told) < 10_000


def test_no_case_at_all_is_an_error(commands, monkeypatch):
    monkeypatch.setattr(verify, "run", lambda command: "warning: nothing else\n")
    with pytest.raises(RuntimeError, match="no cases of triton to run"):
        verify.sanitizers("triton")


def test_a_command_is_heard_while_it_runs(capsys, monkeypatch):
    code = "import sys, time; print('first', flush=True); print('second', file=sys.stderr, flush=True); {}"
    assert verify.run([sys.executable, "-c", code.format("print('third')")]) == "first\nsecond\nthird\n"
    assert capsys.readouterr().out == ""
    with pytest.raises(RuntimeError, match=r"failed:\nfirst\nsecond\n$"):
        verify.run([sys.executable, "-c", code.format("sys.exit(3)")], tell="ir.t|third")
    assert capsys.readouterr().out == "first\n"
    monkeypatch.setattr(verify, "SECONDS", 3)
    with pytest.raises(RuntimeError, match=r"failed:\nfirst\nsecond\n$"):
        verify.run([sys.executable, "-c", code.format("time.sleep(60)")])


def test_counts_are_those_of_the_closing_line():
    printed = (
        "..s\n= slowest 20 durations =\n1.2s call a\n1516 passed, 2 skipped in 61.03s (0:01:01)\nsys:1: a warning\n"
    )
    assert verify.pytest_counts(printed) == {"passed": 1516, "skipped": 2}
    for bad in ("1 failed, 3 passed in 1.0s\n", "3 passed, 1 error in 1.0s\n", "2 skipped in 1s\n", "..s [ 27%]\n"):
        with pytest.raises(RuntimeError, match="not a clean run"):
            verify.pytest_counts(bad)
