"""Bad input to scaled_grouped_mm: the argument, what it got, what it wants."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import ScalingType, SwizzleType

from course_kernels import runtime, scaled_grouped_mm
from course_kernels.testing import poisoned
from packed_errors import BACKENDS, DEVICE, FP8, OFFS, A, B, assert_message, ends, matrix

pytestmark = [pytest.mark.gpu] if runtime.mode() == "gpu" else []


ROW = ScalingType.RowWise


A8, B8, SA, SB = A.to(FP8), B.to(FP8), torch.ones(12, device=DEVICE), torch.ones(2, 6, device=DEVICE)


def scaled(**changes):
    arguments = dict(mat_a=A8, mat_b=B8, scale_a=SA, scale_recipe_a=ROW, scale_b=SB, scale_recipe_b=ROW, offs=OFFS)
    return arguments | changes


SCALED_ERRORS = {
    "A not fp8": (scaled(mat_a=A), TypeError, ["mat_a", "float8_e4m3fn", "float16"]),
    "B not fp8": (scaled(mat_b=B), TypeError, ["mat_b", "float8_e4m3fn", "float16"]),
    "no scale": (scaled(scale_a=None), TypeError, ["scale_a", "torch.Tensor", "NoneType"]),
    "contraction_dim is None": (scaled(contraction_dim=None), ValueError, ["contraction_dim", "(-1, -2)", "None"]),
    "contraction_dim is a number": (scaled(contraction_dim=1), ValueError, ["contraction_dim", "(-1, -2)", "got 1"]),
    "scale is a number": (scaled(scale_b=2.0), TypeError, ["scale_b", "torch.Tensor", "float"]),
    "scale dtype": (scaled(scale_a=SA.half()), TypeError, ["scale_a", "float32", "float16"]),
    "scale shape": (scaled(scale_a=SA[:11]), ValueError, ["scale_a", "(12,)", "row of mat_a", "(11,)"]),
    "scale of B": (scaled(scale_b=SB[0]), ValueError, ["scale_b", "(2, 6)", "column of mat_b", "(6,)"]),
    "scale on meta": (scaled(scale_b=SB.to("meta")), ValueError, ["scale_b", "device", "meta"]),
    "two scales": (scaled(scale_a=[SA, SA]), ValueError, ["scale_a", "one tensor", "2"]),
    "recipe": (
        scaled(scale_recipe_a=ScalingType.TensorWise),
        ValueError,
        ["scale_a", "one element", "TensorWise", "(12,)"],
    ),
    "recipe of B": (scaled(scale_recipe_b=ScalingType.BlockWise1x32), ValueError, ["scale_recipe_b", "BlockWise1x32"]),
    "no recipe": (scaled(scale_recipe_a=None), ValueError, ["scale_recipe_a", "RowWise", "None"]),
    "swizzle": (scaled(swizzle_b=SwizzleType.SWIZZLE_32_4_4), ValueError, ["swizzle_b", "NO_SWIZZLE", "32_4_4"]),
    "contraction": (scaled(contraction_dim=(0, 1)), ValueError, ["contraction_dim", "(-1, -2)", "(0, 1)"]),
    "output_dtype": (scaled(output_dtype=torch.float64), TypeError, ["output_dtype", "float64"]),
    "bias": (scaled(bias=matrix(2, 6)), TypeError, ["bias", "bfloat16", "float16"]),
    "gradient": (scaled(scale_a=SA.clone().requires_grad_()), TypeError, ["scale_a", "gradient", "detach"]),
    "gradient of A": (scaled(mat_a=A8.clone().requires_grad_()), TypeError, ["mat_a", "gradient", "detach"]),
    "offs": (scaled(offs=None), ValueError, ["offs", "None"]),
    "ends": (scaled(offs=ends(5, 13), check=True), ValueError, ["offs[1] = 13", "total_m = 12"]),
    "scale in k": (
        scaled(mat_a=matrix(6, 12).to(FP8), mat_b=matrix(12, 6).to(FP8), scale_a=SA[:6], scale_b=SB),
        ValueError,
        ["scale_a", "(12,) or (2, 6)", "(6,)"],
    ),
}


@pytest.mark.parametrize("what", SCALED_ERRORS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_scaled(backend, what):
    arguments, error, words = SCALED_ERRORS[what]
    out, verify = poisoned((12, 6), torch.bfloat16, device=DEVICE)
    for options in (dict(), dict(out=out)):
        with pytest.raises(error) as caught:
            scaled_grouped_mm(**arguments, backend=backend, **options)
        assert_message(caught, words)
    verify()
    assert out.isnan().all()
