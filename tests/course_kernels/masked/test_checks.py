"""Bad input to deepgemm: the argument, what it got, what it wants; and what a launch's key depends on."""

from __future__ import annotations

import pytest
import torch

from course_kernels import deepgemm, runtime, shuffle_weight
from course_kernels.engine.descriptors import flat_rows
from course_kernels.engine.options import Options
from course_kernels.engine.scaling import Blocks, Lines
from course_kernels.engine.signature import signature
from course_kernels.engine.tuning.fallback_rules import rows_class
from course_kernels.masked.checks import Call, check_call, problem_of
from course_kernels.testing import integers, poisoned
from packed_errors import BACKENDS, DEVICE, assert_message

pytestmark = [pytest.mark.gpu] if runtime.mode() == "gpu" else []
FP8 = torch.float8_e4m3fn
X, W = integers((2, 5, 96), torch.float16, device=DEVICE), integers((2, 32, 96), torch.float16, device=DEVICE)
SIZES = torch.tensor([5, 0], dtype=torch.int32, device=DEVICE)
X8, W8 = X.to(FP8), W.to(FP8)
XS, WS = torch.ones(2, 5, device=DEVICE), torch.ones(2, device=DEVICE)
RESULT, BLOCKS = torch.zeros(2, 5, 32, device=DEVICE), torch.ones(2, 5, 3, device=DEVICE)
BUFFER = torch.zeros(2 * 5 * 96, dtype=torch.float16, device=DEVICE)


def good(**changes):
    return dict(XQ=X, WQ=W, group_layout=SIZES) | changes


def scaled(**changes):
    return dict(XQ=X8, WQ=W8, group_layout=SIZES, x_scale=XS, w_scale=WS) | changes


def deep(**changes):
    """Two blocks of K, and scales of blocks."""
    x, w = torch.zeros(2, 5, 192, device=DEVICE).to(FP8), torch.zeros(2, 32, 192, device=DEVICE).to(FP8)
    blocks = dict(x_scale=torch.ones(2, 5, 2, device=DEVICE), w_scale=torch.ones(2, 1, 2, device=DEVICE))
    return dict(XQ=x, WQ=w, group_layout=SIZES) | blocks | changes


