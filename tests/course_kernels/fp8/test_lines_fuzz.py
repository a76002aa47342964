"""Lines under hypothesis: kernels give the bits of torch, whatever the shape, the strides, the types and the values."""

from __future__ import annotations

import pytest
import torch

from course_kernels import runtime
from course_kernels.fp8.lines import quantize_group_lines, quantize_lines
from course_kernels.testing import STRIDES, strided_like
from float8_bits import same

hypothesis = pytest.importorskip("hypothesis")
st = hypothesis.strategies

pytestmark = pytest.mark.skipif(
    runtime.mode() == "gpu", reason="each example would be compiled; test_lines has a grid of them"
)

SPECIAL = (torch.nan, torch.inf, -torch.inf, 0.0, -0.0, 1e-38, -6e4, 65504.0)


@st.composite
def matrices(draw, rank):
    """A matrix of any strides whose lines have different magnitudes, with some special values."""
    extents = st.one_of(st.sampled_from([1, 16, 64, 65]), st.integers(0, 140))
    shape = (draw(st.integers(1, 3)), draw(extents), draw(extents))[-rank:]
    generator = torch.Generator().manual_seed(draw(st.integers(0, 1000)))
    x = torch.randn(shape, generator=generator)
    x *= 2.0 ** torch.randint(-9, 9, (*shape[:-1], 1), generator=generator)
    x[x.abs() < draw(st.sampled_from([0.0, 0.1, 99.0]))] = 0.0
    for value in draw(st.lists(st.sampled_from(SPECIAL), max_size=5)) if x.numel() else ():
        x.view(-1)[draw(st.integers(0, x.numel() - 1))] = value
    dtype = draw(st.sampled_from([torch.float32, torch.bfloat16, torch.float16]))
    return strided_like(x.to(dtype), draw(st.sampled_from([how for how in STRIDES if how != "expanded"])))


types = st.sampled_from([torch.float8_e4m3fn, torch.float8_e5m2])
examples = hypothesis.settings(max_examples=60, deadline=None, derandomize=True)


@examples
@hypothesis.given(st.integers(2, 3).flatmap(matrices), types, st.booleans())
def test_lines(x, dtype, power_of_two):
    kept = x.clone()
    found, wanted = (quantize_lines(x, dtype, power_of_two, backend) for backend in ("triton", "torch"))
    same(found, wanted)
    assert found[0].is_contiguous()
    assert torch.equal(x.nan_to_num(7), kept.nan_to_num(7))


@examples
@hypothesis.given(matrices(2), st.lists(st.integers(0, 140), max_size=5), st.sampled_from([torch.int32, torch.int64]),
                  st.integers(1, 2), types, st.booleans())  # fmt: skip
def test_lines_of_groups(x, found_ends, index, step, dtype, power_of_two):
    offs = torch.tensor([min(end, x.shape[0]) for end in sorted(found_ends)], dtype=index)
    offs = offs.repeat_interleave(step)[::step]
    same(*(quantize_group_lines(x, offs, dtype, power_of_two, backend) for backend in ("triton", "torch")))
