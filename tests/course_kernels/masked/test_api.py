"""deepgemm computes rows that count exactly, and writes no bit of any other; the same rows on every backend."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from course_kernels import GemmConfig, deepgemm, runtime, shuffle_weight
from course_kernels.masked.shuffle import plain
from course_kernels.testing import STRIDES, strided_like
from masked_operands import DEVICE, FP8, FP8_FNUZ, SIZES, case, result_for

pytestmark = [pytest.mark.gpu] if runtime.mode() == "gpu" else []
BACKENDS = ("torch", "triton")
DTYPES = (torch.float16, torch.bfloat16, FP8, *[FP8_FNUZ] * (runtime.mode() != "gpu"))
LAYOUTS = [how for how in STRIDES if how != "expanded"]


def multiply(made, y=None, **options):
    """Call, check, and return Y."""
    verify = None
    if y is None:
        y, verify = result_for(made)
    before = y.clone()
    assert deepgemm(*made[:2], y, *made[2:], **options) is y
    made.check(y, before)
    if verify:
        verify()
    return y


def with_shuffled_weight(made):
    return made._replace(WQ=shuffle_weight(made.WQ))


class Shuffled:
    """A case whose expectation is that of the plain weight."""

    def __init__(self, made):
        self.made, self.arguments = made, with_shuffled_weight(made)

    def __getitem__(self, at):
        return self.arguments[at]

    def check(self, y, before):
        self.made.check(y, before)

    XQ = property(lambda self: self.made.XQ)
    WQ = property(lambda self: self.made.WQ)


@pytest.mark.parametrize("shuffled", [False, True], ids=["plain", "shuffled"])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_type_with_every_kind_of_scale(dtype, backend, shuffled):
    for scales in ("group", "channel", "block") if dtype.itemsize == 1 else ("group",):
        # Two blocks along N and K, of which the last ones are short.
        made = case(dtype, scales, sizes=(0, 33, 2), N=144, K=160)
        # Once with a margin around every group, which no window slides over, and once without gaps.
        y = result_for(made)[0].clone() if shuffled or scales == "channel" else None
        multiply(Shuffled(made) if shuffled else made, y, backend=backend)


@pytest.mark.parametrize("index", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("backend", ["auto", *BACKENDS])
def test_sizes_are_clamped(backend, index):
    lowest, highest = torch.iinfo(index).min, torch.iinfo(index).max
    # 2**32 + 5 is 5 for whoever cuts off the upper half.
    made = case(sizes=(-1, lowest, 41, 5, highest, 0, 40), index=index)
    multiply(made, backend=backend)
    if index == torch.int64:
        multiply(case(sizes=(2**32 + 5, 3, -(2**32) + 5), index=index), backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("sizes", [(0,), (7,), (0, 0, 0), (40,) * 3, (1,) * 33], ids=str)
def test_groups_that_are_empty_full_and_many(sizes, backend):
    multiply(case(sizes=sizes, N=20, K=40), backend=backend)


@pytest.mark.parametrize("scales", ["group", "channel", "block"])
@pytest.mark.parametrize("extents", [(40, 1, 1), (1, 33, 5), (33, 129, 31), (5, 7, 257)], ids=str)
def test_odd_extents(extents, scales):
    max_m, N, K = extents
    multiply(case(FP8, scales, sizes=(0, max_m, 1), max_m=max_m, N=N, K=K), backend="triton")
    multiply(case(torch.bfloat16, sizes=(0, max_m, 1), max_m=max_m, N=N, K=K), backend="triton")


@pytest.mark.parametrize("what", ["XQ", "WQ", "Y"])
@pytest.mark.parametrize("how", LAYOUTS)
def test_any_strides(what, how):
    made = case(N=33, K=40)
    y, _ = result_for(made)
    if what == "Y":
        y = strided_like(y, how)
    else:
        made = made._replace(**{what: strided_like(getattr(made, what), how)})
    multiply(made, y, backend="triton")


def test_strides_of_groups_sizes_and_scales():
    made = case(FP8, "channel", N=32)
    every_other = made._replace(
        XQ=torch.stack([made.XQ, made.XQ], 1)[:, 0],
        WQ=made.WQ[:1].expand_as(made.WQ),
        group_layout=torch.stack([made.group_layout, made.group_layout], 1)[:, 0],
        x_scale=torch.stack([made.x_scale, made.x_scale], 2)[:, :, 0],
        w_scale=made.w_scale.mT.contiguous().mT,
    )
    assert not any(tensor.is_contiguous() for tensor in every_other)
    for backend in BACKENDS:
        y = result_for(made, torch.float32)[0]
        multiply(every_other, torch.stack([y, y], 1)[:, 1], backend=backend)
    flat = made._replace(x_scale=made.x_scale[..., 0], w_scale=made.w_scale[..., None])
    multiply(flat, backend="triton")
    multiply(made._replace(w_scale=made.w_scale[:, :1, None].contiguous()), backend="triton")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
def test_every_type_of_result_is_rounded_once(dtype, backend):
    made = case(FP8, "group", K=320)
    multiply(made, result_for(made, dtype)[0], backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_extents_of_zero(backend):
    for extents in (dict(K=0), dict(N=0), dict(max_m=0), dict(sizes=())):
        made = case(**{"sizes": (0, 3), "max_m": 4, "N": 8, "K": 8, **extents})
        y = torch.full((made.XQ.shape[0], made.XQ.shape[1], made.WQ.shape[1]), float("nan"), device=DEVICE)
        multiply(made, y, backend=backend)


@pytest.mark.parametrize("block_k", [32, 64, 128])
@pytest.mark.parametrize("block_n", [64, 256])
def test_blocks_of_the_kernel_and_blocks_of_scales(block_n, block_k):
    config = GemmConfig(16, block_n, block_k, 4, 2)
    multiply(case(FP8, "block", N=264, K=272, sizes=(0, 17)), backend="triton", config=config)


def test_a_block_of_k_has_one_scale():
    with pytest.raises(ValueError, match="does not suit block scales, whose blocks are 128 deep: block_k is 256"):
        multiply(case(FP8, "block", K=272), backend="triton", config=GemmConfig(16, 64, 256, 4, 2))


@pytest.mark.parametrize("expected_m", [None, 0, 1, 20, 100000])
def test_expected_rows_change_no_result(expected_m):
    made = case(K=96)
    assert torch.equal(
        multiply(made, backend="triton", expected_m=expected_m).nan_to_num(-1.0),
        multiply(made, backend="torch").nan_to_num(-1.0),
    )


@settings(max_examples=10, deadline=None)
@given(st.data())
def test_any_masked_product(data):
    dtype = data.draw(st.sampled_from(DTYPES[:3]))
    scales = data.draw(st.sampled_from(["group", "channel", "block"]))
    max_m, groups = data.draw(st.integers(1, 40)), data.draw(st.integers(1, 5))
    sizes = tuple(data.draw(st.integers(-2, max_m + 2)) for _ in range(groups))
    shuffled = data.draw(st.booleans())
    N, K = (16 * data.draw(st.integers(1, 9)), 32 * data.draw(st.integers(1, 5))) if shuffled else (
        data.draw(st.integers(1, 140)), data.draw(st.integers(1, 140))
    )  # fmt: skip
    made = case(dtype, scales, sizes, max_m, N, K)
    y = result_for(made)[0].clone() if data.draw(st.booleans()) else None
    multiply(Shuffled(made) if shuffled else made, y, backend="triton")


def test_shuffled_as_the_mark_says_or_the_caller():
    made = case(K=96)
    shuffled = shuffle_weight(made.WQ)
    multiply(Shuffled(made), shuffled=True)
    y, _ = result_for(made)
    plain_bytes = plain(shuffled).clone()
    before = y.clone()
    deepgemm(made.XQ, plain_bytes, y, made.group_layout, shuffled=True)
    made.check(y, before)
    plain_bytes.is_shuffled = True  # AITER's own mark
    y.copy_(before)
    deepgemm(made.XQ, plain_bytes, y, made.group_layout)
    made.check(y, before)
    with pytest.raises(ValueError, match="shuffled is False, and WQ is marked"):
        deepgemm(made.XQ, shuffled, y, made.group_layout, shuffled=False)
    # Every other group is still whole; a shuffled parameter computes in no_grad.
    parameter = torch.nn.Parameter(shuffled[::2])
    part = case(K=96, sizes=SIZES)._replace(XQ=made.XQ[::2], WQ=made.WQ[::2], group_layout=made.group_layout[::2])
    y, _ = result_for(part)
    before = y.clone()
    with torch.no_grad():
        deepgemm(part.XQ, parameter, y, part.group_layout, backend="triton")
    part.check(y, before)


@pytest.mark.parametrize("expect_m", [1, 16, 128])
def test_aiters_cases(expect_m):
    """AITER's own test, smaller: room for twice the expected rows, sizes around those, rows and groups scaled."""
    draw = random.Random(expect_m)
    sizes = tuple(int(expect_m * draw.uniform(0.7, 1.3)) for _ in range(4))
    max_m = 64 if expect_m < 32 else 2 * expect_m
    for dtype in (torch.float16, torch.bfloat16, FP8):
        made = case(dtype, "group", sizes, max_m, N=64, K=128)
        if made.x_scale is not None:
            made = made._replace(w_scale=made.w_scale[:, None, None].contiguous())
        multiply(Shuffled(made), result_for(made, torch.bfloat16)[0])
