"""Measure on this machine's GPU and write the records that notebooks and README draw from.

    python benchmarks/run.py                          every record
    python benchmarks/run.py group_gemm switch        these records
    python benchmarks/run.py --out DIR --commit ID    elsewhere; with the commit where there is no git checkout
    python benchmarks/run.py --stale                  which records are older than their code, without a GPU

Records are of an H200. A part that is measured on other GPUs, too, has a record for each, named after it: on an H100,
`configurations` writes configurations_h100.json. Their GPUs are in `RECORDS`.

A record is written whole, after its outputs were verified; an error leaves the old file as it was.
"""

from __future__ import annotations

import argparse
import functools
import pathlib
import re
import sys
import time
from collections.abc import Callable
from typing import NamedTuple

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "src"))

import torch

import block_scaled
import fuzz
import gmm_api
import grouped_api
import hopper_steps
import jagged_api
import list_api
import masked_api
import scaled_api
import time_model
import timelines
import traffic
import verify
import zoo_api
from course_kernels.bench import record

_KERNELS, _BENCH, _PACKAGE = "course_kernels/kernels", "course_kernels/bench", "course_kernels/packed"
_LAUNCHED = tuple(f"{_KERNELS}/{name}.py" for name in ("codes", "common", "round_robin"))
_COMMON = ("course_kernels/*.py", *_LAUNCHED)
_LISTS = (*_COMMON, *(f"{_KERNELS}/{name}.py" for name in ("naive", "record", "tma")), "course_kernels/lists/*.py")
# Without what was measured: what chooses then are rules.
_BY_RULES = (
    *_COMMON, f"{_KERNELS}/contiguous.py", f"{_KERNELS}/transposed.py", "course_kernels/layout/*.py",
    *(f"{_PACKAGE}/backends/{name}*.py" for name in ("choice", "descriptors", "launch", "relaunch", "torch", "triton")),
    *(f"{_PACKAGE}/{files}" for files in ("*.py", "tuning/*.py")),
)  # fmt: skip
_MEASURED = (f"{_PACKAGE}/tuning/{files}" for files in ("*.py", "constants/h200.json"))
_PACKED = (*_BY_RULES, *_MEASURED)
_CUTE = (f"{_KERNELS}/cute_sm90/*.py", f"{_PACKAGE}/backends/cute*.py")
_TIMING, _TUTORIAL = f"{_BENCH}/timing.py", f"{_BENCH}/tutorial_peer.py"
_ROWS = (_TIMING, *(f"{_BENCH}/{name}.py" for name in ("grouped", "interface", "providers", "rows", "verification")))
_MASKED = (f"{_KERNELS}/masked.py", "course_kernels/masked/*.py", f"{_BENCH}/clean_cache.py")
_JAGGED = (f"{_KERNELS}/jagged.py", "course_kernels/jagged/*.py")
_SHARED = (f"{_BENCH}/jagged.py", f"{_BENCH}/helion_peer.py", "course_kernels/jagged/helion_configs/*.json")
_SWEPT = f"{_BENCH}/tuning/configured.py"
# Each configuration by itself: whatever chooses between them, or asks for torch's contexts, has no part in it.
_CONFIGURED = (
    *(f"course_kernels/{name}.py" for name in ("config", "dtypes", "memory", "runtime")),
    *_LAUNCHED, f"{_KERNELS}/contiguous.py", f"{_KERNELS}/transposed.py", *_CUTE,
    *(f"{_PACKAGE}/backends/{name}.py" for name in ("descriptors", "launch_arguments", "relaunch", "triton")),
    *(f"{_BENCH}/{name}.py" for name in ("tuning/sweep", "timing")),
)  # fmt: skip
_CHECKS = "course_kernels/testing/*.py"
_CALLED = (
    *(f"{_KERNELS}/{name}.py" for name in ("masked", "quantize", "group_sums")),
    "course_kernels/masked/*.py", "course_kernels/gmm/*.py", _CHECKS,
)  # fmt: skip
# Ten of each kind, and as many as take this long; those that have begun, and their compilations, come on top.
_FUZZED = dict(apis=(), of_each=10)
_fuzz_triton = functools.partial(fuzz.fuzz, **_FUZZED, seconds=120)
_fuzz_cute = functools.partial(fuzz.fuzz, **_FUZZED, seconds=75, backend="cute")
_sanitize_triton, _sanitize_cute = (functools.partial(verify.sanitizers, language) for language in ("triton", "cute"))


class Part(NamedTuple):
    """How a record is measured, and patterns of the files that decide it, as `course_kernels.provenance` takes them."""

    measure: Callable[[], dict]
    depends_on: tuple[str, ...]
    other_gpus: tuple[str, ...] = ()  # GPUs beside the H200 of which there is a record, too


