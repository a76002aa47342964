"""Every kernel and configuration that ships compiles for every target that it claims, and becomes what it should."""

from __future__ import annotations

import json
import random
import re

import pytest
import torch
import triton

import compiled
from course_kernels import GemmConfig, GroupGemmPlan, codegen, runtime
from course_kernels.codegen import TARGETS, Build, build, compile_kernel, shipped
from course_kernels.codegen.spec import KERNELS, LIST_KERNELS
from course_kernels.lists import launch
from course_kernels.lists.cost_model import candidates

CUDA = [name for name, target in TARGETS.items() if target.backend == "cuda"]
TMA = ["sm_90", "sm_100", "sm_120"]
# Compiled in part: the compiler does nearly the same for its neighbour.
NEIGHBOURS = {"sm_86": "sm_80", "sm_89": "sm_80", "sm_103": "sm_100", "sm_121": "sm_120"}


def grid(target: str) -> list[Build]:
    """What of ``shipped`` is compiled here: all kernels, dtypes, precisions and configurations with row-major aligned
    operands, and every other pair of layouts, aligned or not, for one configuration of each kernel, dtypes in turn.

    Layouts change how a block is loaded, configurations how much of it, dtypes which instruction multiplies; of the
    three, only the configuration decides whether a build fits, so only that axis is covered in full. Of the pairs, the
    transposed ones (the gradients' operands) matter most and are not left out for any kernel.
    """
    everything = shipped(target, LIST_KERNELS)
    chosen = [spec for spec in everything if " row/row " in str(spec) and "unaligned" not in str(spec)]
    others: dict[tuple, list[Build]] = {}
    for spec in everything:
        layouts = re.search(r"(row|col|any)/(row|col|any)", str(spec))[0]
        others.setdefault((spec.kernel, layouts, "unaligned" in str(spec)), []).append(spec)
    for turn, group in enumerate(others.values()):
        chosen.append(group[turn * 3 % len(group)])
    return list(dict.fromkeys(chosen))[:: 9 if target in NEIGHBOURS else 1]


def estimated(target: str, out_dtype: str) -> list[tuple[Build, GemmConfig]]:
    """Builds of which shared memory is estimated, with their configurations."""
    configs = [candidate.config for candidate in candidates("tma", 2, "ieee")]
    return [(build("tma", out_dtype=out_dtype, config=config), config) for config in configs]


def recorded_pairs() -> list[compiled.Pair]:
    """What ``compiled`` keeps on record for this module."""
    pairs = [(spec, target) for target in TARGETS for spec in grid(target)]
    return pairs + [(spec, t) for t in TMA for dtype in ("float16", "float32") for spec, _ in estimated(t, dtype)]


@pytest.mark.parametrize("target", TARGETS)
def test_what_ships_compiles_and_fits(target):
    specs = grid(target)
    problems = []
    for spec, found in zip(specs, compiled.facts((spec, target) for spec in specs), strict=True):
        if found.error:
            problems.append(f"{spec}: {found.error}")
            continue
        if found.shared > TARGETS[target].shared_limit:
            problems.append(f"{spec}: {found.shared} bytes of {TARGETS[target].shared_limit} shared memory")
        if not 0 < found.registers <= (255 if target in CUDA else 512):
            problems.append(f"{spec}: {found.registers} registers")
    assert not problems, "\n".join(problems)


def test_the_record_is_of_these_kernels():
    record = json.loads(compiled.RECORD.read_text(encoding="utf-8"))
    made_from = record.pop("made from")
    if made_from["triton"] != triton.__version__:
        pytest.skip(f"the record is Triton {made_from['triton']}'s, and this is {triton.__version__}")
    assert made_from == compiled.made_from(), "the kernels have changed: python tests/support/compiled.py"
    assert record.keys() == compiled.every_pair().keys(), "other kernels ship now: python tests/support/compiled.py"


