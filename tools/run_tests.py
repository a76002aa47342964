"""Everything that `make test` runs: ruff, imports, unit tests, notebooks and browser; one summary at the end."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
# Of the exercises one of each kind, and every one that goes on after its check: the others store what their solutions
# do, which run, and the text of a hole, which their tests ask the judge for.
EXERCISES = ("01_offsets", "03_tail_masks", "10_own_epilogue", "13_persistent_helion")
NOTEBOOKS = ("notebooks", "solutions", *(f"exercises/{name}.ipynb" for name in EXERCISES))
BROWSER_TESTS = tuple(f"tests/project/test_{name}.py" for name in ("browser", "browser_exercise", "site"))


class Outcome(NamedTuple):
    """Counts of one part of the run."""

    name: str
    seconds: float
    passed: int
    failed: int
    skipped: int


def counts(report: Path) -> tuple[int, int, int]:
    """Passed, failed and skipped tests of a JUnit report; an error outside a test counts as a failure."""
    cases = list(ElementTree.parse(report).getroot().iter("testcase"))
    failed = sum(case.find("failure") is not None or case.find("error") is not None for case in cases)
    skipped = sum(case.find("skipped") is not None for case in cases)
    return len(cases) - failed - skipped, failed, skipped


def part(name: str, *command: str, report: Path | None = None, gpu: bool = False) -> Outcome:
    """Run a program of the environment, which sees GPUs only where ``gpu``. It is one test, unless it writes a report
    of several."""
    print(f"\n=== {name}", flush=True)
    started = time.monotonic()
    environment = os.environ | ({} if gpu else {"CUDA_VISIBLE_DEVICES": ""})
    # Images of containers set it. Then each of the many processes that import torch compiles its source, for a second.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    code = subprocess.run(command, cwd=ROOT, env=environment).returncode
    passed, failed, skipped = counts(report) if report and report.exists() else (int(code == 0), 0, 0)
    if code != 0 and failed == 0:
        # No test failed, and yet the program is not content: a check failed, nothing was collected, it did not start.
        print(f"{name} ended with exit code {code}: counted as one failure")
        failed = 1
    return Outcome(name, time.monotonic() - started, passed, failed, skipped)


def pytest(name: str, *arguments: str, gpu: bool = False) -> Outcome:
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = (sys.executable, "-m", "pytest", "-q", f"--junitxml={report}", *arguments)
        return part(name, *command, report=report, gpu=gpu)


def has_gpu() -> bool:
    """Whether there is an NVIDIA GPU that torch can use."""
    asks = "import sys, torch; sys.exit(not torch.cuda.is_available())"
    return bool(shutil.which("nvidia-smi")) and subprocess.run([sys.executable, "-c", asks]).returncode == 0


def summary(outcomes: list[Outcome]) -> str:
    """A line for each part; the last line is the sum."""
    seconds, *totals = (sum(column) for column in list(zip(*outcomes))[1:])
    result = "{} passed, {} failed, {} skipped".format
    lines = [f"{each.name:<12} {each.seconds:6.1f} s  {result(*each[2:])}" for each in outcomes]
    return "\n".join(["", "=== summary", *lines, f"{'total':<12} {seconds:6.1f} s", result(*totals)])


def run_all() -> int:
    python, lint_imports = sys.executable, str(Path(sys.executable).with_name("lint-imports"))
    without = (f"--ignore={path}" for path in BROWSER_TESTS)
    outcomes = [
        part("ruff check", python, "-m", "ruff", "check", "."),
        part("ruff format", python, "-m", "ruff", "format", "--check", "."),
        part("imports", lint_imports, "--no-cache"),
        # Each worker gets neighbouring tests, so most fixtures of a module or a folder are made once. A third worker
        # gained nothing on two cores.
        pytest("unit tests", "-n", "2", "--dist=worksteal", "-p", "no:nbval", "tests", *without),
        # A notebook's cells need one kernel, so one worker. These tests wait for processes, too.
        pytest("notebooks", "-n", "3", "--dist", "loadfile", "--nbval", *BROWSER_TESTS, *NOTEBOOKS),
    ]
    if has_gpu():
        # By themselves: answers run on a GPU where there is one, and the tests above expect the interpreter.
        outcomes.append(pytest("GPU tests", "-m", "gpu", "tests"))
    print(summary(outcomes), flush=True)
    return int(any(outcome.failed for outcome in outcomes))


if __name__ == "__main__":
    # The solutions pass: not into the progress of whoever runs the tests.
    with tempfile.TemporaryDirectory() as state:
        os.environ["XDG_STATE_HOME"] = state
        sys.exit(run_all())
