"""`course tune`: measure the packed kernels' configurations on this machine's GPU, and write the table they go to."""

from __future__ import annotations

from typing import Annotated

from typer import Option

from gemm_course.cli import terminal
from gemm_course.cli.exit_codes import CANNOT, FAILED, OK, USAGE, Stop
from gemm_course.cli.options import File, Names, check_folders

EXAMPLES = """\
examples:
  course tune --list                            what would be measured, and the table's place
  course tune                                   every bucket that the table lacks (about four minutes on an H200)
  course tune --limit-seconds 60                as much as a minute allows; the next run goes on from there
  course tune --rows decode rows-16 --again     buckets by the beginnings of their names, measured again
  course tune --out mine.json --record all.json elsewhere, and with the times of all candidates

exit codes: 0 measured; 1 a configuration failed or was wrong (the others are in the table); 2 wrong usage;
            3 no GPU to measure on, or one without descriptors
"""
MANY = ("--rows", "--ops", "--dtypes")
_DTYPES = "bfloat16, float16, float8_e4m3fn, float32, tf32"


def run(
    rows: Annotated[
        Names, Option(metavar="NAME...", help="beginnings of names that --list shows (default: all)")
    ] = None,
    ops: Annotated[Names, Option(metavar="OP...", help="grouped_mm, grouped_mm_k (default: both)")] = None,
    dtypes: Annotated[Names, Option(metavar="TYPE...", help=f"{_DTYPES} (default: bfloat16)")] = None,
    quick: Annotated[bool, Option("--quick", help="few buckets, to see that it works")] = False,
    limit_seconds: Annotated[float | None, Option(metavar="S", help="begin no bucket after this time")] = None,
    repeats: Annotated[int | None, Option(metavar="N", help="timed calls of each candidate (default: 9)")] = None,
    again: Annotated[bool, Option("--again", help="measure what the table has already, too")] = False,
    out: Annotated[File, Option(metavar="FILE", help="the table (default: the library's, for this GPU)")] = None,
    record: Annotated[File, Option(metavar="FILE", help="keep the times of all candidates here")] = None,
    commit: Annotated[
        str | None, Option(metavar="ID", help="commit of the code, where it cannot be asked of git")
    ] = None,
    only_list: Annotated[bool, Option("--list", help="show the buckets and measure nothing")] = False,
) -> int:
    """Measure which configuration of the packed kernels is fastest on this machine's GPU.

    That is done for each bucket of shapes, and written into the table that grouped_mm looks up. Buckets that the table
    has from the same kernels are left out.
    """
    import torch

    from course_kernels.bench import record as records
    from course_kernels.bench import tune
    from course_kernels.packed.tuning import lookup
    from course_kernels.packed.tuning.defaults import candidates

    if repeats is not None and repeats < 2:
        raise Stop(USAGE, f"--repeats must be at least 2, got {repeats}")
    if limit_seconds is not None and not limit_seconds > 0:
        raise Stop(USAGE, f"--limit-seconds must be positive, got {limit_seconds:g}")
    check_folders(out=out, record=record)
    try:
        cases = tune.select(tune.grid(dtypes or ["bfloat16"], ops or tune.OPS, quick), rows)
    except ValueError as error:
        raise Stop(USAGE, error) from None
    if only_list:
        print(f"tables: {lookup.TABLES}/*.json")
        table = [
            (each.name, each.op, each.dtype, str(each.bucket),
             f"{len(candidates(each.op, each.bucket, each.dtype))} candidates")
            for each in cases
        ]  # fmt: skip
        print(terminal.columns(table, indent=2))
        return OK
    if not torch.cuda.is_available():
        raise Stop(CANNOT, "configurations are measured on an NVIDIA GPU, and torch sees none here; course tune --list "
                   "shows what would be measured")  # fmt: skip
    from course_kernels.runtime import Device

    device = Device.of(torch.device("cuda", torch.cuda.current_device()))
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