ERRORS = {
    "X no tensor": (good(XQ=[1.0]), TypeError, ["XQ", "torch.Tensor", "list"]),
    "X rank": (good(XQ=X[0]), ValueError, ["XQ", "(G, max_M, K)", "(5, 96)"]),
    "X dtype": (good(XQ=X.float()), TypeError, ["XQ", "float16, bfloat16, float8_e4m3fn", "torch.float32"]),
    "X shuffled": (good(XQ=shuffle_weight(W)), TypeError, ["XQ", "plain", "shuffled"]),
    "W dtype": (good(WQ=W.bfloat16()), TypeError, ["WQ", "float16", "bfloat16"]),
    "W groups": (good(WQ=W[:1]), ValueError, ["WQ", "(2, N, 96)", "(1, 32, 96)"]),
    "W depth": (good(WQ=W[:, :, :95]), ValueError, ["WQ", "(2, N, 96)", "(2, 32, 95)"]),
    "W transposed": (good(WQ=W.mT), ValueError, ["WQ", "(2, N, 96)", "(2, 96, 32)"]),
    "W on meta": (good(WQ=W.to("meta")), ValueError, ["WQ", "device", "meta"]),
    "Y rank": (good(Y=X[0]), ValueError, ["Y", "(G, max_M, N)", "(5, 96)"]),
    "Y shape": (good(Y=X), ValueError, ["Y", "(2, 5, 32)", "(2, 5, 96)"]),
    "Y dtype": (good(Y=torch.zeros(2, 5, 32, device=DEVICE, dtype=FP8)), TypeError, ["Y", "float32", "e4m3fn"]),
    "Y is X": (
        good(XQ=BUFFER[:960].view(2, 5, 96), Y=BUFFER[:320].view(2, 5, 32)), ValueError, ["Y shares memory with XQ"],
    ),
    "Y expanded": (good(Y=torch.zeros(1, 5, 32, device=DEVICE).expand(2, 5, 32)), ValueError, ["Y", "share memory"]),
    "Y wants a gradient": (good(Y=RESULT.clone().requires_grad_()), ValueError, ["Y", "gradient"]),
    "sizes are a list": (good(group_layout=[5, 0]), TypeError, ["group_layout", "torch.Tensor", "list"]),
    "sizes dtype": (good(group_layout=SIZES.float()), TypeError, ["group_layout", "torch.int32", "float32"]),
    "sizes shape": (good(group_layout=SIZES[:1]), ValueError, ["group_layout", "(2,)", "(1,)"]),
    "sizes on meta": (good(group_layout=SIZES.to("meta")), ValueError, ["group_layout", "device", "meta"]),
    "size too large": (good(group_layout=SIZES + 1, check=True), ValueError, ["group_layout[0] = 6", "max_M = 5"]),
    "size negative": (good(group_layout=SIZES - 1, check=True), ValueError, ["group_layout[1] = -1", "max_M = 5"]),
    "scales for 16 bits": (good(x_scale=XS), ValueError, ["x_scale", "None", "float16"]),
    "scale of W for 16 bits": (good(w_scale=WS), ValueError, ["w_scale", "None", "float16"]),
    "no scale of X": (scaled(x_scale=None), TypeError, ["x_scale", "torch.Tensor", "NoneType"]),
    "no scale of W": (scaled(w_scale=None), TypeError, ["w_scale", "torch.Tensor", "NoneType"]),
    "scale is a number": (scaled(w_scale=1.0), TypeError, ["w_scale", "torch.Tensor", "float"]),
    "scale dtype": (scaled(x_scale=XS.half()), TypeError, ["x_scale", "float32", "float16"]),
    "scale on meta": (scaled(x_scale=XS.to("meta")), ValueError, ["x_scale", "device", "meta"]),
    "scale of rows": (scaled(x_scale=XS[:, :4]), ValueError, ["x_scale", "(2, 5)", "(2, 5, 1)", "1 x 128", "(2, 4)"]),
    "scale of lines": (scaled(w_scale=XS), ValueError, ["w_scale", "(2,)", "(2, 32)", "(2, 1, 1)", "(2, 5)"]),
    "blocks of X alone": (deep(w_scale=WS), ValueError, ["x_scale and w_scale", "both", "(2, 5, 2)", "(2,)"]),
    "blocks of W alone": (deep(x_scale=XS), ValueError, ["x_scale and w_scale", "both", "(2, 5)", "(2, 1, 2)"]),
    "blocks of X": (deep(x_scale=BLOCKS), ValueError, ["x_scale", "(2, 5, 2)", "(2, 5, 3)"]),
    "blocks of W": (deep(w_scale=BLOCKS[:, :2, :2]), ValueError, ["w_scale", "(2, 1, 2)", "(2, 2, 2)"]),
    "gradient": (good(XQ=X.clone().requires_grad_()), TypeError, ["XQ", "gradient", "detach"]),
    "gradient of a scale": (scaled(w_scale=WS.clone().requires_grad_()), TypeError, ["w_scale", "gradient"]),
    "shuffled is a word": (good(shuffled="yes"), TypeError, ["shuffled", "True, False or None", "'yes'"]),
    "not shuffled": (good(WQ=shuffle_weight(W), shuffled=False), ValueError, ["shuffled is False", "marked"]),
    "shuffled N": (good(WQ=W[:, :24], shuffled=True, N=24), ValueError, ["WQ", "multiples of 16", "N = 24"]),
    "shuffled K": (good(XQ=X[..., :40], WQ=W[..., :40].clone(), shuffled=True), ValueError, ["WQ", "32", "K = 40"]),
    "shuffled with gaps": (good(WQ=torch.cat([W, W], 1)[:, ::2], shuffled=True), ValueError, ["WQ", "contiguous"]),
    "backend": (good(backend="cuda"), ValueError, ["backend", "'auto'", "'cuda'"]),
    "config": (good(config="fast"), TypeError, ["config", "GemmConfig", "str"]),
    "expected_m": (good(expected_m=2.0), TypeError, ["expected_m", "int", "float"]),
    "expected_m negative": (good(expected_m=-1), ValueError, ["expected_m", "-1"]),
}  # fmt: skip


