"""Times of every configuration on many shapes, and the constants of ``engine.tuning.time_model`` fitted to them.

    python benchmarks/run.py configurations configurations_8bit     measure, on an H200 or an H100: two records
    python benchmarks/time_model.py                                 fit, to the records, without a GPU: the constants

Fitting also writes how good the choices are: on all that was measured, and, the honest judgement, on each model with
constants fitted to the others. `course tune` does both in one, on fewer shapes.
"""

from __future__ import annotations

import argparse
import dataclasses
import pathlib
import random
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "src"))

import torch

from course_kernels import runtime
from course_kernels.bench import candidates, record, time_fit, zoo
from course_kernels.bench.rows import Row
from course_kernels.engine.tuning import time_model

# Records of 16-bit products; those of 8-bit ones have another name.
RECORDS = {"h200": "configurations", "h100": "configurations_h100"}
TOKENS = (16, 64, 256, 512, 1024, 2048, 4096, 8192, 16384)
# No row begins later: rows come in a drawn order, so what is left out is no model.
SECONDS, SECONDS_8_BIT = 150, 50
_RANDOM_ROWS, _FEW_GROUPS = 60, 48
_SPLIT_FROM = 128  # experts: such models are also measured as 8 GPUs share them


def rows() -> list[Row]:
    """Layers of the zoo with even and skewed routing, one GPU's part of eight of the larger ones, and random shapes,
    also of few large groups."""
    found = []
    for number, model in enumerate(zoo.MODELS):
        parts = [model]
        if model.experts >= _SPLIT_FROM:
            shared = dict(name=f"{model.name}-of-8", experts=model.experts // 8, top_k=1)
            parts.append(dataclasses.replace(model, **shared))
        for part in parts:
            for place, tokens in enumerate(TOKENS):
                for turn, projection in enumerate(zoo.PROJECTIONS):
                    routing = "random" if (number + place + turn) % 3 == 0 else "zipf"
                    found.append(zoo.row_of(part, tokens, routing, projection))
    found += candidates.random_rows(_RANDOM_ROWS)
    found += candidates.random_rows(_FEW_GROUPS, most_flops=time_fit.MOST_FLOPS, few_groups=True)
    found = [row for row in found if row.flops <= time_fit.MOST_FLOPS]
    random.Random(1).shuffle(found)
    return found


def measure() -> dict:
    """The record of 16-bit products: see ``candidates.measure``. Fails where a result is wrong."""
    return _measured(rows(), candidates.PASSES, SECONDS)


def measure_8_bit() -> dict:
    """Likewise of 8-bit products: a third of the rows, whose extents descriptors describe."""
    suited = [row for row in rows() if row.N % 16 == row.K % 16 == 0]
    return _measured(suited[: len(suited) // 3], candidates.PASSES_8_BIT, SECONDS_8_BIT)


def _measured(among: list[Row], passes: tuple[str, ...], seconds: float) -> dict:
    candidates.compile_ahead(among, passes)
    found = candidates.measure(among, passes, seconds=seconds)
    if failed := candidates.failures(found):
        raise AssertionError(f"wrong or failed: {failed}")
    gpu = time_model.Gpu.of(runtime.Device.of(runtime.device()))
    return {"arch": gpu.arch, "bandwidth": round(gpu.bandwidth, 3), "rows": found}


def fitted(name: str) -> dict:
    """Constants from the record of a name, and from that of 8-bit products if the GPU has one."""
    measured, eight_bits = record.load(name), None
    found = measured["rows"]
    try:
        eight_bits = record.load(name.replace("configurations", "configurations_8bit"))
        found = found | {row: found.get(row, {}) | entry for row, entry in eight_bits["rows"].items()}
    except FileNotFoundError:
        print(f"{name}: no record of 8-bit products, so no constants of them")
    about = measured["provenance"]
    gpu = time_model.Gpu(measured["arch"], about["sms"], measured["bandwidth"])
    content = time_fit.constants(found, gpu, about)
    return content | ({"provenance of 8 bits": eight_bits["provenance"]} if eight_bits else {})


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, default=time_model.CONSTANTS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # small matrices
    arguments.out.mkdir(parents=True, exist_ok=True)
    for gpu, name in RECORDS.items():
        time_fit.write(fitted(name), arguments.out / f"{gpu}.json")


if __name__ == "__main__":
    main()
