"""`course tune`: measure configurations on this machine's GPU, and fit the constants of the model that chooses."""

from __future__ import annotations

import os
from typing import Annotated

from gemm_course.cli import terminal
from gemm_course.cli.exit_codes import CANNOT, FAILED, OK, USAGE, Stop
from gemm_course.cli.options import File, Option, check_folders

EXAMPLES = """\
examples:
  course tune                                   constants of this GPU, for the library
  course tune --list                            what would be measured, and the file's place
  course tune --limit-seconds 60                from as many shapes as a minute allows
  course tune --out mine.json --record all.json elsewhere, and with the times of all candidates
  course tune --triton-only --out triton.json   as on a GPU without the kernel in CuTe DSL

A model of time chooses kernel and configuration of 16-bit and FP8 products. Its constants are fitted to times of the
Triton kernels, and of the kernel in CuTe DSL on a Hopper GPU with the extra cutlass. It begins no shape after four
minutes.

exit codes: 0 measured; 1 a configuration failed or was wrong (the others are in the file); 2 wrong usage;
            3 no GPU to measure on
"""
_LIST = "course tune --list shows what would be measured"


def run(
    limit_seconds: Annotated[
        float | None, Option(metavar="S", help="begin no shape after this time, compiling included (default: 240)")
    ] = None,
    triton_only: Annotated[bool, Option("--triton-only", help="leave out the kernel in CuTe DSL")] = False,
    out: Annotated[File, Option(metavar="FILE", help="the file (default: the library's, for this GPU)")] = None,
    record: Annotated[File, Option(metavar="FILE", help="keep the times of all candidates here")] = None,
    commit: Annotated[
        str | None, Option(metavar="ID", help="commit of the code, where it cannot be asked of git")
    ] = None,
    only_list: Annotated[bool, Option("--list", help="show what would be measured, and measure nothing")] = False,
) -> int:
    """Measure which configurations are fastest on this machine's GPU, and fit the constants that choose by them."""
    if limit_seconds is not None and not limit_seconds > 0:
        raise Stop(USAGE, f"--limit-seconds must be positive, got {limit_seconds:g}")
    if triton_only and out is None and not only_list:
        raise Stop(USAGE, "--triton-only: name a file with --out; the library's has the kernel in CuTe DSL, too")
    check_folders(out=out, record=record)
    import torch

    if not only_list and not torch.cuda.is_available():
        raise Stop(CANNOT, f"configurations are measured on a GPU, and torch sees none here; {_LIST}")
    try:
        from course_kernels.bench import record as records
        from course_kernels.bench.tuning import config_times, tune
        from course_kernels.engine.tuning import Gpu, gpu_constants
        from course_kernels.runtime import Device, supports_bf16
    except RuntimeError as error:  # no kernel can be defined here
        raise Stop(CANNOT, error) from None
    if only_list:
        passes = ", ".join(config_times.KIND_OF_PASS)
        print(terminal.fit(f"constants: {gpu_constants.CONSTANTS}/*.json\npasses: {passes}"))
        print(terminal.fit(terminal.columns([(row.name, row.title) for row in tune.compact_rows()], indent=2)))
        return OK
    device = torch.device("cuda", torch.cuda.current_device())
    if not supports_bf16(device):
        raise Stop(CANNOT, "products of bfloat16 are measured, which this GPU does not multiply; rules serve it")
    out = out or gpu_constants.file_of(torch.cuda.get_device_name())
    if not os.access(out if out.exists() else out.parent, os.W_OK):
        raise Stop(USAGE, f"--out: {out} cannot be written")
    gpu = Gpu.of(Device.of(device))
    gpu = gpu._replace(bandwidth=round(gpu.bandwidth, 3))
    torch.set_num_threads(1)  # small matrices are fitted
    try:
        failed = tune.tune(
            out, gpu, records.provenance(commit), limit_seconds or tune.SECONDS, record, triton_only,
            lambda line: print(line, flush=True),
        )  # fmt: skip
    except ValueError as error:
        raise Stop(FAILED, error) from None
    print(f"written: {out}")
    if failed:
        lines = [f"{where}, {name}: {reason}" for where, each in failed.items() for name, reason in each.items()]
        raise Stop(FAILED, "\n  ".join(["not fitted, because wrong or failed:", *lines]))
    return OK
