"""The masked kernel compiles, for every configuration that is looked up, and is what is launched."""

from __future__ import annotations

import re

import pytest
import torch

import compiled
from course_kernels import GemmConfig, codegen, runtime
from course_kernels.codegen import TARGETS, build
from course_kernels.codegen.masked import SCALES, build_masked, dtypes_on, shipped_masked, stand_ins
from course_kernels.codegen.packed import specialized
from course_kernels.dtypes import FP8, FP8_FNUZ
from course_kernels.engine.options import Options
from course_kernels.engine.triton_arguments import prepare
from course_kernels.masked.checks import check_call
from course_kernels.runtime import Device

# The newest target of each kind is compiled whole elsewhere; here every kind of launch once for each of these.
CHECKED = ("sm_80", "sm_90", "sm_100", "gfx942", "gfx950")


def grid(target: str) -> list:
    """What of ``shipped_masked`` is compiled: every configuration of every type and kind of scale once, shuffled and
    plain, aligned and not, in turn. float16 is compiled as bfloat16 is."""
    chosen = {}
    for spec in shipped_masked(TARGETS[target]):
        if " float16 " not in str(spec):
            chosen.setdefault(re.sub(r" unaligned| pointers", "", str(spec)), []).append(spec)
    return list(dict.fromkeys(specs[i % len(specs)] for i, specs in enumerate(chosen.values())))


def recorded_pairs() -> list[compiled.Pair]:
    """What ``compiled`` keeps on record for this module."""
    return [(spec, target) for target in CHECKED for spec in grid(target)]


@pytest.mark.parametrize("target", CHECKED)
def test_what_is_looked_up_compiles_and_fits(target):
    pairs, problems = [(spec, target) for spec in grid(target)], []
    for (spec, _), found in zip(pairs, compiled.facts(pairs), strict=True):
        if found.error:
            problems.append(f"{spec}: {found.error}")
            continue
        blocks = (spec.constexprs[f"BLOCK_{dim}"] for dim in "MNK")
        config = GemmConfig(*blocks, spec.num_warps, spec.num_stages, store_parts=spec.constexprs["STORE_PARTS"])
        size = 1 if "float8" in str(spec) else 2
        uses_tma = spec.constexprs["C_KIND"] != 0
        limit = TARGETS[target].shared_limit
        lds = limit if target.startswith("gfx") else None
        bound = config.shared_memory("masked", size, 2, TARGETS[target].capability, uses_tma=uses_tma, lds=lds)
        if not found.shared <= bound <= limit:
            problems.append(f"{spec}: {found.shared} bytes of shared memory, expected up to {bound}")
    assert not problems, "\n".join(problems)


def test_types_of_targets():
    assert FP8_FNUZ in dtypes_on(TARGETS["gfx942"])
    assert FP8 not in dtypes_on(TARGETS["gfx942"])
    assert FP8 in dtypes_on(TARGETS["gfx950"])
    assert FP8 in dtypes_on(TARGETS["sm_90"])
    assert [len(dtypes_on(TARGETS[name])) for name in ("sm_75", "sm_80")] == [1, 2]


def test_instructions():
    """Hopper copies plain weights in bulk, and shuffled ones 16 bytes at a time without a detour through registers."""
    plain, shuffled = (
        codegen.compile_kernel("masked", "sm_90", dtype="float8_e4m3fn", shuffled=shuffled).instructions
        for shuffled in (False, True)
    )
    for counts in (plain, shuffled):
        assert counts["wgmma"] > 0
        assert counts["bulk tensor store"] >= 1
    assert plain["cp.async"] == 0
    assert plain["bulk tensor load"] > shuffled["bulk tensor load"] > 0
    assert shuffled["cp.async"] > 0
    options = dict(dtype="float8_e4m3fnuz", shuffled=True, config=GemmConfig(64, 64, 32, 8, 2))
    assert codegen.compile_kernel("masked", "gfx942", **options).instructions["mfma"] > 0


@pytest.mark.skipif(runtime.mode() == "compile-only", reason="plans are for processes that can launch kernels")
@pytest.mark.parametrize("scales", SCALES)
@pytest.mark.parametrize("options", [{}, dict(aligned=False), dict(shuffled=True), dict(w_layout="col")], ids=str)
def test_build_is_what_deepgemm_launches(options, scales):
    config = GemmConfig(32, 32, 32, 4, 2)
    settings = {"aligned": True, "shuffled": False, "w_layout": "row"} | options
    spec = build_masked(dtype=FP8, out_dtype="float16", scales=scales, config=config, **settings)
    call = stand_ins(FP8, torch.float16, scales, settings["aligned"],
                         settings["w_layout"], settings["shuffled"], 8)  # fmt: skip
    problem, product = check_call(call, Options(config=config), call.Y)
    launched = prepare(problem, product, call.Y, Device.of(runtime.device()))
    assert launched.options == {"num_warps": spec.num_warps, "num_stages": spec.num_stages}
    signature, constexprs, divisible = specialized("masked", launched.arguments)
    assert (signature, constexprs, tuple(sorted(divisible))) == (
        spec.signature, spec.constexprs, spec.divisible_by_16
    )  # fmt: skip


def test_bad_arguments():
    for options, error, words in (
        (dict(scales="row"), ValueError, "scales must be one of"),
        (dict(w_layout="any"), ValueError, "w_layout must be 'row'"),
        (dict(w_layout="col", shuffled=True), ValueError, "w_layout must be 'row'"),
        (dict(dtype="float32"), ValueError, "dtype must be one of"),
        (dict(record=True), TypeError, r"has no options \['record'\]"),
        (dict(mode="m"), TypeError, "mode"),
    ):
        with pytest.raises(error, match=words):
            build("masked", **options)
