"""`course grade`: its messages, files and exit codes, with judges that pretend and with real ones."""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import pty
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path
from types import SimpleNamespace

import pytest

from gemm_course.cli import app as command
from gemm_course.exercises import manifest
from gemm_course.grading import result_cache
from gemm_course.judging.results import NOT_ON_GPU, ONLY_ON_GPU
from hand_ins import (
    CANNOT,
    PREFIX,
    RIGHT,
    TODO,
    WRONG,
    answer,
    cache_in,
    grades_of,
    hand_in,
    notebook,
    outcome,
    read,
    zipped,
)
from places import ROOT


def test_what_cannot_be_checked_here_is_told_with_3_and_checked_again(tmp_path, pretend, capsys):
    hand_in(tmp_path, {"in/ann/01_offsets.ipynb": answer("one"), "in/bob/01_offsets.ipynb": answer("two")})
    hand_in(tmp_path, {"in/cas.zip": b"no zip"})
    pretend.answers[f"{PREFIX}one"] = [outcome(0, CANNOT, "unchecked"), outcome(10)]
    calls = ["grade", str(tmp_path / "in"), "--out", str(tmp_path / "g.csv"), "--only", "1", "--gradescope"]
    assert command.main([*calls, str(tmp_path / "s")]) == 3
    printed = capsys.readouterr()
    assert f"1 answer: {CANNOT}\n" in printed.out
    assert printed.err == "course grade: not checked, because this machine cannot: 1 answer\n"
    row = grades_of(tmp_path / "g.csv")["ann"]
    assert (row["status"], row["points"], row["message"]) == ("unchecked", "0", CANNOT)
    made = json.loads((tmp_path / "s" / "ann" / "results.json").read_text())
    assert made["output"] == f"0 of 1 exercises passed\n01: {CANNOT}"
    assert [test["output"] for test in made["tests"]] == ["", CANNOT]
    assert command.main([*calls, str(tmp_path / "s")]) == 1, "what is refused is left"
    assert [source.removeprefix(PREFIX) for source, _ in pretend] == ["one", "two", "one"]
    assert grades_of(tmp_path / "g.csv")["ann"]["status"] == "passed"
    assert CANNOT not in capsys.readouterr().out


def test_what_did_not_run_on_the_gpu_counts_is_told_and_checked_again(tmp_path, pretend, capsys):
    hand_in(tmp_path, {"in/ann/01_offsets.ipynb": answer("one"), "in/bob/01_offsets.ipynb": answer("two")})
    remark = f"{NOT_ON_GPU}: out of memory"
    pretend.answers[f"{PREFIX}one"] = [outcome(10, remark), outcome(6, failure=f"{ONLY_ON_GPU}slow")]
    calls = ["grade", str(tmp_path / "in"), "--out", str(tmp_path / "g.csv"), "--only", "1", "--gradescope"]
    assert command.main([*calls, str(tmp_path / "s")]) == 0
    assert f"1 answer: {remark}\n" in capsys.readouterr().out
    row = grades_of(tmp_path / "g.csv")["ann"]
    assert (row["status"], row["points"], row["message"]) == ("passed", "10", remark)
    made = {who: json.loads((tmp_path / "s" / who / "results.json").read_text())["output"] for who in ("ann", "bob")}
    assert made == {"ann": f"1 of 1 exercises passed\n01: {remark}", "bob": "1 of 1 exercises passed"}
    assert command.main([*calls, str(tmp_path / "s")]) == 0
    assert [source.removeprefix(PREFIX) for source, _ in pretend] == ["one", "two", "one"]
    assert grades_of(tmp_path / "g.csv")["ann"]["points"] == "6"


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        ([], 2, "name the folder"),
        (["nowhere"], 2, "nowhere cannot be read as a folder of submissions: No such file or directory"),
        (["file"], 2, "file cannot be read as a folder of submissions: Not a directory"),
        (["all.zip"], 2, "all.zip cannot be read as a folder of submissions: unpack it"),
        (["empty"], 2, "empty has no submissions"),
        (["in", "--only", "01_ofsets"], 2, "did you mean 01_offsets"),
        (["in", "--jobs", "0"], 2, "from 1 to 256"),
        (["in", "--seed", "-1"], 2, "from 0 to 4294967295"),
        (["in", "--one-student", "bob"], 2, "--one-student must name somebody with work in in, got 'bob'"),
        *((["in", option, "nowhere/x"], 2, f"{option} nowhere/x: there is no folder nowhere")
          for option in ("--out", "--gradescope", "--feedback", "--identical")),
        (["in", "--feedback", "in/"], 2, "--feedback wants another folder than that of the submissions"),
        (["in", "--roster", "nowhere.csv"], 2, "--roster: nowhere.csv cannot be read: No such file or directory"),
        (["in", "--roster", "file"], 2, "--roster: file is no roster: its first line must name a column 'student'"),
        (["in", "--late-penalty", "10"], 2, "--late-penalty needs --roster"),
        (["in", "--out", "empty"], 3, "empty cannot be written"),
        (["in", "--gradescope", "in/"], 2, "--gradescope wants another folder than that of the submissions"),
        (["in", "--gradescope", "file/x"], 2, "--gradescope file/x: there is no folder file"),
        (["in", "--gradescope", "file"], 3, "file cannot be written: File exists"),
    ],
)  # fmt: skip
def test_wrong_usage_has_one_line_and_a_code(tmp_path, monkeypatch, capsys, arguments, code, says):
    monkeypatch.chdir(tmp_path)
    hand_in(tmp_path, {"file": b"", "all.zip": b"", "in/ann/01_offsets.ipynb": answer()})
    (tmp_path / "empty").mkdir()
    assert command.main(["grade", *arguments]) == code
    printed = capsys.readouterr()
    assert says in printed.err
    assert printed.out == ""
    assert not (tmp_path / "nowhere").exists()


