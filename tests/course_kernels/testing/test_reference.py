import pytest
import torch

from course_kernels import GroupLayout
from course_kernels.testing import STRIDES, integers, reference, strided_like

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


def operands_of(mode, sizes=(2, 0, 3), tail=2, dtype=torch.float16, m=4, n=6, k=5):
    """Whole numbers, the ends of the groups, and each group's own pair of matrices, cut out by hand."""
    groups, total = len(sizes), sum(sizes) + tail
    ends = torch.tensor(sizes, dtype=torch.int32).cumsum(0, dtype=torch.int32)
    starts = [int(e) - size for e, size in zip(ends, sizes)]
    if mode == "m":
        a, b = integers((total, k), dtype, 1), integers((groups, k, n), dtype, 2)
        pairs = [(a[s : s + size], b[g]) for g, (s, size) in enumerate(zip(starts, sizes))]
    elif mode == "n":
        a, b = integers((groups, m, k), dtype, 1), integers((k, total), dtype, 2)
        pairs = [(a[g], b[:, s : s + size]) for g, (s, size) in enumerate(zip(starts, sizes))]
    elif mode == "k":
        a, b = integers((m, total), dtype, 1), integers((total, n), dtype, 2)
        pairs = [(a[:, s : s + size], b[s : s + size]) for s, size in zip(starts, sizes)]
    else:
        a, b, ends = integers((groups, m, k), dtype, 1), integers((groups, k, n), dtype, 2), None
        pairs = list(zip(a, b))
    return a, b, ends, pairs


def blocks_of(mode, result, sizes=(2, 0, 3)):
    """The result's part for each group, and the tail."""
    if mode in ("k", "batch"):
        return list(result), result[:0]
    *blocks, tail = result.split([*sizes, result.shape[mode == "n"] - sum(sizes)], dim=int(mode == "n"))
    return blocks, tail


MODES = ["m", "n", "k", "batch"]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float8_e4m3fn])
@pytest.mark.parametrize("mode", MODES)
def test_each_mode_is_the_definition_for_each_group(mode, dtype):
    a, b, ends, pairs = operands_of(mode, dtype=dtype)
    blocks, tail = blocks_of(mode, reference.grouped_mm(a, b, ends))
    assert len(blocks) == len(pairs) == 3
    for block, pair in zip(blocks, pairs):
        assert block.shape == (pair[0].shape[0], pair[1].shape[1])
        assert block.tolist() == by_hand(*pair)
    assert not tail.any()
    assert mode in ("k", "batch") or tail.numel()


@pytest.mark.parametrize("mode", ["m", "n", "k"])
def test_nothing_past_the_last_group_is_read(mode):
    a, b, ends, _ = operands_of(mode)
    wanted = reference.grouped_mm(a, b, ends)
    if mode != "n":
        a[(slice(None), slice(5, None)) if mode == "k" else slice(5, None)] = torch.nan
    if mode != "m":
        b[slice(5, None) if mode == "k" else (slice(None), slice(5, None))] = torch.nan
    assert torch.equal(reference.grouped_mm(a, b, ends), wanted)


@pytest.mark.parametrize("mode", ["m", "k", "batch"])
def test_bias_belongs_to_its_group_and_is_added_before_the_rounding(mode):
    a, b, ends, pairs = operands_of(mode)
    bias = integers((3, 6), torch.float32, 3) + 2.0**-12
    blocks, tail = blocks_of(mode, reference.grouped_mm(a, b, ends, bias=bias))
    for g, (block, pair) in enumerate(zip(blocks, pairs)):
        assert block.tolist() == [[x + y for x, y in zip(row, bias[g].tolist())] for row in by_hand(*pair)]
    assert not tail.any(), "the tail has no group and no bias"
    rounded = reference.grouped_mm(a, b, ends, torch.float16, bias=bias)
    assert torch.equal(rounded, reference.grouped_mm(a, b, ends, bias=bias).half())


@pytest.mark.parametrize("mode", MODES)
def test_scales_multiply_rows_and_columns_of_their_group(mode):
    a, b, ends, pairs = operands_of(mode, dtype=torch.float8_e4m3fn)
    rows = {"m": (7,)}.get(mode, (3, 4))
    columns = {"n": (7,)}.get(mode, (3, 6))
    scale_a = 2.0 ** torch.arange(torch.Size(rows).numel()).float().reshape(rows)
    scale_b = 3.0 ** -torch.arange(torch.Size(columns).numel()).float().reshape(columns)
    result = reference.grouped_mm(a, b, ends, scale_a=scale_a, scale_b=scale_b)
    starts = [0, 2, 2]
    for g, (block, pair) in enumerate(zip(blocks_of(mode, result)[0], pairs)):
        of_a = scale_a[starts[g] : starts[g] + len(pair[0])] if mode == "m" else scale_a[g]
        of_b = scale_b[starts[g] : starts[g] + pair[1].shape[1]] if mode == "n" else scale_b[g]
        wanted = torch.tensor(by_hand(*pair), dtype=torch.float64).reshape(block.shape)
        assert torch.equal(block, wanted * of_a.double()[:, None] * of_b.double())
    flat = reference.grouped_mm(a, b, ends, scale_a=scale_a.flatten(), scale_b=scale_b.flatten())
    assert torch.equal(flat, result)


