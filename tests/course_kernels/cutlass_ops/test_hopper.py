"""Our Hopper operator in NVIDIA's registry: found, described, compiled, refused, beside NVIDIA's own for Blackwell."""

from __future__ import annotations

import cutlass.operators as ops
import pytest
import torch

from course_kernels import cutlass_ops
from course_kernels.cutlass_ops import NoOperator, cutlass_api, hopper
from course_kernels.kernels.cute_sm90.config import CONFIGS
from cutlass_cases import BF16, FP16, FP32, described

FIXED = [config for config in CONFIGS if not config.dynamic]


def test_the_api_finds_it_for_hopper_and_nvidias_for_blackwell():
    found = ops.get_operators(described(), target_sm="90a")
    assert len(found) == len(FIXED)
    assert {type(each) for each in found} == {hopper.HopperGroupedGemmOperator}
    assert {each.metadata.provider for each in found} == {ops.CuTeDSLProvider}
    assert not any(isinstance(each, hopper.HopperGroupedGemmOperator)
                   for each in ops.get_operators(described(), target_sm="100f"))  # fmt: skip
    assert len({each.metadata.operator_name for each in found}) == len(found)


def test_its_metadata_is_its_configuration():
    found = cutlass_ops.discover(described(), "90a")
    for config, row in zip(FIXED, found.designs, strict=True):
        assert row.tile == (config.tile_m, config.tile_n, config.tile_k)
        assert row.cluster == (config.cluster, 1)
        assert (row.stages, row.schedule, row.ctas) == (config.stages, config.schedule, 1)
        assert (row.tile[:2], *row.others) == tuple((shape.tile_m, shape.tile_n) for shape in config.shapes)
        assert (row.targets, row.source) == (("90a",), "course_kernels")
    assert {row.schedule for row in found.where(schedule="pingpong").designs} == {"pingpong"}
    header = str(found).splitlines()[0].split()
    assert header == ["tile", "others", "cluster", "CTAs", "stages", "schedule", "targets", "source"]
    assert any(" 128×128, 64×256  2×1 " in line for line in str(found).splitlines())
    assert len(set(found.designs)) == len(found), "no two look alike"


@pytest.mark.parametrize("dtype", [BF16, FP16])
@pytest.mark.parametrize("out_dtype", [BF16, FP16, FP32])
def test_dtypes_that_it_takes(dtype, out_dtype):
    assert len(cutlass_ops.discover(described(dtype, out_dtype=out_dtype), "90a")) == len(FIXED)


@pytest.mark.parametrize(("schedule", "ctas"), [("cooperative", 2), ("pingpong", 2), ("pingpong", 1)])
def test_it_compiles_through_the_api_with_the_clusters_given(schedule, ctas):
    (operator, *_) = cutlass_ops.discover(described(), "90a").where(schedule=schedule, cluster=(ctas, 1))
    compiled = cutlass_ops.compile(operator, described(), "90a")
    assert compiled.clusters == 132 // ctas
    found = cutlass_ops.report(compiled)
    assert ".target sm_90a" in found.ptx
    assert found.instructions["wgmma"] == found.machine_instructions["wgmma"] > 0
    # A cluster's tiles lie one below the other or side by side: each way two loads, and one of them is for both CTAs. A
    # shape of tiles has loads of its own.
    loads, config = ("TMA load", "TMA load, multicast"), operator.metadata.design.config
    of_each = len(config.shapes) * config.tile_k // 64  # a load brings 128 bytes of depth
    assert [found.instructions[name] / of_each for name in loads] == ([4, 2] if ctas == 2 else [2, 0])
    assert found.instructions["TMA store"] > 0
    assert found.instructions["tensormap.replace"] == found.instructions["tcgen05.mma"] == 0
    assert found.stages == config.stages
    assert found.spills.bytes == 0


def test_a_gpus_own_operator_is_not_run_by_another():
    args = described()
    with pytest.raises(NoOperator, match="target must be 90a for this operator, got 100f"):
        cutlass_ops.compile(cutlass_ops.discover(args, "90a")[0], args, "100f")


