"""What students hand in, judges' outcomes and grades, for the tests of grading and of `course grade`."""

from __future__ import annotations

import csv
import io
import json
import os
import zipfile

from gemm_course.exercises import manifest
from gemm_course.grading import class_folder, grades
from gemm_course.grading import hand_in as reading
from gemm_course.grading.class_folder import Answer, Submission
from gemm_course.grading.result_cache import ResultCache

OFFSETS, MASKS = manifest.find("01_offsets") + manifest.find("03_tail_masks")
BOTH = (OFFSETS, MASKS)
PREFIX = "def describe_groups(sizes, total_m):\n    "
ANSWER = PREFIX + "return sizes\n"
RIGHT = """
    ends = torch.cumsum(sizes, 0)
    rows = torch.arange(total_m, device=sizes.device)
    group = torch.searchsorted(ends, rows, right=True)
    return ends, torch.where(group < len(sizes), group, -1)
"""
WRONG = RIGHT.replace("right=True", "right=False")
CANNOT = "this cannot be checked here: install 'numpy<2.4'"  # what a judge says of the machine
TODO = 'raise NotImplementedError("TODO 01: later")'


def notebook(*sources, marked=True):
    """A stored notebook; True marks its last code cell as the answer's, a number that cell from the end."""
    cells = [{"cell_type": "markdown", "metadata": {}, "source": ["text"]}]
    for source in sources:
        cells.append({"cell_type": "code", "metadata": {}, "source": source.splitlines(True), "outputs": []})
    if marked:
        cells[-int(marked)]["metadata"]["nbgrader"] = {"grade_id": "answer"}
    return json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}).encode()


def answer(text="return sizes"):
    return notebook("import torch", PREFIX + text)


def zipped(files):
    """The bytes of a zip file: names, or ZipInfos, to contents."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as made:
        for name, data in files.items():
            made.writestr(name, data)
    return stream.getvalue()


def hand_in(folder, files):
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        os.utime(path, (1e9, 1e9))


def read_here(students, jobs=1, one_student=()):
    """As `reader.read_all`, in this process."""
    everything = manifest.exercises()
    return [reading.read(who, paths, everything, who in one_student) for who, paths in students.items()]


def discovered(folder, exercises=BOTH, ignore=()):
    """Everybody's submission, read in this process, and the names of what is nobody's."""
    there = class_folder.discover(folder, exercises, ignore)
    return [reading.read(who, paths, exercises) for who, paths in there.students.items()], there.unrecognized


def outcome(points=10, message="", status=None, failure=""):
    properties = [
        {"name": "a", "title": "it is right", "points": points, "status": "pass", "message": ""},
        {"name": "b", "title": "it is quick", "points": 10 - points, "status": "fail" if failure else "skip",
         "message": failure},
    ]  # fmt: skip
    status = status or ("passed" if points == 10 else "failed")
    return {"exercise": "01", "title": "", "status": status, "properties": properties, "message": message, "seed": 0}


def read(path):
    with open(path, encoding="utf-8-sig", newline="") as file:
        return list(csv.DictReader(file))


def grades_of(path):
    return {row["student"]: row for row in read(path) if row["exercise"] == "01_offsets"}


def cache_in(folder):
    folder.mkdir(exist_ok=True)
    return ResultCache(folder / "grades.csv.journal")


def class_of(**sources):
    """One answer, or several versions of it, to exercise 01 by each student."""
    return [
        Submission(who, {"01_offsets": [Answer(f"{i}.ipynb", text) for i, text in enumerate(texts.split("|"))]})
        for who, texts in sources.items()
    ]


def graded(cache, found, seed=1, jobs=2, exercises=(OFFSETS,)):
    return grades.grade(found, exercises, seed, cache, jobs, lambda *_: None)
