"""Forwards of ``moe_feed_forward`` for few and many tokens, beside the fastest peers: layers of published models.

"transformers" and "batched" do what transformers' experts do, operation by operation. "flashinfer" is FlashInfer's
fused layer for Hopper with the tiles that its own autotuner has chosen for the case; it adds to the result in bfloat16
and in an order that changes. All are timed as CUDA graphs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict

import torch
from torch import Tensor

import moe_api
from course_kernels.bench import timing
from course_kernels.bench.interface import WrongResult, is_out_of_memory, one_line
from moe_api import Case, Layer

TOKENS = (1, 64, 256, 1024, 4096, 16384)
MODELS = ("granite-3.0-3b-a800m", "qwen3-30b-a3b", "gpt-oss-120b", "mixtral-8x7b", "deepseek-v3")


def flashinfer(layer: Layer) -> Callable[[], Tensor]:
    """Call FlashInfer's fused layer, after its autotuner has tried its tiles.

    Raises:
        ImportError: it is not installed.
    """
    from flashinfer.autotuner import autotune
    from flashinfer.fused_moe.cute_dsl.sm90_contiguous_gather_grouped_gemm_act_fusion import interleave_up_gate_sm90
    from flashinfer.fused_moe.cute_dsl.sm90_fused_moe import cute_dsl_fused_moe_bf16

    x, gate_up, down, index, weights = (each.detach() for each in layer.operands)
    woven, narrow = interleave_up_gate_sm90(gate_up), index.int()

    def forward() -> Tensor:
        return cute_dsl_fused_moe_bf16(x, narrow, weights, woven, down, layer.E, layer.k)

    with autotune(True, tuning_buckets=(len(x),)):
        forward()
    return forward


def ways_of(case: Case, layer: Layer) -> dict[str, Callable[[], Callable[[], Tensor]]]:
    """Functions that make each way to compute a layer."""
    ways = {"ours": lambda: moe_api.ours(layer), "transformers": lambda: moe_api.transformers(layer)}
    if case.tokens == 1:
        ways["batched"] = lambda: moe_api.batched(layer)
    ways["flashinfer"] = lambda: flashinfer(layer)
    return ways


@torch.no_grad()
def measure(case: Case) -> dict:
    """Measure a case: µs of each way, or the reason why not."""
    layer = Layer(case)
    timed: dict[str, Callable[[], object]] = {}
    failed: dict[str, str] = {}
    alone = moe_api.products(layer, step=False)  # kept: the graph reads its operands
    timed["products"] = timing.capture(alone).replay
    for name, make in ways_of(case, layer).items():
        try:
            forward = make()
            layer.verify_forward(forward())
            timed[name] = timing.capture(forward).replay
        except Exception as error:
            expected = isinstance(error, (ImportError, WrongResult)) or is_out_of_memory(error)
            if name == "ours" or not expected:
                raise
            failed[name] = one_line(error)
    times = moe_api.medians(timed)
    return asdict(case) | dict(E=layer.E, k=layer.k, H=layer.H, I=layer.I, us=times, failed=failed)


def cases() -> list[Case]:
    """The cases of the record."""
    return [Case(model, tokens, "uniform") for model in MODELS for tokens in TOKENS]


def rows(keep: Callable[[moe_api.Rows], None] = lambda found: None) -> dict:
    """Measure every case; ``keep`` gets the rows so far after each."""
    return moe_api.measured(cases(), measure, line, keep)


def line(row: dict) -> str:
    """One line about a row: µs of each way."""
    times = ", ".join(f"{name} {us:.0f}" for name, us in row["us"].items())
    return f"{row['model']} {row['tokens']}: {times} µs {row['failed'] or ''}"
