"""The kernel in CuTe DSL behind deepgemm: what it takes, how it is called; on Hopper, its results."""

from __future__ import annotations

import functools
import itertools
from dataclasses import replace
from unittest import mock

import pytest
import torch

from course_kernels import GemmConfig, deepgemm, quantize_1x128
from course_kernels.engine.hopper import cute
from course_kernels.engine.hopper.cute import KernelVariant
from course_kernels.engine.plans import PlanCache
from course_kernels.engine.tuning import Gpu, time_model
from course_kernels.kernels.cute_sm90.config import CONFIGS, configs_for
from course_kernels.masked import execute as executed
from course_kernels.masked import hopper, launch
from course_kernels.masked.problem import Operands, Options, Problem, readable, rows_class
from masked_operands import FP8, case, result_for

on_hopper = pytest.mark.gpu


@pytest.fixture
def device(monkeypatch):
    """A Hopper GPU, on which the Triton kernel is not to be asked."""
    if not cute.runs_on(torch.device("cuda", 0)):
        pytest.skip("needs a GPU of compute capability 9.0")
    if not cute.installed():
        pytest.skip("needs the packages of the extra cutlass")
    monkeypatch.setattr(executed, "plans", PlanCache())
    monkeypatch.setattr(launch, "plan", lambda *_: pytest.fail("the kernel in CuTe DSL was not used"))
    return torch.device("cuda", 0)


def operands(dtype=torch.bfloat16, scales="group", N=48, K=64, **changes):
    made = case(dtype, scales, N=N, K=K, device="cpu")
    y = torch.zeros(4, 40, N).bfloat16()
    return Operands(made.XQ, made.WQ, y, *made[2:])._replace(**changes)


def variant_of(made, **options):
    return hopper.match_variant(Problem.of(made, Options(**options)), readable(made))


def wider(batch, rows=0, cols=0):
    """The batch as a view of a larger one."""
    groups, lines, width = batch.shape
    return torch.zeros(groups, lines + rows, width + cols).to(batch.dtype)[:, :lines, :width]


TAKEN = {
    "as they are": (operands(), KernelVariant("m", "k")),
    "float16": (operands(torch.float16), KernelVariant("m", "k")),
    "N contiguous in W": (operands(WQ=torch.zeros(4, 64, 48).bfloat16().mT), KernelVariant("m", "n")),
    "8 bits, a factor for a group": (operands(FP8), KernelVariant("m", "k", 1)),
    "8 bits, factors of lines": (operands(FP8, "channel"), KernelVariant("m", "k", 1)),
    "block scales": (operands(FP8, "block", K=192), KernelVariant("m", "k", 1, True)),
    "block scales with any strides": (
        operands(FP8, "block", K=192, w_scale=torch.ones(4, 2, 1).mT, x_scale=torch.ones(4, 40, 4)[..., ::2]),
        KernelVariant("m", "k", 1, True),
    ),
    "block scales as they are quantised": (
        operands(FP8, "block", K=192, x_scale=quantize_1x128(torch.ones(4, 40, 192))[1]),
        KernelVariant("m", "k", 1, True),
    ),
    "block scales of groups that lie apart": (
        operands(FP8, "block", K=192, x_scale=torch.ones(4, 2, 40).mT),
        KernelVariant("m", "k", 1, True),
    ),
    "a float32 result": (operands(Y=torch.zeros(4, 40, 48)), KernelVariant("m", "k")),
    "longer rows": (operands(XQ=wider(operands().XQ, cols=8)), KernelVariant("m", "k")),
    "W's groups further apart": (operands(WQ=wider(operands().WQ, rows=3)), KernelVariant("m", "k")),
    "int64 sizes": (operands(group_layout=torch.zeros(4, dtype=torch.int64)), KernelVariant("m", "k")),
}
NOT_TAKEN = {
    "K no multiple of 8": operands(K=60),
    "N no multiple of 8": operands(N=44),
    "X's groups further apart": operands(XQ=wider(operands().XQ, rows=2)),
    "Y's groups further apart": operands(Y=wider(operands().Y, rows=2)),
    "X's rows off 16 bytes": operands(XQ=wider(operands().XQ, cols=4)),
    "factors of X with gaps": operands(FP8, x_scale=torch.ones(4, 80)[:, ::2]),
    "factors of lines with gaps": operands(FP8, w_scale=torch.ones(4, 96)[:, ::2]),
    "N contiguous in W of 8 bits": operands(FP8, WQ=torch.zeros(4, 64, 48).to(FP8).mT),
    "one weight for all groups": operands(WQ=torch.zeros(1, 48, 64).bfloat16().expand(4, 48, 64)),
}


@pytest.mark.parametrize("what", TAKEN)
def test_taken(what):
    made, variant = TAKEN[what]
    assert variant_of(made) == variant
    assert hopper.supports(Problem.of(made, Options()), readable(made))


