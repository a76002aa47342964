"""The cases judge: a right product passes, and each thing that a call may get wrong is found and named."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from course_kernels.testing import reference
from course_kernels.testing.canaries import layouts
from course_kernels.testing.grouped_cases import MODES, GroupedCase, build, check, random_case

KEPT = GroupedCase("m", (2, 0, 3), 4, 5, 6, layout_out="padded", tail_size=3, tail="keep")
BIASED = GroupedCase("k", (2, 0, 3), 4, 5, 6, bias=torch.float32, layout_bias="every_other")


def oracle(mat_a, mat_b, *, out=None, tail="zero", out_dtype=None, offs=None, **extras):
    dtype = out_dtype or (torch.bfloat16 if mat_a.itemsize == 1 else mat_a.dtype)
    result = reference.grouped_mm(mat_a, mat_b, offs, dtype, **extras)
    if out is None:
        return result
    if tail == "keep":
        used, dim = int(offs[-1]) if len(offs) else 0, int(mat_a.ndim == 3)
        out.narrow(dim, 0, used).copy_(result.narrow(dim, 0, used))
        return out
    return out.copy_(result)


@pytest.mark.parametrize("seed", range(200))
def test_the_right_product_passes(seed):
    check(random_case(seed, 40, 6), oracle)


def test_random_cases_are_the_same_again_and_of_every_kind():
    drawn = [random_case(seed) for seed in range(500)]
    assert drawn == [random_case(seed) for seed in range(500)]
    assert {case.mode for case in drawn} == set(MODES)
    assert {case.dtype for case in drawn} >= {torch.float16, torch.bfloat16, torch.float32, torch.float8_e4m3fn}
    assert {case.layout_a for case in drawn} == set(layouts(3))
    for wanted in (
        lambda c: not c.sizes,
        lambda c: c.sizes and not any(c.sizes),
        lambda c: c.tail == "keep" and c.tail_size,
        lambda c: c.bias is torch.float32 and c.dtype is torch.float16,
        lambda c: c.out_dtype is torch.float32 and c.dtype is torch.bfloat16,
        lambda c: c.offs_dtype is torch.int64 and c.offs_stride == 2,
        lambda c: 0 in (c.M, c.N, c.K),
    ):
        assert any(wanted(case) for case in drawn)
    assert not any(random_case(seed, scaled=False).scaled for seed in range(100))
    assert max(max(c.sizes, default=0) for c in (random_case(seed, 20, 3) for seed in range(100))) <= 20


def spoil(change):
    """The oracle with something done to its operands, or its result, by name."""

    def function(mat_a, mat_b, **arguments):
        result = oracle(mat_a, mat_b, **arguments)
        return change(result, mat_a, mat_b, arguments) if change else result

    return function


def write_behind(result, *_):
    result.as_strided((1,), (1,), result.storage_offset() + result.untyped_storage().nbytes() // 2 - 80).zero_()
    return result


def change_operand(result, mat_a, *_):
    mat_a[0, 0] += 1
    return result


def change_ends(result, mat_a, mat_b, arguments):
    arguments["offs"][-1] -= 1
    return result


def write_tail(result, *_):
    result[-1, 0] = 0
    return result


@pytest.mark.parametrize(
    "case, change, text",
    [
        (KEPT, lambda result, *_: result.clone(), "not the given out"),
        (KEPT, write_tail, "out was written where tail='keep'"),
        (KEPT, change_operand, "mat_a, or memory around it, was written to"),
        (KEPT, change_ends, "offs, or memory around it, was written to"),
        (dataclasses.replace(KEPT, layout_out="row", tail="zero"), write_behind, "no part of out was written"),
        (BIASED, lambda result, *_: result.float(), "the result is torch.float32, wants torch.float16"),
        (BIASED, lambda result, *_: result.mT.contiguous().mT, "wants a contiguous one"),
        (BIASED, lambda result, *_: result + (result == result[2, 1, 1]), r"in group \d"),
        (BIASED, lambda result, *_: result[:2], "has shape"),
    ],
)
def test_what_is_wrong_is_named_with_the_case(case, change, text):
    check(case, spoil(None))
    with pytest.raises(AssertionError, match=rf"(?s)GroupedCase\(mode=.*{text}"):
        check(case, spoil(change))


@pytest.mark.parametrize("mode", MODES)
def test_what_belongs_to_no_group_is_nan(mode):
    operands = build(GroupedCase(mode, (2, 3), 4, 5, 6, tail_size=0 if mode == "batch" else 2))
    found = [bool(t.isnan().any()) for t in (operands.mat_a, operands.mat_b)]
    assert found == {"m": [True, False], "n": [False, True], "k": [True, True], "batch": [False, False]}[mode]


def test_ends_lie_between_numbers_that_are_none():
    offs = build(GroupedCase("m", (2, 0, 3), offs_stride=2, offs_dtype=torch.int64)).arguments["offs"]
    assert offs.tolist() == [2, 2, 5]
    assert offs.stride() == (2,)
    around = offs.as_strided((8,), (1,), 0).tolist()
    assert around == [-(2**30), 2, -(2**30), 2, -(2**30), 5, -(2**30), -(2**30)]
    assert build(GroupedCase("m", ())).arguments["offs"].shape == (0,)
