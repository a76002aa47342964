"""Runs every kernel of the list API once on small problems, for NVIDIA's compute-sanitizer:

    compute-sanitizer --tool memcheck python3 tools/sanitize.py
    compute-sanitizer --tool racecheck python3 tools/sanitize.py

Each product is compared with the oracle, so that a clean report is the report of kernels that did their work. Without
a GPU the same cases run in Triton's interpreter, which checks this program and nothing else. `--list` names the cases;
names given as arguments select some of them.
"""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass

# Before torch is imported: with its cache a block of memory is a slice of a larger one, and a step over the slice's end
# is inside an allocation that memcheck finds valid.
os.environ.setdefault("PYTORCH_NO_CUDA_MEMORY_CACHING", "1")

import course_kernels as ck  # isort: skip
import torch

from course_kernels.testing import Problem, assert_exact, empty_problems, integers, ragged_problems, strided_like

SCHEDULES = ("round_robin", "chunks", "dynamic")
WHOLE = [Problem(64, 64, 64), Problem(128, 64, 32), Problem(96, 160, 64)]
PROBLEMS = {"ragged": ragged_problems(), "empty": empty_problems(), "whole": WHOLE}
# Tails of every kind that still obey the 16-byte rule, so that the descriptor kernel keeps them.
PROBLEMS["aligned"] = [Problem(65, 48, 80), Problem(1, 160, 16), Problem(33, 16, 144), Problem(64, 64, 0)]


@dataclass(frozen=True)
class Case:
    """One call: what is multiplied, how it lies in memory, and which kernel with which walk computes it."""

    method: str
    problems: str
    dtype: torch.dtype = torch.float16
    strides: tuple[str, str] = ("row", "row")
    schedule: str = "round_robin"
    precision: str = "ieee"
    store_parts: int = 1

    def __str__(self) -> str:
        fields = (self.method, self.schedule, self.problems, str(self.dtype).removeprefix("torch."), *self.strides)
        return "-".join((*fields, self.precision, str(self.store_parts)))


def cases() -> list[Case]:
    """Every kernel with every schedule, then every type, layout and store of each kernel."""
    found = [Case("naive", problems) for problems in PROBLEMS]
    for method in ("round_robin", "tma"):
        found += [Case(method, problems, schedule=s) for s in SCHEDULES for problems in ("aligned", "ragged", "empty")]
    for method in ("naive", "round_robin", "tma"):
        found.append(Case(method, "aligned", torch.bfloat16))
        found.append(Case(method, "aligned", torch.float32))
        found.append(Case(method, "aligned", torch.float32, precision="tf32"))
        found.append(Case(method, "aligned", torch.float8_e4m3fn, ("row", "col")))
        found.append(Case(method, "ragged", torch.float8_e4m3fn))
        found += [Case(method, "aligned", strides=pair) for pair in (("col", "row"), ("row", "col"), ("col", "col"))]
        found += [Case(method, "ragged", strides=(how, how)) for how in ("unaligned", "every_other", "expanded")]
    found += [Case("tma", "aligned", schedule=s, store_parts=2) for s in SCHEDULES]
    return found


def run(case: Case) -> str:
    """Compute a case and compare; returns the kernels that it took, with their counts of problems."""
    device = ck.runtime.device()
    generator = torch.Generator().manual_seed(7)
    group_A, group_B = [], []
    for m, n, k in PROBLEMS[case.problems]:
        for group, shape, how in ((group_A, (m, k), case.strides[0]), (group_B, (k, n), case.strides[1])):
            group.append(strided_like(integers(shape, case.dtype, generator, device=device), how))
    config = ck.GemmConfig(64, 64, 32, group_m=2, schedule=case.schedule, store_parts=case.store_parts)
    options = dict(method=case.method, precision=case.precision, config=config)
    # Fewer programs than tiles: each walks on to a second tile and from problem to problem.
    plan = ck.GroupGemmPlan(group_A, group_B, **options, programs=3)
    for repeat in range(2):  # the second finds the dynamic counter as the first has left it
        for c in plan.out:
            c.fill_(float("nan"))
        plan.run()
        for i, (c, a, b) in enumerate(zip(plan.out, group_A, group_B)):
            assert_exact(c, a, b, what=f"{case}, run {repeat}, problem {i}")
    return ", ".join(f"{launch.kernel} of {len(launch.problems)}" for launch in plan.launches)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="cases to run, by name; default: all")
    parser.add_argument("--list", action="store_true", help="name the cases and stop")
    arguments = parser.parse_args()
    known = {str(case): case for case in cases()}
    if unknown := set(arguments.names) - set(known):
        parser.error(f"unknown cases: {', '.join(sorted(unknown))}; --list names all")
    if arguments.list:
        print(*known, sep="\n")
        return 0
    chosen = arguments.names or list(known)
    for name in chosen:
        if known[name].dtype == torch.float8_e4m3fn and not ck.runtime.supports_fp8():
            print(f"{name}: skipped, this GPU does not multiply float8_e4m3fn")
            continue
        print(f"{name}: exact; {run(known[name])}", flush=True)
    if ck.runtime.MODE == "gpu":
        torch.cuda.synchronize()
    print(f"{len(chosen)} cases ran in mode {ck.runtime.MODE}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
