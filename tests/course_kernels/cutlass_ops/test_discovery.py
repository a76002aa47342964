"""The Operator API flow without a GPU: describe, discover, compile for Hopper and Blackwell, read, compare; and what is
said where something does not fit."""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys

import cutlass.operators as ops
import pytest
import torch
from cutlass.cutlass_dsl import CuTeDSL
from cutlass.operators.providers.cutedsl.integration_utils.mma import get_max_active_clusters
from cutlass.operators.providers.cutedsl.operator import CuteDslOperator
from cutlass.utils import HardwareInfo

from course_kernels import cutlass_ops
from course_kernels.codegen import CompileError
from course_kernels.cutlass_ops import NoOperator, cutlass_api
from course_kernels.cutlass_ops.discovery import find_target
from course_kernels.testing import integers, reference

BF16, FP16, FP32, FP8 = torch.bfloat16, torch.float16, torch.float32, torch.float8_e4m3fn
TOTAL_M, G, K, N = 8192, 12, 1024, 2048  # the problem of NVIDIA's own notebook


def described(dtype=BF16, total_m=TOTAL_M, groups=G, k=K, n=N, **options):
    """Arguments without memory."""
    options = {"b_dtype": dtype, "offs_dtype": torch.int32, "out": None, "out_dtype": None, **options}
    mat_a = torch.empty(total_m, k, dtype=dtype, device="meta")
    mat_b = torch.empty(groups, n, k, dtype=options.pop("b_dtype"), device="meta").mT
    offs = torch.empty(groups, dtype=options.pop("offs_dtype"), device="meta")
    return cutlass_ops.arguments(options.pop("a", mat_a), options.pop("b", mat_b), offs=offs, **options)


def meta(*shape, dtype=BF16):
    return torch.empty(shape, dtype=dtype, device="meta")


def off_by_an_element(*shape):
    return torch.empty(torch.Size(shape).numel() + 1, dtype=BF16)[1:].view(shape)


@pytest.fixture(scope="module")
def blackwell():
    """NVIDIA's operator with its largest tile, two CTAs to an instruction, compiled."""
    args = described()
    (operator, *_) = cutlass_ops.discover(args, "100f").where(ctas=2, tile=(256, 256, 64), cluster=(2, 1))
    return cutlass_ops.compile(operator, args, "100f")


# arguments


def test_arguments_are_nvidias_own_and_copy_nothing():
    mat_a, mat_b = torch.zeros(64, 32, dtype=BF16, requires_grad=True), torch.zeros(3, 16, 32, dtype=BF16).mT
    offs = torch.tensor([10, 10, 60], dtype=torch.int32)
    args = cutlass_ops.arguments(mat_a, mat_b, offs=offs, out_dtype=FP32)
    assert isinstance(args, ops.IndexPtrGroupedGemmArguments)
    assert args.offsets_along == "m"
    assert args.A.tensor.runtime_tensor.data_ptr() == mat_a.data_ptr()
    assert args.B.tensor.runtime_tensor.data_ptr() == mat_b.data_ptr()
    out = args.out.tensor.runtime_tensor
    assert (tuple(out.shape), out.dtype) == ((64, 16), FP32)
    given = torch.zeros(64, 16, dtype=BF16)
    assert cutlass_ops.arguments(mat_a, mat_b, offs=offs, out=given).out.tensor.runtime_tensor is given


