"""Fit the constants of ``engine.tuning.time_model`` to measured times of every configuration on many shapes.

    python benchmarks/run.py configurations configurations_8bit configurations_layer
                                                                    measure, on an H200 or an H100: three records
    python benchmarks/time_model.py                                 fit, to the records, without a GPU: the constants
    python benchmarks/time_model.py --compare FILE [--record FILE]  compare choices for Triton by a file of constants
                                                                    and by the shipped ones; without a GPU

Fitting also writes how good the choices are: on all measured rows, and, as the fair test, on each model with constants
fitted to the other models. `course tune` measures and fits in one run, on fewer shapes.
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
from course_kernels.bench import record, zoo
from course_kernels.bench.rows import Row
from course_kernels.bench.tuning import config_times, fit, tune
from course_kernels.engine.tuning import Gpu, gpu_constants

# Records of 16-bit products. Those of 8-bit ones, and of a layer's, have names with an ending, and are optional.
RECORDS = {"h200": "configurations", "h100": "configurations_h100"}
TOKENS = (16, 64, 256, 512, 1024, 2048, 4096, 8192, 16384)
# No row begins later. Rows are in random order, so no model is left out as a whole. An H200 measures nearly all.
SECONDS, SECONDS_8_BIT, SECONDS_OF_LAYER = 240, 90, 120
PARTS = {"8bit": "provenance of 8 bits", "layer": "provenance of layers"}
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
    found += config_times.random_rows(_RANDOM_ROWS)
    found += config_times.random_rows(_FEW_GROUPS, most_flops=tune.MOST_FLOPS, few_groups=True)
    found = [row for row in found if row.flops <= tune.MOST_FLOPS]
    random.Random(1).shuffle(found)
    return found


def measure() -> dict:
    """Measure the record of 16-bit products by ``config_times.measure``. Raises AssertionError if a result is wrong."""
    return _measured(rows(), config_times.PASSES, SECONDS)


def measure_8_bit() -> dict:
    """Measure the record of 8-bit products: a third of the rows whose N and K suit descriptors."""
    suited = [row for row in rows() if row.N % 16 == row.K % 16 == 0]
    return _measured(suited[: len(suited) // 3], config_times.PASSES_8_BIT, SECONDS_8_BIT)


def measure_layer() -> dict:
    """Measure the record of a layer's products, on half of the rows whose N and K suit descriptors."""
    suited = [row for row in rows() if row.N % 16 == row.K % 16 == 0]
    return _measured(suited[: len(suited) // 2], config_times.PASSES_OF_LAYER, SECONDS_OF_LAYER)


def _measured(among: list[Row], passes: tuple[str, ...], seconds: float) -> dict:
    config_times.compile_ahead(among, passes)
    found = config_times.measure(among, passes, seconds=seconds)
    if failed := config_times.failures(found):
        raise AssertionError(f"wrong or failed: {failed}")
    gpu = Gpu.of(runtime.Device.of(runtime.device()))
    return {"gpu": gpu._replace(bandwidth=round(gpu.bandwidth, 3))._asdict(), "rows": found}


def gpu_of(content: dict) -> Gpu:
    """The GPU on which a record was measured. Older records lack the clock; both Hopper GPUs reach 1.98 GHz."""
    if "gpu" in content:
        return Gpu(**content["gpu"])
    return Gpu(content["arch"], content["provenance"]["sms"], content["bandwidth"], 1.98, 232448)


def fitted(name: str) -> dict:
    """Fit constants to the named record, and to the GPU's others of ``PARTS`` if there are any."""
    sixteen_bits, others = record.load(name), {}
    found = sixteen_bits["rows"]
    for part, provenance in PARTS.items():
        try:
            more = record.load(name.replace("configurations", f"configurations_{part}"))
        except FileNotFoundError:
            print(f"{name}: no record {part}, so no constants of its products")
            continue
        found = found | {row: found.get(row, {}) | entry for row, entry in more["rows"].items()}
        others[provenance] = more["provenance"]
    return tune.constants(found, gpu_of(sixteen_bits), sixteen_bits["provenance"]) | others


def compare(path: pathlib.Path, records: list[dict]) -> str:
    """Compare choices for Triton by a file of constants and by this GPU's shipped constants, on the records' rows."""
    mine, lines = gpu_constants.read(path), []
    for content in records:
        gpu = gpu_of(content)
        theirs = {kind: gpu_constants.source_for(gpu, kind).candidates for kind in config_times.KIND_OF_PASS.values()}
        found = fit.samples(content["rows"], tune.sources(content["rows"]))
        lines.append(tune.compared_in_words(tune.compared(found, mine.candidates, theirs, gpu)))
    return "\n".join(lines)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, default=gpu_constants.CONSTANTS)
    parser.add_argument("--compare", type=pathlib.Path, metavar="FILE", help="constants of `course tune --out`")
    parser.add_argument(
        "--record", type=pathlib.Path, metavar="FILE", help="rows of `course tune --record` (default: the records)"
    )
    arguments = parser.parse_args()
    if arguments.compare:
        gpu = gpu_constants.read(arguments.compare).gpu
        names = [name for name in RECORDS.values() if gpu_of(record.load(name)).distance(gpu) < (False, 0.1)]
        names += [name.replace("configurations", "configurations_8bit") for name in names]
        files = [record.read(arguments.record)] if arguments.record else list(map(record.load, names))
        print(compare(arguments.compare, files))
        return
    torch.set_num_threads(1)  # small matrices
    arguments.out.mkdir(parents=True, exist_ok=True)
    for gpu, name in RECORDS.items():
        tune.write(fitted(name), arguments.out / f"{gpu}.json")


if __name__ == "__main__":
    main()
