"""The benchmark of the layer: what it computes is verified, and wrong results are found."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

import moe_api
from course_kernels.bench.interface import WrongResult


@pytest.fixture
def layer(monkeypatch):
    model = SimpleNamespace(experts=6, top_k=2, hidden=32, intermediate=16)
    monkeypatch.setattr(moe_api.zoo, "select_models", lambda names: (model,))
    return moe_api.Layer(moe_api.Case("tiny", 40, "zipf"), device="cpu")


@pytest.mark.parametrize("way", [moe_api.ours, moe_api.transformers, moe_api.batched])
def test_ways_are_right(layer, way):
    layer.verify(way(layer))
    assert layer.flop(step=True) == 3 * layer.flop(step=False) == 3 * 6 * 40 * 2 * 32 * 16


@pytest.mark.parametrize("what", ["result", "the tokens' gradient", "the weights' gradient", "gate_up's gradient"])
def test_wrong_results_are_found(layer, what):
    """A factor of 1.05 on the result, or on one operand's gradient alone."""
    wrong = {"the tokens' gradient": 0, "gate_up's gradient": 1, "the weights' gradient": 3}.get(what)

    def forward():
        scaled = []
        for i, leaf in enumerate(layer.leaves):
            value = leaf.view_as(leaf)
            if i == wrong:
                value.register_hook(lambda grad: grad * 1.05)
            scaled.append(value)
        x, gate_up, down, weights = scaled
        out = moe_api.moe_feed_forward(x, gate_up, down, layer.index, weights)
        return out * 1.05 if wrong is None else out

    with pytest.raises(WrongResult, match=what):
        layer.verify(forward)


def test_a_wrong_result_without_gradients_is_found(layer):
    def forward():
        return moe_api.ours(layer)() * (1.0 if torch.is_grad_enabled() else 1.05)

    with pytest.raises(WrongResult, match="without gradients"):
        layer.verify(forward)


def test_rows_are_kept_one_by_one(monkeypatch):
    seen = []
    monkeypatch.setattr(moe_api, "measure", lambda case: dict(tokens=case.tokens))
    monkeypatch.setattr(moe_api, "line", lambda row: "")
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    found = moe_api.rows(keep=lambda rows: seen.append(len(rows.as_json()["rows"])))
    assert seen == [*range(1, 1 + len(found["rows"]))] == [*range(1, 1 + len(moe_api.cases()))]
    for case in moe_api.cases():
        assert ("liger" in moe_api.peers_of(case)) == (case.tokens >= moe_api.TRAINED)


def test_steps_do_not_run_before_forwards(monkeypatch):
    """A call takes longer after some calls than after others. So a forward only follows forwards, a step only steps."""
    together = []

    def interleaved_us(timed, repeats):
        together.append(set(timed))
        return {name: [call() - 1.0, call() + 1.0] for name, call in timed.items()}

    monkeypatch.setattr(moe_api.timing, "interleaved_us", interleaved_us)
    names = ["products forward", "products step", "reading", "ours forward", "graph forward", "ours step", "graph step"]
    times = moe_api.medians({name: lambda i=i: float(i) for i, name in enumerate(names)})
    assert times == {name: i for i, name in enumerate(names)}
    assert together == [{name for name in names if not name.endswith("step")}, {*names[1:2], *names[5:]}]


def test_reading_is_of_the_chosen_experts(monkeypatch):
    model = SimpleNamespace(experts=6, top_k=2, hidden=32, intermediate=16)
    monkeypatch.setattr(moe_api.zoo, "select_models", lambda names: (model,))
    layer = moe_api.Layer(moe_api.Case("tiny", 1, "uniform"), device="cpu")
    read, sizes = moe_api.reading(layer), []
    monkeypatch.setattr(torch, "amax", lambda tensor: sizes.append(tensor.numel() * tensor.element_size()))
    read()
    assert sizes == [2 * 3 * 32 * 16 * 2]  # two experts, three matrices, two bytes a number
    everyone = moe_api.Layer(moe_api.Case("tiny", 40, "uniform"), device="cpu")
    assert moe_api.reading(everyone) is None