@pytest.mark.parametrize(
    ("a", "b", "along", "out"),
    [
        ((64, 32), (3, 32, 16), "m", (64, 16)),
        ((3, 64, 32), (32, 48), "n", (64, 48)),
        ((64, 96), (96, 16), "k", (3, 64, 16)),
    ],
)
def test_ranks_say_what_is_shared_out(a, b, along, out):
    args = cutlass_ops.arguments(meta(*a), meta(*b), offs=meta(3, dtype=torch.int32))
    assert (args.offsets_along, tuple(args.out.shape)) == (along, out)


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        (dict(mat_a=None), TypeError, "mat_a must be a torch.Tensor, got NoneType"),
        (dict(offs=[1, 2, 3]), TypeError, "offs must be a torch.Tensor, got list"),
        (dict(mat_a=meta(2, 64, 32)), ValueError, r"2 and 3, 3 and 2, or 2 and 2 dimensions, got shapes \(2, 64, 32\)"),
        (dict(mat_a=meta(64, 24)), ValueError, "mat_a has K = 24, mat_b has K = 32"),
        (
            dict(mat_b=meta(3, 16, 32)),
            ValueError,
            r"K = 16: they must be equal; mat_b has shape \(3, 16, 32\): pass its",
        ),
        (dict(offs=meta(3, dtype=FP32)), TypeError, "offs must be torch.int32, got torch.float32"),
        (dict(out_dtype="float32"), TypeError, "out_dtype must be a torch.dtype, got 'float32'"),
        (dict(accumulator_type=None), TypeError, "accumulator_type must be a torch.dtype, got None"),
        (dict(offs=meta(4, dtype=torch.int32)), ValueError, "offs has the ends of 4 groups, mat_b holds 3 matrices"),
        (
            dict(offs=meta(3, 1, dtype=torch.int32)),
            ValueError,
            r"offs must have one dimension, \(G,\), got shape \(3, 1\)",
        ),
        (dict(out=meta(64, 24)), ValueError, r"out must have shape \(64, 16\), got \(64, 24\)"),
        (dict(out=meta(64, 16), out_dtype=FP32), ValueError, "out_dtype must be out's, torch.bfloat16, or None"),
        (dict(mat_b=torch.empty(3, 32, 16)), ValueError, "mat_b is on cpu, mat_a on meta"),
        (dict(mat_a=meta(64, 32, dtype=torch.complex64)), TypeError, "mat_a is torch.complex64, a dtype that CUTLASS"),
    ],
)
def test_arguments_that_do_not_fit_one_another(changed, error, message):
    given = dict(mat_a=meta(64, 32), mat_b=meta(3, 32, 16), offs=meta(3, dtype=torch.int32)) | changed
    with pytest.raises(error, match=message):
        cutlass_ops.arguments(given.pop("mat_a"), given.pop("mat_b"), **given)


# discover


def test_operators_for_blackwell_and_what_tells_them_apart():
    found = cutlass_ops.discover(described(), "100f")
    assert len(found) == len(ops.get_operators(described(), target_sm="100f")) > 10
    assert len(set(found.designs)) == len(found), "no two look alike"
    assert {row.ctas for row in found.designs} == {1, 2}
    assert {row.source for row in found.designs} == {"cutlass"}
    two = found.where(ctas=2)
    assert 0 < len(two) < len(found)
    assert all(operator.metadata.design.use_2cta_mma for operator in two)
    large = found.where(tile=(256, 256, 64), cluster=lambda cluster: cluster[1] == 1)
    assert {row.cluster[1] for row in large.designs} == {1}
    lines = str(large).splitlines()
    assert lines[0].split() == ["tile", "cluster", "CTAs", "stages", "targets", "source"]
    assert lines[1].split() == ["0", "256×256×64", "2×1", "2", "auto", "100f,", "110f", "cutlass"]
    assert isinstance(found[1:3], cutlass_ops.Operators)
    with pytest.raises(TypeError, match=r"a design has tile, others, cluster, .* and no colour"):
        found.where(colour="red")


def test_members_of_a_family_find_its_operators():
    names = [[each.metadata.operator_name for each in cutlass_ops.discover(described(), target)]
             for target in ("100f", "100a", "sm_103a")]  # fmt: skip
    assert names[0] == names[1] == names[2]


def test_a_filter_of_metadata_that_nothing_passes_says_so():
    only = cutlass_ops.discover(described(), "100f", where=lambda metadata: metadata.design.cluster_shape == (1, 1, 1))
    assert {row.cluster for row in only.designs} == {(1, 1)}
    with pytest.raises(NoOperator, match=r"where says no to each of the \d+ that"):
        cutlass_ops.discover(described(), "100f", where=lambda metadata: False)


