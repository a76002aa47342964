"""Every configuration is measured on shapes it may serve, and compared with the product."""

from __future__ import annotations

import contextlib
import dataclasses
import types

import pytest
import torch

from course_kernels.bench import timing
from course_kernels.bench.rows import Row
from course_kernels.bench.tuning import config_times
from course_kernels.bench.verification import exact_products
from course_kernels.config import GemmConfig
from course_kernels.dtypes import FP8
from course_kernels.engine import triton_launch as triton
from course_kernels.engine.hopper import cute
from course_kernels.engine.tuning import Gpu, Kind, time_model
from course_kernels.engine.tuning.configs_by_kind import form_of, name_of, offered
from course_kernels.kernels.codes import Scales
from course_kernels.kernels.cute_sm90.config import CuteConfig

ROW = Row("small", "3 experts, N 64, K 48", (20, 0, 30), 64, 48, "compute")
AMONG = {kind: offered(kind, Gpu("sm_90", 132, 4.8)) for kind in config_times.KIND_OF_PASS.values()}


def test_random_rows_are_the_same_everywhere_and_not_too_large():
    found = config_times.random_rows(20)
    assert [row.sizes for row in found] == [row.sizes for row in config_times.random_rows(20)]
    assert all(0 < row.flops <= 2e12 and row.N % 8 == row.K % 8 == 0 for row in found)


def test_random_rows_of_few_groups_are_one_to_four_large_ones():
    """A shared B makes one group of all rows, so a model that knows no such group has to guess."""
    found, others = config_times.random_rows(40, few_groups=True), config_times.random_rows(40)
    assert {len(row.sizes) for row in found} == {1, 2, 3, 4}
    means = [row.total_m / row.groups for row in found]
    assert 700 <= min(means) < 2048
    assert 16384 < max(means) <= 1.3 * 32768
    assert min(len(row.sizes) for row in others) > 1
    assert not {row.name for row in found} & {row.name for row in others}


def multiply(product, out):
    """A product as kernels compute it, by torch in float32."""
    offs = product.offs
    sizes = offs.diff(prepend=offs.new_zeros(1)).tolist()
    for part, exact in zip(out.unbind() if out.dim() == 3 else out.split(sizes), exact_products(product, sizes)):
        part.copy_(exact)


@pytest.fixture
def on_a_cpu(monkeypatch):
    """Kernels, graphs and clocks of the measurement, with torch's products. Returns the configurations that spoil
    their last element."""
    wrong = []

    def by_cute(product, out, form, config):
        multiply(product, out)
        if config in wrong:
            out[-1, -1] += 100

    class Replayed:
        def __init__(self, function):
            self.replay = function

    monkeypatch.setattr(config_times, "DEVICE", "cpu")
    monkeypatch.setattr(config_times, "here", lambda: AMONG)
    monkeypatch.setattr(cute, "multiply", by_cute)
    monkeypatch.setattr(triton, "multiply", lambda problem, product, out: multiply(product, out))
    monkeypatch.setattr(timing, "capture", lambda function, warmups: Replayed(function))
    monkeypatch.setattr(timing, "interleaved_us", lambda graphs, repeats: {name: [2.0, 1.0, 3.0] for name in graphs})
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    return wrong


def test_all_that_suit_are_measured(on_a_cpu, capsys):
    entry = config_times.measure([ROW], tuple(config_times.KIND_OF_PASS))["small"]
    for pass_name, kind in config_times.KIND_OF_PASS.items():
        suited = {name_of(each) for each in AMONG[kind] if time_model.suits(each, kind, 50 / 3)}
        assert set(entry[pass_name]["us"]) == suited
        assert set(entry[pass_name]["us"].values()) == {2.0}
        assert entry[pass_name]["failed"] == {}
    assert entry["sizes"] == [20, 0, 30]
    assert "small forward: " in capsys.readouterr().out


@pytest.mark.parametrize("pass_name", ["forward", "forward fp8", "forward fp8 blocks"])
def test_a_wrong_result_is_noted_and_not_timed(on_a_cpu, pass_name):
    configs = AMONG[config_times.KIND_OF_PASS[pass_name]]
    bad = [each for each in configs if isinstance(each, CuteConfig) and each.tile_m == 64][-1]
    on_a_cpu.append(bad)
    found = config_times.measure([ROW], passes=[pass_name])
    assert list(found["small"][pass_name]["failed"]) == [name_of(bad)]
    assert name_of(bad) not in found["small"][pass_name]["us"]
    reason = config_times.failures(found)[f"small, {pass_name}"][name_of(bad)]
    assert reason == "ValueError: 1 of 3200 elements are wrong"


