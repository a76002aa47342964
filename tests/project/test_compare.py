"""The comparison of two versions of the library: who runs when, what is computed from the times, and the program itself
on the CPU, with stand-ins for both versions."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap

import pytest

import compare
from places import ROOT

ROW = {"name": "tiny", "title": "", "sizes": [3, 0, 5], "N": 8, "K": 16, "kind": "compute"}


class Stand:
    """A version that takes so many µs; the log has what was asked, in order."""

    def __init__(self, name, us, log, checksum=7):
        self.name, self.us, self.log, self.checksum = name, us, log, checksum

    def ask(self, command, *arguments):
        self.log.append((self.name, command, *arguments))
        if command == "prepare":
            return self.checksum
        return ["a call"] if command == "prepare_host" else [self.us, self.us + 1000, self.us]


def test_versions_take_turns_and_alternate_in_who_begins():
    log = []
    old, new = Stand("old", 10.0, log), Stand("new", 8.0, log)
    assert compare.in_turn(old, new, "replay", 3, 15) == [10.0, 8.0]
    assert [name for name, *_ in log] == ["old", "new", "new", "old", "old", "new"]
    assert log[0] == ("old", "replay", 15)


def test_ratios_their_means_and_results_that_differ():
    log, told = [], []
    old, new = Stand("old", 10.0, log), Stand("new", 8.0, log, checksum=8)
    results = compare.compare(old, new, [ROW, {**ROW, "name": "other"}], 2, 15, told.append)
    entry = {"old_us": 10.0, "new_us": 8.0, "ratio": 0.8}
    passes = {name: {**entry, "same": False} for name in compare.PASSES}
    assert results["rows"] == {"tiny": passes, "other": passes}
    assert results["mean"] == dict.fromkeys((*compare.PASSES, "all"), 0.8)
    assert results["host_us"] == {"a call": entry}
    assert ("old", "prepare", [3, 0, 5], 8, 16, "dA") in log
    assert sum("results differ" in line for line in told) == 6
    assert "geometric mean, all: 0.8000 (worst row 0.8000)" in told


GROUPED = """
    import torch

    def group_gemm(group_A, group_B):
        return [a @ b for a, b in zip(group_A, group_B)]

    def grouped_mm(mat_a, mat_b, *, offs, out=None, backend="auto"):
        print("a library may print")
        ends = [0, *offs.tolist()]
        parts = [slice(*pair) for pair in zip(ends, ends[1:])]
        if mat_b.dim() == 2:
            out.copy_(torch.stack([mat_a[:, part] @ mat_b[part] for part in parts]))
        else:
            out = mat_a.new_zeros(len(mat_a), mat_b.shape[2]) if out is None else out
            for g, part in enumerate(parts):
                out[part] = (mat_a[part] @ mat_b[g]) * FACTOR
        return out
"""
ROWS = """
    import dataclasses

    @dataclasses.dataclass
    class Row:
        name: str
        sizes: tuple
        N: int
        K: int

    def select(names):
        return [Row(name, (3, 0, 5), 8, 16) for name in names or ["one", "two"]]
"""


@pytest.fixture
def versions(tmp_path):
    """Folders of two stand-ins for the library; the factor spoils results."""

    def make(name, factor=1):
        package = tmp_path / name / "course_kernels"
        (package / "bench").mkdir(parents=True)
        (package / "__init__.py").write_text(f"FACTOR = {factor}\n" + textwrap.dedent(GROUPED))
        (package / "bench" / "__init__.py").write_text("")
        (package / "bench" / "rows.py").write_text(textwrap.dedent(ROWS))
        return str(package.parent)

    return make


def run(*arguments):
    # Without a GPU, whatever this machine has.
    environment = {**compare.os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(ROOT / "benchmarks" / "compare.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)


def test_the_program_compares_and_writes(versions, tmp_path):
    out = tmp_path / "ratios.json"
    done = run(versions("old"), versions("new"), "--rounds", "2", "--replays", "3", "--rows", "two", "--out", str(out))
    assert done.returncode == 0, done.stderr
    assert "these times mean nothing" in done.stdout
    assert "results differ" not in done.stdout
    results = json.loads(out.read_text())
    assert set(results["rows"]) == {"two"}
    assert all(each["same"] and each["ratio"] > 0 for each in results["rows"]["two"].values())
    calls = [f"grouped_mm, {rows}{new}" for rows in ("few rows", "many rows") for new in ("", ", new total_m")]
    assert list(results["host_us"]) == [*calls, "group_gemm, 8 problems"]
    about = results["provenance"]
    assert {"gpu", "torch", "triton", "python", "date", "old", "new", "backend"} <= set(about)
    assert about["old"] == {"src": str(tmp_path / "old"), "commit": None}


def test_a_wrong_result_ends_the_comparison(versions):
    done = run(versions("old"), versions("new", factor=2), "--rounds", "1")
    assert done.returncode
    assert "new, prepare: AssertionError: forward is wrong in group 2" in done.stderr


def test_a_folder_without_the_library_is_refused(versions, tmp_path):
    done = run(versions("old"), str(tmp_path))
    assert done.returncode == 2
    assert f"{tmp_path} has no folder course_kernels" in done.stderr


def test_the_parent_imports_neither_version():
    code = "import sys; sys.path[0] = sys.argv[1]; import compare; print({'torch', 'course_kernels'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", code, str(ROOT / "benchmarks")], capture_output=True, text=True)
    assert done.stdout == "set()\n"