BAD = [
    ("fp32 operands", lambda: described(FP32), "100f", ["mat_a must be bfloat16, float16, .*, got float32"]),
    ("fp64 operands", lambda: described(torch.float64, out_dtype=FP32), "100f", ["mat_a must be .*, got float64"]),
    ("mixed operands", lambda: described(b_dtype=FP16), "100f",
     ["mat_b must be bfloat16 where mat_a is bfloat16, got float16"]),
    ("two kinds of fp8", lambda: described(FP8, b_dtype=torch.float8_e5m2, out_dtype=BF16), "100f",
     ["mat_b must be float8_e4m3fn where mat_a is float8_e4m3fn, got float8_e5m2"]),
    ("fp8 result", lambda: described(FP8), "100f", ["out must be bfloat16, float16 or float32 .*, got float8_e4m3fn"]),
    ("fp64 result", lambda: described(out_dtype=torch.float64), "100f", ["out must be bfloat16, float16 or float32"]),
    ("fp16 sums", lambda: described(accumulator_type=FP16), "100f", ["accumulator_type must be float32, got float16"]),
    ("int64 offsets", lambda: described(offs_dtype=torch.int64), "100f", [r"offs must be int32, got int64: use \.to"]),
    ("B stored (G, K, N)", lambda: described(b=meta(G, K, N)), "100f",
     [r"mat_b \(G, K, N\) must have stride 1 along K, got strides \(2097152, 2048, 1\): store it as \(G, N, K\) and"]),
    ("A stored (K, total_m)", lambda: described(a=meta(K, TOTAL_M).mT), "100f",
     [r"mat_a \(total_m, K\) must have stride 1 along K, got strides \(1, 8192\): use \.contiguous\(\)"]),
    ("result stored (N, total_m)", lambda: described(out=meta(N, TOTAL_M).mT), "100f",
     [r"out \(total_m, N\) must have stride 1 along N"]),
    ("K of 1020", lambda: described(k=1020), "100f",
     [r"mat_a's stride along total_m must be a multiple of 8 elements \(16 bytes\), .*: pad K", "mat_b's stride"]),
    ("K of 1032 in fp8", lambda: described(FP8, k=1032, out_dtype=BF16), "100f",
     [r"mat_a's stride along total_m must be a multiple of 16 elements \(16 bytes\)", "mat_b's stride"]),
    ("N of 2044", lambda: described(n=2044), "100f", ["out's stride along total_m must be a multiple of 8 elements"]),
    ("address", lambda: cutlass_ops.arguments(off_by_an_element(64, 128), torch.empty(4, 64, 128, dtype=BF16).mT,
                                              offs=torch.zeros(4, dtype=torch.int32)), "100f",
     [r"mat_a must start at a multiple of 16 bytes, got an address 2 bytes past one: use \.clone\(\)"]),
    ("gaps", lambda: described(a=meta(TOTAL_M, 2 * K)[:, :K]), "100f",
     [r"mat_a must be packed, without gaps between its rows: got shape \(8192, 1024\) with strides \(2048, 1\)"]),
    ("K shared out", lambda: cutlass_ops.arguments(meta(256, 512), meta(512, 256), offs=meta(4, dtype=torch.int32)),
     "100f", ["offs shares out K, and there are operators only where it shares out M"]),
    ("an older GPU", described, "80", [r"target must be 100f \(or any 10xa\).*, got 80"]),
    ("a GPU without tcgen05", described, "120a", [r"target must be 100f \(or any 10xa\).*, got 120a"]),
    ("a target without its letter", described, "100", [r"target must be .*, got 100$", "mean '100a' or '100f'"]),
    ("Hopper without its letter", described, "90", [r"target must be .*, got 90$", r"did you mean '90a'\?"]),
    ("fp32 on Hopper", lambda: described(FP32), "90a", ["mat_a must be bfloat16 or float16, got float32$"]),
    ("fp8 on Hopper", lambda: described(FP8, out_dtype=BF16), "90a", ["target must be 100f .* dtypes, got 90a"]),
    ("no depth", lambda: described(k=0), "90a", [r"K must be at least 1, got mat_a of shape \(8192, 0\)"]),
    ("no columns", lambda: described(n=0), "100f", [r"N must be at least 1, got mat_b of shape \(12, 1024, 0\)"]),
    ("no rows", lambda: described(total_m=0), "90a", ["total_m must be at least 1, got mat_a"]),
    ("no groups", lambda: described(groups=0), "90a", ["G must be at least 1, got mat_b"]),
    ("much", lambda: described(FP32, b=meta(G, K, N, dtype=FP32), offs_dtype=torch.int64), "100f",
     ["mat_a must be", "offs must be int32", r"mat_b \(G, K, N\) must have stride 1 along K"]),
]  # fmt: skip


