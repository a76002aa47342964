"""Compare the speed of two versions of the library, side by side on this machine's GPU.

    git worktree add /tmp/old 95d8871
    python benchmarks/compare.py /tmp/old/src src --out ratios.json
    python benchmarks/compare.py /tmp/old/src src --rows equal12 decode --rounds 12

Each version runs in a process of its own, and the two take turns on the GPU. For each row and pass (forward, dA, dB)
both capture the product in a CUDA graph; in each round one after the other replays it, the L2 cache overwritten before
each replay. The table has the medians, new/old, and their geometric mean: below 1, the new version is faster. Then
comes the host time of warm calls. Results are checked before they are timed, and compared between the versions.

This file is the parent, which imports neither version, and the worker, which uses public names that both have.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

PASSES = ("forward", "dA", "dB")
HOST_CALLS = 100
_LIST_ROWS = """
import dataclasses, json
from course_kernels.bench.rows import select
import sys
print(json.dumps([dataclasses.asdict(row) for row in select(sys.argv[1:] or None)]))
"""

# ---- the parent


def environment(src: Path) -> dict[str, str]:
    """The environment in which Python imports the package of a folder `src`."""
    path = os.pathsep.join(filter(None, [str(src.resolve()), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": path}


class Version:
    """A worker process with one version of the library."""

    def __init__(self, src: Path, backend: str):
        self.name, self.src = str(src), src
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--worker", backend], env=environment(src), text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip

    def ask(self, command: str, *arguments):
        """A command's result."""
        self._process.stdin.write(json.dumps([command, *arguments]) + "\n")
        self._process.stdin.flush()
        reply = self._process.stdout.readline()
        if not reply:
            raise RuntimeError(f"the worker of {self.name} ended with exit code {self._process.wait()}")
        result = json.loads(reply)
        if "error" in result:
            raise RuntimeError(f"{self.name}, {command}: {result['error']}")
        return result["value"]

    def commit(self) -> str | None:
        """Commit of the version, with "+changes" if its files differ; None outside a checkout."""
        try:
            git = ["git", "-C", str(self.src), "describe", "--always", "--abbrev=40", "--dirty=+changes", "--exclude=*"]
            return subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()
        except (OSError, subprocess.CalledProcessError):
            return None

    def close(self) -> None:
        """End the process."""
        self._process.stdin.close()
        self._process.wait()


def in_turn(old, new, command: str, rounds: int, *arguments) -> list[float]:
    """The medians of both versions over rounds of a command; who begins alternates."""
    times: dict = {old: [], new: []}
    for i in range(rounds):
        for version in (old, new) if i % 2 == 0 else (new, old):
            times[version] += version.ask(command, *arguments)
    return [statistics.median(times[version]) for version in (old, new)]


