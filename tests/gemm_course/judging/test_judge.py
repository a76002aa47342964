"""The judge: what an answer may do to its process costs its points, takes seconds, and yields one message."""

from __future__ import annotations

import fcntl
import itertools
import os
import tempfile
import time

import msgspec
import pytest

from altered_server import UNREAD, judge_of
from answers import OFFSETS as RIGHT
from gemm_course.exercises import manifest
from gemm_course.judging.judge import Judge
from gemm_course.notebook import cells
from gemm_course.runner import probes
from places import ROOT

(OFFSETS,) = manifest.find("01")
HASTY = msgspec.structs.replace(OFFSETS, seconds=1.0)
HEAD = "def describe_groups(sizes, total_m):\n    "


@pytest.fixture(scope="module")
def judge():
    with Judge(manifest.examiner) as found:
        found.check(OFFSETS, RIGHT)
        yield found


@pytest.fixture(scope="module")
def open_judge(tmp_path_factory):
    """What an answer could do if reading it beforehand had found nothing."""
    with judge_of(tmp_path_factory.mktemp("unread"), UNREAD) as found:
        yield found


@pytest.mark.parametrize("condition", ["row >= 0", "row < 0", "tl.arange(0, BLOCK) < 15"])
def test_an_assertion_of_an_answer_is_made(judge, condition):
    (masks,) = manifest.find("03")
    solution = cells.of_notebook(ROOT / "solutions" / "03_tail_masks.ipynb", masks.function)
    head, docstring, body = solution.partition('"""\n')
    source = f"{head}{docstring}    tl.device_assert({condition}, 'this is wrong')\n{body}"
    result = judge.check(masks, source, 1, compiling=False)
    assert result.passed is (condition == "row >= 0"), result.text()
    assert result.passed or "AssertionError: this is wrong (in program 0)" in result.message


def test_folders_of_killed_judges_are_removed_and_those_of_others_stay(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    names = ("course-judge-killed", "course-judge-young", "course-judge-locked", "course-mine")
    for name in names:
        (tmp_path / name / "inner").mkdir(parents=True)
        os.utime(tmp_path / name, (1e9, 1e9))
    os.utime(tmp_path / "course-judge-young")
    (tmp_path / "course-judge-link").symlink_to(tmp_path / "course-mine")
    handle = os.open(tmp_path / "course-judge-locked", os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        with Judge(manifest.examiner), Judge(manifest.examiner):
            for each in tmp_path.glob("course-judge-*"):
                os.utime(each, (1e9, 1e9), follow_symlinks=False)
            Judge(manifest.examiner).close()
            there = [each.name for each in tmp_path.iterdir()]
        assert len(there) == 5, f"a link, what is locked, by two judges also, and what is not ours: {there}"
        assert {"course-judge-locked", "course-mine", "course-judge-link"} < set(there)
    finally:
        os.close(handle)


@pytest.mark.parametrize(
    ("source", "says"),
    [
        (HEAD + "while True:\n        pass", "still running after 1 s, so it was stopped: the loop in line 2 makes"),
        (HEAD + "return [torch.empty(1 << 20) for _ in range(10000)]", "wants more memory than an answer gets"),
        (HEAD + "while True: print('x' * 1000)", "printed more than 256 kB"),
        (HEAD + "input()", "waits for typed input"),
        (HEAD + "raise SystemExit(0)", "ends the program"),
        (HEAD + "return (", "line 2: this is not Python yet"),
        (HEAD + "return describe_groups(sizes, total_m)", "RecursionError"),
        ("def other(): pass", "must define the function describe_groups; it defines other"),
        ("import os\n" + HEAD + "os._exit(0)", "cannot import os"),
        (HEAD + "return torch.os._exit(3)", "has no need of"),
        ("from course_kernels.layout.group_layout import GroupLayout\n" + HEAD, "the finished library"),
        ("torch.equal = lambda a, b: True\n" + HEAD + "return sizes", "changes nothing"),
    ],
)
def test_one_clear_message_in_time(judge, source, says):
    source += "pass" if source.endswith("    ") else ""
    started = time.monotonic()
    result = judge.check(HASTY, source)
    assert says in result.message, result.text()
    assert (result.status, result.points) == ("failed", 0)
    assert time.monotonic() - started < 30
    assert judge.check(OFFSETS, RIGHT).passed, "the next try is none the worse"


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("import os\n" + HEAD + "os._exit(0)", "ended its own process (exit code 0)"),
        ("import os\n" + HEAD + "os.abort()", "abort"),
        ("import ctypes\n" + HEAD + "ctypes.string_at(0)", "segmentation fault"),
        (
            "import signal\n" + HEAD + "signal.signal(signal.SIGALRM, signal.SIG_IGN)\n    while True: pass",
            "an endless loop?",
        ),
        ("import os\n" + HEAD + "[os.fork() for _ in range(4)]\n    while True: pass", "no process to start"),
        ("import os\n" + HEAD + "os.closerange(3, 100)\n    while True: pass", "before a result came back"),
    ],
)
def test_a_process_that_ends_itself_says_so(open_judge, source, says):
    started = time.monotonic()
    result = open_judge.check(HASTY, source)
    assert says in result.message, result.text()
    assert result.points == 0
    assert time.monotonic() - started < 30
    assert open_judge.check(OFFSETS, RIGHT).passed


