"""`course tune`: measure configurations of the packed kernels on this machine's GPU, and write what chooses by them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

from typer import Option

from gemm_course.cli import terminal
from gemm_course.cli.exit_codes import CANNOT, FAILED, OK, USAGE, Stop
from gemm_course.cli.options import File, Names, check_folders

EXAMPLES = """\
examples:
  course tune                                   what chooses on this GPU: on Hopper a model's constants, else a table
  course tune --list                            what would be measured, and the file's place
  course tune --model --limit-seconds 60        constants from as many shapes as a minute allows, after compiling
  course tune --table --limit-seconds 60        as many buckets as a minute allows; the next run goes on from there
  course tune --rows decode rows-16 --again     buckets of the table by the beginnings of their names, measured again
  course tune --out mine.json --record all.json elsewhere, and with the times of all candidates

On a Hopper GPU with the extra cutlass, a model of time chooses kernel and configuration of 16-bit and FP8 products. Its
constants take about four minutes. A table serves other GPUs and products, and takes about as long.

exit codes: 0 measured; 1 a configuration failed or was wrong (the others are in the file); 2 wrong usage;
            3 no GPU to measure on, or none that the file is for
"""
MANY = ("--rows", "--ops", "--dtypes")
_DTYPES = "bfloat16, float16, float8_e4m3fn, float32, tf32"
_TABLE = "course tune --table is for other GPUs"
_LIST = "course tune --list shows what would be measured"


def run(
    model: Annotated[
        bool | None,
        Option("--model/--table", help="constants of the model of time, or the table (default: what this GPU uses)"),
    ] = None,
    rows: Annotated[
        Names, Option(metavar="NAME...", help="table: beginnings of names that --list shows (default: all)")
    ] = None,
    ops: Annotated[Names, Option(metavar="OP...", help="table: grouped_mm, grouped_mm_k (default: both)")] = None,
    dtypes: Annotated[Names, Option(metavar="TYPE...", help=f"table: {_DTYPES} (default: bfloat16)")] = None,
    quick: Annotated[bool, Option("--quick", help="table: few buckets, to see that it works")] = False,
    limit_seconds: Annotated[
        float | None, Option(metavar="S", help="begin no shape after this time (default: 150 for --model)")
    ] = None,
    repeats: Annotated[
        int | None, Option(metavar="N", help="table: timed calls of each candidate (default: 9)")
    ] = None,
    again: Annotated[bool, Option("--again", help="table: measure what it has already, too")] = False,
    out: Annotated[File, Option(metavar="FILE", help="the file (default: the library's, for this GPU)")] = None,
    record: Annotated[File, Option(metavar="FILE", help="keep the times of all candidates here")] = None,
    commit: Annotated[
        str | None, Option(metavar="ID", help="commit of the code, where it cannot be asked of git")
    ] = None,
    only_list: Annotated[bool, Option("--list", help="show what would be measured, and measure nothing")] = False,
) -> int:
    """Measure which configurations of the packed kernels are fastest on this machine's GPU.

    On Hopper, constants of the model that chooses for grouped_mm and scaled_grouped_mm; with --table, and on other
    GPUs, the table that they look up. Buckets that the table has from the same kernels are left out.
    """
    if repeats is not None and repeats < 2:
        raise Stop(USAGE, f"--repeats must be at least 2, got {repeats}")
    if limit_seconds is not None and not limit_seconds > 0:
        raise Stop(USAGE, f"--limit-seconds must be positive, got {limit_seconds:g}")
    check_folders(out=out, record=record)
    given = dict(rows=rows, ops=ops, dtypes=dtypes, quick=quick, repeats=repeats, again=again)
    of_table = [f"--{name}" for name, value in given.items() if value]
    if model and of_table:
        raise Stop(USAGE, f"{', '.join(of_table)}: for the table alone; leave out --model")
    if model is None:
        model = not of_table and _uses_model()
    if model:
        return _model(limit_seconds, out, record, commit, only_list)
    return _table(rows, ops, dtypes, quick, limit_seconds, repeats, again, out, record, commit, only_list)


def _uses_model() -> bool:
    """Whether the model of time chooses on the current GPU."""
    import torch

    from course_kernels.engine.hopper import cute

    return torch.cuda.is_available() and cute.runs_on(_current()) and cute.installed()


def _current():
    import torch

    return torch.device("cuda", torch.cuda.current_device())


def _check_gpu() -> None:
    import torch

    if not torch.cuda.is_available():
        raise Stop(CANNOT, f"configurations are measured on an NVIDIA GPU, and torch sees none here; {_LIST}")


def _model(limit_seconds: float | None, out: Path | None, record: Path | None, commit: str | None, only: bool) -> int:
    """Measure, fit and write the constants of the model of time."""
    import torch

    from course_kernels.bench import candidates, time_fit
    from course_kernels.bench import record as records
    from course_kernels.engine.hopper import cute
    from course_kernels.engine.tuning import time_model
    from course_kernels.runtime import Device

    if only:
        print(f"constants: {time_model.CONSTANTS}/*.json")
        for pass_name, kind in candidates.KIND_OF_PASS.items():
            print(f"  {pass_name}: {len(candidates.offered(kind))} configurations")
        shapes = [(row.name, row.title) for row in time_fit.compact_rows()]
        print(terminal.columns(shapes, indent=2))
        return OK
    _check_gpu()
    try:
        cute.check_available(_current())
    except (ValueError, ImportError) as error:
        message = str(error).replace("backend='cute'", "--model").replace("backend='auto' chooses what runs", _TABLE)
        raise Stop(CANNOT, message) from None
    out = out or time_model.file_of(torch.cuda.get_device_name())
    if not os.access(out if out.exists() else out.parent, os.W_OK):
        raise Stop(USAGE, f"--out: {out} cannot be written")
    gpu = time_model.Gpu.of(Device.of(_current()))
    gpu = gpu._replace(bandwidth=round(gpu.bandwidth, 3))
    torch.set_num_threads(1)  # small matrices are fitted
    try:
        failed = time_fit.tune(
            out, gpu, records.provenance(commit), limit_seconds or time_fit.SECONDS, record,
            lambda line: print(line, flush=True),
        )  # fmt: skip
    except ValueError as error:
        raise Stop(FAILED, error) from None
    print(f"written: {out}")
    if failed:
        lines = [f"{where}, {name}: {reason}" for where, each in failed.items() for name, reason in each.items()]
        raise Stop(FAILED, "\n  ".join(["not fitted, because wrong or failed:", *lines]))
    return OK


def _table(rows, ops, dtypes, quick, limit_seconds, repeats, again, out, record, commit, only_list) -> int:
    """Measure each bucket of shapes, and write the fastest configuration into the table that grouped_mm looks up."""
    from course_kernels.bench import record as records
    from course_kernels.bench import tune
    from course_kernels.engine.tuning import lookup
    from course_kernels.engine.tuning.defaults import candidates

    try:
        cases = tune.select(tune.grid(dtypes or ["bfloat16"], ops or tune.OPS, quick), rows)
    except ValueError as error:
        raise Stop(USAGE, error) from None
    if only_list:
        print(f"tables: {lookup.TABLES}/*.json (course tune --model --list: what is measured on Hopper by default)")
        table = [
            (each.name, each.op, each.dtype, str(each.bucket),
             f"{len(candidates(each.op, each.bucket, each.dtype))} candidates")
            for each in cases
        ]  # fmt: skip
        print(terminal.columns(table, indent=2))
        return OK
    _check_gpu()
    from course_kernels.runtime import Device

    device = Device.of(_current())
    if not device.uses_tma:
        raise Stop(CANNOT, "tables are for GPUs with descriptors (sm_90 or newer); defaults serve this one")
    from course_kernels.bench import tune_gpu

    out = out or lookup.TABLES / f"{lookup.canonical_arch(device.arch)}.json"
    repeats = repeats or tune_gpu.REPEATS
    try:
        tune_gpu.compile_ahead(tune.missing(cases, out, record, again))
        outcome = tune.tune(
            cases, lambda case, configs: tune_gpu.measure(case, configs, repeats), out,
            provenance=records.provenance(commit), record=record, again=again, limit_s=limit_seconds,
            tell=lambda line: print(line, flush=True),
        )  # fmt: skip
    except ValueError as error:
        raise Stop(USAGE, error) from None
    print(f"{outcome.measured} buckets measured, {outcome.kept} kept, {outcome.left} left: {out}")
    if outcome.failures:
        raise Stop(FAILED, "\n  ".join(["not in the table, because wrong or failed:", *outcome.failures]))
    return FAILED if outcome.empty else OK
