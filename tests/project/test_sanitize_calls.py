"""The cases for sanitizers: they reach every Triton kernel and every kind of product that a layer has in CuTe DSL, and
they report wrong results."""

from __future__ import annotations

import ast
import importlib
import re
from dataclasses import replace

import pytest
import torch

import course_kernels as ck
import moe_calls
import scaled_calls
from course_kernels import runtime
from course_kernels.distributed.transports import peers
from course_kernels.dtypes import FP8
from course_kernels.engine import torch_loop, triton_launch
from course_kernels.engine.hopper import cute
from course_kernels.engine.plans import PlanCache
from course_kernels.engine.product import Ends
from course_kernels.kernels.cute_sm90.config import CONFIGS, configs_for
from course_kernels.kernels.cute_sm90.form import Form
from course_kernels.moe import Routing
from moe_calls import FeedForward, Journey, Route
from places import ROOT
from sanitize_calls import compile_for_racecheck, compiled_for_racecheck, cute_layers, run_called
from scaled_calls import Pack

pytestmark = pytest.mark.skipif(runtime.mode() == "gpu", reason="the interpreter runs Python, which can be watched")

SOURCES = ROOT / "src" / "course_kernels"
OF_BENCHMARKS = {("clean_cache", "_sum_blocks"), ("tutorial_peer", "tutorial_kernel")}
# One case for each kernel, of those that take little time. A new kernel needs a case, and its name here.
CASES = (
    "naive-round_robin-empty-float16-row-row-ieee-1",
    "round_robin-round_robin-empty-float16-row-row-ieee-1",
    "tma-round_robin-empty-float16-row-row-ieee-1",
    "packed-k-0x0x80x96x64-float16-None-None-row-row-padded-zero-round_robin-ieee-1",
    "jagged-simple-0x0-float16-float16-row-row",
    "jagged-persistent-0x0-float16-float16-row-row",
    "sums-sizes=300x0x257x1-N=70-tail=256-layout=col-layout_out=every_other-index=int64",
    "deepgemm-sizes=65x-1x0x90x1-max_m=80",
    "quantize-dtype=bfloat16-lines=128-layout=col",
    "quantize-shape=2x70x145",
    "pack-sizes=65x0x130x1",
    "feedforward-sizes=1x0x1-tail=0",
    "feedforward-sizes=1x0x1-tail=1-top_k=3-with_grads=False",
    "feedforward-sizes=35x0x5x20-weights_on=input",
    "feedforward-sizes=1x0x1-tail=0-recipe=rowwise",
    "feedforward-sizes=1x0x1-tail=0-recipe=blockwise",
    "route-sizes=1x0x20-times=100",
    "route-sizes=40x0x800-times=20",
    "journey",
)


def kernels() -> set[tuple[str, str]]:
    """Module and name of each function for the GPU that no other one calls by its name: those that are launched, and
    those that a launch passes."""
    found, called = set(), set()
    for path in SOURCES.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.FunctionDef):
                continue
            if any(ast.unparse(each).startswith(("triton.jit", "jit")) for each in node.decorator_list):
                found.add((path.stem, node.name))
                inside = [each for line in node.body for each in ast.walk(line)]
                called |= {each.id for each in inside if isinstance(each, ast.Name)}
    return {(module, name) for module, name in found if name not in called}


def test_sanitizers_run_every_kernel(monkeypatch):
    from triton.runtime import interpreter

    monkeypatch.setenv("PYTORCH_NO_CUDA_MEMORY_CACHING", "1")  # the program sets it, for a process of its own
    sanitize = importlib.import_module("sanitize")
    known, ran = sanitize.known_cases("triton"), set()

    def watch(of):
        call = of.__call__

        def watched(self, *arguments, **options):
            ran.add((self.fn.__module__.rpartition(".")[2], self.fn.__name__))
            return call(self, *arguments, **options)

        monkeypatch.setattr(of, "__call__", watched)

    watch(interpreter.GridExecutor)
    watch(interpreter.InterpretedFunction)
    wanted = kernels() - OF_BENCHMARKS
    assert ("contiguous", "contiguous_kernel") in wanted
    assert ("gated", "store_activated") in wanted
    for name in CASES:
        sanitize.run_any(known[name])
    assert wanted - ran == set(), "no case of tools/sanitize.py that is named here runs these"


