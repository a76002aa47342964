"""The kernel in CuTe DSL behind deepgemm: what it takes, how it is called; on Hopper, its results."""

from __future__ import annotations

import functools
import itertools
from dataclasses import replace
from unittest import mock

import pytest
import torch

from course_kernels import GemmConfig, deepgemm, quantize_1x128
from course_kernels.engine import backend_choice, triton_launch
from course_kernels.engine import plans as kept
from course_kernels.engine.hopper import cute
from course_kernels.engine.options import Options
from course_kernels.engine.tuning import Extents, Gpu, time_model
from course_kernels.engine.tuning.fallback_rules import rows_class
from course_kernels.kernels.cute_sm90.config import CONFIGS, configs_for
from course_kernels.kernels.cute_sm90.form import Form
from course_kernels.masked.checks import Call, check_call
from hopper_gpu import hopper_gpu
from masked_operands import FP8, case, result_for

on_hopper = pytest.mark.gpu


@pytest.fixture
def device(monkeypatch):
    """A Hopper GPU, on which the Triton kernel is not to be asked."""
    found = hopper_gpu()
    monkeypatch.setattr(kept, "plans", kept.PlanCache())
    monkeypatch.setattr(triton_launch, "plan", lambda *_: pytest.fail("the kernel in CuTe DSL was not used"))
    return found


def call(dtype=torch.bfloat16, scales="group", N=48, K=64, **changes):
    made = case(dtype, scales, N=N, K=K, device="cpu")
    y = torch.zeros(4, 40, N).bfloat16()
    return Call(made.XQ, made.WQ, y, *made[2:])._replace(**changes)


def form_of(made):
    return cute.match_form(product_of(made), made.Y)


def product_of(made):
    return check_call(made, Options(), made.Y)[1]


def offer_of(made, **options):
    return cute.offer(*check_call(made, Options(**options), made.Y), made.Y)


def wider(batch, rows=0, cols=0):
    """The batch as a view of a larger one."""
    groups, lines, width = batch.shape
    return torch.zeros(groups, lines + rows, width + cols).to(batch.dtype)[:, :lines, :width]


PLAIN, ROW_MAJOR = Form(rows="counts"), Form("m", "n", rows="counts")
OF_GROUPS, OF_LINES, OF_BLOCKS = (Form("m", "k", 1, "counts", scaling) for scaling in ("groups", "lines", "blocks"))
TAKEN = {
    "as they are": (call(), PLAIN),
    "float16": (call(torch.float16), PLAIN),
    "N contiguous in W": (call(WQ=torch.zeros(4, 64, 48).bfloat16().mT), ROW_MAJOR),
    "8 bits, a factor for a group": (call(FP8), OF_GROUPS),
    "8 bits, factors of lines": (call(FP8, "channel"), OF_LINES),
    "block scales": (call(FP8, "block", K=192), OF_BLOCKS),
    "block scales with any strides": (
        call(FP8, "block", K=192, w_scale=torch.ones(4, 2, 1).mT, x_scale=torch.ones(4, 40, 4)[..., ::2]),
        OF_BLOCKS,
    ),
    "block scales as they are quantised": (
        call(FP8, "block", K=192, x_scale=quantize_1x128(torch.ones(4, 40, 192))[1]),
        OF_BLOCKS,
    ),
    "block scales of groups that lie apart": (
        call(FP8, "block", K=192, x_scale=torch.ones(4, 2, 40).mT),
        OF_BLOCKS,
    ),
    "a float32 result": (call(Y=torch.zeros(4, 40, 48)), PLAIN),
    "longer rows": (call(XQ=wider(call().XQ, cols=8)), PLAIN),
    "W's groups further apart": (call(WQ=wider(call().WQ, rows=3)), PLAIN),
    "int64 sizes": (call(group_layout=torch.zeros(4, dtype=torch.int64)), PLAIN._replace(index_bytes=8)),
}
NOT_TAKEN = {
    "K no multiple of 8": call(K=60),
    "N no multiple of 8": call(N=44),
    "X's groups further apart": call(XQ=wider(call().XQ, rows=2)),
    "Y's groups further apart": call(Y=wider(call().Y, rows=2)),
    "X's rows off 16 bytes": call(XQ=wider(call().XQ, cols=4)),
    "factors of X with gaps": call(FP8, x_scale=torch.ones(4, 80)[:, ::2]),
    "factors of lines with gaps": call(FP8, w_scale=torch.ones(4, 96)[:, ::2]),
    "N contiguous in W of 8 bits": call(FP8, WQ=torch.zeros(4, 64, 48).to(FP8).mT),
    "one weight for all groups": call(WQ=torch.zeros(1, 48, 64).bfloat16().expand(4, 48, 64)),
}