def test_the_compiler_says_what_the_record_says():
    """Of some of all, other ones in each run."""
    pairs = compiled.every_pair()
    chosen = random.sample(sorted(pairs), 16)
    found = dict(zip(chosen, compiled.compile_all(map(pairs.get, chosen)), strict=True))
    expected = dict(zip(chosen, compiled.facts(map(pairs.get, chosen)), strict=True))
    assert {name: each._replace(error=bool(each.error)) for name, each in found.items()} == {
        name: each._replace(error=bool(each.error)) for name, each in expected.items()
    }


@pytest.mark.parametrize("target", [name for name in TARGETS if name not in NEIGHBOURS])
def test_every_configuration_dtype_and_layout_is_in_the_grid(target):
    everything, chosen = shipped(target, LIST_KERNELS), grid(target)

    def covered(specs, pattern):
        return {re.search(pattern, str(spec))[0] for spec in specs}

    for pattern in (r"^\w+", r"^\w+ \w+( tf32)?", r"\w+/\w+", r"\d+×\d+×\d+.*?(?= unaligned|$)"):
        assert covered(chosen, pattern) == covered(everything, pattern)


def test_what_is_claimed_where():
    half = build("round_robin", dtype="float16", config=GemmConfig(64, 64, 32, 8, 2, 8, 2), aligned=False)
    assert codegen.claims(half) == tuple(TARGETS)
    names = {target: {" ".join(str(spec).split()[:2]) for spec in shipped(target, LIST_KERNELS)} for target in TARGETS}
    with_tma = {*TMA, "sm_103", "sm_121"}
    assert {target for target in TARGETS if "tma float16" in names[target]} == with_tma
    assert {target for target in TARGETS if "round_robin float8_e4m3fn" in names[target]} == {*with_tma, "sm_89"}
    assert "round_robin bfloat16" not in names["sm_75"]
    assert {"round_robin bfloat16", "naive float32"} <= names["gfx942"] & names["gfx950"] & names["sm_80"]


@pytest.mark.parametrize("out_dtype", ["float16", "float32"])
@pytest.mark.parametrize("target", TMA)
def test_shared_memory_estimate_is_an_upper_bound(target, out_dtype):
    size = 4 if out_dtype == "float32" else 2
    there = estimated(target, out_dtype)
    for (_, config), found in zip(there, compiled.facts((spec, target) for spec, _ in there), strict=True):
        assert found.shared <= config.shared_memory("tma", 2, size, TARGETS[target].capability), config


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float8_e4m3fn"])
def test_hopper_descriptor_kernel_uses_wgmma_and_bulk_copies(dtype):
    counts = compile_kernel("tma", "sm_90", dtype=dtype).instructions
    assert counts["wgmma"] > 0
    assert counts["bulk tensor load"] >= 2
    assert counts["bulk tensor store"] >= 1
    assert counts["mma.sync"] == counts["cp.async"] == counts["st.global"] == 0


def test_each_target_multiplies_on_its_matrix_unit():
    expected = {"sm_80": "mma.sync", "sm_90": "wgmma", "sm_100": "tcgen05.mma", "sm_120": "mma.sync"}
    expected |= {name: expected[neighbour] for name, neighbour in NEIGHBOURS.items()}
    expected.update(gfx942="mfma", gfx950="mfma")
    for target, instruction in expected.items():
        counts = compile_kernel("round_robin", target).instructions
        others = set(expected.values()) - {instruction}
        assert counts[instruction] > 0, target
        assert not any(counts[other] for other in others), target


@pytest.mark.parametrize("kernel", ["naive", "round_robin"])
@pytest.mark.parametrize("layouts", [("row", "row"), ("row", "col"), ("col", "row")])
def test_aligned_operands_are_copied_16_bytes_at_a_time(kernel, layouts):
    options = {"a_layout": layouts[0], "b_layout": layouts[1]}
    aligned = compile_kernel(kernel, "sm_90", **options).widths
    assert aligned["cp.async"].keys() == {16}
    assert 2 not in aligned["ld.global"]
    unaligned = compile_kernel(kernel, "sm_90", aligned=False, **options).widths
    assert not unaligned["cp.async"]
    assert unaligned["ld.global"][2] > 0
    assert 16 not in unaligned["ld.global"]