BAD = [
    (dict(dtype=FP32), "mat_a must be bfloat16 or float16, got float32"),
    (dict(k=1020), "mat_a's stride along total_m must be a multiple of 8"),
    (dict(dtype=torch.float8_e4m3fn, out_dtype=BF16), "target must be 100f .*, got 90a"),
    (dict(total_m=0), "total_m must be at least 1, got mat_a"),
    (dict(n=0), "N must be at least 1, got mat_b"),
    (dict(groups=0), "G must be at least 1, got mat_b"),
]


@pytest.mark.parametrize(("changed", "message"), BAD, ids=[str(changed) for changed, _ in BAD])
def test_what_it_does_not_take_is_told(changed, message):
    with pytest.raises(NoOperator, match=message):
        cutlass_ops.discover(described(**changed), "90a")


def test_operands_that_do_not_fit_are_refused_by_the_operator_itself():
    """NVIDIA's arguments check ranks and groups only."""
    tensors = [torch.empty(shape, dtype=BF16, device="meta") for shape in ((64, 32), (3, 16, 32), (64, 24))]
    args = ops.IndexPtrGroupedGemmArguments(
        tensors[0], tensors[1].mT, tensors[2], torch.float32, torch.empty(3, dtype=torch.int32, device="meta"), "m"
    )
    assert ops.get_operators(args, target_sm="90a") == []


def test_the_reference_notebooks_lines_find_it():
    tensors = [
        torch.empty(shape, dtype=BF16, device="meta") for shape in ((8192, 1024), (12, 2048, 1024), (8192, 2048))
    ]
    with pytest.warns(DeprecationWarning, match="GroupedGemmArguments"):
        args = cutlass_api.arguments.GroupedGemmArguments(
            tensors[0],
            tensors[1].permute(0, 2, 1),
            tensors[2],
            accumulator_type=torch.float32,
            offsets=torch.empty(12, dtype=torch.int32, device="meta"),
        )
    with pytest.warns(DeprecationWarning, match="get_kernels"):
        kernels = cutlass_api.get_kernels(args, cc=90)
    assert kernels
    assert isinstance(kernels[0], hopper.HopperGroupedGemmOperator)


@pytest.mark.gpu
def test_it_runs_on_hopper_and_equals_the_loop():
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("needs compute capability 9.0")
    sizes = [300, 0, 1, 2000, 700]
    offs = torch.tensor(sizes, device="cuda").cumsum(0).to(torch.int32)
    for dtype, out_dtype in ((BF16, BF16), (FP16, FP32)):
        mat_a = torch.randn(sum(sizes) + 70, 512, device="cuda", dtype=dtype)
        mat_b = torch.randn(len(sizes), 768, 512, device="cuda", dtype=dtype).mT
        out = torch.full((mat_a.shape[0], 768), float("nan"), device="cuda", dtype=out_dtype)
        args = cutlass_ops.arguments(mat_a, mat_b, offs=offs, out=out)
        for operator in cutlass_ops.discover(args):
            out.fill_(float("nan"))
            cutlass_ops.run(cutlass_ops.compile(operator, args), args)
            found = cutlass_ops.compare(args)
            assert found.right, (operator.metadata.operator_name, found)
            assert found.tail == "zero", operator.metadata.operator_name


@pytest.mark.gpu
def test_code_for_another_gpu_is_compiled_here_and_not_run():
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("needs compute capability 9.0")
    args = described()
    compiled = cutlass_ops.compile(cutlass_ops.discover(args, "100f")[0], args, "100f")
    assert cutlass_ops.report(compiled).instructions["tcgen05.mma"] > 0
    with pytest.raises(
        RuntimeError, match=r"needs an NVIDIA GPU of compute capability 10\.0 or of its family; this one's is 9\.0"
    ):
        cutlass_ops.run(compiled, args)
