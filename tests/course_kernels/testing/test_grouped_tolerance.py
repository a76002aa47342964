"""The assertions that judge grouped_mm let the right result pass, and no wrong one, in every mode."""

from __future__ import annotations

import pytest
import torch

from course_kernels.testing import integers, reference
from course_kernels.testing.grouped_tolerance import (
    accumulated_error_bound,
    assert_grouped_close,
    assert_grouped_exact,
    block_scaled_error_bound,
    grouped_error_bound,
    sums_error_bound,
)

MODES = ["m", "n", "k", "batch"]
SIZES = (2, 0, 3)


def operands(mode, dtype=torch.float16, draw=integers, k=4):
    """Three groups of 2, 0 and 3, a tail of one, and NaN in what belongs to no group."""
    shapes = {
        "m": ((6, k), (3, k, 5)),
        "n": ((3, 4, k), (k, 6)),
        "k": ((4, 6), (6, 5)),
        "batch": ((3, 4, k), (3, k, 5)),
    }[mode]
    a, b = draw(shapes[0], dtype, 1), draw(shapes[1], dtype, 2)
    if mode in ("m", "k"):
        a[(5,) if mode == "m" else (slice(None), 5)] = torch.nan
    if mode in ("n", "k"):
        b[(5,) if mode == "k" else (slice(None), 5)] = torch.nan
    return a, b, None if mode == "batch" else torch.tensor([2, 2, 5])