@pytest.mark.parametrize(("make", "target", "reasons"), [case[1:] for case in BAD], ids=[case[0] for case in BAD])
def test_bad_input_is_told_what_the_operators_need(make, target, reasons):
    args = make()
    with pytest.raises(NoOperator) as caught:
        cutlass_ops.discover(args, target)
    told = caught.value.reasons
    assert len(told) >= len(reasons)
    for wanted in reasons:
        assert any(re.search(wanted, each) for each in told), told
    # Nor does an operator that was found for better operands take these.
    good = cutlass_ops.discover(described(), "100f")[0]
    with pytest.raises(NoOperator):
        cutlass_ops.compile(good, args, target)


@pytest.mark.parametrize("name", ["fp32 operands", "mixed operands", "fp64 result"])
def test_the_api_itself_lets_dtypes_pass_that_no_operator_declares(name):
    """Why ``discover`` looks again: without arguments in hand the same classes do not list these."""
    (args,) = (make() for case, make, *_ in BAD if case == name)
    assert ops.get_operators(args, target_sm="100f")


def test_repaired_arguments_find_operators():
    assert len(cutlass_ops.discover(described(k=1024, n=2048, offs_dtype=torch.int32), "100f"))
    assert len(cutlass_ops.discover(described(FP8, out_dtype=BF16), "100f"))
    assert len(cutlass_ops.discover(described(groups=1, total_m=8), "100f"))


@pytest.mark.parametrize("target", ["hopper", "", "sm90", "100b", 3.5])
def test_targets_that_do_not_exist(target):
    with pytest.raises(ValueError, match='target must be like "90a", "100f"'):
        cutlass_ops.discover(described(), target)


def test_targets_by_their_names():
    assert str(find_target("sm_90a")) == str(find_target("90A")) == str(find_target(ops.TargetSm("90a"))) == "90a"
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match="target must be given where there is no GPU"):
            find_target(None)


# compile and report


def test_blackwell_code_from_a_machine_without_one(blackwell):
    found = cutlass_ops.report(blackwell)
    assert ".target sm_100f" in found.ptx
    assert found.instructions["tcgen05.mma"] == found.instructions["tcgen05.mma, 2 CTAs"] > 0
    for name in ("tcgen05.mma", "tcgen05.mma, 2 CTAs", "tcgen05.ld", "TMA store", "setmaxnreg"):
        assert found.machine_instructions[name] == found.instructions[name], name
    assert found.instructions["wgmma"] == found.machine_instructions["wgmma"] == 0
    assert found.instructions["TMA load"] == found.machine_instructions["TMA load"] == 2
    assert found.instructions["mbarrier"] > found.instructions["mbarrier wait"] > 0
    assert found.instructions["tensormap.replace"] == 0, "no descriptor changes on the device"
    assert found.stages == blackwell.operator.impl.num_ab_stage > 1
    assert found.spills.bytes == 0
    assert found.threads % 32 == 0 < found.threads <= 1024
    assert 100 < found.registers <= 255
    assert found.binary_bytes == len(blackwell.cubin) > 10_000
    assert blackwell.cubin.startswith(b"\x7fELF")
    assert "tcgen05.mma" in found.excerpt(r"tcgen05\.mma", 0, 0)
    assert "UTCHMMA" in found.excerpt("UTCHMMA", 0, 0, stage="sass")
    assert "256×256×64 in clusters of 2×1 for sm_100f" in repr(found)
    with pytest.raises(
        ValueError, match=r"matches no line of the assembly of 256×256×64 in clusters of 2×1 for sm_100f$"
    ):
        found.excerpt("no such thing")


