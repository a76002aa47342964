"""The packed kernels compile, for every configuration that is looked up or measured, and are what is launched."""

from __future__ import annotations

import re

import pytest
import torch

import compiled
from course_kernels import GemmConfig, codegen, runtime
from course_kernels.codegen import TARGETS, build, shipped
from course_kernels.codegen.packed import MODES, build_group_sums, specialized, stand_ins
from course_kernels.codegen.spec import KERNELS, PACKED_KERNELS
from course_kernels.dtypes import TYPE_BYTES
from course_kernels.engine.options import Options
from course_kernels.engine.product import Product
from course_kernels.engine.scaling import BLOCK_SCALINGS
from course_kernels.engine.triton_arguments import prepare
from course_kernels.engine.tuning import Extents, Gpu, Kind, choose
from course_kernels.engine.tuning.chooser import all_configs
from course_kernels.engine.tuning.configs_by_kind import offered
from course_kernels.engine.tuning.kinds import KINDS, KINDS_8_BIT
from course_kernels.packed.checks import problem_of
from course_kernels.runtime import Device
from course_kernels.targets import has_descriptors

MEASURED = ("sm_80", "sm_89", "sm_90", "sm_120")  # GPUs of all ways to read, and sizes of shared memory
WITH_8_BIT = ("sm_89", "sm_90", "sm_120")
WITH_BLOCKS = ("sm_90", "sm_100", "gfx942", "gfx950")
IN_PART = ("sm_86", "sm_89", "sm_103", "sm_121")  # nearly as sm_80, sm_100 and sm_120
CHIPLETS = ("gfx942", "gfx950")
ESTIMATED = ("sm_90", "sm_100", "sm_120", "sm_80", "gfx942")
ADDING = (*ESTIMATED, "gfx950")


def grid(target: str, everything=None) -> list:
    """What of ``shipped`` is compiled here: every configuration of every type once, with the layouts a layer has, for
    each kernel; and one of every mode, pair of layouts, alignment, types in turn. float16 is compiled as bfloat16 is.
    """
    everything = [s for s in everything or shipped(target, PACKED_KERNELS) if " float16 " not in str(s)]
    chosen, others = {}, {}
    for spec in everything:
        mode, name, layouts, rest = re.match(
            r"\w+ (\w+) (\w+(?: tf32)?) (\w+/\w+) (.*)", str(spec)
        ).groups()  # fmt: skip
        chosen.setdefault((spec.kernel, name, rest), spec)
        others.setdefault((mode, layouts, "unaligned" in rest), []).append(spec)
    found = dict.fromkeys([*chosen.values(), *(g[3 * i % len(g)] for i, g in enumerate(others.values()))])
    return list(found)[:: 9 if target in IN_PART else 1]


def measured(target: str) -> list:
    """Every configuration that is measured on a GPU."""
    specs, sms = [], TARGETS[target].sms or 100
    for kind in (*KINDS, *KINDS_8_BIT):
        if kind.element_bytes == 1 and target not in WITH_8_BIT:
            continue
        scaling = {0: {}, 1: {}, 2: dict(scaling="1x128 128x128")}[kind.scaling]
        options = dict(dtype="float8_e4m3fn" if kind.element_bytes == 1 else "bfloat16", target=target) | scaling
        options |= dict(a_layout="col") if kind.along == "k" else dict(b_layout="col" if kind.b_major == "k" else "row")
        for config in offered(kind, Gpu(target, sms, 2.0), triton_only=True):
            specs.append(build(kind.kernel, config=config, **options))
    return list(dict.fromkeys(specs))


def estimated(target: str) -> list:
    """Builds of which shared memory is estimated, with their configurations: with a bias, scales, a wide result, and
    pointers, whatever else goes through shared memory."""
    there = has_descriptors(target)
    specs = []
    for config in (GemmConfig(128, 256, 64, 8, 4, 8, 1, 2), GemmConfig(128, 128, 32, 8, 2), GemmConfig(16, 64, 64, 4)):
        for kernel, options in (
            ("contiguous", dict(b_layout="col", bias=True)),
            ("contiguous", dict(out_dtype="float32", bias=True)),
            ("contiguous", dict(mode="n")),
            ("contiguous", dict(mode="n", out_dtype="float32", bias=False)),
            ("contiguous", dict(dtype="float8_e4m3fn", b_layout="col")),
            ("contiguous", dict(dtype="float8_e4m3fn", b_layout="col", scaling="1x128 128x128")),
            ("contiguous", dict(mode="batch", a_layout="col", dtype="float32", precision="tf32")),
            ("transposed", dict(a_layout="col", out_dtype="float32", bias=True)),
            ("transposed", dict(a_layout="col", dtype="float32", precision="tf32")),
            ("transposed", dict(a_layout="col", out_dtype="float32", accumulate=True)),
            ("transposed", dict(a_layout="col", dtype="bfloat16", accumulate=True)),
            ("transposed", dict(a_layout="col", dtype="float8_e4m3fn", scaling="1x128 1x128")),
        ):
            small = config.block_k * TYPE_BYTES.get(options.get("dtype", "bfloat16"), 2) >= 32
            if small and ("float8" not in options.get("dtype", "") or there):
                specs.append((build(kernel, config=config, target=target, **options), config))
    return specs


