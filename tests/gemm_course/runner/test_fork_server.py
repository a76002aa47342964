"""The processes of a check: one that dies is replaced, and one that cannot start is reported in a message."""

from __future__ import annotations

import os
import re
import signal
import tempfile
import time
from pathlib import Path

import msgspec
import pytest

from altered_server import SERVED, UNREAD, altered, judge_of
from answers import OFFSETS as RIGHT
from course_kernels import runtime
from gemm_course.exercises import manifest
from gemm_course.isolation import landlock, seccomp
from gemm_course.judging import isolation_report
from gemm_course.judging import judge as judging
from gemm_course.judging.judge import Judge
from gemm_course.judging.results import NOT_ON_GPU
from gemm_course.notebook import cells
from gemm_course.runner import fork_server, serialization
from places import ROOT

pytestmark = pytest.mark.usefixtures("no_second_wall")  # in it, processes have numbers of their own
(OFFSETS,) = manifest.find("01")
(MASKS,) = manifest.find("03")


@pytest.fixture(scope="module")
def judge():
    with Judge(manifest.examiner) as found:
        found.check(OFFSETS, RIGHT)
        yield found


def children_of(pid):
    """Process ids of a process's children."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def state(pid):
    """Letter of a process's state, and its parent; of a process that is gone, like of a dead one, Z."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:2]
    except OSError:
        return ["Z", "0"]


def kill(pid):
    os.kill(pid, signal.SIGKILL)
    wait_until_dead(pid)


def wait_until_dead(pid):
    stop = time.monotonic() + 5
    while state(pid)[0] != "Z":
        assert time.monotonic() < stop, f"{pid} still runs"
        time.sleep(0.01)


def test_a_dead_template_is_replaced(judge):
    for pid in children_of(judge._server._process.pid):
        kill(pid)
    assert judge.check(OFFSETS, RIGHT).passed


def test_a_dead_fork_server_is_replaced(judge):
    server = judge._server._process.pid
    for pid in (server, *children_of(server)):
        kill(pid)
    assert judge.check(OFFSETS, RIGHT).passed


def test_a_template_that_dies_during_a_check_is_replaced(judge, monkeypatch):
    forked = []

    def fork(self, fds, original=fork_server.Template.fork):
        pid = original(self, fds)
        if not forked:
            kill(int(state(pid)[1]))
        forked.append(pid)
        return pid

    monkeypatch.setattr(fork_server.Template, "fork", fork)
    assert judge.check(OFFSETS, RIGHT).passed
    assert len(forked) == 2


@pytest.mark.parametrize("mode", ["run", "compile"])
def test_what_always_dies_is_a_message(mode, monkeypatch, tmp_path, capfd):
    """Of either kind, with the last line of what it said; nothing of it reaches the learner's terminal."""
    imports = "    from gemm_course.isolation import landlock\n"
    replaced = f"    if mode == {mode!r}: raise ImportError('no numpy here')\n{imports}"
    monkeypatch.setattr(fork_server, "__file__", altered(tmp_path, (imports, replaced)))
    monkeypatch.setattr(judging, "_has_gpu", lambda: False)
    path = ROOT / "solutions" / "03_tail_masks.ipynb"
    with Judge(manifest.examiner) as found:
        result = found.check(MASKS, cells.of_notebook(path, MASKS.function))
    assert result.status == "unchecked"
    assert "ImportError: no numpy here" in result.message, result.text()
    assert "course doctor" in result.message
    skipped = [each.name for each in result.properties if each.status == "skip"]
    assert skipped == [each.name for each in MASKS.checks if mode == "run" or each.name == judging.COMPILES]
    assert capfd.readouterr() == ("", "")
    assert (result.points == 0) == (mode == "run")


def test_what_cannot_be_started_is_a_message(monkeypatch):
    monkeypatch.setattr(fork_server.sys, "executable", "/nowhere/python")
    with Judge(manifest.examiner) as found:
        result = found.check(OFFSETS, RIGHT)
    assert (result.status, result.points) == ("unchecked", 0)
    assert "No such file" in result.message


