import pytest
import torch

from course_kernels import reference
from course_kernels.layout import GroupLayout
from course_kernels.testing import STRIDES, integers, strided_like

FP8 = [torch.float8_e4m3fn, torch.float8_e5m2]


def by_hand(a, b):
    """Sums of Python numbers: the definition, with nothing of torch's matmul in it."""
    rows, columns = a.to(torch.float64).tolist(), b.to(torch.float64).mT.tolist()
    return [[sum(x * y for x, y in zip(row, column, strict=True)) for column in columns] for row in rows]


@pytest.mark.parametrize("strides", STRIDES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int8, *FP8])
def test_gemm_is_the_definition(dtype, strides):
    a = strided_like(integers((5, 7), dtype, 1), strides)
    b = strided_like(integers((7, 3), dtype, 2), strides)
    result = reference.gemm(a, b)
    assert result.dtype == torch.float64
    assert result.tolist() == by_hand(a, b)
    assert reference.gemm(a, b, compute_dtype=torch.float32).tolist() == by_hand(a, b)


def test_gemm_widens_before_it_multiplies():
    a = torch.tensor([[2048.0] + [1.0] * 16], dtype=torch.float16)
    b = torch.ones(17, 1, dtype=torch.float16)
    assert reference.gemm(a, b).item() == 2064  # fp16 sums stay at 2048
    tiny = torch.tensor([[2.0**-40, 1.0]], dtype=torch.float32)
    assert reference.gemm(tiny, torch.ones(2, 1)).item() == 1 + 2.0**-40
    assert reference.gemm(tiny, torch.ones(2, 1), compute_dtype=torch.float32).item() == 1


def test_out_dtype_rounds_once_at_the_end():
    a = torch.full((1, 3), 1.0 + 2.0**-10, dtype=torch.float16)
    result = reference.gemm(a, torch.ones(3, 1, dtype=torch.float16), torch.float16)
    assert result.dtype == torch.float16
    assert result.item() == torch.tensor(3 + 3 * 2.0**-10, dtype=torch.float64).to(torch.float16).item()


@pytest.mark.parametrize("M, N, K", [(3, 4, 0), (0, 4, 2), (3, 0, 2), (0, 0, 0)])
def test_empty_extents(M, N, K):
    result = reference.gemm(torch.ones(M, K), torch.ones(K, N))
    assert torch.equal(result, torch.zeros(M, N, dtype=torch.float64))


def test_group_gemm_multiplies_each_pair():
    group_A = [integers((m, k), torch.float16, m) for m, k in [(2, 3), (0, 4), (5, 0)]]
    group_B = [integers((k, n), torch.float16, n) for k, n in [(3, 6), (4, 2), (0, 3)]]
    results = reference.group_gemm(group_A, group_B, torch.float32)
    assert results[0].tolist() == by_hand(group_A[0], group_B[0])
    assert results[1].shape == (0, 2)
    assert results[2].tolist() == [[0.0] * 3] * 5
    assert all(r.dtype == torch.float32 for r in results)
    assert reference.group_gemm([], []) == []


@pytest.mark.parametrize("kind", ["ends", "layout"])
def test_grouped_mm_gives_each_group_its_own_matrix_and_a_zero_tail(kind):
    ends = torch.tensor([2, 2, 5], dtype=torch.int32)
    a, b = integers((7, 4), generator=1), integers((3, 4, 6), generator=2)
    offs = ends if kind == "ends" else GroupLayout.from_offsets(torch.tensor([0, 2, 2, 5]))
    result = reference.grouped_mm(a, b, offs)
    assert result[:2].tolist() == by_hand(a[:2], b[0])
    assert result[2:5].tolist() == by_hand(a[2:5], b[2])
    assert not result[5:].any()
    assert reference.grouped_mm(a, b, offs, torch.bfloat16).dtype == torch.bfloat16


def test_grouped_mm_agrees_with_torch():
    a, b = integers((32, 16), torch.bfloat16, 1), integers((4, 16, 8), torch.bfloat16, 2)
    offs = torch.tensor([8, 8, 20, 32], dtype=torch.int32)
    wanted = torch.nn.functional.grouped_mm(a, b, offs=offs)
    assert torch.equal(reference.grouped_mm(a, b, offs, torch.bfloat16), wanted)