def with_chiplets() -> list:
    """Builds for AMD GPUs, with their configurations: the tile of AITER's tables, and some of ours."""
    specs = []
    tiles = ((256, 256, 64, 8, 1), (256, 256, 32, 8, 2), (128, 128, 64, 8, 2), (64, 64, 64, 4, 2), (128, 256, 64, 8, 2))
    for tile in tiles:
        config = GemmConfig(*tile, num_xcds=8)
        specs += [
            (build("contiguous", b_layout="col", config=config, target=CHIPLETS[0]), config),
            (build("transposed", a_layout="col", config=config, target=CHIPLETS[0]), config),
            (build("transposed", a_layout="col", config=config, target=CHIPLETS[0], accumulate=True), config),
            (build("contiguous", mode="n", config=config, target=CHIPLETS[0]), config),
        ]
    return specs


def added(target: str) -> list:
    """Builds that add to the result's memory, of every configuration that is looked up for bfloat16."""
    there = has_descriptors(target)
    limits = dict(capability=TARGETS[target].capability, shared_limit=TARGETS[target].shared_limit, accumulate=True)
    specs = []
    for out_dtype, c_layout in (("float32", "row"), ("bfloat16", "row"), ("float32", "col")):
        options = dict(a_layout="col", dtype="bfloat16", out_dtype=out_dtype, c_layout=c_layout, target=target)
        uses_tma = there and (out_dtype, c_layout) == ("float32", "row")
        for config in all_configs(Kind("k", "n"), Gpu(target, TARGETS[target].sms or 132, 4.0), uses_tma):
            fitted = config.fitted("transposed", 2, 4 if out_dtype == "float32" else 2, uses_tma=uses_tma, **limits)
            if fitted is not None:
                specs.append(build("transposed", accumulate=True, config=fitted, **options))
    return list(dict.fromkeys(specs))


def group_sums() -> list:
    """Builds of the sums over groups: of both layouts, and in one launch or two."""
    return [
        spec
        for dtype, layout in (("bfloat16", "row"), ("bfloat16", "col"), ("float32", "row"))
        for total in (200, 4096)
        for spec in build_group_sums(dtype, layout, total, accumulate=True)
    ]


def block_scaled(target: str) -> list:
    """Scales of blocks: every pair of every mode, with the layouts of a layer, and without descriptors, in the
    configuration that a launch takes there."""
    specs, there = [], has_descriptors(target)
    for mode, scalings in BLOCK_SCALINGS.items():
        options = dict(kernel="transposed" if mode == "k" else "contiguous", mode=mode, dtype="float8_e4m3fn")
        options |= {"k": dict(a_layout="col"), "n": dict(c_layout="col")}.get(mode, dict(b_layout="col"))
        specs += [build(**options, scaling=scaling, target=target) for scaling in scalings]
        specs.append(build(**options, scaling=scalings[0], target=target, aligned=False))
    if there:
        options = dict(mode="m", dtype="float8_e4m3fn", b_layout="col", config=GemmConfig(16, 128, 128, 4, 5))
        specs.append(build("contiguous", **options, scaling=BLOCK_SCALINGS["m"][0]))
    return specs


def recorded_pairs() -> list[compiled.Pair]:
    """What ``compiled`` keeps on record for this module."""
    pairs = [(spec, target) for target in TARGETS for spec in grid(target)]
    pairs += [(spec, target) for target in MEASURED for spec in measured(target)]
    pairs += [(spec, target) for target in CHIPLETS for spec, _ in with_chiplets()]
    pairs += [(spec, target) for target in ADDING for spec in (*added(target), *group_sums())]
    pairs += [(spec, target) for target in WITH_BLOCKS for spec in block_scaled(target)]
    return pairs + [(spec, target) for target in ESTIMATED for spec, _ in estimated(target)]


def check(pairs) -> None:
    """All compile and fit."""
    problems = []
    for (spec, target), found in zip(pairs, compiled.facts(pairs), strict=True):
        if found.error:
            problems.append(f"{spec} for {target}: {found.error}")
            continue
        if found.shared > TARGETS[target].shared_limit:
            problems.append(f"{spec} for {target}: {found.shared} of {TARGETS[target].shared_limit} bytes")
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize("target", TARGETS)
def test_what_is_looked_up_compiles_and_fits(target):
    check([(spec, target) for spec in grid(target)])


