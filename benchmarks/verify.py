"""Run and count the checks of a GPU: the GPU tests, and compute-sanitizer over every kernel.

Needs `compute-sanitizer` on the path. A check that cannot run is an error.
"""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed

import torch

from course_kernels.engine.hopper import cute

ROOT = pathlib.Path(__file__).resolve().parents[1]
PYTEST = ["-p", "no:cacheprovider", "--disable-warnings", "--tb=short"]
CORES = os.cpu_count() or 1
# Processes that share the GPU tests: compilers need the host, each kernel the GPU for a moment, all of them its memory.
PROCESSES = max(1, min(CORES - 1, 15 * torch.cuda.device_count()))
SECONDS = 900  # after which a command is ended, and counts as failed
# Processes that share the cases of one tool and language; racecheck takes longer.
SHARES = {"racecheck": max(2, CORES * 9 // 16), "memcheck": max(1, CORES * 5 // 16)}

_OF_TORCH = "at6native"  # in the names of PyTorch's kernels, which make operands and compare results


def run(command: list[str], directory: pathlib.Path = ROOT, tell: str | None = None, gpu: int | None = None) -> str:
    """Run a command with this checkout's package first on the path; return what it printed, raise if it fails. Lines
    that match ``tell`` are printed at once: a run that is cut off has said what it found. With ``gpu`` it sees one GPU,
    of the visible ones counted round and round."""
    path = os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH")]))
    env = {**os.environ, "PYTHONPATH": path}
    if visible := _visible_gpus():
        env["CUDA_VISIBLE_DEVICES"] = ",".join(visible) if gpu is None else visible[gpu % len(visible)]
    together = dict(stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    printed = []
    with subprocess.Popen(command, cwd=directory, env=env, **together) as process:
        killer = threading.Timer(SECONDS, process.kill)
        killer.start()
        try:
            for line in process.stdout:
                printed.append(line)
                if tell and re.search(tell, line):
                    print(line, end="", flush=True)
        finally:
            killer.cancel()
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{_telling(''.join(printed))}")
    return "".join(printed)


def _visible_gpus() -> list[str]:
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    return named.split(",") if named else [str(i) for i in range(torch.cuda.device_count())]


def _telling(printed: str) -> str:
    """The end of a failed command's output. A sanitizer's first report comes before that, if there is one, with the
    last case that passed: the first error is often the cause of later reports."""
    lines = printed.splitlines()
    first = next((i for i, line in enumerate(lines) if re.match(r"=+ (?!COMPUTE-SANITIZER)\S", line)), None)
    report = [] if first is None else [*lines[max(0, first - 3) : first + 40], "..."]
    return "\n".join([*report, printed[-6000:]])


def pytest_counts(printed: str) -> dict[str, int]:
    """Counts of pytest's closing line; it must have passed something and failed nothing."""
    closing = next(
        (line for line in reversed(printed.splitlines()) if re.search(r" in \d[\d.]*s", line)), printed[-200:]
    )
    counts = {word: int(number) for number, word in re.findall(r"(\d+) (passed|failed|skipped|errors?)", closing)}
    if not counts.get("passed") or set(counts) - {"passed", "skipped"}:
        raise RuntimeError(f"not a clean run: {closing}")
    return counts


def sanitized(tool: str, kernels: str, names: Sequence[str], gpu: int = 0) -> dict[str, int]:
    """Run one tool of compute-sanitizer over cases of ``tools/sanitize.py``, which also checks each product, on one of
    the host's GPUs."""
    options = ["--kernel-name-exclude", f"kernel_substring={_OF_TORCH}"]
    options += [] if kernels == "triton" else ["--report-api-errors", "no"]
    racecheck = ["--racecheck"] if tool == "racecheck" else []
    command = ["compute-sanitizer", "--tool", tool, *options, *_cases(kernels, [*racecheck, *names])]
    printed = run(command, tell="exact;", gpu=gpu)
    cases = re.search(r"([1-9]\d*) cases ran in mode gpu", printed)
    summary = {"memcheck": r"ERROR SUMMARY: (\d+) errors?", "racecheck": r"RACECHECK SUMMARY: (\d+) hazards?"}[tool]
    found = re.search(summary, printed)
    if not cases or not found or int(found[1]):
        raise RuntimeError(f"{tool} is not clean:\n{_telling(printed)}")
    return {"cases": int(cases[1]), "errors": int(found[1])}


def sanitize_triton() -> dict[str, dict[str, int]]:
    """Run the sanitizers over Triton's kernels and return the record."""
    return sanitizers("triton")


def sanitize_cute() -> dict[str, dict[str, int]]:
    """Run the sanitizers over the products of the kernel in CuTe DSL and return the record."""
    return sanitizers("cute")


def sanitize_cute_layers() -> dict[str, dict[str, int]]:
    """Run the sanitizers over the layers of the kernel in CuTe DSL and return the record."""
    return sanitizers("cute_layers")


def _cases(kernels: str, names: Sequence[str]) -> list[str]:
    return [sys.executable, "tools/sanitize.py", "--kernels", kernels, *names]


def gpu_tests() -> dict[str, int]:
    """Counts of `pytest -m gpu`, shared out among several processes; a single one takes a quarter of an hour. It ends
    after 20 failures: one cause can have a thousand. Each is named when it happens, with its error, and explained at
    the end."""
    modules = sorted(str(path) for path in (ROOT / "tests").rglob("test_*.py") if "mark.gpu" in path.read_text())
    how = ["-v", "-n", str(PROCESSES), "--dist", "worksteal", "--durations=20", "--maxfail=20"]
    command = [sys.executable, "-m", "pytest", "-m", "gpu", *PYTEST, *how, *modules]
    return pytest_counts(run(command, tell="FAILED|ERROR|crashed|^E  | in [0-9.]+s"))


def sanitizers(kernels: str) -> dict[str, dict[str, int]]:
    """Run both tools over every case of ``tools/sanitize.py --kernels``, in several processes: each waits for the host
    most of the time. A first run without the tools compiles the kernels for both."""
    if kernels != "triton":
        cute.check_available(torch.device("cuda", torch.cuda.current_device()))
    listed = run(_cases(kernels, ["--list"]))
    names = [line for line in listed.splitlines() if re.fullmatch(r"\S+", line)]  # a warning has spaces
    if not names:
        raise RuntimeError(f"no cases of {kernels} to run:\n{listed[-2000:]}")
    counts = {tool: {"cases": 0, "errors": 0} for tool in SHARES}
    processes = sum(SHARES.values())
    with ThreadPoolExecutor(processes) as pool:
        shares = enumerate(_dealt(names, processes))
        list(pool.map(lambda share: run(_cases(kernels, share[1]), gpu=share[0]), shares))
        print(f"{len(names)} cases are compiled", flush=True)
        running = {
            pool.submit(sanitized, tool, kernels, share, i): tool
            for tool, shares in SHARES.items()
            for i, share in enumerate(_dealt(names, shares))
        }
        for done in as_completed(running):
            tool = running[done]
            try:
                found = done.result()
            except RuntimeError as error:
                print(error, flush=True)  # now: the other processes may take minutes
                raise
            for what, count in found.items():
                counts[tool][what] += count
            print(f"{tool}: {counts[tool]['cases']} of {len(names)} cases", flush=True)
    if {count["cases"] for count in counts.values()} != {len(names)}:
        raise RuntimeError(f"not every case ran: {counts}, of {len(names)}")
    return counts


def _dealt(names: Sequence[str], shares: int) -> list[Sequence[str]]:
    """Names in turn to so many shares, none of them empty."""
    return [names[i::shares] for i in range(min(shares, len(names)))]