@pytest.mark.parametrize("what", NOT_TAKEN)
def test_not_taken(what):
    assert variant_of(NOT_TAKEN[what]) is None


def test_what_is_for_the_triton_kernel():
    assert variant_of(operands(), shuffled=True) is None
    assert variant_of(operands(), config=GemmConfig()) is None


def test_sizes_of_64_bits_are_clamped_before_they_are_cut():
    called = []
    made = operands(FP8, group_layout=torch.tensor([2**32 + 5, -(2**32) + 5, 7, 41]))
    hopper.Plan(lambda *arguments: called.append(arguments)).run(readable(made))
    ((a, b, c, sizes, scale_a, scale_b, counter),) = called
    assert counter is None
    assert sizes.dtype == torch.int32
    assert sizes.tolist() == [40, 0, 7, 40]
    shapes = [tuple(tensor.shape) for tensor in (a, b, c, scale_a, scale_b)]
    assert shapes == [(160, 64), (4, 64, 48), (160, 48), (160,), (4,)]
    assert [a.data_ptr(), c.data_ptr()] == [made.XQ.data_ptr(), made.Y.data_ptr()]


def test_factors_are_handed_over_as_rows_of_all_groups():
    x = torch.randn(4, 40, 192)
    for x_scale in (quantize_1x128(x)[1], quantize_1x128(x)[1].mT.contiguous().mT):
        plan = hopper.Plan(mock.Mock(), block_scaled=True)
        plan.run(readable(operands(FP8, "block", K=192, x_scale=x_scale)))
        *_, scale_a, _, _ = plan._function.call_args.args
        assert torch.equal(scale_a, x_scale.flatten(0, 1))
        assert (scale_a.data_ptr() == x_scale.data_ptr()) == (x_scale.stride(0) == 40)


def test_configurations_are_chosen_by_the_expected_rows(monkeypatch):
    chosen = []
    compiled = lambda config, *types, **options: chosen.append((config, options))  # noqa: E731
    monkeypatch.setattr(hopper.cute_cache, "compiled", compiled)
    monkeypatch.setattr(hopper.runtime, "num_sms", lambda device: 132)
    monkeypatch.setattr(hopper.cute, "gpu_of", lambda device: Gpu("sm_90", 132, 4.8))
    monkeypatch.setattr(hopper, "compiled", hopper.compiled.__wrapped__)
    for dtype, scales in ((torch.bfloat16, "group"), (FP8, "group"), (FP8, "block")):
        for rows in (20, 2000):
            made = operands(dtype, scales, N=1024, K=2048)
            hopper.plan(Problem.of(made, Options(rows=rows_class(rows))), readable(made))
    assert [config.tile_m for config, _ in chosen] == [64, 128] * 3
    assert [config.stream_b for config, _ in chosen] == [True, False] * 3
    assert {replace(config, stream_b=False) for config, _ in chosen[:2]} <= set(CONFIGS)
    assert all(options["masked"] for _, options in chosen)
    assert [options["group_scales"] for _, options in chosen] == [False, False, True, True, False, False]
    assert [options["block_scaled"] for _, options in chosen] == [False] * 4 + [True] * 2
    assert [options["scaled"] for _, options in chosen] == [False, False, True, True, False, False]


def test_weights_that_are_read_once_are_streamed(monkeypatch):
    """Where the expected rows fit into one tile, whichever configuration is chosen; each way has its own kernel."""
    compiled, chosen = [], {}
    monkeypatch.setattr(hopper.cute_cache, "compiled", lambda config, *types, **options: compiled.append(config))
    monkeypatch.setattr(hopper.cute, "choose", lambda *asked: chosen["config"])
    monkeypatch.setattr(hopper.cute, "gpu_of", lambda device: None)
    monkeypatch.setattr(hopper.runtime, "num_sms", lambda device: 132)
    monkeypatch.setattr(hopper, "compiled", functools.cache(hopper.compiled.__wrapped__))
    made = operands()
    for chosen["config"] in CONFIGS:
        compiled.clear()
        for tiles in (1, 2, 0.25, 4):
            problem = Problem.of(made, Options(rows=int(tiles * chosen["config"].tile_m)))
            hopper.plan(problem, readable(made))
        assert compiled == [replace(chosen["config"], stream_b=streamed) for streamed in (True, False)]


