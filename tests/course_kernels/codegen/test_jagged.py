"""The jagged kernels compile for every kind of GPU, do not spill, and are what is launched."""

from __future__ import annotations

import pytest
import torch

from course_kernels.codegen import TARGETS, compile_kernel, compile_many
from course_kernels.codegen.jagged import build_jagged, shipped_jagged


@pytest.mark.parametrize("target", ["sm_80", "sm_90", "sm_100", "gfx942"])
def test_what_is_launched_compiles_fits_and_does_not_spill(target):
    builds = shipped_jagged(TARGETS[target])
    assert len(set(builds)) == 6
    tensor_cores = {"sm_80": "mma.sync", "sm_90": "wgmma", "sm_100": "tcgen05", "gfx942": None}[target]
    for compiled in compile_many([(spec, target) for spec in builds if "16×64" not in str(spec)], workers=2):
        assert compiled.spills.bytes == 0, str(compiled)
        assert compiled.shared_bytes <= TARGETS[target].shared_limit
        assert tensor_cores is None or tensor_cores in compiled.ptx


@pytest.mark.parametrize(
    "options",
    [
        dict(kernel="persistent", dtype="bfloat16", b_dtype="float16"),
        dict(kernel="simple", dtype="float16", b_dtype="float32", precision="tf32"),
        dict(kernel="persistent", dtype="float32", b_layout="col", precision="tf32"),
        dict(kernel="simple", aligned=False, rows_per_group=32),
    ],
    ids=lambda options: " ".join(map(str, options.values())),
)
def test_other_types_and_layouts_compile(options):
    compiled = compile_kernel(build_jagged(**options), "sm_90")
    assert compiled.shared_bytes <= TARGETS["sm_90"].shared_limit


def test_builds_have_the_launchs_types_and_constants():
    spec = build_jagged("persistent", b_dtype=torch.float32, b_layout="col")
    assert spec.kernel == "course_kernels.kernels.jagged:jagged_persistent_kernel"
    assert (spec.signature["a_ptr"], spec.signature["b_ptr"], spec.signature["c_ptr"]) == ("*bf16", "*fp32", "*fp32")
    assert {spec.constexprs[name] for name in ("stride_ak", "stride_bk", "stride_cn")} == {1}
    assert spec.constexprs["GROUPS"] == 8
    assert "stride_bn" in spec.divisible_by_16
    assert "unaligned" in str(build_jagged(aligned=False))
    assert "stride_am" not in build_jagged(aligned=False).divisible_by_16


@pytest.mark.parametrize(
    ("options", "message"),
    [(dict(kernel="fast"), "kernel"), (dict(b_layout="any"), "b_layout"), (dict(dtype="int8"), "dtype")],
)
def test_unknown_options_are_refused(options, message):
    with pytest.raises(ValueError, match=f"{message} must be"):
        build_jagged(**options)