def test_a_kernel_that_leaves_another_ones_result_is_noted(on_a_cpu, monkeypatch):
    kind = Kind.parse("m,n fp8")
    first, *others = [each for each in AMONG[kind] if time_model.suits(each, kind, 50 / 3)]

    def lazy(problem, product, out):
        if problem.options.config == first:
            multiply(product, out)

    monkeypatch.setattr(triton, "multiply", lazy)
    entry = config_times.measure([ROW], passes=["dA fp8"])["small"]["dA fp8"]
    assert list(entry["us"]) == [name_of(first)]
    assert list(entry["failed"]) == list(map(name_of, others))
    assert set(entry["failed"].values()) == {"ValueError: 2400 of 2400 elements are wrong"}


def test_time_that_is_up_leaves_rows_out(on_a_cpu):
    assert config_times.measure([ROW], seconds=-1.0) == {}


def test_operands_of_a_row_suit_the_hopper_kernel():
    for pass_name, made in config_times.made(ROW, tuple(config_times.KIND_OF_PASS), "cpu"):
        form = cute.match_form(made.product, made.out)
        kind = config_times.KIND_OF_PASS[pass_name]
        offered = [each for each in AMONG[kind] if isinstance(each, CuteConfig)]
        assert bool(form) == bool(offered)
        if kind.element_bytes == 1:
            assert made.product.a.dtype == FP8
        if kind.element_bytes == 1 or kind.fused:
            assert form is None or form == form_of(kind)
            assert form is None or all(each.why_not(form) is None for each in offered)


def test_extents_that_descriptors_do_not_have_make_no_8_bit_product():
    row = dataclasses.replace(ROW, K=40)
    found = [name for name, _ in config_times.made(row, tuple(config_times.KIND_OF_PASS), "cpu")]
    assert found == list(config_times.PASSES)


@pytest.mark.parametrize("pass_name", config_times.PASSES_8_BIT)
def test_configurations_of_triton_compute_8_bit_products(pass_name):
    """In the interpreter, with every height of tile."""
    row = Row("tiny", "2 experts", (5, 12), 144, 160, "memory")
    ((_, product),) = config_times.made(row, [pass_name], "cpu")
    configs = AMONG[config_times.KIND_OF_PASS[pass_name]]
    by_height = {each.block_m: each for each in configs if isinstance(each, GemmConfig)}
    assert set(by_height) == {16, 32, 64, 128}
    for config in by_height.values():
        product.out.fill_(float("nan"))
        config_times.launch(product, config)()
        config_times._check(product, None)
    first = product.out.clone()
    config_times._check(product, first)
    product.out[3, 5] += 100.0
    for other in (None, first):
        with pytest.raises(ValueError, match=f"1 of {first.numel()} elements are wrong"):
            config_times._check(product, other)


def test_kernels_are_compiled_before_they_are_measured(monkeypatch):
    """Those in CuTe DSL once for each kind; those of Triton once for each number of groups, on few rows."""
    compiled, launched = [], []

    class Pool(contextlib.nullcontext):
        def __init__(self, *arguments):
            super().__init__(self)

        def submit(self, function, *job):
            compiled.append(job)
            return types.SimpleNamespace(exception=lambda: None)

    def launch(made, config):
        a, scaling = made.product.a, made.product.scaling
        launched.append((a.dtype, a.shape, config, type(scaling)))
        return lambda: None

    monkeypatch.setattr(config_times, "DEVICE", "cpu")
    monkeypatch.setattr(config_times, "here", lambda: AMONG)
    monkeypatch.setattr(config_times, "ProcessPoolExecutor", Pool)
    monkeypatch.setattr(config_times, "launch", launch)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "device", contextlib.nullcontext)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    same = dataclasses.replace(ROW, name="same", sizes=(10, 20, 30, 40), N=4096, K=1024)
    told = []
    config_times.compile_ahead([ROW, same], ["forward", "forward fp8", "forward fp8 blocks"], tell=told.append)
    for kind in map(Kind.parse, ("m,k", "m,k fp8", "m,k fp8 blocks")):
        suited = [each for each in AMONG[kind] if time_model.suits(each, kind, 20.0)]
        cute_jobs = [each for each in suited if isinstance(each, CuteConfig)]
        form = form_of(kind)
        wanted = {
            (each, form._replace(whole_rounds=each.whole_rounds(K, form))) for each in cute_jobs for K in (ROW.K, 1024)
        }
        assert {job for job in compiled if job[1].scaling == form.scaling} == wanted
        assert {form.whole_rounds for _, form in wanted} == {False, kind.scaling == Scales.BLOCKS}
    assert len(compiled) == len(set(compiled))
    assert len(launched) == len(set(launched)), "four groups are compiled with three"
    assert {tuple(shape) for _, shape, *_ in launched} == {(48, 256)}
    assert told == [f"compiling {len(compiled)} kernels in CuTe DSL and {len(launched)} in Triton"]