@pytest.mark.parametrize("what", TAKEN)
def test_taken(what):
    made, form = TAKEN[what]
    assert form_of(made) == form
    assert offer_of(made)


@pytest.mark.parametrize("what", NOT_TAKEN)
def test_not_taken(what):
    assert form_of(NOT_TAKEN[what]) is None


def test_what_is_for_the_triton_kernel():
    assert offer_of(call(shuffled=True)) is None
    assert offer_of(call(), config=GemmConfig()) is None


def test_a_launch_gets_sizes_as_they_are():
    called = []
    made = call(FP8, group_layout=torch.tensor([2**32 + 5, -(2**32) + 5, 7, 41]))
    cute.Plan(lambda *arguments: called.append(arguments), 66).run(product_of(made), made.Y)
    ((a, b, c, sizes, clusters, scale_a, scale_b, counter),) = called
    assert counter is None
    assert clusters == 66
    assert sizes is made.group_layout
    shapes = [tuple(tensor.shape) for tensor in (a, b, c, scale_a, scale_b)]
    assert shapes == [(160, 64), (4, 64, 48), (160, 48), (160,), (4,)]
    assert [a.data_ptr(), c.data_ptr()] == [made.XQ.data_ptr(), made.Y.data_ptr()]


def test_factors_are_handed_over_as_rows_of_all_groups():
    x = torch.randn(4, 40, 192)
    for x_scale in (quantize_1x128(x)[1], quantize_1x128(x)[1].mT.contiguous().mT):
        plan, made = cute.Plan(mock.Mock(), 66), call(FP8, "block", K=192, x_scale=x_scale)
        plan.run(product_of(made), made.Y)
        *_, scale_a, _, _ = plan._function.call_args.args
        assert torch.equal(scale_a, x_scale.flatten(0, 1))
        assert (scale_a.data_ptr() == x_scale.data_ptr()) == (x_scale.stride(0) == 40)


def test_configurations_are_chosen_by_the_expected_rows(monkeypatch):
    chosen = []
    monkeypatch.setattr(cute, "compiled", lambda config, form, *types: chosen.append((config, form)))
    monkeypatch.setattr(cute, "_processors", lambda device: 132)
    monkeypatch.setattr(cute, "gpu_of", lambda device: Gpu("sm_90", 132, 4.8))
    for dtype, scales in ((torch.bfloat16, "group"), (FP8, "group"), (FP8, "block")):
        for rows in (20, 2000):
            made = call(dtype, scales, N=1024, K=2048)
            offer_of(made._replace(rows=rows_class(rows))).plan()
    assert [config.tile_m for config, _ in chosen] == [64, 128] * 3
    assert [config.stream_b for config, _ in chosen] == [True, False] * 3
    assert {replace(config, stream_b=False) for config, _ in chosen[:2]} <= set(CONFIGS)
    assert {form.rows for _, form in chosen} == {"counts"}
    assert [form.scaling for _, form in chosen] == ["none"] * 2 + ["groups"] * 2 + ["blocks"] * 2


def test_weights_that_are_read_once_are_streamed(monkeypatch):
    """Where the expected rows fit into one tile, whichever configuration is chosen; each way has its own kernel."""
    compiled, chosen = [], {}
    monkeypatch.setattr(cute, "compiled", functools.cache(lambda config, *kinds: compiled.append(config)))
    monkeypatch.setattr(cute, "choose", lambda *asked: chosen["config"])
    monkeypatch.setattr(cute, "gpu_of", lambda device: None)
    monkeypatch.setattr(cute, "_processors", lambda device: 132)
    made = call()
    for chosen["config"] in CONFIGS:
        compiled.clear()
        for tiles in (1, 2, 0.25, 4):
            offer_of(made._replace(rows=int(tiles * chosen["config"].tile_m))).plan()
        assert compiled == [replace(chosen["config"], stream_b=streamed) for streamed in (True, False)]