def test_dense_hopper_operator_multiplies_with_wgmma_and_both_fit_in_a_table(blackwell):
    """NVIDIA's own Hopper operator is for a single product."""
    operands = meta(512, 256), meta(512, 256).mT, meta(512, 512)
    args = ops.GemmArguments(*operands, accumulator_type=torch.float32)
    (operator, *_) = (
        each for each in ops.get_operators(args, target_sm="90a") if hasattr(each.impl, "cluster_shape_mn")
    )
    compiled = cutlass_ops.compile(operator, args, "90a")
    found = cutlass_ops.report(compiled)
    assert ".target sm_90a" in found.ptx
    assert found.instructions["wgmma"] == found.machine_instructions["wgmma"] > 0
    assert found.instructions["tcgen05.mma"] == 0
    table = cutlass_ops.side_by_side([found, cutlass_ops.report(blackwell)])
    rows = {line[: line.index("  ")]: line.split()[-2:] for line in table.splitlines()[1:]}
    assert rows["wgmma"] == [str(found.instructions["wgmma"]), "0"]
    assert rows["registers per thread"] == [str(found.registers), str(cutlass_ops.report(blackwell).registers)]


def test_the_target_of_a_compilation_is_its_own_and_settings_are_put_back(blackwell):
    settings = CuTeDSL._get_dsl().envar
    before = settings.arch, settings.keep_ptx, settings.dump_dir, HardwareInfo.get_max_active_clusters
    compiled = cutlass_ops.compile(blackwell.operator, described(), "103a", clusters=74)
    assert ".target sm_103a" in compiled.ptx
    assert (str(compiled.target), compiled.clusters) == ("103a", 74)
    now = settings.arch, settings.keep_ptx, settings.dump_dir, HardwareInfo.get_max_active_clusters
    assert now == before


class Asks(CuteDslOperator):
    """An operator that asks how many clusters there are, and then does not compile."""

    supported_args_type = ops.RuntimeArguments  # found for no arguments: nothing else in this process meets it
    designed_for_min_cc = 90

    @classmethod
    def _generate_operators(cls, metadata_filter, epilogue_args=None, target_sm=None, args=None):
        like = cutlass_ops.discover(described(), "100f").where(cluster=(4, 2))[0].metadata
        return [cls(dataclasses.replace(like, operator_class=cls))]

    def _compile(self, args, target_sm=None):
        number = get_max_active_clusters(self.metadata.design.cluster_shape)
        raise RuntimeError(f"{number} clusters for {target_sm} on {CuTeDSL._get_dsl().envar.arch}")

    def _run(self, args, compiled_artifact, stream, workspace=None):
        raise NotImplementedError


@pytest.mark.parametrize(("target", "given", "told"), [("100f", None, 18), ("100a", 7, 7), ("110f", 3, 3)])
def test_the_number_of_clusters_is_given_and_no_driver_asked(target, given, told):
    (operator,) = Asks.generate_operators(lambda metadata: True)
    with pytest.raises(CompileError, match=f": {told} clusters for {target} on sm_{target}$"):
        cutlass_ops.compile(operator, described(), target, clusters=given)


def test_what_is_no_operator_is_told():
    with pytest.raises(TypeError, match=r"operator must be one that discover has found, got int"):
        cutlass_ops.compile(0, described(), "90a")


