"""The jagged kernels compile for every kind of GPU, and are what is launched."""

from __future__ import annotations

import pytest
import torch

import compiled
from course_kernels.codegen import TARGETS, compile_kernel, compile_many
from course_kernels.codegen.jagged import build_jagged, shipped_jagged

CHECKED = ("sm_80", "sm_90", "sm_100", "gfx942", "gfx950")


def recorded_pairs() -> list[compiled.Pair]:
    """What ``compiled`` keeps on record for this module."""
    return [(spec, target) for target in CHECKED for spec in shipped_jagged(TARGETS[target])]


@pytest.mark.parametrize("target", CHECKED)
def test_what_is_launched_compiles_and_fits(target):
    pairs = [pair for pair in recorded_pairs() if pair[1] == target]
    assert len(set(pairs)) == 6
    for (spec, _), found in zip(pairs, compiled.facts(pairs), strict=True):
        assert not found.error, f"{spec}: {found.error}"
        assert found.shared <= TARGETS[target].shared_limit, str(spec)


@pytest.mark.parametrize(("target", "unit"), [("sm_80", "mma.sync"), ("sm_90", "wgmma"), ("sm_100", "tcgen05")])
def test_what_is_launched_uses_tensor_cores(target, unit):
    builds = [spec for spec in shipped_jagged(TARGETS[target]) if "16×64" not in str(spec)]
    for found in compile_many([(spec, target) for spec in builds], workers=2):
        assert unit in found.ptx, str(found)


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
    found = compile_kernel(build_jagged(**options), "sm_90")
    assert found.shared_bytes <= TARGETS["sm_90"].shared_limit


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