RECORDS = {
    "group_gemm": Part(list_api.rows, (*_LISTS, _TIMING, _TUTORIAL)),
    "dtypes": Part(list_api.dtypes, (*_LISTS, _TIMING)),
    "when_to_group": Part(list_api.when_to_group, (*_LISTS, _TIMING)),
    "programs": Part(list_api.programs, (*_LISTS, _TIMING)),
    "launches": Part(timelines.launches, _LISTS),
    "sm_timelines": Part(timelines.schedules, (*_LISTS, _TIMING)),
    "switch": Part(timelines.switch, _LISTS),
    "traffic": Part(traffic.swizzle, _LISTS),
    "grouped_mm": Part(grouped_api.rows, (*_PACKED, *_CUTE, *_ROWS, _TUTORIAL)),
    "zoo": Part(zoo_api.rows, (*_PACKED, *_CUTE, *_ROWS, f"{_BENCH}/zoo.py"), ("h100",)),
    "sustained": Part(grouped_api.sustained, (*_PACKED, *_CUTE, *_ROWS, _SWEPT)),
    "scaled_grouped_mm": Part(scaled_api.rows, (*_PACKED, *_CUTE, *_ROWS, _SWEPT, f"{_BENCH}/scaled.py")),
    "block_scaled": Part(block_scaled.rows, (*_PACKED, *_CUTE, *_ROWS, f"{_KERNELS}/quantize.py")),
    "masked": Part(masked_api.rows, (*_PACKED, *_CUTE, *_ROWS, *_MASKED)),
    "jagged": Part(jagged_api.rows, (*_PACKED, *_CUTE, *_ROWS, *_JAGGED, *_SHARED, _SWEPT)),
    "hopper_steps": Part(hopper_steps.measure, _CONFIGURED),
    "configurations": Part(time_model.measure, _CONFIGURED, ("h100",)),
    "configurations_8bit": Part(time_model.measure_8_bit, _CONFIGURED, ("h100",)),
    "gmm": Part(gmm_api.rows, (*_PACKED, *_CUTE, *_ROWS, "course_kernels/gmm/*.py")),
    "fuzz": Part(_fuzz_triton, (*_PACKED, *_CALLED)),
    "fuzz_cute": Part(_fuzz_cute, (*_PACKED, *_CUTE, *_CALLED)),
    "gpu_tests": Part(verify.gpu_tests, record.LIBRARY),
    "sanitizers_triton": Part(_sanitize_triton, (*_LISTS, *_BY_RULES, *_JAGGED, *_CALLED)),
    "sanitizers_cute": Part(_sanitize_cute, (*_BY_RULES, *_CUTE, *_CALLED)),
}
# Each GPU has its own constants.
DEPENDS_ON = {name: part.depends_on for name, part in RECORDS.items()} | {
    f"{name}_{gpu}": tuple(pattern.replace("h200.json", f"{gpu}.json") for pattern in part.depends_on)
    for name, part in RECORDS.items()
    for gpu in part.other_gpus
}
_SHOWN = 5  # files of a stale record that are listed


def file_name(name: str, gpu: str) -> str:
    """The record that a part writes on a GPU: "configurations" on an H200, "configurations_h100" on an H100.

    Args:
        gpu: as torch names it, such as "NVIDIA H100 80GB HBM3".

    Raises:
        ValueError: a GPU of which the part has no record, so that it would replace another one's.
    """
    others = RECORDS[name].other_gpus
    if not others or "h200" in gpu.lower():
        return name
    for other in others:
        if other in gpu.lower():
            return f"{name}_{other}"
    raise ValueError(f"{name} has records of h200, {', '.join(others)}, and this is {gpu}")


def why_stale(name: str) -> str:
    """Commit of a stale record, and the files that have changed since, if git can say."""
    measured = record.load(name)
    changed = record.changed_files(measured, DEPENDS_ON[name])
    files = "files unknown: git does not have the commit" if changed is None else ", ".join(changed[:_SHOWN])
    more = f" and {len(changed) - _SHOWN} more" if changed and len(changed) > _SHOWN else ""
    return f"measured at {measured['provenance']['commit'][:12]}; changed since: {files or 'nothing'}{more}"


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="RECORD", help=f"of {', '.join(RECORDS)}")
    parser.add_argument("--out", type=pathlib.Path, default=record.RESULTS)
    parser.add_argument("--commit", help="commit of the code in full, where it cannot be asked of git")
    parser.add_argument("--stale", action="store_true", help="list records that are older than their code, and stop")
    arguments = parser.parse_args()
    if arguments.stale:
        print(*(f"{name}: {why_stale(name)}" for name in record.stale()), sep="\n")
        return
    if unknown := [name for name in arguments.names if name not in RECORDS]:
        parser.error(f"no record {', '.join(unknown)}; there are: {', '.join(RECORDS)}")
    if arguments.commit and not re.fullmatch("[0-9a-f]{40}", arguments.commit):
        parser.error(f"--commit wants all 40 hexadecimal digits, got {arguments.commit!r}")
    if not torch.cuda.is_available():
        parser.error("records are measured on a GPU, and torch sees none")
    gpu = torch.cuda.get_device_name()
    try:
        files = {name: file_name(name, gpu) for name in arguments.names or RECORDS}
    except ValueError as error:
        parser.error(str(error))
    arguments.out.mkdir(parents=True, exist_ok=True)
    for name, file in files.items():
        start = time.time()
        torch.manual_seed(0)
        record.write(arguments.out / f"{file}.json", RECORDS[name].measure(), arguments.commit, DEPENDS_ON[file])
        print(f"{file}: {time.time() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main()