@pytest.mark.parametrize("what", ERRORS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_errors(backend, what):
    arguments, error, words = ERRORS[what]
    arguments = {"backend": backend} | arguments
    y, verify = poisoned((2, 5, arguments.pop("N", 32)), torch.float32, device=DEVICE)
    given = {"Y": y} | arguments
    before = given["Y"].clone()
    with pytest.raises(error) as caught:
        deepgemm(**given)
    assert_message(caught, words)
    verify()
    assert y.isnan().all()
    assert torch.equal(given["Y"].double().nan_to_num(-1.0), before.double().nan_to_num(-1.0))


def test_a_gpu_names_the_types_that_it_multiplies():
    if runtime.mode() != "gpu":
        pytest.skip("a CPU multiplies all of them")
    x, w = X8.view(torch.float8_e4m3fnuz), W8.view(torch.float8_e4m3fnuz)
    with pytest.raises(TypeError, match="which AMD's gfx942 multiplies"):
        deepgemm(x, w, torch.zeros(2, 5, 32, device=DEVICE), SIZES, XS, WS)


def call(**changes):
    return Call(**(scaled(Y=torch.zeros(2, 5, 32, device=DEVICE)) | changes))


def key(made, **options):
    product = made.product()
    return None if product is None else signature(product, Options(**options), made.Y)


@pytest.mark.parametrize(
    ("shape_x", "shape_w", "N", "K", "scales"),
    [((2, 5), (2,), 32, 96, Lines), ((2, 5, 1), (2, 1, 1), 32, 256, Lines),
     ((2, 5), (2, 32), 32, 96, Lines), ((2, 5, 1), (2, 32, 1), 32, 256, Lines),
     ((2, 5, 2), (2, 1, 2), 32, 256, Blocks), ((2, 5, 3), (2, 3, 3), 257, 257, Blocks),
     ((2, 5, 1), (2, 2, 1), 200, 128, Blocks), ((2, 5), (2, 2, 1), 200, 128, Blocks),
     ((2, 5, 1), (2, 1, 1), 128, 128, Lines)],
)  # fmt: skip
def test_scales_are_known_by_their_shapes(shape_x, shape_w, N, K, scales):
    x, w = torch.zeros(2, 5, K, device=DEVICE).to(FP8), torch.zeros(2, N, K, device=DEVICE).to(FP8)
    factors = (torch.ones(shape, device=DEVICE) for shape in (shape_x, shape_w))
    made = Call(x, w, torch.zeros(2, 5, N, device=DEVICE), SIZES, *factors)
    problem, product = check_call(made, Options(), made.Y)
    assert type(product.scaling) is scales
    assert problem.scaling == product.scaling.name
    blocks = -(-K // 128), -(-N // 128)
    of_b = (2, *blocks) if scales is Blocks else (2, N)
    assert (product.scaling.a.shape, product.scaling.b.shape) == ((2, 5, blocks[0])[: product.scaling.a.dim()], of_b)


def test_keys_differ_where_launches_do():
    base = key(call())
    assert key(call()) == base
    assert key(call(x_scale=XS + 1, group_layout=SIZES + 1)) == base, "values"
    others = [
        call(XQ=X8[:, :, :64], WQ=W8[:, :, :64]), call(WQ=W8.mT.contiguous().mT),
        call(group_layout=SIZES.long()), call(w_scale=torch.ones(2, 32, device=DEVICE)),
        call(Y=torch.zeros(2, 5, 32, dtype=torch.float16, device=DEVICE)),
        call(Y=torch.zeros(2, 5, 36, device=DEVICE)[..., 4:]),
        call(Y=torch.zeros(2, 5, 33, device=DEVICE)[..., 1:]), call(x_scale=torch.ones(2, 6, device=DEVICE)[:, 1:]),
    ]  # fmt: skip
    others += [call(shuffled=True), call(rows=16)]
    keys = [key(each) for each in others] + [key(call(), backend="triton")]
    assert len({base, *keys}) == 1 + len(keys)
    assert key(call(group_layout=torch.stack([SIZES, SIZES], 1)[:, 0])) is None
    assert key(call(XQ=None, Y=3)) is None


def test_expected_rows_come_in_few_classes():
    assert [rows_class(rows) for rows in (0, 1, 16, 17, 33, 64, 65, 100, 300, 5000)] == [
        16, 16, 16, 32, 64, 64, 128, 128, 256, 4096,
    ]  # fmt: skip
    assert problem_of(call(), Options()).rows_per_group == 16
    assert problem_of(call(rows=512), Options()).rows_per_group == 512


def test_rows_of_all_groups_as_one_matrix():
    batch = torch.arange(2 * 6 * 8.0).view(2, 6, 8)
    for view in (batch, batch[:, :, :5], batch[:1, 2:5], batch[:, :1], batch[:, ::2], batch[:0]):
        assert torch.equal(flat_rows(view), view.reshape(-1, view.shape[2]))
        assert flat_rows(view).data_ptr() == view.data_ptr()
    for view in (batch[:, :5], batch.transpose(0, 1)[:, :, :4], batch[:1].expand(2, 6, 8)):
        assert flat_rows(view) is None