@pytest.mark.parametrize("target", WITH_BLOCKS)
def test_scales_of_blocks_compile_and_fit(target):
    check([(spec, target) for spec in block_scaled(target)])


def test_nothing_of_block_scales_is_compiled_without_them():
    for kernel, mode in (("contiguous", "m"), ("transposed", "k")):
        spec = build(kernel, mode=mode, dtype="float8_e4m3fn")
        of_blocks = {name for name in spec.constexprs if name.startswith(("stride_sa_", "stride_sb_"))}
        assert len(of_blocks) == (6 if kernel == "contiguous" else 4)
        assert all(spec.constexprs[name] is None for name in of_blocks)
        assert spec.constexprs["A_LINES"] == 0


@pytest.mark.parametrize("target", MEASURED)
def test_what_the_tuner_measures_compiles_and_fits(target):
    check([(spec, target) for spec in measured(target)])


@pytest.mark.parametrize("target", ADDING)
def test_what_adds_to_its_result_and_sums_over_groups_compile_and_fit(target):
    check([(spec, target) for spec in (*added(target), *group_sums())])


def test_hopper_adds_float32_in_hardware():
    options = dict(a_layout="col", dtype="bfloat16", out_dtype="float32")
    adds, stores = (
        codegen.compile_kernel("transposed", "sm_90", accumulate=accumulate, **options) for accumulate in (True, False)
    )
    assert "cp.reduce.async.bulk.tensor.3d.global.shared::cta.add" in adds.asm["ptx"]
    assert adds.instructions["bulk tensor store"] == adds.instructions["st.global"] == 0
    assert adds.instructions["ld.global"] <= stores.instructions["ld.global"], "the result is not read"
    assert "cp.reduce" not in stores.asm["ptx"]


def test_sums_over_groups_read_16_bytes_at_a_time():
    of_items, of_groups = build_group_sums("bfloat16", "row", 4096)
    for spec in (of_items, of_groups):
        assert "ld.global.v4.b32" in codegen.compile_kernel(spec, "sm_90").asm["ptx"]


@pytest.mark.parametrize("target", ESTIMATED)
def test_shared_memory_estimate_is_an_upper_bound(target):
    specs = estimated(target)
    for (spec, config), found in zip(specs, compiled.facts((spec, target) for spec, _ in specs), strict=True):
        if found.error:  # more than the target has: said by the assembler
            assert "shared" in found.error or "resource" in found.error, found.error
            continue
        itemsize = 1 if "float8" in str(spec) else 4 if "float32 " in str(spec) else 2
        wide = 4 if itemsize == 4 or "*fp32" in spec.signature["c_ptr"] else 2
        uses_tma = spec.constexprs["C_KIND"] != 0
        capability = TARGETS[target].capability
        accumulate = spec.constexprs.get("ACCUMULATE", False)
        bound = config.shared_memory(spec.kernel, itemsize, wide, capability, uses_tma=uses_tma, accumulate=accumulate)
        assert found.shared <= bound, (str(spec), config)


@pytest.mark.parametrize("mode", ["m", "n", "k", "batch"])
def test_hopper_multiplies_with_wgmma_and_copies_in_bulk(mode):
    kernel = "transposed" if mode == "k" else "contiguous"
    options = dict(a_layout="col") if mode == "k" else {}
    options |= dict(b_layout="col", c_layout="col") if mode == "n" else {}
    counts = codegen.compile_kernel(kernel, "sm_90", mode=mode, **options).instructions
    assert counts["wgmma"] > 0
    assert counts["bulk tensor load"] >= 2
    assert counts["bulk tensor store"] >= 1
    assert counts["mma.sync"] == counts["cp.async"] == 0


@pytest.mark.skipif(runtime.mode() == "compile-only", reason="plans are for processes that can launch kernels")
@pytest.mark.parametrize("mode", ["m", "n", "k", "batch"])
@pytest.mark.parametrize("options", [{}, dict(bias=True), dict(aligned=False), dict(b_layout="col"),
                                     dict(out_dtype="float32")], ids=str)  # fmt: skip
