"""Times of every configuration on many shapes, and the constants of ``packed.tuning.time_model`` fitted to them.

    python benchmarks/run.py configurations     measure, on an H200 or an H100: a record
    python benchmarks/time_model.py             fit, to the records, without a GPU: the constants that the library reads

Fitting also writes how good the choices are: on all that was measured, and, the honest judgement, on each model with
constants fitted to the others.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import pathlib
import random
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "src"))

import torch

from course_kernels import runtime
from course_kernels.bench import candidates, record, time_fit, zoo
from course_kernels.bench.rows import Row
from course_kernels.packed.tuning import time_model

RECORDS = {"h200": "configurations", "h100": "configurations_h100"}
TOKENS = (16, 64, 256, 1024, 2048, 4096, 8192, 16384)
SECONDS = 300  # no row begins later: rows come in a drawn order, so what is left out is no model
_RANDOM_ROWS = 60
_MOST_FLOPS = 4.2e12  # of a product
_SPLIT_FROM = 128  # experts: such models are also measured as 8 GPUs share them


def rows() -> list[Row]:
    """Layers of the zoo with even and skewed routing, one GPU's part of eight of the larger ones, and random shapes."""
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
    found = [row for row in found if row.flops <= _MOST_FLOPS]
    random.Random(1).shuffle(found)
    return found


def measure() -> dict:
    """The record: see ``candidates.measure``. Fails where a result is wrong."""
    candidates.precompile(runtime.num_sms())
    found = candidates.measure(rows(), seconds=SECONDS)
    if failed := candidates.failures(found):
        raise AssertionError(f"wrong or failed: {failed}")
    gpu = time_model.Gpu.of(runtime.Device.of(runtime.device()))
    return {"arch": gpu.arch, "bandwidth": round(gpu.bandwidth, 3), "rows": found}


def sources(names) -> dict[str, str]:
    """Row → the model that it is of, so that all of a model's rows are left out at a time."""
    known = sorted((model.name for model in zoo.MODELS), key=len, reverse=True)
    return {name: next((model for model in known if name.startswith(model)), name) for name in names}


def _told(config) -> dict:
    """The fields of a configuration that differ from their defaults."""
    fields = dataclasses.fields(config)
    return {each.name: value for each in fields if (value := getattr(config, each.name)) != each.default}


def fitted(measured: dict) -> dict:
    """Constants, in the form that ``time_model.read`` takes, from a record."""
    about = measured["provenance"]
    gpu = time_model.Gpu(measured["arch"], about["sms"], measured["bandwidth"])
    found = time_fit.samples(measured["rows"], sources(measured["rows"]))
    chosen = time_fit.fit(found, gpu)
    judged = {"fitted": time_fit.regret(found, chosen, gpu)}
    judged["left out"] = time_fit.leave_one_out(found, gpu)
    for how, each in judged.items():
        for kind in time_model.KINDS:
            print(f"{about['gpu']}, {how}, {kind}: {time_fit.summary([one for one in each if one.kind == kind])}")
    return {
        "gpu": gpu._asdict(),
        "provenance": about,
        "candidates": {
            kind: [
                {**each._asdict(), "config": _told(each.config)} for each in chosen[kind]
            ]
            for kind in time_model.KINDS
        },
        "regret": {
            how: {one.name: [one.kind, one.times, one.chosen, one.best] for one in each}
            for how, each in judged.items()
        },
    }  # fmt: skip


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, default=time_model.CONSTANTS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # small matrices
    arguments.out.mkdir(parents=True, exist_ok=True)
    for gpu, name in RECORDS.items():
        text = json.dumps(fitted(record.load(name)), indent=1)
        (arguments.out / f"{gpu}.json").write_text(record.rows_on_lines(text) + "\n")


if __name__ == "__main__":
    main()
