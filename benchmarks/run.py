"""Measure on this machine's GPU and write the records that notebooks and README draw from.

    python benchmarks/run.py                          every record
    python benchmarks/run.py group_gemm switch        these records
    python benchmarks/run.py --out DIR --commit ID    elsewhere; with the commit where there is no git checkout
    python benchmarks/run.py --stale                  which records are older than their code, without a GPU

Records are measured on an H200. `RECORDS` names those that are measured on other GPUs, too. These have one record per
GPU, with the GPU in its name: on an H100, `configurations` writes configurations_h100.json.

A record is written whole, after its outputs were verified. An error leaves the old file as it was. Programs that report
each row keep the rows before an error in a file that ends in ".part". With --go-on, a record that lists its cases is
measured for those alone that such a file, or the record, has not got, if code, GPU and versions are the same. Each
record is measured in its own process, and depends on the files that this process and its children load and read.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import pathlib
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import NamedTuple

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "src"))

from course_kernels.bench import loaded  # isort: skip
import torch

from course_kernels.bench import record


class Part(NamedTuple):
    """How a record is measured.

    Attributes:
        measure: "module.function" in this folder. The function returns the record.
        other_gpus: GPUs beside the H200 that have a record, too.
        counts: numbers of GPUs that each have a record; the first one's is not in its name.
        tells_rows: whether the function takes ``keep``, and calls it with the results so far after each row.
        depends_on: patterns of the files that a record depends on, if other programs measure. Else: all loaded files.
        has_cases: whether the module lists what it measures, ``cases()``, dataclasses whose fields are in the rows.
    """

    measure: str
    other_gpus: tuple[str, ...] = ()
    counts: tuple[int, ...] = ()
    tells_rows: bool = False
    depends_on: tuple[str, ...] = ()
    has_cases: bool = False


RECORDS = {
    "group_gemm": Part("list_api.rows"),
    "dtypes": Part("list_api.dtypes"),
    "when_to_group": Part("list_api.when_to_group"),
    "programs": Part("list_api.programs"),
    "launches": Part("timelines.launches"),
    "sm_timelines": Part("timelines.schedules"),
    "switch": Part("timelines.switch"),
    "traffic": Part("traffic.swizzle"),
    "grouped_mm": Part("grouped_api.rows", tells_rows=True),
    "zoo": Part("zoo_api.rows", ("h100",), tells_rows=True),
    "sustained": Part("grouped_api.sustained", tells_rows=True),
    "scaled_grouped_mm": Part("scaled_api.rows", tells_rows=True),
    "block_scaled": Part("block_scaled.rows"),
    "masked": Part("masked_api.rows"),
    "jagged": Part("jagged_api.rows", tells_rows=True),
    "moe": Part("moe_api.rows", ("h100",), tells_rows=True, has_cases=True),
    "moe_forward": Part("moe_forward.rows", ("h100",), tells_rows=True, has_cases=True),
    "moe_training": Part("moe_training.rows", ("h100",)),
    "expert_parallel": Part("expert_parallel.rows", counts=(2, 4), tells_rows=True, has_cases=True),
    "hopper_steps": Part("hopper_steps.measure"),
    "configurations": Part("time_model.measure", ("h100",)),
    "configurations_8bit": Part("time_model.measure_8_bit", ("h100",)),
    "configurations_layer": Part("time_model.measure_layer", ("h100",)),
    "gmm": Part("gmm_api.rows", tells_rows=True),
    "fuzz": Part("fuzz.record_of_triton"),
    "fuzz_cute": Part("fuzz.record_of_cute"),
    "gpu_tests": Part("verify.gpu_tests", depends_on=record.LIBRARY),
    "sanitizers_triton": Part("verify.sanitize_triton"),
    "sanitizers_cute": Part("verify.sanitize_cute"),
    "sanitizers_cute_layers": Part("verify.sanitize_cute_layers"),
}
# Records that could be measured and have not been.
UNMEASURED = {"configurations_layer_h100", "moe_h100", "moe_forward_h100", "moe_training_h100"}
FILES = {
    *RECORDS,
    *(f"{name}_{gpu}" for name, part in RECORDS.items() for gpu in part.other_gpus),
    *(f"{name}_x{count}" for name, part in RECORDS.items() for count in part.counts[1:]),
} - UNMEASURED


def file_name(name: str, gpu: str, count: int = 1) -> str:
    """The record that a part writes on a GPU: "configurations" on an H200, "configurations_h100" on an H100; or on
    several: "expert_parallel_x4" on four.

    Args:
        gpu: its name in torch, such as "NVIDIA H100 80GB HBM3".
        count: how many there are.

    Raises:
        ValueError: the part has no record for these GPUs, and would overwrite that of others.
    """
    counts, others = RECORDS[name].counts, RECORDS[name].other_gpus
    if counts:
        if count not in counts:
            raise ValueError(f"{name} has records of {', '.join(map(str, counts))} GPUs, and there are {count}")
        return name if count == counts[0] else f"{name}_x{count}"
    if not others or "h200" in gpu.lower():
        return name
    for other in others:
        if other in gpu.lower():
            return f"{name}_{other}"
    raise ValueError(f"{name} has records of h200, {', '.join(others)}, and this is {gpu}")


def measure(part: Part, path: pathlib.Path, commit: str | None, go_on: bool = False) -> None:
    """Measure a record and write it to a file; with ``go_on``, what its unfinished file has not got."""
    name, function = part.measure.split(".")
    unfinished = path.with_name(f"{path.name}.part")
    with loaded.Watch() as watch:

        def about() -> dict:
            return record.provenance(commit, part.depends_on or watch.files()) | begun

        def whole(found: dict) -> dict:
            return found | {"rows": in_order([*rows, *found["rows"]], cases)} if rows else found

        torch.manual_seed(0)
        module, begun, rows, cases = importlib.import_module(name), {}, [], []
        before = unfinished if unfinished.is_file() else path
        if go_on and part.has_cases and before.is_file():
            rows, begun = rows_of_same_code(before, record.provenance(commit))
            cases = module.cases()
            left = [case for case in cases if not any(has_measured(row, case) for row in rows)]
            module.cases = lambda: left
        keep = {"keep": lambda rows: record.write(unfinished, whole(rows.as_json()), about())}
        results = getattr(module, function)(**keep if part.tells_rows else {})
        record.write(path, whole(results), about())
    unfinished.unlink(missing_ok=True)


def rows_of_same_code(unfinished: pathlib.Path, here: dict) -> tuple[list[dict], dict]:
    """The rows of a record that lacks some, and when and at which commit they were measured.

    Args:
        here: today's provenance.

    Raises:
        ValueError: code, machine or versions were other ones.
    """
    found = record.read(unfinished)
    was = found["provenance"]
    same = ("gpu", "torch", "triton", "cuda", "python")
    if other := [key for key in same if was[key] != here[key]]:
        raise ValueError(f"{unfinished} was measured with other {', '.join(other)}: measure without --go-on")
    if record.is_stale(found):
        raise ValueError(f"{unfinished} was measured with other code: measure without --go-on")
    return found["rows"], {key: was.get(key, was[of]) for key, of in (("begun", "date"), ("begun_at", "commit"))}


def in_order(rows: list[dict], cases: Sequence[object]) -> list[dict]:
    """Rows of several runs in the order of their cases. Those of one case keep theirs."""
    return sorted(rows, key=lambda row: [has_measured(row, case) for case in cases].index(True))


def has_measured(row: dict, case: object) -> bool:
    """Whether a row is of a case."""
    return dataclasses.asdict(case).items() <= row.items()


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="RECORD", help=f"of {', '.join(RECORDS)}")
    parser.add_argument("--out", type=pathlib.Path, default=record.RESULTS)
    parser.add_argument("--commit", help="commit of the code in full, where it cannot be asked of git")
    parser.add_argument("--go-on", action="store_true", help="keep the rows of unfinished records of the same code")
    parser.add_argument("--stale", action="store_true", help="list records that are older than their code, and stop")
    arguments = parser.parse_args()
    if arguments.stale:
        print(*(f"{name}: {why}" for name, why in record.stale().items()), sep="\n")
        return
    if unknown := [name for name in arguments.names if name not in RECORDS]:
        parser.error(f"no record {', '.join(unknown)}; there are: {', '.join(RECORDS)}")
    if arguments.commit and not re.fullmatch("[0-9a-f]{40}", arguments.commit):
        parser.error(f"--commit wants all 40 hexadecimal digits, got {arguments.commit!r}")
    if not torch.cuda.is_available():
        parser.error("records are measured on a GPU, and torch sees none")
    gpu = torch.cuda.get_device_name()
    try:
        count = torch.cuda.device_count()
        wanted = arguments.names or [each for each, part in RECORDS.items() if count in part.counts or not part.counts]
        files = {name: file_name(name, gpu, count) for name in wanted}
    except ValueError as error:
        parser.error(str(error))
    arguments.out.mkdir(parents=True, exist_ok=True)
    for name, file in files.items():
        start = time.time()
        if len(files) > 1:
            options = [f"--out={arguments.out}", *([f"--commit={arguments.commit}"] if arguments.commit else [])]
            options += ["--go-on"] * arguments.go_on
            subprocess.run([sys.executable, __file__, name, *options], check=True)
        else:
            measure(RECORDS[name], arguments.out / f"{file}.json", arguments.commit, arguments.go_on)
            print(f"{file}: {time.time() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main()