@pytest.mark.parametrize("mode", MODES)
def test_each_mode_agrees_with_torch(mode):
    a, b, ends, _ = operands_of(mode, (8, 0, 24), 0, torch.bfloat16, 16, 32, 16)
    wanted = torch.nn.functional.grouped_mm(a, b, offs=ends)
    assert torch.equal(reference.grouped_mm(a, b, ends, torch.bfloat16), wanted)


@pytest.mark.parametrize("mode", MODES)
def test_no_groups_and_empty_extents(mode):
    shape = {"m": (2, 6), "n": (4, 2), "k": (0, 4, 6), "batch": (0, 4, 6)}[mode]
    a, b, ends, _ = operands_of(mode, ())
    assert torch.equal(reference.grouped_mm(a, b, ends), torch.zeros(shape, dtype=torch.float64))
    for extents in (dict(k=0), dict(m=0), dict(n=0)):
        a, b, ends, _ = operands_of(mode, (0, 0), 0, **extents)
        assert not reference.grouped_mm(a, b, ends).any()


@pytest.mark.parametrize("mode", MODES)
def test_gradients_flow_through_each_mode(mode):
    a, b, ends, pairs = operands_of(mode, dtype=torch.float64)
    bias = None if mode == "n" else torch.ones(3, 6, dtype=torch.float64, requires_grad=True)
    reference.grouped_mm(a.requires_grad_(), b.requires_grad_(), ends, bias=bias).sum().backward()
    assert a.grad.sum() == sum(len(x) * y.detach().sum() for x, y in pairs)
    if bias is not None:
        assert torch.equal(bias.grad, torch.tensor([[float(len(x))] * 6 for x, _ in pairs], dtype=torch.float64))


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
        (lambda: reference.grouped_mm(ONE, ONE), ValueError, "offs must be given"),
        (
            lambda: reference.grouped_mm(ONE[None], ONE[None], torch.tensor([1])),
            ValueError,
            "offs must be None",
        ),
        (lambda: reference.grouped_mm(ONE[None], torch.ones(2, 2, 2)), ValueError, "mat_a holds 1 .* mat_b holds 2"),
        (lambda: reference.grouped_mm(ONE[0], ONE), ValueError, "mat_a must have 2 dimensions"),
        (lambda: reference.grouped_mm(ONE, ONE, torch.tensor([1, 3])), ValueError, "more than total_m = 2"),
        (
            lambda: reference.grouped_mm(ONE[None], ONE, torch.tensor([2]), bias=ONE[:1]),
            ValueError,
            'bias must be None in mode "n"',
        ),
        (
            lambda: reference.grouped_mm(ONE, ONE, torch.tensor([2]), bias=ONE),
            ValueError,
            r"bias must have shape \(1, 2\), got \(2, 2\)",
        ),
        (
            lambda: reference.grouped_mm(ONE, ONE, torch.tensor([2]), scale_a=ONE),
            ValueError,
            r"scale_a must hold 1 vectors of \[2\] elements, got \(2, 2\)",
        ),
        (
            lambda: reference.grouped_mm(ONE, ONE, torch.tensor([2]), scale_b=ONE[0, :1]),
            ValueError,
            "scale_b must have at least 2 elements, got 1",
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


def test_quantize_and_dequantize_are_each_other_s_inverse_where_nothing_is_rounded():
    """Blocks whose largest magnitude is 448 times a power of two: the factor is that power."""
    generator = torch.Generator().manual_seed(1)
    values = torch.arange(-448.0, 449.0, 64.0)
    x = values[torch.randint(0, len(values), (3, 300), generator=generator)]
    x[:, ::100] = 448.0
    powers = torch.tensor([[1.0, 2.0, 0.5], [4.0, 0.25, 8.0], [1.0, 1.0, 16.0]])
    x *= powers.repeat_interleave(128, 1)[:, :300]
    for power_of_two in (False, True):
        q, scale = reference.quantize(x, power_of_two=power_of_two)
        assert torch.equal(scale, powers)
        assert torch.equal(reference.dequantize(q, scale), x.double())
    q, scale = reference.quantize(x[0, :256].expand(130, 256), 128)
    assert torch.equal(scale, powers[0, :2].expand(2, 2))
    assert torch.equal(reference.dequantize(q, scale, 128), x[0, :256].double().expand(130, 256))


def test_blocks_of_groups_have_columns_of_their_own():
    x = torch.full((1, 300), 448.0)
    for part, factor in ((slice(0, 10), 2.0), (slice(10, 138), 4.0), (slice(138, 140), 8.0), (slice(140, 268), 1.0)):
        x[:, part] *= factor
    offs = torch.tensor([10, 140, 140, 268])
    q, scale = reference.quantize(x, offs=offs)
    # Group 1 begins in column 10 // 128 + 1 and has two blocks; group 3 in 140 // 128 + 3.
    assert scale.tolist() == [[2.0, 4.0, 8.0, 0.0, 1.0, 0.0]]
    assert torch.equal(reference.dequantize(q, scale, 1, offs)[:, :268], x[:, :268].double())
    assert not q[:, 268:].float().any()


def test_a_power_of_two_is_the_next_one_up():
    x = torch.tensor([[449.0], [448.0], [447.0], [225.0], [0.0]])
    _, scale = reference.quantize(x, power_of_two=True)
    assert scale.flatten().tolist()[:4] == [2.0, 1.0, 1.0, 1.0]
    assert 2.0**-109 < scale[4] <= 2.0**-108