def test_build_is_what_grouped_mm_launches(mode, options):
    if mode == "n" and options.get("bias"):
        pytest.skip("a ragged N takes no bias")
    kernel, config = "transposed" if mode == "k" else "contiguous", GemmConfig(32, 32, 32, 4, 2)
    settings = {"a_layout": "row", "b_layout": "row", "aligned": True, "bias": False, "out_dtype": None, **options}
    spec = build(kernel, mode=mode, dtype="float16", config=config, **settings)
    out_dtype = torch.float32 if settings["out_dtype"] else torch.float16
    layouts = (settings["a_layout"], settings["b_layout"], "row")
    tensors, out = stand_ins(mode, torch.float16, out_dtype, layouts, settings["aligned"], settings["bias"], 8)
    product = Product.packed(*tensors)
    problem = problem_of(product, Options(out_dtype, config=config))
    launched, _, arguments, compile_options, _ = prepare(problem, product, out, Device.of(runtime.device()))
    assert launched == kernel
    assert compile_options == {"num_warps": spec.num_warps, "num_stages": spec.num_stages}
    signature, constexprs, divisible = specialized(kernel, arguments)
    assert (signature, constexprs, tuple(sorted(divisible))) == (
        spec.signature, spec.constexprs, spec.divisible_by_16
    )  # fmt: skip


@pytest.mark.parametrize("value", [1, 16, 48, 17, 2**31 - 16, 2**31, -16], ids=str)
def test_integers_are_specialised_as_triton_does(value):
    from triton.backends.compiler import BaseBackend
    from triton.runtime.jit import native_specialize_impl

    kind, key = native_specialize_impl(BaseBackend, value, False, True, True)
    arguments = dict(build("contiguous").constexprs, total=value)
    signature, constexprs, divisible = specialized("contiguous", arguments)
    assert signature.get("total", "constexpr") == kind
    assert ("total" in divisible) == (key == "D")
    assert (constexprs.get("total") == 1) == (value == 1)


def test_descriptors_are_specialised_as_triton_does():
    from triton.backends.compiler import BaseBackend
    from triton.runtime.jit import native_specialize_impl

    tensors, out = stand_ins("m", torch.bfloat16, torch.bfloat16, ("row", "row", "row"), True, False, 8)
    product = Product.packed(*tensors)
    problem = problem_of(product, Options(config=GemmConfig()))
    arguments = prepare(problem, product, out, Device((9, 0), (9, 0), 132, None, True)).arguments
    signature, _, _ = specialized("contiguous", arguments)
    for name in ("a", "b", "c_desc"):
        assert signature[name] == native_specialize_impl(BaseBackend, arguments[name], False, True, True)[0]


def test_claims_and_bad_arguments():
    assert codegen.claims(build("contiguous", b_layout="col", config=GemmConfig(64, 64, 32, 8, 2, 8, 2))) == ()
    config = choose(Kind("m"), Extents(8, 4096, 4096, 64), Gpu("sm_90", 132, 4.0)).config
    assert "sm_90" in codegen.claims(build("contiguous", b_layout="col", config=config))
    assert {spec.kernel for spec in shipped("sm_90")} == set(KERNELS)
    with pytest.raises(ValueError, match=r"mode must be one of \('m', 'n', 'batch'\)"):
        build("contiguous", mode="k")
    with pytest.raises(ValueError, match="a_layout must be 'row' or 'col' for kernel 'transposed'"):
        build("transposed", a_layout="any")
    with pytest.raises(ValueError, match="out_dtype must be one of"):
        build("contiguous", out_dtype="float8_e4m3fn")
    with pytest.raises(ValueError, match="precision must be"):
        build("contiguous", precision="tf32")
    with pytest.raises(ValueError, match="keeps no log"):
        build("contiguous", record=True)
    with pytest.raises(ValueError, match="accumulate must be False but in mode"):
        build("contiguous", accumulate=True)
    with pytest.raises(ValueError, match="no schedule 'dynamic'"):
        build("transposed", config=GemmConfig(schedule="dynamic"))
    with pytest.raises(TypeError, match=r"no options \['mode'\]"):
        build("tma", mode="m")
    assert set(MODES) == set(PACKED_KERNELS)


@pytest.mark.parametrize("target", CHIPLETS)
def test_tiles_for_mfma_compile_with_chiplets_within_the_estimate(target):
    specs = with_chiplets()
    for (spec, config), found in zip(specs, compiled.facts((spec, target) for spec, _ in specs), strict=True):
        lds, accumulate = TARGETS[target].shared_limit, spec.constexprs.get("ACCUMULATE", False)
        bound = config.shared_memory(spec.kernel, 2, 2, uses_tma=False, lds=lds, accumulate=accumulate)
        if found.error:
            assert "shared" in found.error or "resource" in found.error, (spec, found.error)
            assert bound > TARGETS[target].shared_limit, spec
            continue
        assert found.shared <= bound, spec


def test_one_chiplet_compiles_to_no_more_code():
    plain, eight = (
        build("contiguous", b_layout="col", config=GemmConfig(64, 64, 32, 4, 2, num_xcds=n)) for n in (1, 8)
    )
    plain, eight = codegen.compile_many([(plain, "sm_90"), (eight, "sm_90")])
    assert eight.asm["ttir"].count("arith.remsi") > plain.asm["ttir"].count("arith.remsi")
