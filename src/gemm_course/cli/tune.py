"""`course tune`: measure the packed kernels' configurations on this machine's GPU, and write the table they go to."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

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

OK, FAILED, USAGE, CANNOT = 0, 1, 2, 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.description = (
        "Measure which configuration of the packed kernels is fastest on this machine's GPU, for each bucket of "
        "shapes, and write the table that grouped_mm looks up. What the table has from the same kernels is left out."
    )
    parser.add_argument(
        "--rows", nargs="+", metavar="NAME", help="beginnings of names that --list shows (default: all)"
    )
    parser.add_argument("--ops", nargs="+", metavar="OP", help="grouped_mm, grouped_mm_k (default: both)")
    parser.add_argument("--dtypes", nargs="+", metavar="TYPE", default=["bfloat16"],
                        help="bfloat16, float16, float8_e4m3fn, float32, tf32 (default: bfloat16)")  # fmt: skip
    parser.add_argument("--quick", action="store_true", help="few buckets, to see that it works")
    parser.add_argument("--limit-seconds", type=float, metavar="S", help="begin no bucket after this time")
    parser.add_argument("--repeats", type=int, metavar="N", help="timed calls of each candidate (default: 9)")
    parser.add_argument("--again", action="store_true", help="measure what the table has already, too")
    parser.add_argument("--out", type=Path, metavar="FILE", help="the table (default: the library's, for this GPU)")
    parser.add_argument("--record", type=Path, metavar="FILE", help="keep the times of all candidates here")
    parser.add_argument("--commit", metavar="ID", help="commit of the code, where it cannot be asked of git")
    parser.add_argument("--list", action="store_true", help="show the buckets and measure nothing")


def _problem(arguments: argparse.Namespace) -> str | None:
    if arguments.repeats is not None and arguments.repeats < 2:
        return f"--repeats must be at least 2, got {arguments.repeats}"
    if arguments.limit_seconds is not None and not arguments.limit_seconds > 0:
        return f"--limit-seconds must be positive, got {arguments.limit_seconds:g}"
    for option in ("out", "record"):
        path = getattr(arguments, option)
        if path is not None and not path.absolute().parent.is_dir():
            return f"--{option} must name a file in a folder that exists, got {path}"
    return None


def run(arguments: argparse.Namespace) -> int:
    """Measure, or list.

    Args:
        arguments: of `add_arguments`.

    Returns:
        The exit code.
    """
    import torch

    from course_kernels.bench import record, tune
    from course_kernels.packed.tuning import lookup as tuned
    from course_kernels.packed.tuning.defaults import candidates

    def complain(problem: object, code: int) -> int:
        print(f"course tune: {problem}", file=sys.stderr)
        return code

    if problem := _problem(arguments):
        return complain(problem, USAGE)
    try:
        cases = tune.select(tune.grid(arguments.dtypes, arguments.ops or tune.OPS, arguments.quick), arguments.rows)
    except ValueError as error:
        return complain(error, USAGE)
    if arguments.list:
        print(f"tables: {tuned.TABLES}/sm_*.json")
        for case in cases:
            count = len(candidates(case.op, case.bucket, case.dtype))
            print(f"  {case.name:<28}{case.op:<14}{case.dtype:<15}{case.bucket!s:<46}{count} candidates")
        return OK
    if not torch.cuda.is_available():
        return complain(
            "configurations are measured on an NVIDIA GPU, and torch sees none here; course tune --list shows what "
            "would be measured",
            CANNOT,
        )
    from course_kernels.runtime import Device

    device = Device.of(torch.device("cuda", torch.cuda.current_device()))
    if not device.uses_tma:
        return complain("tables are for GPUs with descriptors (sm_90 or newer); defaults serve this one", CANNOT)
    from course_kernels.bench import tune_gpu

    out = arguments.out or tuned.TABLES / f"{tuned.canonical_arch(device.arch)}.json"
    repeats = arguments.repeats or tune_gpu.REPEATS
    try:
        tune_gpu.compile_ahead(tune.missing(cases, out, arguments.record, arguments.again))
        outcome = tune.tune(
            cases, lambda case, configs: tune_gpu.measure(case, configs, repeats), out,
            provenance=record.provenance(arguments.commit), record=arguments.record, again=arguments.again,
            limit_s=arguments.limit_seconds, tell=lambda line: print(line, flush=True),
        )  # fmt: skip
    except ValueError as error:
        return complain(error, USAGE)
    print(f"{outcome.measured} buckets measured, {outcome.kept} kept, {outcome.left} left: {out}")
    if outcome.failures:
        print("course tune: not in the table, because wrong or failed:", *outcome.failures, sep="\n  ", file=sys.stderr)
    return FAILED if outcome.failures or outcome.empty else OK