# ---- the kernel in CuTe DSL


class Gathering(torch_loop.Plan):
    """Torch in place of a product whose lines along K are gathered."""

    def run(self, product, out):
        index, side = product.index.long(), product.rows.operand
        gathered = dict(a=product.a[:, index]) if side == "a" else dict(b=product.b[index])
        super().run(product._replace(rows=Ends(product.offs), **gathered), out)


@pytest.fixture
def stand_in(monkeypatch):
    """Torch, and for a layer's epilogues the Triton kernel, in place of the kernel in CuTe DSL."""
    in_triton = triton_launch.plan

    def plan(form, config, how, problem, product, out):
        assert config.why_not(form) is None
        if form.along == "k":
            return (torch_loop.Plan if form.load == "tma" else Gathering)(problem)
        return torch_loop.Plan(problem) if form.activation is None else in_triton(problem, product, out)

    monkeypatch.setattr(cute, "runs_on", lambda device: True)
    monkeypatch.setattr(cute, "installed", lambda: True)
    monkeypatch.setattr(cute, "_plan", plan)
    yield
    PlanCache.clear_all()


def smaller(case):
    """The case with fewer rows. In blocks of 128 rows, several of them."""
    sizes = (161, 112) if getattr(case.call, "recipe", None) == "blockwise" else (17, 0, 9)
    return replace(case, call=replace(case.call, sizes=sizes, tail=2))


@pytest.mark.usefixtures("stand_in")
@pytest.mark.parametrize("case", [case for case in cute_layers() if case.config == 0 or "wei" in str(case)], ids=str)
def test_layers_of_the_kernel_in_cute_dsl_take_it(case):
    assert "forms" in run_called(smaller(case))


def test_racecheck_can_follow_who_gives_a_stage_back(tmp_path):
    """Every lane of both warp groups arrives, at a barrier of its own block."""
    pytest.importorskip("cutlass", reason="needs the cutlass extra")
    from cutlass import cute as dsl
    from cutlass.base_dsl.compiler import DumpDir

    from course_kernels.kernels.cute_sm90.compilation import compile_for

    form = Form("k", operand_bytes=1, scaling="blocks")
    config, made, options = configs_for(form)[0], {}, (dsl.KeepPTX(True), DumpDir(str(tmp_path)))
    for function in (compile_for, compile_for_racecheck):
        ptx = function(config, form, "float8_e4m3fn", "bfloat16", options=options).__ptx__
        registers = set(re.findall(r"mbarrier\.init\S+\s+\S+ (%r\d+);", ptx))
        counts = {int(count) for to, count in re.findall(r"mov\.b32\s+(%r\d+), (\d+);", ptx) if to in registers}
        made[function] = counts, "mapa" in ptx
    assert config.cluster == 2
    assert made == {compile_for: ({33, 16}, True), compile_for_racecheck: ({33, 256}, False)}


def test_racecheck_changes_no_other_kernel():
    given = CONFIGS[0], Form("m", operand_bytes=1, scaling="blocks"), FP8, torch.bfloat16, "device"
    assert compiled_for_racecheck(lambda *asked: asked, *given) == given


def test_cases_of_a_kernel_are_those_that_can_run(monkeypatch):
    monkeypatch.setenv("PYTORCH_NO_CUDA_MEMORY_CACHING", "1")  # as above
    known_cases = importlib.import_module("sanitize").known_cases
    assert known_cases("cute") == known_cases("cute_layers") == {}
    monkeypatch.setattr(cute, "runs_on", lambda device: True)
    monkeypatch.setattr(cute, "installed", lambda: True)
    products, layers = known_cases("cute"), known_cases("cute_layers")
    assert [*layers.values()] == cute_layers()
    assert len(products) > 70
    assert not products.keys() & layers.keys()


