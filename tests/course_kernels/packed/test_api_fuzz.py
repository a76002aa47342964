"""grouped_mm under hypothesis: 300 problems drawn from all that it takes, small enough for Triton's interpreter.

Each shard has a seed of its own, so a run can be had again, and workers share the shards. Single properties are the
grid's, in `test_api`; here are pairs of them.
"""

from __future__ import annotations

import pytest
import torch

from course_kernels import GemmConfig, grouped_mm, runtime, scaled_grouped_mm
from course_kernels.testing import STRIDES
from course_kernels.testing.grouped_cases import MODES, GroupedCase, check, layouts

hypothesis = pytest.importorskip("hypothesis")
st = hypothesis.strategies

pytestmark = pytest.mark.skipif(
    runtime.mode() == "gpu", reason="each example would be compiled; benchmarks/fuzz.py is made for a GPU"
)

SHARDS, EXAMPLES = 5, 60
FLOATS = (torch.float16, torch.bfloat16, torch.float32)
DTYPES = (*FLOATS, torch.float8_e4m3fn)
NDIMS = {"m": (2, 3), "n": (3, 2), "k": (2, 2), "batch": (3, 3)}
CONFIGS = (
    GemmConfig(16, 16, 16),
    GemmConfig(16, 32, 16, group_m=2, store_parts=2),
    GemmConfig(32, 16, 32, num_stages=1, schedule="dynamic"),
)
# Around blocks of 16 and around nothing; the numbers that simplest examples shrink to come first.
EXTENTS = st.one_of(st.sampled_from([1, 16, 0, 8, 15, 17, 24, 32]), st.integers(0, 34))


@st.composite
def cases(draw):
    """A case whose parts do not depend on one another but where they must, so that it shrinks well."""
    mode = draw(st.sampled_from(MODES))
    ndim_a, ndim_b = NDIMS[mode]
    dtype = draw(st.sampled_from(DTYPES))
    scaled = dtype.itemsize == 1
    out = draw(st.one_of(st.none(), st.sampled_from([how for how in layouts(2) if how != "expanded"])))
    return GroupedCase(
        mode,
        tuple(draw(st.lists(EXTENTS, max_size=4))),
        draw(EXTENTS),
        draw(EXTENTS),
        draw(EXTENTS),
        dtype,
        draw(st.sampled_from([None, *FLOATS])),
        layout_a=draw(st.sampled_from(layouts(ndim_a))),
        layout_b=draw(st.sampled_from(layouts(ndim_b))),
        layout_out=out,
        tail_size=0 if mode == "batch" else draw(EXTENTS),
        tail=draw(st.sampled_from(["zero", "keep"])) if out and mode in ("m", "n") else "zero",
        offs_dtype=draw(st.sampled_from([torch.int32, torch.int64])),
        offs_stride=draw(st.integers(1, 2)),
        bias=None if scaled or mode == "n" else draw(st.sampled_from([None, dtype, torch.float32])),
        layout_bias=draw(st.sampled_from(STRIDES)),
        values=draw(st.sampled_from(["integers", "normal"])),
        seed=draw(st.integers(0, 2**16)),
    )


def function(backend, config):
    """The public function of a case, scaled or not, with one backend."""
    recipe = torch.nn.functional.ScalingType.RowWise

    def call(mat_a, mat_b, scale_a=None, scale_b=None, out_dtype=None, **arguments):
        arguments |= dict(backend=backend, config=config)
        if scale_a is None:
            return grouped_mm(mat_a, mat_b, out_dtype=out_dtype, **arguments)
        scales = (scale_a, recipe, scale_b, recipe)
        return scaled_grouped_mm(mat_a, mat_b, *scales, output_dtype=out_dtype, **arguments)

    return call


@pytest.mark.parametrize("shard", range(SHARDS))
def test_any_problem(shard):
    @hypothesis.seed(shard)
    @hypothesis.settings(max_examples=EXAMPLES, deadline=None, database=None, print_blob=False)
    @hypothesis.given(cases(), st.sampled_from(CONFIGS))
    def judge(case, config):
        if case.mode == "k" and config.schedule == "dynamic":
            config = CONFIGS[0]  # mode "k" has no such schedule
        for backend in ("torch", "triton"):
            check(case, function(backend, config), device=runtime.device())

    judge()
