"""Random calls of the functions beside grouped_mm: they pass in the interpreter, and whatever is wrong is reported."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
import torch

import course_kernels as ck
import fuzz
import fuzz_cases
import layer_calls
from calls import Memory
from course_kernels import runtime
from course_kernels.dtypes import FP8
from course_kernels.engine import torch_loop
from course_kernels.engine.hopper import cute
from course_kernels.engine.plans import PlanCache
from course_kernels.engine.tuning import Extents, Gpu, Kind, choose, time_model
from layer_calls import Accumulate, Gmm, Sums, Tgmm
from moe_calls import FeedForward, Journey, Route
from sanitize_calls import called_cases, called_cute_cases, cute_layers, nothing_measured, run_called
from scaled_calls import BlockScaled, DeepGemm, Pack, Quantize

TINY = dict(largest=20, most_groups=3)
in_the_interpreter = pytest.mark.skipif(runtime.mode() == "gpu", reason="the program itself is run there")
CALLS = [
    Gmm(), Tgmm(), Tgmm(accumulate=True), Accumulate(), Accumulate(main_grad=True), Sums(),
    DeepGemm(sizes=(3, 0, -1, 9), max_m=8), DeepGemm(dtype=FP8, scales="block"), Quantize(), BlockScaled(),
]  # fmt: skip


@in_the_interpreter
@pytest.mark.parametrize("api", fuzz_cases.APIS)
def test_random_calls(api):
    record = fuzz.fuzz(800, **TINY, workers=1, apis=(api,), of_each=1)
    assert (record["count"], record["mismatches"], record["modes"]) == (8, 0, {api: 8})


@pytest.mark.gpu
@pytest.mark.parametrize("first", range(0, 400, 100))
@pytest.mark.parametrize("api", fuzz_cases.APIS)
def test_random_calls_on_a_gpu(api, first):
    fuzz.judge(first, 5, fuzz.LARGEST, fuzz.MOST_GROUPS, api=api)


@pytest.mark.gpu
@pytest.mark.parametrize("first", range(0, 400, 100))
@pytest.mark.parametrize("api", fuzz_cases.CUTE_APIS)
def test_random_calls_of_the_kernel_in_cute_dsl(api, first):
    if not (cute.runs_on(torch.device("cuda", 0)) and cute.installed()):
        pytest.skip("needs a GPU of compute capability 9.0, and the packages of the extra cutlass")
    modes, _ = fuzz.judge(first, 5, fuzz.LARGEST, fuzz.MOST_GROUPS, "cute", api)
    assert modes == {api: 5}


@pytest.mark.gpu
@pytest.mark.parametrize("case", called_cases(), ids=str)
def test_what_sanitizers_run(case):
    run_called(case)


def test_a_hundred_calls_are_alike_and_the_next_are_not():
    for api in fuzz_cases.APIS:
        drawn = [fuzz_cases.case_of(api, number, 500, 20) for number in range(300, 400)]
        assert [call.seed for call in drawn] == list(range(300, 400))
        assert drawn[7] == fuzz_cases.case_of(api, 307, 500, 20)
        assert len({call.sizes for call in drawn}) > 50
        varying = {"sizes", "seed", "M", "N", "K", "tail", "max_m", "shape", "grid_dim"}
        same = {field.name for field in dataclasses.fields(drawn[0])} - varying
        assert all(len({getattr(call, name) for call in drawn}) == 1 for name in same)
        for name in {"M", "N", "K"} & set(vars(drawn[0])):
            assert len({min(16, extent & -extent) for extent in (getattr(call, name) for call in drawn)}) == 1
        kinds = [fuzz_cases.case_of(api, number, 500, 20) for number in range(0, 10_000, fuzz_cases.ALIKE)]
        assert len({tuple(getattr(call, name) for name in same) for call in kinds}) > 12


def spoiled(function, spoil):
    """A function that computes, and then spoils a result: the last element that it has written."""

    def call(*arguments, **options):
        found = function(*arguments, **options)
        spoil(found[0] if isinstance(found, tuple) else found)
        return found

    return call


def change_one(result):
    at = [extent - 1 for extent in result.shape]
    at[0] = 0  # of a group with rows
    if result.dim() == 3:
        at[1] = 0
    value = result.detach()[tuple(at)]
    value.copy_(-value.float() - 1)  # which is another number in 8 bits, too


NAMES = {
    Gmm: (ck, "gmm"), Tgmm: (ck, "ptgmm"), Accumulate: (ck, "grouped_mm"), Sums: (layer_calls, "group_sums"),
    DeepGemm: (ck, "deepgemm"), Quantize: (ck, "quantize_1x128"), BlockScaled: (ck, "scaled_grouped_mm"),
}  # fmt: skip


@in_the_interpreter
@pytest.mark.parametrize("values", ["integers", "normal"])
@pytest.mark.parametrize("call", CALLS, ids=lambda call: type(call).__name__)
def test_one_wrong_element_is_reported(monkeypatch, call, values):
    call = dataclasses.replace(call, values=values)
    call.check("cpu", "triton")
    room, name = NAMES[type(call)]
    function = getattr(room, name)
    if getattr(call, "main_grad", False):

        def wrong(*arguments, main_grad, **options):
            change_one(main_grad)
            return function(*arguments, main_grad=main_grad, **options)

    else:
        wrong = spoiled(function, change_one)
    monkeypatch.setattr(room, name, wrong)
    with pytest.raises(AssertionError, match=rf"(?s)^{type(call).__name__}\(.*wrong"):
        call.check("cpu", "triton")


@in_the_interpreter
def test_a_wrong_product_says_how_to_have_it_again(monkeypatch):
    monkeypatch.setattr(ck, "deepgemm", spoiled(ck.deepgemm, lambda y: y.add_(1)))
    with pytest.raises(AssertionError, match=r"(?s)mismatch, .*--api deepgemm --count 1 --seed \d+ .*DeepGemm\("):
        fuzz.fuzz(1000, **TINY, workers=1, apis=["deepgemm"], of_each=1)
    monkeypatch.setattr(ck, "deepgemm", lambda *arguments, **options: 1 / 0)
    with pytest.raises(RuntimeError, match=r"(?s)failed, .*--api deepgemm --count 1 --seed 0 .*division"):
        fuzz.fuzz(1, **TINY, workers=1, apis=["deepgemm"])


@in_the_interpreter
@pytest.mark.parametrize(("call", "name", "spoil", "message"), [
    (DeepGemm(sizes=(3, 0), max_m=8), "deepgemm", lambda y: y[0, 3].zero_(), "rows that do not count"),
    (DeepGemm(sizes=(3, 0), max_m=8), "deepgemm", lambda y: y.as_strided((1,), (1,), 0).zero_(), "memory around Y"),
    (Accumulate(), "grouped_mm", lambda out: out[1, 0, 0].zero_(), "the part of a group without rows"),
    (Tgmm(accumulate=True), "ptgmm", lambda out: out[1, 0, 0].zero_(), "the part of a group without rows"),
    (Gmm(layout_out="every_other"), "gmm", lambda out: out.as_strided((1,), (1,), 65).zero_(), "memory around existi"),
], ids=("rows", "around Y", "accumulate", "ptgmm", "gmm"))  # fmt: skip
def test_what_is_written_beside_results_is_reported(monkeypatch, call, name, spoil, message):
    monkeypatch.setattr(ck, name, spoiled(getattr(ck, name), spoil))
    with pytest.raises(AssertionError, match=message):
        call.check("cpu", "triton")


@pytest.mark.parametrize("guards", [True, False])
def test_memory_of_operands_and_results(guards):
    memory = Memory("cpu", 0, "integers", guards)
    x, y = (
        memory.give("x", memory.numbers((3, 5), torch.float16), "every_other"),
        memory.result("y", (3, 5), FP8, "pitched"),
    )
    assert y.untyped_storage().nbytes() == (2 * 64 if guards else 0) + 3 * 16
    y.copy_(x)
    memory.verify()
    y.as_strided((1,), (1,), y.storage_offset() + 5).zero_()
    with pytest.raises(AssertionError, match=r"memory around y was written to, \d+ elements from its start"):
        memory.verify()
    x[2, 3] += 1
    with pytest.raises(AssertionError, match="x was written to"):
        memory.verify()


# ---- the program


def test_functions_take_turns_and_time_is_limited(monkeypatch):
    jobs = fuzz.jobs_of(["gmm", "deepgemm"], 250, 200, 30)
    assert jobs == [(api, first, 30) for first in (250, 300, 400) for api in ("gmm", "deepgemm")]
    ran = []
    monkeypatch.setattr(fuzz_cases, "case_of", lambda api, number, *bounds: Gmm(seed=number))
    monkeypatch.setattr(Gmm, "check", lambda call, device, backend: ran.append(call.seed))
    clock = itertools.count()
    monkeypatch.setattr(fuzz.time, "time", lambda: next(clock))
    assert fuzz.fuzz(500, workers=1, apis=["gmm"], of_each=2, seconds=5)["count"] == 5
    assert ran == [0, 1, 100, 101, 200]
    with pytest.raises(ValueError, match=r"apis must be of grouped_mm, accumulate, .* with cute, got gmm"):
        fuzz.fuzz(1, apis=["gmm"], backend="cute")
    assert fuzz.apis_of("triton") == ("grouped_mm", *fuzz_cases.APIS)


# ---- what the kernel in CuTe DSL is asked


@pytest.fixture
def stand_in(monkeypatch):
    """Torch in place of the kernel in CuTe DSL, which the library otherwise asks as it does on Hopper; the products
    that it was asked for."""
    asked = []
    monkeypatch.setattr(cute, "runs_on", lambda device: True)
    monkeypatch.setattr(cute, "installed", lambda: True)
    monkeypatch.setattr(
        cute, "_plan", lambda form, config, how, problem, *_: asked.append(problem) or torch_loop.Plan(problem)
    )
    yield asked
    PlanCache.clear_all()


@in_the_interpreter
def test_the_kernel_in_cute_dsl_takes_what_is_drawn_for_it(stand_in):
    record = fuzz.fuzz(1600, **TINY, workers=1, apis=(), of_each=1, backend="cute")
    assert record["count"] == len(stand_in) == 64
    assert set(record["modes"]) == {"m", "k", *fuzz_cases.CUTE_APIS}


@in_the_interpreter
def test_sanitizers_run_every_call_of_every_kernel(stand_in):
    of_cute = called_cute_cases()
    for case in of_cute[1::8]:
        run_called(case)
    assert len(stand_in) == len(of_cute[1::8])
    cases = called_cases()
    names = [str(case) for case in (*cases, *of_cute, *cute_layers())]
    assert len(set(names)) == len(names)
    assert not any(character.isspace() for name in names for character in name)
    assert {type(case.call) for case in cases} == {*NAMES, FeedForward, Journey, Pack, Route}
    for case in cases[3::20]:
        run_called(case)


def test_what_sanitizers_run_does_not_change_with_what_is_measured():
    """So their records hold when constants are measured again."""
    asked = Kind("m", "k"), Extents(512, 4096, 4096, 8), Gpu("sm_90", 132, 4.0)
    assert time_model.fastest(*asked)
    assert choose(*asked).us
    with nothing_measured():
        assert time_model.fastest(*asked) is None
        assert choose(*asked).us is None
    assert choose(*asked).us