def compare(old, new, rows: Sequence[dict], rounds: int, replays: int, tell: Callable[[str], object] = print) -> dict:
    """Measure both versions.

    Args:
        old, new: each a `Version`.
        rows: name, sizes, N and K of each.
        rounds: turns of each version, for each row and pass.
        replays: timed replays in a turn.
        tell: called with each line of the table.

    Returns:
        "rows": row → pass → {"old_us", "new_us", "ratio", "same"}, where same says that the results have one checksum;
        "mean": geometric means of the ratios, by pass and of all; "host_us": kind of call → times and ratio.
    """

    def entry(times: Sequence[float], **more) -> dict:
        old_us, new_us = times
        return {"old_us": round(old_us, 2), "new_us": round(new_us, 2), "ratio": round(new_us / old_us, 4), **more}

    def line(name: str, what: str, each: dict) -> str:
        differs = "" if each.get("same", True) else "   results differ"
        return f"{name:<16}{what:<30}{each['old_us']:>10.1f}{each['new_us']:>10.1f}{each['ratio']:>9.4f}{differs}"

    tell(f"{'':<46}{'old µs':>10}{'new µs':>10}{'new/old':>9}")
    results: dict = {"rows": {}, "mean": {}, "host_us": {}}
    for row in rows:
        passes = results["rows"][row["name"]] = {}
        for name in PASSES:
            sums = [version.ask("prepare", row["sizes"], row["N"], row["K"], name) for version in (old, new)]
            times = in_turn(old, new, "replay", rounds, replays)
            passes[name] = entry(times, same=sums[0] == sums[1])
            tell(line(row["name"], name, passes[name]))
    ratios = {name: [passes[name]["ratio"] for passes in results["rows"].values()] for name in PASSES}
    ratios["all"] = [ratio for name in PASSES for ratio in ratios[name]]
    for name, values in ratios.items():
        results["mean"][name] = round(math.exp(statistics.fmean(map(math.log, values))), 4)
        tell(f"geometric mean, {name}: {results['mean'][name]:.4f} (worst row {max(values):.4f})")
    kinds = [version.ask("prepare_host") for version in (old, new)]
    for kind in kinds[0]:
        results["host_us"][kind] = entry(in_turn(old, new, "host", rounds, kind))
        tell(line("host time", kind, results["host_us"][kind]))
    return results


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path, metavar="OLD_SRC", help="folder that holds the old course_kernels")
    parser.add_argument("new", type=Path, metavar="NEW_SRC", help="folder that holds the new one")
    parser.add_argument("--rows", nargs="+", default=[], help="names or beginnings of names (default: all thirteen)")
    parser.add_argument("--backend", default="auto", help="of grouped_mm (default: auto)")
    parser.add_argument("--rounds", type=int, default=8, help="turns of each version (default: 8)")
    parser.add_argument("--replays", type=int, default=15, help="timed replays in a turn (default: 15)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the results as JSON")
    arguments = parser.parse_args()
    for src in (arguments.old, arguments.new):
        if not (src / "course_kernels").is_dir():
            parser.error(f"{src} has no folder course_kernels")
    listed = subprocess.run(
        [sys.executable, "-c", _LIST_ROWS, *arguments.rows], env=environment(arguments.new), text=True,
        stdout=subprocess.PIPE, check=True,
    )  # fmt: skip
    rows = json.loads(listed.stdout.splitlines()[-1])
    old, new = versions = [Version(src, arguments.backend) for src in (arguments.old, arguments.new)]
    for version in versions:
        if not Path(version.ask("imported_from")).is_relative_to(version.src.resolve()):
            raise RuntimeError(f"{version.name} is not what its worker imports: {version.ask('imported_from')}")
    machine = new.ask("machine")
    print(f"{machine['gpu'] or 'No GPU: these times mean nothing'}, torch {machine['torch']}", flush=True)
    about = {
        **machine,
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        **{name: {"src": each.name, "commit": each.commit()} for name, each in zip(("old", "new"), versions)},
        "backend": arguments.backend, "rounds": arguments.rounds, "replays": arguments.replays,
    }  # fmt: skip
    results = compare(old, new, rows, arguments.rounds, arguments.replays, lambda text: print(text, flush=True))
    for version in versions:
        version.close()
    if arguments.out:
        arguments.out.write_text(json.dumps({"provenance": about, **results}, indent=1) + "\n")


# ---- the worker


