"""Errors of the layer's float8 arguments: each names the argument, what it got and what it wants."""

from __future__ import annotations

import pytest
import torch

from course_kernels.moe import fp8_checks
from moe_layers import DEVICE, make

FP8 = torch.float8_e4m3fn


def float8_layer(**changed):
    """A layer of 5 experts with H = 24 and I = 40, whose weights are float8, with factors of rows."""
    made = make()
    for name in ("gate_up", "down"):
        made.tensors[name] = made.tensors[name].to(FP8)
    scales = dict(gate_up_scale=torch.ones(5, 80, device=DEVICE), down_scale=torch.ones(5, 24, device=DEVICE))
    made.options |= scales | {name: value for name, value in changed.items() if name not in made.tensors}
    made.tensors |= {name: value for name, value in changed.items() if name in made.tensors}
    return made


WRONG = [
    (dict(gate_up_scale=None), ValueError, "both be given.*got None for gate_up_scale"),
    (dict(gate_up_scale=None, down_scale=None), TypeError, "gate_up is .* without factors: pass gate_up_scale"),
    (dict(gate_up_scale=torch.ones(5, 79)), ValueError, r"gate_up_scale must have shape \(5, 80\).*got \(5, 79\)"),
    (dict(down_scale=torch.ones(24)), ValueError, r"down_scale must have shape \(5, 24\).*\(5, 1, 1\).*got \(24,\)"),
    (dict(down_scale=torch.ones(5, 1, 1)), ValueError, "down_scale must be of rows, as gate_up_scale"),
    (dict(down_scale=torch.ones(5, 24).half()), TypeError, r"down_scale must be torch\.float32, got torch\.float16"),
    (dict(down_scale=[1.0]), TypeError, "down_scale"),
    (dict(down_scale=torch.ones(5, 24, requires_grad=True)), TypeError, "down_scale requires a gradient"),
    (dict(fp8_recipe="rowwise"), ValueError, "fp8_recipe must be None where gate_up_scale"),
    (dict(down=torch.ones(5, 24, 40)), TypeError, r"down must be torch\.float8_e4m3fn where down_scale is given"),
    (dict(main_grads=(None, torch.ones(5, 24, 40))), ValueError, r"main_grads\[1\] must be None"),
]


@pytest.mark.parametrize(("changed", "kind", "message"), WRONG, ids=[each[2][:40] for each in WRONG])
def test_float8_weights(changed, kind, message):
    def here(given):
        if not isinstance(given, torch.Tensor):
            return given
        return given.detach().to(DEVICE).requires_grad_(given.requires_grad)

    with pytest.raises(kind, match=message):
        float8_layer(**{name: here(each) for name, each in changed.items()})()


def test_right_ones():
    made = float8_layer()
    assert made().shape == (7, 24)
    blocks = torch.ones(5, 1, 1, device=DEVICE)
    torch.testing.assert_close(float8_layer(gate_up_scale=blocks, down_scale=blocks)(), made())


def test_the_recipe():
    with pytest.raises(ValueError, match=r"fp8_recipe must be one of \('rowwise', 'blockwise'\) or None, got '1x128'"):
        make()(fp8_recipe="1x128")


@pytest.mark.parametrize("backend", ["torch", "triton"])
def test_a_new_recipe_is_not_computed_as_one_of_the_others(monkeypatch, backend):
    monkeypatch.setattr(fp8_checks, "RECIPES", (*fp8_checks.RECIPES, "mx"))
    with pytest.raises(ValueError, match=r"recipe must be one of \('rowwise', 'blockwise'\), got 'mx'"):
        make(backend=backend)(fp8_recipe="mx")
