"""Measure on this machine's GPU and write the records that notebooks and README draw from.

    python benchmarks/run.py                          every record
    python benchmarks/run.py group_gemm switch        these records
    python benchmarks/run.py --out DIR --commit ID    elsewhere; with the commit where there is no git checkout

A record is written whole, after its outputs were verified; an error leaves the old file as it was.
"""

from __future__ import annotations

import argparse
import functools
import pathlib
import re
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "src"))

import torch

import fuzz
import grouped_api
import list_api
import scaled_api
import sweep_cute
import timelines
import traffic
import verify
from course_kernels.bench import record

RECORDS = {
    "group_gemm": list_api.rows,
    "dtypes": list_api.dtypes,
    "when_to_group": list_api.when_to_group,
    "programs": list_api.programs,
    "launches": timelines.launches,
    "sm_timelines": timelines.schedules,
    "switch": timelines.switch,
    "traffic": traffic.swizzle,
    "grouped_mm": grouped_api.rows,
    "sustained": grouped_api.sustained,
    "scaled_grouped_mm": scaled_api.rows,
    "sweep_cute": sweep_cute.rows,
    "fuzz": fuzz.fuzz,
    "fuzz_cute": functools.partial(fuzz.fuzz, 5000, backend="cute"),
    "gpu_tests": verify.gpu_tests,
    "sanitizers_triton": functools.partial(verify.sanitizers, "triton"),
    "sanitizers_cute": functools.partial(verify.sanitizers, "cute"),
    "notebooks": verify.notebooks,
}


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="RECORD", help=f"of {', '.join(RECORDS)}")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path(__file__).parent / "results")
    parser.add_argument("--commit", help="commit of the code in full, where it cannot be asked of git")
    arguments = parser.parse_args()
    unknown = [name for name in arguments.names if name not in RECORDS]
    if unknown:
        parser.error(f"no record {', '.join(unknown)}; there are: {', '.join(RECORDS)}")
    if arguments.commit and not re.fullmatch("[0-9a-f]{40}", arguments.commit):
        parser.error(f"--commit wants all 40 hexadecimal digits, got {arguments.commit!r}")
    if not torch.cuda.is_available():
        parser.error("records are measured on a GPU, and torch sees none")
    arguments.out.mkdir(parents=True, exist_ok=True)
    for name in arguments.names or RECORDS:
        start = time.time()
        torch.manual_seed(0)
        record.write(arguments.out / f"{name}.json", RECORDS[name](), arguments.commit)
        print(f"{name}: {time.time() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main()