class Worker:
    """Commands of the parent, computed by the version that this process imports."""

    def __init__(self, backend: str):
        import torch

        import course_kernels

        self.torch, self.kernels, self.backend = torch, course_kernels, backend
        self.gpu = torch.cuda.is_available()
        self.device = torch.device("cuda" if self.gpu else "cpu")
        self.flush = torch.empty(64 * 2**20 if self.gpu else 1, dtype=torch.int32, device=self.device)
        self.function: Callable[[], object] | None = None
        self.kept: tuple | None = None
        self.calls: dict[str, Callable[[], object]] = {}

    def imported_from(self) -> str:
        """The file of the library that this process imports."""
        return str(Path(self.kernels.__file__).resolve())

    def machine(self) -> dict:
        """Machine and versions."""
        import platform

        import triton

        torch = self.torch
        gpu = torch.cuda.get_device_name() if self.gpu else None
        versions = {"torch": torch.__version__, "triton": triton.__version__, "cuda": torch.version.cuda}
        return {"gpu": gpu, **versions, "python": platform.python_version()}

    def _normal(self, *shape: int, seed: int, scale: float = 1.0):
        generator = self.torch.Generator(self.device).manual_seed(seed)
        empty = self.torch.empty(shape, dtype=self.torch.bfloat16, device=self.device)
        return empty.normal_(0.0, scale, generator=generator)

    def _ends(self, sizes: Sequence[int]):
        return self.torch.tensor(sizes, dtype=self.torch.int32).cumsum(0, dtype=self.torch.int32).to(self.device)

    def prepare(self, sizes: list[int], N: int, K: int, name: str) -> int:
        """Capture a pass of a row, and check some of its result; returns a checksum of all of it."""
        torch = self.torch
        self._forget()
        total, groups, offs = sum(sizes), len(sizes), self._ends(sizes)
        g = max(range(groups), key=sizes.__getitem__)
        part = slice(sum(sizes[:g]), sum(sizes[: g + 1]))
        a = self._normal(total, K, seed=0) if name != "dA" else None
        d_out = self._normal(total, N, seed=1) if name != "forward" else None
        weight = self._normal(groups, N, K, seed=2, scale=K**-0.5) if name != "dB" else None
        if name == "forward":
            left, right, shape = a, weight.mT, (total, N)
        elif name == "dA":
            left, right, shape = d_out, weight, (total, K)
        else:
            left, right, shape = d_out.mT, a, (groups, N, K)
        out = torch.full(shape, float("nan"), dtype=torch.bfloat16, device=self.device)
        grouped_mm, options = self.kernels.grouped_mm, dict(offs=offs, out=out, backend=self.backend)
        self.function = self._captured(lambda: grouped_mm(left, right, **options))
        self.kept = (left, right, out, offs)  # a graph does not own what it reads and writes
        out.fill_(float("nan"))
        self.function()
        if name == "dB":
            found, exact = out[g, :64], left[:64, part].double() @ right[part].double()
        else:
            found, exact = out[part][:64], left[part][:64].double() @ right[g].double()
        if not torch.allclose(found.double(), exact, rtol=2**-6, atol=2**-6 * exact.square().mean().sqrt().item()):
            raise AssertionError(f"{name} is wrong in group {g}")
        checksum = 0
        for chunk in out.split(max(1, shape[0] // 16)):  # temporary tensors of all at once might not fit
            if chunk.isnan().any():
                raise AssertionError(f"{name} did not write all of its result")
            checksum += chunk.view(torch.int16).sum(dtype=torch.int64).item()
        return checksum

    def _forget(self) -> None:
        """Free the memory of the pass before, for this version and the other."""
        self.function = self.kept = None
        if self.gpu:
            self.torch.cuda.empty_cache()

    def _captured(self, function: Callable[[], object]) -> Callable[[], object]:
        if not self.gpu:
            return function
        torch = self.torch
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                function()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            function()
        return graph.replay

    def replay(self, count: int) -> list[float]:
        """µs of replays of the prepared pass, after some that are not timed, since the other version ran before."""
        if not self.gpu:
            return self._host(self.function, count)
        events = []
        for _ in range(count + 5):
            start, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
            self.flush.zero_()
            start.record()
            self.function()
            end.record()
            events.append((start, end))
        self.torch.cuda.synchronize()
        return [start.elapsed_time(end) * 1e3 for start, end in events[5:]]

    def prepare_host(self) -> list[str]:
        """Make the calls whose host time is measured; returns their names."""
        self._forget()
        for name, rows in (("few rows", 20), ("many rows", 160)):
            self._prepare_grouped_mm(f"grouped_mm, {name}", rows)
        extent = 128 if self.gpu else 16
        group_A, group_B = ([self._normal(extent, extent, seed=seed + i) for i in range(8)] for seed in (0, 8))
        self.calls["group_gemm, 8 problems"] = lambda: self.kernels.group_gemm(group_A, group_B)
        return list(self.calls)

    def _prepare_grouped_mm(self, name: str, rows: int) -> None:
        grouped_mm, extent, groups = self.kernels.grouped_mm, 512 if self.gpu else 16, 64 if self.gpu else 4
        weight = self._normal(groups, extent, extent, seed=2, scale=extent**-0.5).mT
        total, offs, options = rows * groups, self._ends([rows] * groups), dict(backend=self.backend)
        memory = self._normal(1 << total.bit_length(), extent, seed=0)
        a = memory[:total]
        self.calls[name] = lambda: grouped_mm(a, weight, offs=offs, **options)
        # Totals below the next power of two: the same bucket and configuration, and hundreds before one comes again.
        totals = itertools.cycle(range(total + 1, len(memory)))
        self.calls[f"{name}, new total_m"] = lambda: grouped_mm(memory[: next(totals)], weight, offs=offs, **options)

    def host(self, kind: str) -> list[float]:
        """Host µs of calls, back to back."""
        return self._host(self.calls[kind], HOST_CALLS // 4 if "new total_m" in kind else HOST_CALLS)

    def _host(self, function: Callable[[], object], count: int) -> list[float]:
        times = []
        for i in range(count + 5):
            if self.gpu and i % 20 == 0:
                self.torch.cuda.synchronize()  # a full launch queue would make the host wait for the device
            start = time.perf_counter()
            function()
            times.append((time.perf_counter() - start) * 1e6)
        return times[5:]


def serve(backend: str) -> None:
    """Answer commands, a line each, until the parent closes the pipe."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # anything that a library prints must not be taken for a reply
    worker = Worker(backend)
    for line in sys.stdin:
        command, *arguments = json.loads(line)
        try:
            reply = {"value": getattr(worker, command)(*arguments)}
        except Exception as error:
            reply = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(reply), file=replies, flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        serve(sys.argv[2])
    else:
        main()
