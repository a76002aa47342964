"""Bytes that a launch really moves, read from the GPU's counters by Nsight Compute."""

from __future__ import annotations

import csv
import io
import json
import pathlib
import shutil
import subprocess
import sys

PROBLEM = (8192, 8192, 4096)
BLOCK = (128, 256, 64)
METRICS = {
    "dram__bytes_read.sum": "dram_read_bytes",
    "dram__bytes_write.sum": "dram_write_bytes",
    "lts__t_sectors_op_read.sum": "l2_read_sectors",
    "gpu__time_duration.sum": "ns",
}
_UNITS = {"byte": 1, "kbyte": 1e3, "mbyte": 1e6, "gbyte": 1e9, "sector": 1, "nsecond": 1, "ns": 1, "usecond": 1e3,
          "us": 1e3, "msecond": 1e6, "ms": 1e6}  # fmt: skip


def launch_once(group_m: int) -> None:
    """The work under the profiler: one launch of the descriptor kernel."""
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "src"))
    from course_kernels.bench import loaded  # isort: skip
    import torch

    from course_kernels import GemmConfig
    from list_api import Operands

    torch.manual_seed(0)
    config = GemmConfig(*BLOCK, num_warps=8, num_stages=3, group_m=group_m)
    plan = Operands.of([PROBLEM]).plan(method="tma", config=config)
    plan.run()
    torch.cuda.synchronize()
    loaded.share()


def profiled(group_m: int) -> dict[str, float]:
    """Counters of one launch on cold caches."""
    tool = shutil.which("ncu") or "/usr/local/cuda/bin/ncu"
    command = [tool, "--csv", "--page", "raw", "--clock-control", "none", "--cache-control", "all"]
    command += ["--kernel-name", "regex:tma_kernel", "--metrics", ",".join(METRICS)]
    done = subprocess.run(
        [*command, sys.executable, __file__, str(group_m)], capture_output=True, text=True, timeout=300
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith('"')]
    if done.returncode or len(lines) < 3:
        raise RuntimeError(f"ncu gave no counters: {done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    names, units, values = list(csv.reader(io.StringIO("\n".join(lines))))[:3]
    return {
        METRICS[name]: float(value.replace(",", "")) * _UNITS[unit.lower()]
        for name, unit, value in zip(names, units, values)
        if name in METRICS
    }


def swizzle() -> dict:
    """Row-major tiles against strips of 8 and 16 tile rows, on operands larger than the L2 cache."""
    rows = []
    for group_m in (1, 8, 16):
        counters = profiled(group_m)
        rows.append(
            {
                "problem": list(PROBLEM),
                "block": list(BLOCK),
                "group_m": group_m,
                "dram_read_bytes": round(counters["dram_read_bytes"]),
                "dram_write_bytes": round(counters["dram_write_bytes"]),
                "l2_read_bytes": round(counters["l2_read_sectors"] * 32),
                "us": round(counters["ns"] / 1e3, 2),
            }
        )
        print(json.dumps(rows[-1]), flush=True)
    return {"dtype": "float16", "kernel": "tma", "rows": rows}


if __name__ == "__main__":
    launch_once(int(sys.argv[1]))