def test_libraries_of_an_exercise_are_imported_before_its_answers(tmp_path):
    """Once, for all of its answers: CuTe DSL takes 1.6 s. Other exercises' answers have none of it."""
    source = f"import sys\n{RIGHT}\nprint('there' if 'msgspec' in sys.modules else 'not there')\n"
    with judge_of(tmp_path, UNREAD) as found:
        for imports, wanted in ((("heapq", "msgspec"), "there"), ((), "not there"), (("no_such_module",), "not there")):
            result = found.check(msgspec.structs.replace(OFFSETS, imports=imports), source)
            assert result.passed, result.text()
            assert result.printed == f"{wanted}\n"
        assert {("run", "msgspec"), ("run",)} <= found._templates.keys()


def test_a_judge_that_is_closed_leaves_no_process():
    found = Judge(manifest.examiner)
    found.check(OFFSETS, RIGHT)
    pid = found._server._process.pid
    children = children_of(pid)
    assert len(children) == 2 + (runtime.mode() == "gpu")
    found.close()
    for each in (pid, *children):
        wait_until_dead(each)


def test_ctrl_c_during_a_check_leaves_nothing(monkeypatch, capfd):
    """Not the thread that waits for the compiler, not its process, no message of theirs."""
    asked, ended = [], []

    def ask(self, mode, *rest, original=Judge.ask):
        asked.append(mode)
        if mode == "run":
            while "compile" not in asked:
                time.sleep(0.01)
            raise KeyboardInterrupt
        outcome = original(self, mode, *rest)
        ended.append(outcome)
        return outcome

    monkeypatch.setattr(Judge, "ask", ask)
    monkeypatch.setattr(judging, "_has_gpu", lambda: False)
    before = children_of(os.getpid())
    found = Judge(manifest.examiner)
    pid = found._server._process.pid
    path = ROOT / "solutions" / "03_tail_masks.ipynb"
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        found.check(MASKS, cells.of_notebook(path, MASKS.function))
    assert "closed" in ended[0].not_started
    assert time.monotonic() - started < 10
    wait_until_dead(pid)
    assert children_of(os.getpid()) == before
    assert capfd.readouterr() == ("", "")


DEAF = """
import ctypes, time
ctypes.CDLL(None).prctl(1, 0, 0, 0, 0)  # not to die with the process that forked it
ctypes.CDLL(None).prctl(15, b"deaf", 0, 0, 0)
time.sleep(99)
"""


def test_a_child_does_not_outlive_a_judge_that_is_killed(monkeypatch, tmp_path):
    monkeypatch.setattr(fork_server, "__file__", altered(tmp_path, UNREAD))
    (tmp_path / "answer.py").write_text(DEAF, encoding="utf-8")
    request = {
        "path": str(tmp_path / "answer.py"), "module": OFFSETS.run, "function": "f", "imports": [],
        "seconds": 60.0, "memory_mb": 1024, "scratch": str(tmp_path), "cases": [],
    }  # fmt: skip
    server = fork_server.ForkServer()
    template, (results, theirs) = fork_server.Template(server, "run"), os.pipe()
    with tempfile.TemporaryFile() as file:
        file.write(serialization.pack(request))
        file.seek(0)
        pid = template.fork([file.fileno(), theirs, theirs])
    stop = time.monotonic() + 20
    while "deaf" not in Path(f"/proc/{pid}/comm").read_text():
        assert time.monotonic() < stop
        time.sleep(0.01)
    template.close()  # as the end of its judge does
    wait_until_dead(pid)
    server.close()
    os.close(results)
    os.close(theirs)


# ---- the template whose children use a GPU, where there is none

TORCH = '    importlib.import_module("torch")  # and'
NO_CUDA = """    torch = importlib.import_module("torch")
    for each in ("is_available", "device_count", "init", "_lazy_init", "current_device"):
        setattr(torch.cuda, each, lambda *_, name=each: os.write(2, f"{name} starts CUDA".encode()) and os._exit(1))
    # and"""
ON_CPU = f"""{SERVED}
    worker.static_check.find_violation = lambda *_: None
    if mode == "gpu":
        import torch
        from course_kernels import runtime
        assert runtime.mode() == "gpu"
        runtime.device = lambda: torch.device("cpu")
        from gemm_course.runner import gpu as on_gpu
        on_gpu.try_kernel = lambda: exec(open(os.environ["TMPDIR"] + "/../answer.py").read())
"""