def test_each_launch_in_a_dynamic_order_takes_a_counter(monkeypatch):
    counters = []
    dynamic = next(config for config in CONFIGS if config.dynamic)
    monkeypatch.setattr(cute, "choose", lambda *asked: dynamic)
    monkeypatch.setattr(cute, "gpu_of", lambda device: None)
    monkeypatch.setattr(cute, "_processors", lambda device: 132)
    monkeypatch.setattr(cute, "compiled", lambda config, *others: lambda *arguments: counters.append(arguments[-1]))
    taken = iter(("the first", "the second"))
    monkeypatch.setattr(cute.counters, "take", lambda device: next(taken))
    made = call()
    plan = offer_of(made).plan()
    for _ in range(2):
        plan.run(product_of(made), made.Y)
    assert counters == ["the first", "the second"]


def preferred(made, **changes):
    offer = offer_of(made._replace(**changes))
    return offer is not None and backend_choice.is_sooner(offer, made.XQ.element_size())


def test_auto_takes_it_where_the_time_model_expects_it_to_be_faster(monkeypatch):
    asked, sooner = [], {}

    def fastest(*extents, backend=None):
        *extents, backend = extents
        asked.append(tuple(extents)) if backend == "triton" else None
        return time_model.Estimate(1.0 if backend == sooner["backend"] else 2.0, backend, None) if sooner else None

    gpu = Gpu("sm_90", 132, 4.8)
    monkeypatch.setattr(time_model, "fastest", fastest)
    monkeypatch.setattr(cute, "gpu_of", lambda device: gpu)
    assert not preferred(call()), "without constants, the Triton kernel is expected to be faster for 16 bits"
    assert preferred(call(FP8)), "and this one for 8 bits"
    for sooner["backend"] in ("cute", "triton"):
        for made in (call(), call(FP8)):
            assert preferred(made, rows=16) == (sooner["backend"] == "cute")
    assert not preferred(call(), shuffled=True)
    assert [str(each[0]) for each in asked] == ["m,k", "m,k fp8"] * 3
    assert asked[-1][1:] == (Extents(16, 48, 64, 4), gpu)
    preferred(call(FP8, "block", K=192), rows=rows_class(100))
    preferred(call(WQ=torch.zeros(4, 64, 48).bfloat16().mT))
    assert [(str(each[0]), each[1].M) for each in asked[-2:]] == [("m,k fp8 blocks", 128), ("m,n", 64)]


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
    dtype = torch.bfloat16 if scales is None else FP8
    K = 464 if scales == "block" else 208  # less than four whole blocks, which count as a round
    made = case(dtype, scales, SIZES, max_m=320, N=456, K=K, device=device)
    form = form_of(Call(*made[:2], result_for(made)[0].clone(), *made[2:]))
    for config, whole in itertools.product(configs_for(form), (False, True)):
        config = replace(config, stream_b=streamed)
        if whole and not config.whole_rounds(K, form):
            continue
        y = result_for(made)[0].clone()
        before = y.clone()
        given = product_of(Call(made.XQ, made.WQ, y, *made[2:]))
        function = cute.compiled(config, form._replace(whole_rounds=whole), dtype, y.dtype, device)
        cute.Plan(function, cute.clusters_of(config, device), config.dynamic).run(given, y)
        made.check(y, before)


@on_hopper
def test_more_groups_than_lanes_and_sizes_of_64_bits(device):
    sizes = tuple(i % 7 * (i % 3) for i in range(70)) + (2**32 + 5, -(2**40))
    made = case(torch.bfloat16, sizes=sizes, max_m=16, N=64, K=64, index=torch.int64, device=device)
    y = result_for(made)[0].clone()
    before = y.clone()
    deepgemm(*made[:2], y, *made[2:], backend="cute")
    made.check(y, before)