@pytest.mark.usefixtures("stand_in")
def test_a_layer_that_the_kernel_in_cute_dsl_does_not_take_is_an_error(monkeypatch):
    case = smaller(next(case for case in cute_layers() if getattr(case.call, "with_grads", False)))
    monkeypatch.setattr("course_kernels.moe.layer._gathered_gradient", lambda *arguments: False)
    with pytest.raises(AssertionError, match=r"was not asked for \[\('k', 'gather', 'store', 'ends'\), "):
        run_called(case)


# ---- mistakes


def wrong(function):
    """The function, whose results that no oracle asked for have a wrong element: the first of the first part."""

    def call(*arguments, **options):
        found = part = function(*arguments, **options)
        while isinstance(part, tuple):
            part = part[0]
        of_oracle = isinstance(arguments[-1], str) and arguments[-1] == "torch"
        if part.numel() and not of_oracle:
            first = part.detach()[(0,) * part.dim()]
            first.copy_(-first.float() - 1)
        return found

    return call


SIDES = [(FeedForward(), ck, "moe_feed_forward"), (FeedForward(with_grads=False), ck, "moe_feed_forward")]
SIDES += [(FeedForward(recipe="rowwise"), ck, "moe_feed_forward"), (Route(), Routing, "of")]
SIDES += [(Journey(), moe_calls, name) for name in ("sends_of", "of_choices", "to_choices")]
SIDES += [(Journey(), moe_calls, "combine")]
SIDES += [(Pack(), scaled_calls, "pack")]


@pytest.mark.parametrize("guards", [True, False])
@pytest.mark.parametrize(("call", "room", "name"), SIDES, ids=lambda each: each if isinstance(each, str) else "")
def test_one_wrong_element_is_reported(monkeypatch, call, room, name, guards):
    call.check("cpu", "triton", guards)
    monkeypatch.setattr(room, name, wrong(getattr(room, name)))
    with pytest.raises(AssertionError, match=rf"(?s)^{type(call).__name__}\(.*wrong"):
        call.check("cpu", "triton", guards)


def test_wrong_gradients_are_reported(monkeypatch):
    from course_kernels.moe import layer

    for call in (FeedForward(), FeedForward(main_grads=True)):
        with monkeypatch.context() as patched:
            patched.setattr(layer, "_weight_gradient", lambda left, right, out, *others: out.zero_())
            with pytest.raises(AssertionError, match=r"(?s)^FeedForward\(.*(main_grads|gradient) of gate_up"):
                call.check("cpu", "triton")


def test_results_that_are_looked_for_elsewhere_are_reported(monkeypatch):
    homes_of = peers.homes_of
    monkeypatch.setattr(peers, "homes_of", lambda *given: homes_of(*given[:-1], given[-1] + 1))
    with pytest.raises(AssertionError, match="rows of choices: wrong"):
        Journey().check("cpu", "triton")


def test_pieces_without_their_rows_are_reported(monkeypatch):
    pieces_of = peers.pieces_of
    monkeypatch.setattr(
        peers, "pieces_of", lambda *given: pieces_of(given[0]._replace(ends=given[0].ends - 1), *given[1:])
    )
    with pytest.raises(AssertionError, match="rows of pieces: wrong"):
        Journey().check("cpu", "triton")


def test_rows_that_do_not_arrive_are_reported(monkeypatch):
    for name in ("tell", "put", "push"):
        with monkeypatch.context() as patched:
            patched.setattr(peers, name, lambda *arguments, **options: None)
            with pytest.raises(AssertionError, match="memory of rank 0: wrong"):
                Journey().check("cpu", "triton")
