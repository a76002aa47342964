"""The benchmark of a model's training steps: both ways learn the same, and other losses are found."""

from __future__ import annotations

import pytest

import moe_training
from course_kernels.bench.interface import WrongResult

pytest.importorskip("transformers", minversion="5.24", reason="needs transformers 5.24 or later")

SMALL = dict(
    hidden_size=64, moe_intermediate_size=32, num_experts=8, num_experts_per_tok=2, num_attention_heads=4,
    num_key_value_heads=2, head_dim=16, vocab_size=128,
)  # fmt: skip


def test_both_ways_learn_the_same():
    losses = {}
    for way in moe_training.WAYS:
        step = moe_training.trained(moe_training.Case(2, 32), way, "cpu", **SMALL)
        losses[way] = [float(step()) for _ in range(moe_training.VERIFIED)]
    moe_training.verify(losses)


@pytest.mark.parametrize("wrong", [[4.0, 4.0], [4.0, 3.9, 3.8, 4.1], [4.0, 3.9, 3.8, 3.6], [4.0, float("nan")]])
def test_other_losses_are_found(wrong):
    right = [4.0, 3.9, 3.8, 3.7][: len(wrong)]
    with pytest.raises(WrongResult, match="ours"):
        moe_training.verify({"transformers": right, "ours": wrong})