def test_each_launch_in_a_dynamic_order_takes_a_counter(monkeypatch):
    counters = []
    dynamic = next(config for config in CONFIGS if config.dynamic)
    monkeypatch.setattr(hopper.cute, "choose", lambda *asked: dynamic)
    monkeypatch.setattr(hopper.cute, "gpu_of", lambda device: None)
    monkeypatch.setattr(hopper.runtime, "num_sms", lambda device: 132)
    monkeypatch.setattr(hopper, "compiled", lambda config, *others: lambda *arguments: counters.append(arguments[-1]))
    taken = iter(("the first", "the second"))
    monkeypatch.setattr(hopper.cute_counters, "take", lambda device: next(taken))
    made = operands()
    plan = hopper.plan(Problem.of(made, Options()), readable(made))
    plan.run(readable(made))
    plan.run(readable(made))
    assert counters == ["the first", "the second"]


def preferred(made, **options):
    return hopper.preferred(Problem.of(made, Options(**options)), readable(made))


def test_auto_asks_it_first_where_the_time_model_expects_it_to_be_faster(monkeypatch):
    asked, sooner = [], {}

    def fastest(*extents):
        asked.append(extents)
        return time_model.Estimate(1.0, sooner["backend"], None) if sooner else None

    gpu = Gpu("sm_90", 132, 4.8)
    monkeypatch.setattr(time_model, "fastest", fastest)
    monkeypatch.setattr(hopper.cute, "gpu_of", lambda device: gpu)
    assert not preferred(operands()), "it does not run on a CPU"
    monkeypatch.setattr(hopper.cute, "runs_on", lambda device: True)
    monkeypatch.setattr(hopper.cute, "installed", lambda: True)
    assert asked == []
    assert not preferred(operands()), "without constants, the Triton kernel is expected to be faster for 16 bits"
    assert preferred(operands(FP8)), "and this one for 8 bits"
    for sooner["backend"] in ("cute", "triton"):
        for made in (operands(), operands(FP8)):
            assert preferred(made, rows=16) == (sooner["backend"] == "cute")
    assert not preferred(operands(), shuffled=True)
    assert [str(each[0]) for each in asked] == ["m,k", "m,k fp8"] * 3
    assert asked[-1][1:] == ((16, 48, 64, 4), gpu)
    preferred(operands(FP8, "block", K=192), rows=rows_class(100))
    preferred(operands(WQ=torch.zeros(4, 64, 48).bfloat16().mT))
    assert [(str(kind), extents.M) for kind, extents, _ in asked[-2:]] == [("m,k fp8 blocks", 128), ("m,n", 64)]


SIZES = (0, 300, 1, 128, -4, 129, 77, 1000, 0, 64, 320)


@on_hopper
@pytest.mark.parametrize("rows", [20, 100, 3000])
@pytest.mark.parametrize("out_dtype", [torch.bfloat16, torch.float32], ids=str)
def test_results(device, rows, out_dtype):
    of_8_bits = [(FP8, scales) for scales in ("group", "channel", "block")]
    for dtype, scales in ((torch.bfloat16, "group"), (torch.float16, "group"), *of_8_bits):
        made = case(dtype, scales, SIZES, max_m=320, N=520, K=456 if dtype.itemsize > 1 else 464, device=device)
        for layout in (made.WQ, *[made.WQ.mT.contiguous().mT] * (dtype.itemsize > 1)):
            y = result_for(made, out_dtype)[0].clone()  # without gaps
            before = y.clone()
            deepgemm(made.XQ, layout, y, *made[2:], backend="cute", expected_m=rows)
            made.check(y, before)


@on_hopper
@pytest.mark.parametrize("streamed", [False, True], ids=["", "streamed"])
@pytest.mark.parametrize("scales", [None, "group", "channel", "block"])
def test_every_configuration(device, scales, streamed):
    dtype, blocks = torch.bfloat16 if scales is None else FP8, scales == "block"
    K = 464 if blocks else 208  # less than four whole blocks, which count as a round
    made = case(dtype, scales, SIZES, max_m=320, N=456, K=K, device=device)
    for config, whole in itertools.product(configs_for("m", "k", dtype.itemsize, blocks), (False, True)):
        config = replace(config, stream_b=streamed)
        if whole and not config.whole_rounds(K, blocks):
            continue
        y = result_for(made)[0].clone()
        before = y.clone()
        given = readable(Operands(made.XQ, made.WQ, y, *made[2:]))
        variant = variant_of(Operands(made.XQ, made.WQ, y, *made[2:]))
        function = hopper.compiled(config, variant, dtype, y.dtype, scales == "group", 132, whole)
        hopper.Plan(function, blocks, config.dynamic).run(given)
        made.check(y, before)


@on_hopper
def test_more_groups_than_lanes_and_sizes_of_64_bits(device):
    sizes = tuple(i % 7 * (i % 3) for i in range(70)) + (2**32 + 5, -(2**40))
    made = case(torch.bfloat16, sizes=sizes, max_m=16, N=64, K=64, index=torch.int64, device=device)
    y = result_for(made)[0].clone()
    before = y.clone()
    deepgemm(*made[:2], y, *made[2:], backend="cute")
    made.check(y, before)