def test_what_is_nothing_of_arguments_or_compile_is_told():
    args = described()
    found = cutlass_ops.discover(args, "100f")
    with pytest.raises(TypeError, match="args must be what arguments returned, got Tensor"):
        cutlass_ops.discover(meta(64, 32), "100f")
    with pytest.raises(TypeError, match="compiled must be what compile returned, got "):
        cutlass_ops.report(found[0])
    with pytest.raises(ValueError, match="args must have a result to compare, got tensors on the device 'meta'"):
        cutlass_ops.compare(args)
    with pytest.raises(IndexError, match=f"there are {len(found)} operators, none at index 999"):
        found[999]
    with pytest.raises(TypeError, match="compiled must be what compile returned, got "):
        cutlass_ops.run(found[0], args)
    with pytest.raises(TypeError, match="args must be what arguments returned, got tuple"):
        cutlass_ops.compile(found[0], (meta(64, 32), meta(3, 32, 16)), "100f")
    with pytest.raises(TypeError, match="args must be what arguments returned, got "):
        cutlass_ops.compare(found[0])
    with pytest.raises(TypeError, match=r"reports\[0\] must be what report returned, got "):
        cutlass_ops.side_by_side([found[0]])


def test_a_choice_that_leaves_none_says_what_there_is():
    found = cutlass_ops.discover(described(), "90a")
    none = found.where(schedule="ping-pong")
    assert (len(none), str(none)) == (0, "no operators: schedule is one of 'cooperative', 'pingpong', not 'ping-pong'")
    assert str(none.where(ctas=1)) == str(none)
    with pytest.raises(IndexError, match=r"none at index 0 \(tile is one of \(128, 128, 64\), .*, not \(128, 256\)\)"):
        found.where(tile=(128, 256))[0]
    assert str(found.where(stages=lambda stages: stages > 99)).endswith("not what was asked")
    assert str(found.where(tile=(128, 256, 64), schedule="pingpong")).endswith(
        "none has all of tile, schedule as asked"
    )
    assert str(cutlass_ops.Operators([])) == "no operators"


@pytest.mark.parametrize("target", ["90a", "100f"])
def test_an_operator_says_what_it_takes_itself(target):
    """Though others of its class take these operands."""
    operator = cutlass_ops.discover(described(), target)[0]
    for args, reasons in (
        (
            described(FP16),
            [f"{each} must be bfloat16 for this operator, got float16" for each in ("mat_a", "mat_b", "out")],
        ),
        (described(out_dtype=FP32), ["out must be bfloat16 for this operator, got float32"]),
        (described(offs_dtype=torch.int64), ["offs must be int32 for this operator, got int64"]),
        (described(k=0), ["K must be at least 1, got mat_a of shape (8192, 0)"]),
        (
            cutlass_ops.arguments(meta(64, 96), meta(96, 16), offs=meta(3, dtype=torch.int32)),
            ["offs shares out K, which this operator is not for"],
        ),
    ):
        with pytest.raises(NoOperator) as caught:
            cutlass_ops.compile(operator, args, target)
        assert caught.value.reasons == reasons


def test_dtypes_that_depend_on_a_wrong_one_are_not_complained_of():
    args = described(dtype=torch.int32)
    with pytest.raises(NoOperator) as caught:
        cutlass_ops.discover(args, "100f")
    assert [reason for reason in caught.value.reasons if "int32" in reason] == [
        "mat_a must be bfloat16, float16, float8_e4m3fn or float8_e5m2, got int32"
    ]


def test_a_number_of_clusters_that_is_not_known_or_none():
    operator = cutlass_ops.discover(described(), "110f")[0]
    with pytest.raises(ValueError, match=r"clusters must be given for sm_110f, got None: .* of 2 CTAs .* 90, 100 only"):
        cutlass_ops.compile(operator, described(), "110f")
    for wrong in (0, -1, 1.5, True):
        with pytest.raises(ValueError, match="clusters must be a positive integer"):
            cutlass_ops.compile(operator, described(), "110f", clusters=wrong)


