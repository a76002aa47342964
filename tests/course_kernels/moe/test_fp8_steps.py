"""Operands in float8: kernels give the bits of torch, which are those of the library's own functions."""

from __future__ import annotations

import pytest
import torch

from course_kernels import quantize_1x128, runtime
from course_kernels.fp8 import lines, quantize
from course_kernels.fp8.lines import quantize_lines
from course_kernels.moe import ACTIVATIONS, Routing
from course_kernels.moe.fp8_steps import Rounding, dequantized
from moe_layers import DEVICE, make

pytestmark = [pytest.mark.gpu] if runtime.mode() == "gpu" else []
if not runtime.supports_fp8():
    pytest.skip("this GPU does not multiply float8_e4m3fn", allow_module_level=True)

recipes = pytest.mark.parametrize("recipe", ["rowwise", "blockwise"])


FP8 = torch.float8_e4m3fn


def equal(one, other) -> bool:
    return torch.equal(one.float(), other.float())


@recipes
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_tokens_and_rows(recipe, dtype):
    made = make(7, 200, 150, 5, 3, dtype=dtype)
    x, routing = made.tensors["x"], Routing.of(made.ids, 5)
    last, of_rows = int(routing.ends[-1]), routing.tokens.long()
    whole = recipe == "rowwise"
    values, factors = quantize_lines(x, FP8, backend="torch") if whole else quantize_1x128(x, backend="torch")
    for in_torch in (True, False):
        found = Rounding(recipe, in_torch).tokens(x, routing)
        assert equal(found.values[:last], values[of_rows][:last])
        assert torch.equal(found.factors[:last], factors[of_rows][:last])
    pre = torch.randn(21, 300, device=DEVICE).to(dtype)
    for activation in (None, ACTIVATIONS["reglu"], ACTIVATIONS["relu2"]):
        one, other = (Rounding(recipe, each).rows(pre, routing, activation) for each in (True, False))
        assert equal(one.values[:last], other.values[:last])
        assert torch.equal(one.factors[:last], other.factors[:last])


@recipes
def test_columns(recipe):
    made = make(160, 40, 24, 5, 2)
    x, routing = made.tensors["x"], Routing.of(made.ids, 5)
    one, other = (
        Rounding(recipe, each).columns(x, routing, gathers=True, weights=made.tensors["weights"])
        for each in (True, False)
    )
    assert torch.equal(one.ends, other.ends)
    last = int(one.ends[-1])
    assert equal(one.values[:, :last], other.values[:, :last])
    assert torch.equal(one.factors, other.factors)


@recipes
def test_weights(recipe, monkeypatch):
    """Each way in its own: nothing of torch's for the kernels, whose float32 copies cost more than the products."""
    weight, blocks = make(7, 200, 150, 5, 3, dtype=torch.bfloat16).tensors["gate_up"], recipe == "blockwise"
    used = (quantize, "_squares_by_torch") if blocks else (lines, "_lines_by_torch")
    for given in (weight, weight.mT):
        wanted = Rounding(recipe, True).weights(given)
        with monkeypatch.context() as patched:
            patched.setattr(*used, None)
            found = Rounding(recipe, False).weights(given)
            with pytest.raises(TypeError, match="not callable"):
                Rounding(recipe, True).weights(given)
        assert equal(found.values, wanted.values)
        assert torch.equal(found.factors, wanted.factors)


def test_dequantized():
    weight = torch.ones(1, 130, 2, device=DEVICE).to(FP8)
    found = dequantized(weight, torch.tensor([[[2.0], [3.0]]], device=DEVICE), torch.float32)
    assert found[0, :, 0].tolist() == [2.0] * 128 + [3.0] * 2