def test_a_roster_feedback_and_identical_answers(tmp_path, monkeypatch, pretend, capsys):
    monkeypatch.chdir(tmp_path)
    hand_in(tmp_path, {f"{who}/01_offsets.ipynb": answer(RIGHT) for who in ("ann", "bob", "eve")})
    hand_in(tmp_path, {"Ann/01_offsets.ipynb": answer("attack"), "bob_01_offsets.ipynb": answer("other")})
    pretend.answers[f"{PREFIX}attack"] = outcome(0, "line 1: an answer has no need of .obj") | {"flagged": True}
    (tmp_path / "class.csv").write_text("student,days_late\nann,\nAnn,\nbob,2\ncas,\n")
    calls = ["grade", ".", "--only", "01", "--roster", "class.csv", "--late-penalty", "15", "--feedback", "back"]
    for _ in range(2):
        assert command.main([*calls, "--identical", "same.csv", "--gradescope", "scores"]) == 0
        printed = capsys.readouterr()
        assert printed.err.splitlines() == [
            "course grade: several entries are taken for one student's, a folder or archive first: bob",
            "course grade: names that look alike are different students: Ann, ann",
            "course grade: not in the roster, but graded: eve",
        ]
        assert "flagged: Ann: 01: 01_offsets.ipynb: line 1: an answer has no need of .obj" in printed.out
        rows = {(row["student"], row["exercise"]): row for row in read(tmp_path / "grades.csv")}
        assert [(who, row["points"], row["status"]) for (who, name), row in rows.items() if name != "total"] == [
            ("Ann", "0", "flagged"), ("ann", "10", "passed"), ("bob", "10", "passed"), ("cas", "0", "missing"),
            ("eve", "10", "passed"),
        ]  # fmt: skip
        assert rows["bob", "total"]["points"] == "7"
        assert rows["bob", "total"]["message"] == "1 of 1 passed; 2 days late: 30 % of 10 points taken off"
        assert rows["ann", "total"]["points"] == "10"
        assert read(tmp_path / "same.csv") == [{"exercise": "01_offsets", "same": "text", "students": "ann, bob, eve"}]
    assert "this is about 01_offsets.ipynb" in (tmp_path / "back" / "Ann" / "feedback.txt").read_text()
    assert "missing: nothing was handed in" in (tmp_path / "back" / "cas" / "feedback.txt").read_text()
    assert json.loads((tmp_path / "scores" / "bob" / "results.json").read_text())["score"] == 7