# run and compare


@pytest.mark.skipif(torch.cuda.is_available(), reason="tells what is told without a GPU")
def test_running_without_a_gpu_says_which_one_is_needed(blackwell):
    needs = r"sm_100f and needs an NVIDIA GPU of compute capability 10\.0 or of its family; torch sees"
    with pytest.raises(RuntimeError, match=needs):
        cutlass_ops.run(blackwell, described())


def small(dtype=BF16, tail=5):
    """Operands on the CPU, with integers that make every sum exact, and the right answer in ``out``."""
    generator = torch.Generator().manual_seed(0)
    offs = torch.tensor([16, 16, 48, 64], dtype=torch.int32)
    mat_a = integers((64 + tail, 32), dtype=dtype, generator=generator)
    mat_b = integers((4, 24, 32), dtype=dtype, generator=generator).mT
    args = cutlass_ops.arguments(mat_a, mat_b, offs=offs)
    out = args.out.tensor.runtime_tensor
    out.copy_(reference.grouped_mm(mat_a, mat_b, offs, out_dtype=dtype))
    return args, out


@pytest.mark.parametrize("dtype", [BF16, FP16])
def test_a_right_answer_is_right_and_equals_torchs(dtype):
    args, _ = small(dtype)
    assert cutlass_ops.compare(args) == (True, 0.0, 0.0, "zero")
    args, _ = small(dtype, tail=0)
    assert cutlass_ops.compare(args) == (True, 0.0, 0.0, "none")


@pytest.mark.parametrize("wrong", [1.0, float("nan")])
def test_a_wrong_element_is_not(wrong):
    args, out = small()
    out[17, 3] += wrong
    found = cutlass_ops.compare(args)
    assert not found.right
    assert found.worst > 1
    args, out = small()
    out[66, 3] += wrong
    assert cutlass_ops.compare(args)[::3] == (True, "other"), "the tail is told, and not judged"


# the names of before, and the extra


def test_the_first_release_s_names_with_a_warning():
    operands = meta(TOTAL_M, K), meta(G, N, K).mT, meta(TOTAL_M, N)
    with pytest.warns(DeprecationWarning, match="GroupedGemmArguments is deprecated"):
        args = cutlass_api.arguments.GroupedGemmArguments(
            *operands, accumulator_type=torch.float32, offsets=meta(G, dtype=torch.int32)
        )
    with pytest.warns(DeprecationWarning, match=r"cutlass_api\.get_kernels is deprecated"):
        kernels = cutlass_api.get_kernels(args, cc=100)
    assert len(kernels) == len(cutlass_ops.discover(described(), "100a"))
    with pytest.warns(DeprecationWarning, match="get_kernels"):
        assert cutlass_api.get_kernels(args, cc=80) == []
    compiled = cutlass_ops.compile(kernels[0], args, "100a")
    assert cutlass_ops.report(compiled).instructions["tcgen05.mma"] > 0
    with pytest.warns(DeprecationWarning, match="is_device_cc_supported"):
        status = cutlass_api.utils.is_device_cc_supported({100})
    assert isinstance(status, ops.Status)


def test_without_the_extra_an_error_names_it_and_the_library_works():
    code = """
import sys
sys.modules["cutlass"] = None
from course_kernels import grouped_mm
import torch
offs = torch.tensor([2, 4], dtype=torch.int32)
assert torch.equal(grouped_mm(torch.ones(4, 8), torch.ones(2, 8, 3), offs=offs), torch.full((4, 3), 8.0))
try:
    import course_kernels.cutlass_ops
except ImportError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert 'pip install ".[cutlass]"' in done.stdout
    assert "nvidia-cutlass-operators" in done.stdout


def test_the_library_does_not_import_cutlass():
    code = "import sys, course_kernels, course_kernels.codegen; print('cutlass' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