@pytest.fixture(scope="module")
def altered_judge(tmp_path_factory):
    """A judge whose answers on a GPU find tensors on the CPU; the process that forks them must not start CUDA."""
    if runtime.mode() == "gpu":
        pytest.skip("there is a GPU: tests on it use that")
    with judge_of(tmp_path_factory.mktemp("altered"), (TORCH, NO_CUDA), (SERVED, ON_CPU)) as found:
        yield found


@pytest.fixture
def gpu_judge(altered_judge, monkeypatch):
    monkeypatch.setattr(judging, "_has_gpu", lambda: True)
    monkeypatch.setattr(altered_judge, "_gpu_works", True)
    return altered_judge


def test_an_answer_runs_where_it_would_use_a_gpu(gpu_judge, monkeypatch):
    asked, sent = gpu_judge.ask, {}

    def ask(mode, *rest):
        sent[mode] = asked(mode, *rest)
        return sent[mode]

    monkeypatch.setattr(gpu_judge, "ask", ask)
    result = gpu_judge.check(OFFSETS, RIGHT)
    assert (result.passed, result.message) == (True, ""), result.text()
    assert sent["gpu"].ready
    assert len(sent["gpu"].messages) == len(sent["run"].messages)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("torch.zeros(1) + 'x'", "on the GPU: line 5: TypeError"),
        ("__import__('os').fork()", "no process to start"),
        ("__import__('os').kill(__import__('os').getppid(), 9)", "no process to start"),
        (f"__import__('io').open({str(Path(__file__))!r}).read()", "no file to open"),
        ("__import__('os')._exit(0)", "ended its own process"),
        ("bytearray(9 << 30)", "wants more memory"),
    ],
    ids=["exception", "fork", "kill", "file", "exit", "memory"],
)
def test_what_an_answer_does_on_a_gpu_alone_is_told(gpu_judge, line, says):
    there = "__import__('course_kernels').runtime.mode() == 'gpu'"
    result = gpu_judge.check(OFFSETS, RIGHT.replace("    group =", f"    {there} and {line}\n    group ="))
    assert (result.status, result.points) == ("failed", 0), result.text()
    assert all(says in each.message for each in result.properties), result.text()
    assert gpu_judge.check(OFFSETS, RIGHT).passed


def test_a_gpu_that_cuda_does_not_find_is_told_and_costs_nothing(monkeypatch):
    """All of it as it is, on a machine without: CUDA does not start."""
    if runtime.mode() == "gpu":
        pytest.skip("there is a GPU")
    monkeypatch.setattr(judging, "_has_gpu", lambda: True)
    with Judge(manifest.examiner) as found:
        result = found.check(OFFSETS, RIGHT)
        assert result.passed
        assert result.message.startswith(f"{NOT_ON_GPU}: ")
        problem = isolation_report.try_gpu(found.ask)
        assert result.message.endswith(problem)
        assert re.search("CUDA|NVIDIA driver", problem)  # of torch built without CUDA, and with it
        assert isolation_report.find_layer(found.ask, problem) == "it does not run without isolation either"


@pytest.mark.parametrize(
    ("step", "says"),
    [
        ("pass", ""),
        (f"open({str(Path(__file__))!r})", "it runs without Landlock's rules about files"),
        ("import os; os.fork() or os._exit(0)", "it runs without the filter of system calls"),
        ("import os; os.truncate(os.memfd_create('x'), 65 << 20)", "it runs without the limits on memory"),
        (f"import os; open({str(Path(__file__))!r}); os.fork()", "it runs without any isolation, but not"),
        ("1 / 0", "it does not run without isolation either"),
    ],
    ids=["nothing", "files", "calls", "limits", "two", "itself"],
)
def test_what_is_in_a_gpus_way_is_named(gpu_judge, step, says):
    """In the place of the kernel that is tried: a step that one part of the confinement, or none, refuses."""
    if not (landlock.landlock_version() and seccomp.supported()):
        pytest.skip("this kernel lacks Landlock or filters of system calls")

    def ask(mode, request, seconds):
        Path(request["path"]).write_text(step, encoding="utf-8")
        return gpu_judge.ask(mode, request, seconds)

    problem = isolation_report.try_gpu(ask)
    assert bool(problem) == bool(says)
    assert "\n" not in problem
    if says:
        assert isolation_report.find_layer(ask, problem).startswith(says)