def test_no_groups_leave_only_a_tail():
    offs = torch.zeros(0, dtype=torch.int32)
    result = reference.grouped_mm(torch.ones(3, 2), torch.ones(0, 2, 4), offs)
    assert torch.equal(result, torch.zeros(3, 4, dtype=torch.float64))
    assert reference.padded_bmm(torch.ones(0, 3, 2), torch.ones(0, 2, 4)).shape == (0, 3, 4)


def test_padded_bmm_ignores_padding():
    a, b = integers((3, 4, 5), generator=1), integers((3, 5, 2), generator=2)
    assert reference.padded_bmm(a, b).tolist() == [by_hand(a[g], b[g]) for g in range(3)]
    masked_m = torch.tensor([2, 0, 4])
    spoilt = a.clone()
    spoilt[0, 2:], spoilt[1] = torch.nan, torch.nan
    result = reference.padded_bmm(spoilt, b, masked_m)
    assert result[0, :2].tolist() == by_hand(a[0, :2], b[0])
    assert result[2].tolist() == by_hand(a[2], b[2])
    assert not result[0, 2:].any()
    assert not result[1].any()


def test_gradients_flow_through_the_oracle():
    a = integers((3, 4), torch.float32, 1).requires_grad_()
    b = integers((4, 2), torch.float32, 2)
    reference.gemm(a, b).sum().backward()
    assert torch.equal(a.grad, b.sum(1).expand(3, 4))


ONE = torch.ones(2, 2)


@pytest.mark.parametrize(
    "call, error, text",
    [
        (lambda: reference.gemm([1], ONE), TypeError, "a must be a torch.Tensor, got list"),
        (lambda: reference.gemm(ONE, ONE[0]), ValueError, r"b must have 2 dimensions, got shape \(2,\)"),
        (lambda: reference.gemm(ONE, ONE.bool()), TypeError, "b must be .*got torch.bool"),
        (lambda: reference.gemm(ONE, torch.ones(3, 2)), ValueError, "a has K = 2 columns, b has 3 rows"),
        (lambda: reference.gemm(ONE, ONE.to("meta")), ValueError, "a is on cpu, b is on meta"),
        (lambda: reference.gemm(ONE, ONE, compute_dtype=torch.float16), ValueError, "compute_dtype must be"),
        (lambda: reference.group_gemm([ONE], []), ValueError, "group_A has 1 matrices, group_B has 0"),
        (lambda: reference.group_gemm([ONE, ONE], [ONE, ONE[:1]]), ValueError, "problem 1: a has K = 2"),
        (
            lambda: reference.grouped_mm(ONE, torch.ones(3, 2, 2), torch.tensor([1, 2])),
            ValueError,
            "offs describes 2 groups, mat_b holds 3",
        ),
        (
            lambda: reference.grouped_mm(ONE, torch.ones(2, 3, 2), torch.tensor([1, 2])),
            ValueError,
            "mat_a has K = 2, mat_b has K = 3",
        ),
        (
            lambda: reference.grouped_mm(ONE, torch.ones(2, 2, 2), torch.tensor([1, 3])),
            ValueError,
            "3 rows, more than total_m = 2",
        ),
        (lambda: reference.padded_bmm(torch.ones(2, 3, 4), torch.ones(2, 5, 4)), ValueError, r"\(2, 5\)"),
        (
            lambda: reference.padded_bmm(torch.ones(2, 3, 4), torch.ones(2, 4, 4), torch.tensor([1, 4])),
            ValueError,
            "group 1 has 4 rows, more than its max_m = 3",
        ),
        (
            lambda: reference.padded_bmm(torch.ones(2, 3, 4), torch.ones(2, 4, 4), torch.tensor([1])),
            ValueError,
            "masked_m describes 1 groups, mat_a holds 2",
        ),
    ],
)
def test_bad_operands_are_named(call, error, text):
    with pytest.raises(error, match=text):
        call()