def test_an_answer_cannot_write_files_or_signal_the_judge(open_judge, tmp_path):
    if not _landlock():
        pytest.skip("this kernel has no Landlock")
    target = tmp_path / "checker.py"
    target.write_text("kept")
    # If an exercise lets a compiler write to a folder, its answers can write nowhere else.
    with_files = msgspec.structs.replace(OFFSETS, files_mb=1)
    for exercise, step in itertools.product((OFFSETS, with_files), (
        f"open({str(target)!r}, 'a').write('x')",
        f"__import__('os').unlink({str(target)!r})",
        f"__import__('os').truncate({str(target)!r}, 0)",
        f"open({str(tmp_path / 'new')!r}, 'w')",
    )):  # fmt: skip
        result = open_judge.check(exercise, HEAD + step)
        assert "no file to open" in result.message, result.text()
    assert target.read_text() == "kept"
    assert os.listdir(tmp_path) == ["checker.py"]


def test_an_exercise_that_lacks_a_package_is_not_judged(judge):
    result = judge.check(msgspec.structs.replace(OFFSETS, run="gemm_course.exercises.e99_missing.run"), RIGHT)
    assert result.status == "unchecked"
    assert "No module named" in result.message


def _landlock():
    import ctypes

    return ctypes.CDLL(None).syscall(444, None, 0, 1) >= 1


def test_the_same_seed_gives_the_same_result(judge):
    wrong = RIGHT.replace("right=True", "right=False")
    assert judge.check(OFFSETS, wrong, 7) == judge.check(OFFSETS, wrong, 7)
    assert judge.check(OFFSETS, wrong, 7).text() != judge.check(OFFSETS, wrong, 8).text()


def test_the_hooks_that_the_probes_use_are_still_there():
    """The interpreter's masked load and store are private; when Triton renames them, the probes must follow."""
    import inspect

    from triton.runtime.interpreter import InterpreterBuilder

    assert list(inspect.signature(InterpreterBuilder.create_masked_load).parameters)[:4] == [
        "self", "ptrs", "mask", "other",
    ]  # fmt: skip
    assert list(inspect.signature(InterpreterBuilder.create_masked_store).parameters)[:4] == [
        "self", "ptrs", "value", "mask",
    ]  # fmt: skip
    before = InterpreterBuilder.create_masked_load
    with probes.Watch():
        assert InterpreterBuilder.create_masked_load is not before
    assert InterpreterBuilder.create_masked_load is before
