"""Everything that `make test` runs: ruff, unit tests, notebooks, browser; one summary at the end."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
WORKERS = "2"
BROWSER_TESTS = ("tests/project/test_browser.py", "tests/project/test_browser_exercise.py")


@dataclass(frozen=True)
class Outcome:
    """Counts of one part of the run."""

    name: str
    passed: int
    failed: int
    skipped: int
    seconds: float


def counts(report: Path) -> tuple[int, int, int]:
    """Passed, failed and skipped tests of a JUnit report; an error outside a test counts as a failure."""
    passed = failed = skipped = 0
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        if case.find("failure") is not None or case.find("error") is not None:
            failed += 1
        elif case.find("skipped") is not None:
            skipped += 1
        else:
            passed += 1
    return passed, failed, skipped


def heading(name: str) -> float:
    print(f"\n=== {name}", flush=True)
    return time.monotonic()


def ruff(name: str, *arguments: str) -> Outcome:
    started = heading(name)
    code = subprocess.run([sys.executable, "-m", "ruff", *arguments], cwd=ROOT).returncode
    return Outcome(name, int(code == 0), int(code != 0), 0, time.monotonic() - started)


def pytest(name: str, *arguments: str) -> Outcome:
    started = heading(name)
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", f"--junitxml={report}", *arguments]
        code = subprocess.run(command, cwd=ROOT).returncode
        passed, failed, skipped = counts(report) if report.exists() else (0, 0, 0)
    if code != 0 and failed == 0:
        # No test failed and yet pytest is not content: nothing was collected, or it could not start.
        print(f"pytest ended with exit code {code} and no failed test: counted as one failure")
        failed = 1
    return Outcome(name, passed, failed, skipped, time.monotonic() - started)


def summary(outcomes: list[Outcome]) -> str:
    """A line for each part; the last line is the sum."""
    lines = ["", "=== summary"]
    for part in outcomes:
        result = f"{part.passed} passed, {part.failed} failed, {part.skipped} skipped"
        lines.append(f"{part.name:<12} {part.seconds:6.1f} s  {result}")
    passed, failed, skipped = (sum(getattr(o, key) for o in outcomes) for key in ("passed", "failed", "skipped"))
    lines.append(f"{'total':<12} {sum(part.seconds for part in outcomes):6.1f} s")
    lines.append(f"{passed} passed, {failed} failed, {skipped} skipped")
    return "\n".join(lines)


def main() -> int:
    # The solutions pass: not into the progress of whoever runs the tests.
    with tempfile.TemporaryDirectory() as state:
        os.environ["XDG_STATE_HOME"] = state
        return run_all()


def run_all() -> int:
    outcomes = [
        ruff("ruff check", "check", "."),
        ruff("ruff format", "format", "--check", "."),
        pytest("unit tests", "-n", WORKERS, "tests", *(f"--ignore={path}" for path in BROWSER_TESTS)),
        # A notebook's cells need one kernel, so one worker.
        pytest("notebooks", "-n", WORKERS, "--dist", "loadfile", "--nbval", "notebooks", "exercises", "solutions"),
        pytest("browser", *BROWSER_TESTS),
    ]
    print(summary(outcomes), flush=True)
    return int(any(part.failed for part in outcomes))


if __name__ == "__main__":
    sys.exit(main())