def test_gradescopes_autograder_grades_one_submission(tmp_path):
    """As Gradescope calls it, in folders of ours."""
    hand_in(tmp_path, {"submission/my/03_tail_masks.ipynb": b"{", "submission/01_offsets.ipynb": answer(RIGHT),
                       "submission/old/01_offsets.ipynb": answer(WRONG)})  # fmt: skip
    (tmp_path / "results").mkdir()
    course = tmp_path / "course"
    course.write_text(f"#!{sys.executable}\nimport sys\nfrom gemm_course.cli import app\nsys.exit(app.main())\n")
    course.chmod(0o755)
    script = (ROOT / "tools" / "gradescope" / "run_autograder").read_text()
    (tmp_path / "run").write_text(script.replace("only=()", "only=(--only 01 --only 03)"))
    environment = {"AUTOGRADER": str(tmp_path), "COURSE": str(course), "XDG_STATE_HOME": str(tmp_path / "state")}
    done = subprocess.run(["bash", "run"], cwd=tmp_path, env=os.environ | environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    made = json.loads((tmp_path / "results" / "results.json").read_text())
    assert sum(test["score"] for test in made["tests"]) == 10
    assert sum(test["max_score"] for test in made["tests"]) == 20
    assert "cannot be read as a notebook" in made["tests"][-1]["output"]
    (tmp_path / "run").write_text(script.replace("--only 03", "--only 99").replace("only=()", "only=(--only 99)"))
    done = subprocess.run(["bash", "run"], cwd=tmp_path, env=os.environ | environment, capture_output=True, text=True)
    assert done.returncode == 2, "Gradescope tells the instructor of what left no results"


def test_a_machine_without_triton_says_so(tmp_path, monkeypatch, capsys):
    hand_in(tmp_path, {"in/ann/01_offsets.ipynb": answer()})

    def version(package):
        raise importlib.metadata.PackageNotFoundError(package)

    monkeypatch.setattr(importlib.metadata, "version", version)
    result_cache.checker_digest.cache_clear()
    assert command.main(["grade", str(tmp_path / "in"), "--out", str(tmp_path / "grades.csv")]) == 3
    assert capsys.readouterr().err == "course grade: answers cannot be checked here: torch is not installed\n"


def test_what_the_command_wrote_is_no_submission(tmp_path, monkeypatch, pretend, capsys):
    monkeypatch.chdir(tmp_path)
    hand_in(tmp_path, {"ann/01_offsets.ipynb": answer()})
    for _ in range(2):
        assert command.main(["grade", ".", "--only", "01", "--gradescope", "scores"]) == 0
        assert capsys.readouterr().err == ""
    assert [row["student"] for row in read(tmp_path / "grades.csv")] == ["ann", "ann"]


def test_what_another_run_wrote_is_no_submission_and_told(tmp_path, monkeypatch, pretend, capsys):
    monkeypatch.chdir(tmp_path)
    hand_in(tmp_path, {"in/ann/01_offsets.ipynb": answer(), "in/bob/01_offsets.ipynb": answer()})
    calls = ["grade", "in", "--only", "01"]
    assert command.main([*calls, "--gradescope", "in/scores"]) == 0
    (tmp_path / "in" / "scores" / ".DS_Store").touch()
    for more in ([], ["--gradescope", "in/others"]):
        assert command.main([*calls, *more]) == 0
        assert capsys.readouterr().err == "course grade: skipped, because they are not submissions: scores\n"
        assert {row["student"] for row in read(tmp_path / "grades.csv")} == {"ann", "bob"}
    assert command.main([*calls, "--gradescope", "in/scores"]) == 0
    assert capsys.readouterr().err == "course grade: skipped, because they are not submissions: others\n"


def test_a_class_one_level_too_high_is_refused_and_the_grader_has_the_last_word(tmp_path, pretend, capsys):
    """Beside other folders: in nbgrader's layout."""
    hand_in(tmp_path / "in", {
        "hand ins/ann/01_offsets/01_offsets.ipynb": answer("one"), "source/01_offsets/01_offsets.ipynb": answer(),
        "hand ins/bob/01_offsets/01_offsets.ipynb": answer("two"),
    })  # fmt: skip
    calls = ["grade", str(tmp_path / "in"), "--out", str(tmp_path / "g.csv"), "--only", "1"]
    assert command.main(calls) == 1
    told = "refused: hand ins: holds several hand-ins (ann, bob): grade that folder by itself; if they are versions of "
    assert f"{told}one student's, add --one-student 'hand ins'" in capsys.readouterr().out.splitlines()
    table = {row["student"]: (row["status"], row["points"]) for row in read(tmp_path / "g.csv") if row["status"]}
    assert table == {"hand ins": ("refused", "0"), "source": ("passed", "10")}
    assert len(pretend) == 1, "nobody else's work is checked"
    assert command.main([*calls, "--one-student", "hand ins"]) == 0
    assert grades_of(tmp_path / "g.csv")["hand ins"]["message"].startswith("the best of 2 versions")


def test_what_nobody_handed_in_is_said_with_what_to_do(tmp_path, pretend, capsys):
    hand_in(tmp_path, {"in/ann/01_offsets.ipynb": answer(), "in/bob/05_better_schedule.ipynb": answer()})
    others = [each for each in manifest.exercises() if each.id not in ("01", "05")]
    calls = ["grade", str(tmp_path / "in"), "--out", str(tmp_path / "grades.csv")]
    assert command.main(calls) == 0
    printed = capsys.readouterr().out
    assert printed.splitlines()[-2:] == [
        f"nobody answered {', '.join(each.name for each in others)}: "
        f"0 of {sum(each.points for each in others)} points for everybody.",
        "If you did not ask for them, grade again with --only 01 --only 05. Results so far are used again.",
    ]
    possible = sum(each.points for each in manifest.exercises())
    assert {row["of"] for row in read(tmp_path / "grades.csv") if row["exercise"] == "total"} == {str(possible)}
    assert command.main([*calls, "--only", "01", "--only", "05"]) == 0
    assert "nobody handed" not in capsys.readouterr().out
    assert len(pretend) == 2, "nothing is checked twice"
    assert {row["of"] for row in read(tmp_path / "grades.csv") if row["exercise"] == "total"} == {"20"}
    # What was asked for by name is counted, handed in or not; there is nothing to advise.
    assert command.main([*calls, "--only", "01", "--only", "03"]) == 0
    said = "nobody answered 03_tail_masks: 0 of 10 points for everybody"
    assert capsys.readouterr().out.splitlines()[-1] == said


@pytest.mark.parametrize("gus", [None, "in/gus.zip", "in/gus/all.zip"])
def test_a_hole_is_no_answer_and_of_what_was_refused_nobody_knows(tmp_path, pretend, capsys, gus):
    hand_in(tmp_path, {
        "in/ann/01_offsets.ipynb": answer(), "in/ann/03_tail_masks.ipynb": answer("stub"),
        "in/eve/04a_tile_walk.ipynb": b"{", **({gus: b"no zip"} if gus else {}),
    })  # fmt: skip
    pretend.answers[f"{PREFIX}stub"] = outcome(0, "TODO 03: later", "todo")
    only = [part for name in ("01", "03", "04a") for part in ("--only", name)]
    assert command.main(["grade", str(tmp_path / "in"), "--out", str(tmp_path / "grades.csv"), *only]) == 1
    doubt = "except perhaps in refused files, " if gus else ""
    said = f"{doubt}nobody answered 03_tail_masks: 0 of 10 points for everybody"
    assert capsys.readouterr().out.splitlines()[-1] == said


def test_that_nobody_answered_is_not_said_where_everything_was_refused(tmp_path, pretend, capsys):
    hand_in(tmp_path, {"in/ann.zip": b"no zip", "in/bob.zip": b"no zip"})
    calls = ["grade", str(tmp_path / "in"), "--out", str(tmp_path / "grades.csv")]
    assert command.main(calls) == 1
    assert capsys.readouterr().out.splitlines()[-1].startswith("refused: bob: bob.zip: ")
    hand_in(tmp_path, {"in/cas/01_offsets.ipynb": answer()})
    assert command.main(calls) == 1
    assert "except perhaps in refused files, nobody answered 02" in capsys.readouterr().out


def test_where_everything_is_one_level_too_high_nothing_is_written(tmp_path, monkeypatch, pretend, capsys):
    monkeypatch.chdir(tmp_path)
    hand_in(tmp_path, {f"x/week 3/{who}/01_offsets.ipynb": answer(who) for who in ("ann", "bob")})
    calls = ["grade", "x", "--gradescope", "scores"]
    told = "holds several hand-ins (ann, bob): grade that folder by itself; if they are versions of one student's, add "
    meant = "Did you mean `course grade 'x/week 3'`?"
    for more in ([], [f"  week 4: {told}--one-student 'week 4'"]):
        assert command.main(calls) == 2
        printed = capsys.readouterr()
        assert (printed.out, printed.err.splitlines()) == ("", [
            "course grade: x seems to be one level too high: nothing is graded",
            f"  week 3: {told}--one-student 'week 3'", *more, meant,
        ])  # fmt: skip
        assert [path.name for path in tmp_path.iterdir()] == ["x"]
        hand_in(tmp_path, {f"x/week 4/{who}/01_offsets.ipynb": answer(who) for who in ("ann", "bob")})
    assert command.main([*calls, "--one-student", "week 4"]) == 1
    assert grades_of(tmp_path / "grades.csv")["week 4"]["status"] == "passed"
    assert command.main(["grade", "x/week 3"]) == 0
    hand_in(tmp_path, {"y/all.zip": zipped({f"{who}/01_offsets.ipynb": answer(who) for who in ("ann", "bob")})})
    assert command.main(["grade", "y"]) == 2
    assert capsys.readouterr().err.endswith("unpack it; if they are versions of one student's, add --one-student all\n")


def test_of_what_is_not_graded_the_name_is_still_no_students(tmp_path, monkeypatch, pretend, capsys):
    hand_in(tmp_path, {"in/ann_01_offsets.ipynb": answer(), "in/ann_03_tail_masks.ipynb": answer()})
    command.main(["grade", str(tmp_path / "in"), "--out", str(tmp_path / "grades.csv"), "--only", "01"])
    assert capsys.readouterr().out.startswith("1 student, 1 exercise")
    assert [row["student"] for row in read(tmp_path / "grades.csv")] == ["ann", "ann"]


def test_a_folders_name_does_nothing_to_the_terminal(tmp_path, capsys):
    hand_in(tmp_path / "in", {"e\x1b[31mv\re\nil\u202e/01_offsets.ipynb": b"{"})
    assert command.main(["grade", str(tmp_path / "in"), "--out", str(tmp_path / "grades.csv"), "--only", "1"]) == 1
    printed = capsys.readouterr().out
    assert r"refused: e\x1b[31mv\re\nil\u202e: 01_offsets.ipynb: it cannot be read" in printed
    assert all(letter.isprintable() for letter in printed.replace("\n", ""))


@contextlib.contextmanager
def full_disk(left):
    """Files can have so many bytes: to who writes them that is as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (left, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("left", [10, 300], ids=["for the seed", "for an answer"])
def test_a_full_disk_is_told_in_one_line(tmp_path, pretend, capsys, left):
    hand_in(tmp_path, {"in/ann/01_offsets.ipynb": answer(), "in/bob/01_offsets.ipynb": answer("return 1")})
    out = tmp_path / "grades.csv"
    with full_disk(left):
        code = command.main(["grade", str(tmp_path / "in"), "--out", str(out), "--only", "1"])
    assert (code, capsys.readouterr().err) == (3, f"course grade: {out} cannot be written: File too large\n")


def test_of_what_cannot_be_written_the_right_file_is_told(tmp_path, pretend, capsys):
    hand_in(tmp_path, {"in/ann/01_offsets.ipynb": answer()})
    calls = ["grade", str(tmp_path / "in"), "--out", str(tmp_path / "grades.csv"), "--only", "1"]
    assert command.main(calls) == 0
    scores = tmp_path / "scores"
    with full_disk(300):
        code = command.main([*calls, "--gradescope", str(scores)])
    assert (code, capsys.readouterr().err) == (3, f"course grade: {scores} cannot be written: File too large\n")


def test_two_at_once_do_not_write_the_same_file(tmp_path, capsys):
    hand_in(tmp_path, {"in/ann/01_offsets.ipynb": answer()})
    with cache_in(tmp_path):
        assert command.main(["grade", str(tmp_path / "in"), "--out", str(tmp_path / "grades.csv")]) == 3
    assert "another `course grade`" in capsys.readouterr().err


def test_the_seed_of_the_first_run_is_the_next_ones(tmp_path, pretend, capsys):
    hand_in(tmp_path, {"in/ann/01_offsets.ipynb": answer(), "in/bob/01_offsets.ipynb": answer("return 1")})

    def seed(*more, out="grades.csv"):
        assert command.main(["grade", str(tmp_path / "in"), "--only", "1", "--out", str(tmp_path / out), *more]) == 0
        return {row["seed"] for row in read(tmp_path / out)}

    first = seed()
    assert seed() == first
    assert seed(out="other.csv") != first
    assert len(pretend) == 4
    assert seed("--seed", "12") == seed() == {"12"}
    assert f"seed {min(first)}: " in capsys.readouterr().out


LONG = notebook(PREFIX + "pass\n" + "x;" * (3 << 20))  # which Python would parse in gigabytes of memory
COPIES = f"{'copy ' * 30}x 01_offsets"
# `course`, with less time for an answer: what is stopped is stopped sooner.
HASTY = """
import sys
import msgspec
from gemm_course.cli import app
from gemm_course.exercises import manifest
hasty = tuple(msgspec.structs.replace(each, seconds=2.0) for each in manifest.exercises())
manifest.exercises = lambda: hasty
sys.exit(app.main())
"""
LONG_BESIDE = notebook(PREFIX + TODO, PREFIX + "pass\n" + "x;" * (5 << 20), marked=2)
HOSTILE = {
    "n3/01_offsets.ipynb": LONG_BESIDE,
    "n1/01_offsets.ipynb": LONG, "n2.zip": zipped({"01_offsets.ipynb": LONG}), f"{COPIES}.ipynb": answer(),
    "c1/01_offsets.ipynb": b'{"cells": ' + b"[" * 100_000, "c2.zip": zipped({"../../01_offsets.ipynb": answer()}),
    "b01/01_offsets.ipynb": answer("torch.get_device_module('cuda').traceback.linecache.tokenize.re.enum.bltns"),
    "b22/01_offsets.ipynb": answer("torch.classes.a.b"), "b06/01_offsets.ipynb": answer("print('x' * (1 << 20))"),
    "b10/01_offsets.ipynb": answer("return sum(range(10**12))"), "b11/01_offsets.ipynb": answer("while True: pass"),
    "b21/01_offsets.ipynb": answer("x = ()\n    for _ in range(100_000): x = (x,)\n    return x"),
    "b23/01_offsets.ipynb": notebook("\0", PREFIX + "return '\0'", "\ud800"),
    "b24/01_offsets.ipynb": answer("return " + "-" * 50_000 + "1"),
    "zero\u200bwidth/01_offsets.ipynb": answer("return 1  # unseen"),
}  # fmt: skip


@pytest.fixture(scope="module")
def a_class(tmp_path_factory):
    """A class in which somebody is right, others are not, and some are hostile; and what the command made of it."""
    folder = tmp_path_factory.mktemp("class")
    started = time.monotonic()
    hand_in(folder / "in", {
        "ann/exercises/01_offsets.ipynb": answer(RIGHT),
        "bob.zip": zipped({"top/01_offsets.ipynb": answer(TODO)}),
        "cas_01_offsets.ipynb": answer(WRONG),
        "dan/01_offsets (1).ipynb": answer("raise SystemExit"),
        "eve/01_offsets.ipynb": notebook("import os\n" + PREFIX + "os._exit(0)"),
        "fay/01_offsets.ipynb": answer("return torch.ones(1 << 44)"),
        "gus.zip": b"no zip",
        "hal/hw.pdf": b"",
        "ida/01_offsets.ipynb": answer(")("),
        # What runs is the cell with the answer: not the cells before it, and no output is looked at.
        "jim/01_offsets.ipynb": notebook("raise SystemExit", "1/0", PREFIX + RIGHT),
        # Nor does it matter which cell that is, and what it calls beside the function.
        "lea/01_offsets.ipynb": notebook(PREFIX + TODO, f"{PREFIX}{RIGHT}check(describe_groups)", marked=2),
        "max/.DS_Store": b"",
        "@kim/01_offsets.ipynb": answer("return 1"),
        **HOSTILE,
    })  # fmt: skip
    (folder / "in" / "c3").mkdir()
    os.mkfifo(folder / "in" / "c3" / "01_offsets.ipynb")
    command = [sys.executable, "-c", HASTY, "grade", "in", "--out", "g.csv", "--only", "01",
               "--seed", "3", "--gradescope", "scores"]  # fmt: skip
    environment = os.environ | {"XDG_STATE_HOME": str(folder / "state")}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert time.monotonic() - started < 60, "whatever was handed in"
    return folder, done


def test_what_is_hostile_costs_its_student_alone(a_class):
    folder, _ = a_class
    says = {
        "n3": "01_offsets.ipynb, cell 3: the answer's cell has 10,240 kB; 100 are allowed",
        "n1": "the answer's cell has 6,144 kB", "n2": "the answer's cell has 6,144 kB", "c1": "cannot be read as a",
        "c2": "outside its folder", "c3": "is not a regular file",
        "b01": "no need of .bltns", "b22": "no need of torch.classes",
        "b06": "printed more than 256 kB", "b10": "processor time|still running", "b11": "still running after 2 s",
        "b21": "RecursionError", "b23": "return|Python", "b24": "cannot be read as Python|no need",
        r"zero\u200bwidth": "returned a int", COPIES.removesuffix(" 01_offsets"): "returned a Tensor",
    }  # fmt: skip
    grades = grades_of(folder / "g.csv")
    for student, message in says.items():
        row = grades[student]
        assert row["points"] == "0", row
        assert re.search(message, row["message"]), row


def test_a_class_is_graded(a_class):
    folder, done = a_class
    assert (done.returncode, done.stderr) == (1, "")
    assert "29 students, 1 exercise, seed 3" in done.stdout
    assert "refused: gus: gus.zip: cannot be read as a zip file" in done.stdout
    assert "flagged: b01: 01: 01_offsets.ipynb: line 2: an answer has no need of .bltns" in done.stdout
    assert grades_of(folder / "g.csv")["b01"]["status"] == "flagged"
    grades = grades_of(folder / "g.csv")
    grades = {name: row for name, row in grades.items() if len(name) in (3, 5) and not re.match(r"[a-z]\d", name)}
    assert {name: row["status"] for name, row in grades.items()} == {
        "'@kim": "failed", "ann": "passed", "bob": "todo", "cas": "failed", "dan": "failed", "eve": "failed",
        "fay": "failed", "gus": "refused", "hal": "refused", "ida": "failed", "jim": "passed", "lea": "passed",
        "max": "missing",
    }  # fmt: skip
    points = {name: int(row["points"]) for name, row in grades.items()}
    assert (points["ann"], points["jim"], points["lea"]) == (10, 10, 10)
    assert grades["lea"]["message"] == "the best of 2 versions: 01_offsets.ipynb, cell 3"
    assert 0 < points["cas"] < 10
    assert sum(points.values()) == 30 + points["cas"]
    assert "ends the program" in grades["dan"]["message"]
    assert "cannot import os" in grades["eve"]["message"]


def test_gradescope_gets_a_test_for_each_property(a_class):
    folder, _ = a_class
    for row in grades_of(folder / "g.csv").values():
        made = json.loads((folder / "scores" / row["student"].lstrip("'") / "results.json").read_text())
        assert sum(test["score"] for test in made["tests"]) == int(row["points"])
        assert sum(test["max_score"] for test in made["tests"]) == 10
        assert (made["stdout_visibility"], made["extra_data"]) == ("hidden", {"seed": 3})
        for test in made["tests"]:
            assert set(test) == {"number", "name", "score", "max_score", "status", "output", "visibility"}
            assert test["status"] == ("passed" if test["score"] == test["max_score"] else "failed")
            assert test["status"] == "passed" or test["output"], "what is wrong is said"


def marked_processes(mark):
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark.encode() in path.read_bytes():
                found.append(int(path.parent.name))
        except OSError:
            pass
    return found


def interrupt_when(running, kept, lines):
    """Interrupt a command as soon as its journal has so many lines; its exit code."""
    stop = time.monotonic() + 60
    try:
        while not kept.exists() or kept.read_bytes().count(b"\n") < lines:
            assert running.poll() is None
            assert time.monotonic() < stop
            time.sleep(0.05)
        time.sleep(0.5)
        running.send_signal(signal.SIGINT)
        return running.wait(10)
    finally:
        running.kill()
        running.wait()


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory):
    """A class of two, and one whose answer never ends: interrupted when the two are checked."""
    folder = tmp_path_factory.mktemp("interrupted")
    hand_in(folder / "in", {
        "ann/01_offsets.ipynb": answer(RIGHT), "cas/01_offsets.ipynb": answer(f"{WRONG}# another text"),
        "z/01_offsets.ipynb": answer("while True: pass"),
    })  # fmt: skip
    (folder / "tmp").mkdir()
    mark = f"GRADE_TEST={uuid.uuid4()}"
    environment = os.environ | {"TMPDIR": str(folder / "tmp"), "TERM": "xterm", **dict([mark.split("=")])}
    environment["XDG_STATE_HOME"] = str(folder / "state")
    arguments = ["grade", "in", "--out", "g.csv", "--only", "01", "--jobs", "1", "--seed", "3"]
    terminal, end = pty.openpty()
    running = subprocess.Popen(
        [sys.executable, "-m", "gemm_course.cli.app", *arguments],
        cwd=folder, stdout=subprocess.DEVNULL, stderr=end, env=environment,
    )  # fmt: skip
    os.close(end)
    code = interrupt_when(running, folder / "g.csv.journal", lines=3)  # the seed, and two answers
    shown = b""
    with contextlib.suppress(OSError):  # what Linux says at a terminal's end
        while data := os.read(terminal, 1 << 16):
            shown += data
    os.close(terminal)
    return SimpleNamespace(folder=folder, mark=mark, arguments=arguments, code=code, shown=shown.decode())


def test_interrupted_it_ends_cleanly(interrupted):
    assert interrupted.code == 130
    assert "Traceback" not in interrupted.shown
    assert "█░" in interrupted.shown
    assert "2 of 3 answers checked" in interrupted.shown
    assert "Run the same command again" in " ".join(interrupted.shown.split()), "lines break where the terminal ends"
    assert not (interrupted.folder / "g.csv").exists()
    stop = time.monotonic() + 5
    while marked_processes(interrupted.mark) and time.monotonic() < stop:
        time.sleep(0.05)
    assert marked_processes(interrupted.mark) == []
    assert list((interrupted.folder / "tmp").iterdir()) == []


def test_it_goes_on_and_the_same_seed_gives_the_same_grades(a_class, interrupted, tmp_path, monkeypatch, pretend):
    shutil.copytree(interrupted.folder, tmp_path, dirs_exist_ok=True)
    kept = tmp_path / "g.csv.journal"
    before = kept.read_bytes()
    hand_in(tmp_path / "in", {"z/01_offsets.ipynb": answer("return 1")})
    pretend.answers[f"{PREFIX}return 1"] = outcome(0, "no")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert command.main(interrupted.arguments) == 0
    assert [source for source, _ in pretend] == [f"{PREFIX}return 1"], "what was checked is not checked again"
    assert kept.read_bytes().startswith(before)
    assert kept.read_bytes().count(b"\n") == 4
    found = grades_of(tmp_path / "g.csv")
    assert (found.pop("z")["points"], found["ann"]["points"]) == ("0", "10")
    in_another_run = grades_of(a_class[0] / "g.csv")
    assert found == {name: in_another_run[name] for name in ("ann", "cas")}