def test_aligned_operands_are_loaded_16_bytes_at_a_time_on_amd():
    assert compile_kernel("round_robin", "gfx942").widths["ld.global"][16] > 0
    assert 16 not in compile_kernel("round_robin", "gfx942", aligned=False).widths["ld.global"]


def _type_of(value) -> str:
    if isinstance(value, torch.Tensor):
        names = {torch.float16: "fp16", torch.float32: "fp32", torch.int32: "i32", torch.int64: "i64"}
        return "*" + names[value.dtype]
    return "constexpr" if value is None or value == 1 else "i32"


@pytest.mark.skipif(runtime.mode() == "compile-only", reason="plans are for processes that can launch kernels")
@pytest.mark.parametrize("kernel", ["naive", "round_robin", "tma"])
@pytest.mark.parametrize(("a_layout", "b_layout"), [("row", "row"), ("col", "row"), ("row", "col")])
@pytest.mark.parametrize("n", [64, 56, 50])
def test_build_is_what_group_gemm_launches(kernel, a_layout, b_layout, n):
    config = GemmConfig(32, 32, 32, 4, 2)
    device = runtime.device()
    A = [torch.zeros(64, 64, dtype=torch.float16, device=device) for _ in range(3)]
    B = [torch.zeros(64, n, dtype=torch.float16, device=device) for _ in range(3)]
    A = A if a_layout == "row" else [a.t().contiguous().t() for a in A]
    B = B if b_layout == "row" else [b.t().contiguous().t() for b in B]
    plan = GroupGemmPlan(A, B, method=kernel, config=config)
    launched = plan.launches[0].kernel
    assert launched == ("round_robin" if kernel == "tma" and b_layout == "row" and n == 50 else kernel)
    function, _, args, kwargs = plan._prepared._calls[0]
    aligned = n % 16 == 0 or (kernel != "naive" and n % 8 == 0)
    spec = build(launched, config=config, a_layout=a_layout, b_layout=b_layout, aligned=aligned)
    assert function is launch.KERNELS[launched]
    assert kwargs.pop("num_warps") == spec.num_warps
    assert kwargs.pop("num_stages") == spec.num_stages
    assert kwargs == {name: spec.constexprs[name] for name in kwargs}
    for name, value in zip(function.arg_names, args):  # the rest are keyword arguments
        expected = "constexpr" if name in spec.constexprs else spec.signature[name]
        assert _type_of(value) == expected, name
        if name in spec.constexprs:
            assert spec.constexprs[name] == value, name
        elif name in spec.divisible_by_16:
            assert (value.data_ptr() if isinstance(value, torch.Tensor) else value) % 16 == 0, name


def test_bad_arguments_are_named():
    with pytest.raises(ValueError, match="kernel must be one of"):
        build("fast")
    with pytest.raises(ValueError, match="a_layout must be 'row' or 'col'"):
        build("tma", a_layout="any")
    with pytest.raises(ValueError, match=r"^dtype must be one of"):
        build("tma", dtype="float64")
    with pytest.raises(ValueError, match="out_dtype must be one of float16, bfloat16, float32, got"):
        build("tma", out_dtype="float8_e4m3fn")
    with pytest.raises(ValueError, match=r"precision must be one of \('ieee', 'tf32'\)"):
        build("tma", precision="fast")
    for kernel in KERNELS:
        with pytest.raises(TypeError, match="config must be a GemmConfig, got dict"):
            build(kernel, config={"BLOCK_SIZE_M": 64})
        with pytest.raises(ValueError, match=r"target must be one of .* got 'gfx9'"):
            build(kernel, target="gfx9")
    with pytest.raises(TypeError, match="kernel 'naive' has no options"):
        build("naive", bias=True)
    with pytest.raises(ValueError, match="record must be False for 'contiguous'"):
        build("contiguous", record=True)
