"""scaled_grouped_mm of both float8 types, and with one factor for a whole tensor: exact in float64, in every mode."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import ScalingType

from course_kernels import codegen, grouped_mm, runtime, scaled_grouped_mm
from course_kernels.codegen import build, compile_kernel
from course_kernels.engine.hopper import cute
from course_kernels.engine.product import Product
from course_kernels.testing import integers, reference
from packed_errors import assert_message

pytestmark = [pytest.mark.gpu] if runtime.mode() == "gpu" else []
DEVICE = runtime.device()
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
MIXED = [(E5M2, E4M3), (E4M3, E5M2), (E5M2, E5M2)]
ROW, TENSOR, LINE = ScalingType.RowWise, ScalingType.TensorWise, ScalingType.BlockWise1x128
OFFS = torch.tensor([16, 16, 40], dtype=torch.int32, device=DEVICE)
# Shapes of A and B, and of scales of rows and columns.
MODES = {
    "m": ((48, 32), (3, 32, 24), (48,), (3, 24)),
    "n": ((3, 24, 32), (32, 48), (3, 24), (48,)),
    "k": ((24, 48), (48, 32), (3, 24), (3, 32)),
    "batch": ((3, 24, 32), (3, 32, 40), (3, 24), (3, 40)),
}


def of(shape, seed, dtype=torch.float32):
    return integers(shape, torch.float32, seed, device=DEVICE).to(dtype)


def expected(a, b, left, right, mode):
    """In float64, of integers and powers of two."""
    offs = None if mode == "batch" else OFFS
    product = reference.grouped_mm(a.double(), b.double(), offs)
    if mode in ("k", "batch"):
        return product * left.double()[:, :, None] * right.double()[:, None, :]
    found, start = torch.zeros_like(product), 0
    for g, end in enumerate(OFFS.tolist()):
        part = slice(start, end)
        if mode == "m":
            found[part] = product[part] * left.double()[part, None] * right.double()[g]
        else:
            found[:, part] = product[:, part] * left.double()[g, :, None] * right.double()[part]
        start = end
    return found


@pytest.mark.parametrize("backend", ["torch", "triton"])
@pytest.mark.parametrize("recipes", [(ROW, ROW), (TENSOR, TENSOR), (TENSOR, ROW), (ROW, TENSOR)], ids=str)
@pytest.mark.parametrize("mode", MODES)
def test_both_types_and_one_factor_for_a_tensor(mode, recipes, backend):
    shape_a, shape_b, *shapes = MODES[mode]
    scales, rows = [], []
    for i, (shape, recipe) in enumerate(zip(shapes, recipes)):
        factors = 2.0 ** of(shape, 3 + i) if recipe is ROW else torch.full((1, 1)[i:], 0.5, device=DEVICE)
        scales.append(factors)
        rows.append(factors.reshape(()).expand(shape) if recipe is TENSOR else factors)
    for type_a, type_b in MIXED if recipes == (ROW, ROW) else MIXED[:1]:
        a, b = of(shape_a, 1, type_a), of(shape_b, 2, type_b)
        found = scaled_grouped_mm(
            a, b, scales[0], recipes[0], [scales[1]], [recipes[1]], offs=None if mode == "batch" else OFFS,
            output_dtype=torch.float32, backend=backend, check=True,
        )  # fmt: skip
        assert torch.equal(found.double(), expected(a, b, *rows, mode)), (type_a, type_b)


@pytest.mark.parametrize("backend", ["torch", "triton"])
def test_scales_of_blocks_with_two_types(backend):
    a, b = of((48, 160), 1, E5M2), of((3, 160, 24), 2, E4M3)
    scale_a, scale_b = 2.0 ** of((48, 2), 3), 2.0 ** of((3, 24, 2), 4)
    wide_a = a.double() * scale_a.double().repeat_interleave(128, 1)[:, :160]
    wide_b = b.double() * scale_b.double().repeat_interleave(128, 2)[:, :, :160].mT
    found = scaled_grouped_mm(
        a, b, scale_a, LINE, scale_b, LINE, offs=OFFS, output_dtype=torch.float32, backend=backend
    )
    assert torch.equal(found.double(), reference.grouped_mm(wide_a, wide_b, OFFS))


@pytest.mark.parametrize("dtype", [E4M3, E5M2])
@pytest.mark.parametrize("backend", ["torch", "triton"])
def test_rows_of_no_group_change_no_bit(backend, dtype):
    """They are memory that nobody has written, and may look like NaN."""
    made = torch.Generator().manual_seed(0)
    a, b = ((100 * torch.randn(shape, generator=made)).to(DEVICE).to(dtype) for shape in ((300, 136), (3, 136, 136)))
    b = b.mT  # as stored by rows of weights: numpy sums such factors in another order if it need not convert them
    scale_a, scale_b = torch.rand(300, generator=made).to(DEVICE), torch.rand(3, 136, generator=made).to(DEVICE)
    offs, found = torch.tensor([100, 190, 280], dtype=torch.int32, device=DEVICE), []
    for tail in (0.0, float("nan")):
        a[280:] = torch.full((20, 136), tail, device=DEVICE).to(dtype)
        found.append(scaled_grouped_mm(
            a, b, scale_a, ROW, [scale_b], [ROW], offs=offs, output_dtype=torch.float32, backend=backend
        ))  # fmt: skip
    assert torch.equal(*found)


@pytest.mark.parametrize("dtype", [E4M3, E5M2])
@pytest.mark.parametrize("backend", ["torch", "triton"])
def test_every_number_of_a_type(backend, dtype):
    """Subnormal numbers, infinities and NaN, too; products with zeros are left out."""
    every = torch.arange(256, dtype=torch.uint8, device=DEVICE).view(dtype)[:, None]
    one = torch.ones(1, 1, 16, device=DEVICE).to(E4M3)
    ones = torch.ones(256, device=DEVICE), torch.ones(1, 16, device=DEVICE)
    ends = torch.tensor([256], device=DEVICE)
    options = dict(offs=ends, output_dtype=torch.float32, backend=backend)
    found = scaled_grouped_mm(every, one, ones[0], ROW, ones[1], ROW, **options)
    torch.testing.assert_close(found, every.float().expand(256, 16), rtol=0, atol=0, equal_nan=True)


def test_a_compiled_call_with_one_factor():
    a, b, scale = of((48, 32), 1, E5M2), of((3, 32, 24), 2, E4M3), torch.tensor(0.25, device=DEVICE)

    def call(a, b, scale):
        return scaled_grouped_mm(a, b, scale, TENSOR, scale, TENSOR, offs=OFFS, backend="torch")

    assert torch.equal(torch.compile(call, fullgraph=True, backend="aot_eager")(a, b, scale), call(a, b, scale))


ERRORS = {
    "of more elements": (dict(scale_a=torch.ones(2)), ValueError, ["scale_a", "one element", "TensorWise", "(2,)"]),
    "dtype": (dict(scale_b=torch.ones(1).half()), TypeError, ["scale_b", "float32", "float16"]),
    "no tensor": (dict(mat_a=None), TypeError, ["mat_a", "torch.Tensor", "NoneType"]),
    "rank": (dict(mat_a=torch.ones(4).to(E4M3)), ValueError, ["mat_a", "2-D or 3-D"]),
    "no offs in k": (
        dict(mat_a=of((4, 8), 1, E4M3), mat_b=of((8, 4), 1, E4M3), offs=None), ValueError, ["offs", "None"]
    ),
    "with blocks": (dict(scale_recipe_b=LINE), ValueError, ["scale_recipe_a", "both", "TensorWise", "BlockWise1x128"]),
    "fnuz": (dict(mat_b=of((3, 32, 24), 2).to(torch.float8_e5m2fnuz)), TypeError, ["mat_b", "e4m3fn", "e5m2fnuz"]),
    "mx": (dict(scale_recipe_a=ScalingType.BlockWise1x32), ValueError, ["scale_recipe_a", "TensorWise", "1x32"]),
    "contraction": (dict(contraction_dim=None), ValueError, ["contraction_dim", "(-1, -2)", "None"]),
    "contraction of a number": (dict(contraction_dim=1), ValueError, ["contraction_dim", "(-1, -2)", "1"]),
}  # fmt: skip


@pytest.mark.skipif(DEVICE.type != "cpu", reason="about words")
@pytest.mark.parametrize("what", ERRORS)
def test_errors(what):
    changes, error, words = ERRORS[what]
    arguments = dict(mat_a=of((48, 32), 1, E5M2), mat_b=of((3, 32, 24), 2, E4M3), scale_a=torch.ones(()),
                     scale_recipe_a=TENSOR, scale_b=torch.ones(1), scale_recipe_b=TENSOR, offs=OFFS)  # fmt: skip
    with pytest.raises(error) as caught:
        scaled_grouped_mm(**(arguments | changes))
    assert_message(caught, words)


def test_unscaled_products_do_not_take_it():
    with pytest.raises(TypeError, match=r"mat_a must have a dtype of .*; scaled_grouped_mm multiplies float8"):
        grouped_mm(of((48, 32), 1, E5M2), of((3, 32, 24), 2, E5M2), offs=OFFS)


def test_the_kernel_in_cute_dsl_is_for_one_type():
    a, out = of((256, 128), 1, E4M3), torch.empty(256, 128, dtype=torch.bfloat16, device=DEVICE)
    scales = torch.ones(256, device=DEVICE), torch.ones(2, 128, device=DEVICE)
    offs = torch.tensor([128, 256], dtype=torch.int32, device=DEVICE)
    for dtype in (E4M3, E5M2):
        b = of((2, 128, 128), 2, dtype).mT
        form = cute.match_form(Product.packed(a, b, offs, None, *scales), out)
        assert (form is not None) == (dtype == E4M3)


@pytest.mark.parametrize(
    ("target", "instruction"),
    [
        ("sm_89", "mma.sync.aligned.m16n8k32.row.col.f32.e5m2.e4m3.f32"),
        ("sm_90", "wgmma.mma_async.sync.aligned.m64n128k32.f32.e5m2.e4m3"),
        ("sm_100", "tcgen05.mma.cta_group::1.kind::f8f6f4"),
    ],
)
def test_it_is_multiplied_on_tensor_cores(target, instruction):
    options = dict(dtype="float8_e5m2", b_dtype="float8_e4m3fn", b_layout="col", target=target)
    try:
        assert instruction in compile_kernel(build("contiguous", **options), target).asm["ptx"]
        if target == "sm_90":
            assert compile_kernel(build("transposed", **options), target).instructions["wgmma"]
    finally:
        codegen.close()
