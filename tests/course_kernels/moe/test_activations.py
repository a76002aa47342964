"""The activations: their names, their encoding."""

from __future__ import annotations

import pytest

from course_kernels.moe import ACTIVATIONS, Activation, Function
from course_kernels.moe.activations import activation_of, decode, encode


@pytest.mark.parametrize("kind", [*ACTIVATIONS.values(), Activation(Function.SILU, True, 0.1, 1 / 3, -2.0)], ids=str)
def test_encoding(kind):
    assert decode(encode(kind)) == kind
    assert activation_of(kind) == kind


def test_integers_count_as_numbers():
    kind = activation_of(Activation(Function.SILU, alpha=2, limit=7, shift=1))
    assert kind == Activation(Function.SILU, alpha=2.0, limit=7.0, shift=1.0)
    assert decode(encode(kind)) == kind