def randn(shape, dtype, seed):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("out_dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("mode", MODES)
def test_the_right_result_passes(mode, dtype, out_dtype):
    bias = None if mode == "n" else integers((3, 5), dtype, 3)
    for draw, check in ((integers, assert_grouped_exact), (randn, assert_grouped_close)):
        a, b, offs = operands(mode, dtype, draw)
        check(reference.grouped_mm(a, b, offs, out_dtype, bias=bias), a, b, offs, bias=bias)
        narrow = reference.grouped_mm(a.float(), b.float(), offs, bias=bias, compute_dtype=torch.float32)
        check(narrow.to(out_dtype), a, b, offs, bias=bias)


@pytest.mark.parametrize("check", [assert_grouped_exact, assert_grouped_close])
@pytest.mark.parametrize("mode", MODES)
def test_one_wrong_element_is_found_and_its_group_named(mode, check):
    a, b, offs = operands(mode)
    right = reference.grouped_mm(a, b, offs, torch.float16)
    at = {"m": (3, 1), "n": (1, 3), "k": (2, 3, 1), "batch": (2, 3, 1)}[mode]
    for value in (right[at] + 0.5, torch.nan, torch.inf):
        out = right.clone()
        out[at] = value
        with pytest.raises(AssertionError, match=r"1 of \d+ elements are wrong\n.*in group 2"):
            check(out, a, b, offs)


@pytest.mark.parametrize("check", [assert_grouped_exact, assert_grouped_close])
@pytest.mark.parametrize("mode", ["m", "n"])
def test_the_tail_is_exactly_zero_or_not_looked_at(mode, check):
    a, b, offs = operands(mode)
    out = reference.grouped_mm(a, b, offs, torch.float16)
    for value in (2.0**-24, torch.nan):
        out.select(int(mode == "n"), 5)[2] = value
        with pytest.raises(AssertionError, match=r"1 of \d+ .*\n.*in the tail"):
            check(out, a, b, offs)
        check(out, a, b, offs, tail="any")
    with pytest.raises(ValueError, match=r"tail must be .* got 'keep'"):
        check(out, a, b, offs, tail="keep")


def test_an_empty_group_of_mode_k_is_exactly_its_bias():
    a, b, offs = operands("k", draw=randn)
    bias = randn((3, 5), torch.float16, 3)
    out = reference.grouped_mm(a, b, offs, torch.float16)
    assert_grouped_close(out, a, b, offs)
    out[1, 0, 0] = 2.0**-24
    with pytest.raises(AssertionError, match="in group 1"):
        assert_grouped_close(out, a, b, offs)
    out = reference.grouped_mm(a, b, offs, torch.float16, bias=bias)
    assert torch.equal(out[1], bias[1].expand(4, 5))
    assert_grouped_close(out, a, b, offs, bias=bias)


@pytest.mark.parametrize("mode", ["m", "k", "batch"])
def test_a_forgotten_or_misplaced_bias_fails(mode):
    a, b, offs = operands(mode, draw=randn)
    bias = randn((3, 5), torch.float32, 3)
    for wrong in (None, bias.flip(0), bias.half().float() * 1.01):
        out = reference.grouped_mm(a, b, offs, torch.float32, bias=wrong)
        with pytest.raises(AssertionError, match="elements are wrong"):
            assert_grouped_close(out, a, b, offs, bias=bias)


@pytest.mark.parametrize("mode", MODES)
def test_scales(mode):
    a, b, offs = operands(mode, torch.float16, randn)
    a, b = (t.nan_to_num(0).to(torch.float8_e4m3fn) for t in (a, b))
    rows, columns = {"m": ((6,), (3, 5)), "n": ((3, 4), (6,))}.get(mode, ((3, 4), (3, 5)))
    scales = dict(scale_a=randn(rows, torch.float32, 3), scale_b=randn(columns, torch.float32, 4))
    out = reference.grouped_mm(a, b, offs, torch.bfloat16, **scales)
    assert_grouped_close(out, a, b, offs, **scales)
    with pytest.raises(AssertionError, match="elements are wrong"):
        assert_grouped_close(out, a, b, offs, scale_a=scales["scale_a"] * 1.02, scale_b=scales["scale_b"])
    with pytest.raises(ValueError, match="mat_a must hold whole numbers"):
        assert_grouped_exact(out, a, b, offs, **scales)
    a, b, offs = operands(mode, torch.float16)
    with pytest.raises(ValueError, match="scale_a must hold powers of two"):
        assert_grouped_exact(out, a, b, offs, **scales)
    powers = {name: torch.exp2(t.round()) for name, t in scales.items()}
    assert_grouped_exact(reference.grouped_mm(a, b, offs, torch.float32, **powers), a, b, offs, **powers)


def test_the_bound_follows_each_groups_own_depth():
    """In mode "k" a group of one product has a bound of one product, however long the others are."""
    a, b = torch.ones(1, 101), torch.ones(101, 1)
    _, bound = grouped_error_bound(a, b, torch.tensor([1, 101]), torch.float64)
    assert bound[0].item() < 4 * 2.0**-24
    assert bound[1].item() > 100 * 100 * 2.0**-24


def test_operands_and_results_that_leave_nothing_to_compare_are_refused():
    a, b, offs = operands("m")
    out = reference.grouped_mm(a, b, offs, torch.float16)
    for check in (assert_grouped_close, assert_grouped_exact):
        with pytest.raises(AssertionError, match=r"has shape \(5, 6\), wants \(6, 5\)"):
            check(out.mT, a, b, offs)
        with pytest.raises(AssertionError, match="got list"):
            check([out], a, b, offs)
    a[0, 0] = torch.nan
    with pytest.raises(ValueError, match="finite within the groups"):
        assert_grouped_close(out, a, b, offs)
    with pytest.raises(ValueError, match=r"mat_a is torch\.float32, mat_b is torch\.float16"):
        assert_grouped_close(out, a.float(), b, offs)
    a, b, offs = operands("m")
    with pytest.raises(ValueError, match="past 16777216"):
        assert_grouped_exact(out, a.float() * 2.0**24, b.float(), offs)
    long = torch.ones(1, 4096).to(torch.float8_e4m3fn)
    with pytest.raises(ValueError, match="no useful bound"):
        assert_grouped_close(torch.ones(1, 1, 1), long, long.mT, torch.tensor([4096]), accumulation="fp8")


@pytest.mark.parametrize("mode", MODES)
def test_no_groups_pass(mode):
    a, b, offs = operands(mode)
    a, b = (t[:0] if t.ndim == 3 else t for t in (a, b))
    offs = None if offs is None else offs[:0]
    out = reference.grouped_mm(a, b, offs, torch.float16)
    assert_grouped_close(out, a, b, offs)
    assert_grouped_exact(out, a, b, offs)


# ---- scales of blocks, sums that are added to


@pytest.mark.parametrize("mode", MODES)
def test_bounds_of_products_whose_blocks_are_scaled(mode):
    a, b, offs = (each if each is None else each.nan_to_num(0) for each in operands(mode, torch.float32, randn, 300))
    exact, bound = block_scaled_error_bound(a.double(), b.double(), offs, torch.float32)
    magnitude = reference.grouped_mm(a.double().abs(), b.double().abs(), offs)
    narrow = reference.grouped_mm(a, b, offs, compute_dtype=torch.float32)
    assert torch.equal(exact, reference.grouped_mm(a, b, offs))
    assert ((narrow - exact).abs() <= bound).all()
    # Of the depth of one block, and not of the whole sum: 128 steps of 2^-23 each, and few more.
    assert (bound <= (min(a.shape[-1], 128) + 15) * 2.0**-23 * magnitude + 1e-30).all()
    hopper = block_scaled_error_bound(a.double(), b.double(), offs, torch.float32, accumulation="fp8")[1]
    assert (hopper >= bound).all()
    assert (hopper <= 2.0**-5.9 * magnitude + 1e-30).all()
    rounded = block_scaled_error_bound(a.double(), b.double(), offs, torch.bfloat16)[1]
    assert torch.equal(rounded[exact == 0], bound[exact == 0])
    assert ((exact.bfloat16() - exact).abs() <= rounded).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_bounds_of_products_that_are_added(dtype):
    a, b, offs = operands("k", dtype, randn)
    held = 100 * randn((3, 4, 5), dtype, 3)
    exact, bound = accumulated_error_bound(a, b, offs, held)
    assert torch.equal(exact, reference.grouped_mm(a, b, offs) + held)
    once = (reference.grouped_mm(a, b, offs, compute_dtype=torch.float32) + held.float()).to(dtype)
    assert ((once.double() - exact).abs() <= bound).all()
    assert (bound <= 0.51 * torch.finfo(dtype).eps * (exact.abs() + 1) + 4e-6 * 200).all()
    if dtype != torch.float32:  # of which a product that is rounded before it is added is outside
        far = held.clone().fill_(1)
        fine = torch.full_like(a, 2.0**-7), torch.full_like(b, torch.finfo(dtype).eps * 2.0**4)
        exact, bound = accumulated_error_bound(*fine, offs, far)
        assert (bound <= 0.6 * torch.finfo(dtype).eps).all()


def test_bounds_of_sums_of_rows():
    matrix, offs = randn((700, 3), torch.float32, 1), torch.tensor([300, 300, 650])
    matrix[650:] = torch.nan
    parts = (matrix[:300], matrix[300:300], matrix[300:650])
    held = randn((3, 3), torch.float32, 2)
    for given in (None, held):
        exact, bound = sums_error_bound(matrix, offs, given)
        found = torch.stack([part.sum(0) for part in parts]) + (0 if given is None else given)
        assert ((found - exact).abs() <= bound).all()
        magnitude = torch.stack([part.double().abs().sum(0) for part in parts]) + (0 if given is None else given.abs())
        assert (bound <= 352 * 2.0**-24 * magnitude + 1e-30).all()
    assert not sums_error_bound(matrix, offs)[1][1].any()
