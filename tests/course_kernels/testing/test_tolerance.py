import pytest
import torch

from course_kernels.testing import integers, reference
from course_kernels.testing.tolerance import (
    TOLERANCES,
    assert_close_to_oracle,
    assert_exact,
    assert_group_close,
    error_bound,
)

FP8 = [torch.float8_e4m3fn, torch.float8_e5m2]


def randn(shape, dtype, seed):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def float32_sum(a, b, out_dtype):
    """One product after another into a float32 accumulator, as a kernel without tensor cores does it."""
    total = torch.zeros(a.shape[0], b.shape[1])
    for k in range(a.shape[1]):
        total += a[:, k, None].float() * b[None, k].float()
    return total.to(out_dtype)


@pytest.mark.parametrize("out_dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, *FP8])
def test_a_correct_sum_passes_in_any_order(dtype, out_dtype):
    a, b = randn((20, 300), dtype, 1), randn((300, 15), dtype, 2)
    assert_close_to_oracle(float32_sum(a, b, out_dtype), a, b)
    order = torch.arange(299, -1, -1)
    a, b = (
        a.view(torch.uint8 if a.itemsize == 1 else dtype),
        b.view(torch.uint8 if b.itemsize == 1 else dtype),
    )
    a, b = a[:, order].view(dtype), b[order].view(dtype)
    assert_close_to_oracle(float32_sum(a, b, out_dtype), a, b)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_accumulating_in_the_operands_dtype_fails(dtype):
    a, b = torch.ones(2, 17, dtype=dtype), torch.ones(17, 3, dtype=dtype)
    a[:, 0] = 2048
    total = torch.zeros(2, 3, dtype=dtype)
    for k in range(17):
        total += a[:, k, None] * b[None, k]
    with pytest.raises(AssertionError, match="6 of 6 elements are wrong"):
        assert_close_to_oracle(total, a, b)


def test_tf32_needs_its_own_bound():
    a, b = randn((16, 256), torch.float32, 1), randn((256, 16), torch.float32, 2)
    cut = [(t.view(torch.int32) & ~0x1FFF).view(torch.float32) for t in (a, b)]
    out = reference.gemm(*cut, torch.float32)
    assert_close_to_oracle(out, a, b, accumulation="tf32")
    with pytest.raises(AssertionError, match="off by"):
        assert_close_to_oracle(out, a, b)


@pytest.mark.parametrize("k", [16, 256, 4096])
def test_one_forgotten_product_is_noticed_at_any_length(k):
    a, b = randn((4, k), torch.float16, 1), randn((k, 4), torch.float16, 2)
    short = reference.gemm(a[:, :-1], b[:-1], torch.float32)
    with pytest.raises(AssertionError, match="the product"):
        assert_close_to_oracle(short, a, b)


def test_the_bound_follows_the_magnitudes_of_its_own_element():
    a, b = torch.ones(2, 8), torch.ones(8, 2)
    a[1] *= 1e-6
    wrong = reference.gemm(a, b, torch.float32)
    wrong[1, 0] += 1e-9  # far below any global tolerance, and still wrong
    with pytest.raises(AssertionError, match=r"1 of 4 elements are wrong\n  first at \[1, 0\]: .*off by 1\.0"):
        assert_close_to_oracle(wrong, a, b)
    _, bound = error_bound(torch.zeros(2, 4), torch.ones(4, 2), torch.float32)
    assert not bound.any()


def test_the_bound_grows_with_k():
    bounds = [error_bound(torch.ones(1, k), torch.ones(k, 1), torch.float64)[1] for k in (8, 16)]
    assert 3.5 < (bounds[1] / bounds[0]).item() < 4.5  # K steps times K magnitudes


def test_nan_and_unexpected_infinity_never_pass():
    a, b = integers((4, 4)), integers((4, 4), generator=1)
    for value in (torch.nan, torch.inf, -torch.inf):
        out = reference.gemm(a, b, torch.float16)
        out[2, 1] = value
        for check in (assert_close_to_oracle, assert_exact):
            with pytest.raises(AssertionError, match=r"1 of 16 .*\n  first at \[2, 1\]"):
                check(out, a, b)
    with pytest.raises(ValueError, match="must be finite"):
        assert_close_to_oracle(out, torch.full((4, 4), torch.nan, dtype=torch.float16), b)


def test_infinity_is_right_where_the_value_overflows():
    a, b = torch.full((1, 4), 200.0, dtype=torch.float16), torch.full((4, 1), 200.0, dtype=torch.float16)
    assert_close_to_oracle(torch.tensor([[torch.inf]], dtype=torch.float16), a, b)
    with pytest.raises(AssertionError, match="got -inf"):
        assert_close_to_oracle(torch.tensor([[-torch.inf]], dtype=torch.float16), a, b)


def test_exact_wants_the_correctly_rounded_sum():
    a, b = integers((9, 300), torch.float16, 1), integers((300, 9), torch.float16, 2)
    out = reference.gemm(a, b, torch.float32)
    assert_exact(out, a, b)
    assert_exact(out.to(torch.bfloat16), a, b)
    out[3, 4] += 1
    with pytest.raises(AssertionError, match=r"1 of 81 .*\n  first at \[3, 4\]"):
        assert_exact(out, a, b)


def test_exact_refuses_inputs_whose_sums_need_not_be_exact():
    ones = torch.ones(2, 2)
    with pytest.raises(ValueError, match="a must hold whole numbers"):
        assert_exact(ones, ones / 2, ones)
    with pytest.raises(ValueError, match=r"reaches .* past 16777216"):
        assert_exact(ones, ones * 2.0**24, ones)
    eights = torch.full((2, 512), 8.0).to(torch.float8_e4m3fn)
    with pytest.raises(ValueError, match="past 8192"):
        assert_exact(ones, eights, eights.t())


def test_shape_dtype_and_type_of_the_result_are_checked():
    a, b = torch.ones(2, 3), torch.ones(3, 4)
    for out, text in (
        (torch.ones(4, 2), r"has shape \(4, 2\), wants \(2, 4\)"),
        (torch.ones(2, 4, dtype=torch.int32), "has dtype torch.int32"),
        ([[3.0]], "must be a torch.Tensor, got list"),
    ):
        with pytest.raises(AssertionError, match=text):
            assert_close_to_oracle(out, a, b)


def test_groups_name_the_problem_and_batches_work():
    a, b = integers((2, 3, 4), generator=1), integers((2, 4, 5), generator=2)
    out = reference.padded_bmm(a, b, out_dtype=torch.float16)
    assert_close_to_oracle(out, a, b)
    assert_group_close(list(out), list(a), list(b))
    with pytest.raises(AssertionError, match="problem 1: "):
        assert_group_close([out[0], out[0]], list(a), list(b))
    with pytest.raises(AssertionError, match="1 results for 2 A and 2 B"):
        assert_group_close([out[0]], list(a), list(b))


@pytest.mark.parametrize("shape", [(0, 3, 4), (3, 3, 0), (3, 0, 4)])
def test_empty_extents_pass(shape):
    m, k, n = shape
    a, b = torch.ones(m, k), torch.ones(k, n)
    assert_close_to_oracle(a @ b, a, b)
    if not k:
        with pytest.raises(AssertionError, match="wants 0"):
            assert_close_to_oracle(torch.full((m, n), 1e-30), a, b)


def test_the_table_gives_reasons_and_unknown_keys_are_refused():
    assert all(rule.unit > 0 and rule.why for rule in TOLERANCES.values())
    a = torch.ones(2, 2)
    with pytest.raises(ValueError, match="must be one of ieee, tf32, got 'fp16'"):
        error_bound(a, a, torch.float32, accumulation="fp16")
    with pytest.raises(ValueError, match=r"no tolerance is known for operands of torch.int8"):
        error_bound(a.to(torch.int8), a.to(torch.int8), torch.float32)
    with pytest.raises(ValueError, match=r"a is torch.float32, b is torch.float16"):
        error_bound(a, a.half(), torch.float32)
    long = torch.ones(1, 4096).to(torch.float8_e4m3fn)
    with pytest.raises(ValueError, match="no useful bound"):
        error_bound(long, long.t(), torch.float32, accumulation="fp8")
