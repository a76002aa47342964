"""The benchmark of forwards beside peers: each way is verified, and one that fails is a reason in its row."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

import moe_api
import moe_forward
from course_kernels.bench.interface import WrongResult


@pytest.fixture
def no_gpu(monkeypatch):
    """A small model on the CPU, where a captured call is the call, and each way takes 1 µs."""
    model = SimpleNamespace(experts=6, top_k=2, hidden=32, intermediate=16)
    monkeypatch.setattr(moe_api.zoo, "select_models", lambda names: (model,))
    monkeypatch.setattr(moe_forward, "Layer", lambda case: moe_api.Layer(case, device="cpu"))
    monkeypatch.setattr(moe_forward.timing, "capture", lambda call: SimpleNamespace(replay=call))
    monkeypatch.setattr(moe_forward.timing, "interleaved_us", lambda timed, repeats: {name: [1.0] for name in timed})


def test_ways_are_measured_and_a_missing_peer_is_a_reason(no_gpu):
    row = moe_forward.measure(moe_api.Case("tiny", 1, "uniform"))
    assert set(row["us"]) == {"products", "ours", "transformers", "batched"}
    assert set(row["failed"]) == {"flashinfer"}
    assert "flashinfer" in row["failed"]["flashinfer"]
    assert "tiny 1: products 1, ours 1" in moe_forward.line(row)


def test_a_wrong_peer_is_a_reason_and_a_wrong_layer_an_error(no_gpu, monkeypatch):
    real = moe_api.transformers
    monkeypatch.setattr(moe_api, "transformers", lambda layer: lambda: real(layer)() * 1.05)
    row = moe_forward.measure(moe_api.Case("tiny", 40, "uniform"))
    assert "differs from float64" in row["failed"]["transformers"]
    assert "transformers" not in row["us"]
    monkeypatch.setattr(moe_api, "moe_feed_forward", lambda *operands: torch.zeros_like(operands[0]))
    with pytest.raises(WrongResult, match="result"):
        moe_forward.measure(moe_api.Case("tiny", 40, "uniform"))


def test_every_model_is_measured_with_few_and_many_tokens():
    assert len(moe_forward.cases()) == len(moe_forward.MODELS) * len(moe_forward.TOKENS)
    assert {case.tokens for case in moe_forward.cases()} == {1, 64, 256, 1024, 4096, 16384}
