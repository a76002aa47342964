"""Providers compute the product, and say what keeps them from running."""

from __future__ import annotations

import sys
import types

import pytest
import torch

from bench_stand_ins import DECODE, TINY
from course_kernels import runtime
from course_kernels.bench import providers as known
from course_kernels.bench.operands import make_operands
from course_kernels.bench.rows import EVERY_PASS, PASSES, Row

PEERS = [known.Torch(), known.CublasLoop(), known.Dense()]


@pytest.mark.parametrize("provider", PEERS, ids=lambda p: p.name)
@pytest.mark.parametrize("row", [TINY, DECODE], ids=lambda row: row.name)
def test_peers_compute_the_product_and_its_gradients(provider, row):
    operands = make_operands(row, "cpu")
    calls = provider.prepare(operands)
    for of in EVERY_PASS:
        for function in calls.of(of).values():
            (calls.operands or operands).verify(function(), of)
    assert set(calls.of("forward")) == set(calls.of("dB")) == {""}


@pytest.mark.parametrize("backend", ["torch", "triton"])
@pytest.mark.parametrize("row", [TINY, DECODE], ids=lambda row: row.name)
def test_ours_computes_the_product_and_its_gradients(backend, row):
    operands = make_operands(row, runtime.device(), torch.float16)  # bfloat16 is slow in the interpreter
    calls = known.Ours(backend).prepare(operands)
    for of in PASSES:
        result = calls.of(of)[""]()
        operands.verify(result, of)
        shared = {"forward": operands.out, "dA": operands.d_a, "dB": operands.d_weight}.get(of)
        assert of == "called" or result.data_ptr() == shared.data_ptr(), "every provider writes the same memory"


@pytest.mark.parametrize("provider", [known.Ours("auto"), known.Ours("triton"), known.Torch()], ids=lambda p: p.name)
def test_a_step_gives_gradients_in_the_layout_of_what_they_belong_to(provider):
    on_cpu = isinstance(provider, known.Torch)
    device, dtype = ("cpu", torch.bfloat16) if on_cpu else (runtime.device(), torch.float16)
    operands = make_operands(TINY, device, dtype)
    (step,) = provider.prepare(operands).step.values()
    for _ in range(2):  # nothing is added to the gradients of the call before
        out, d_a, d_weight = step()
        operands.verify((out, d_a, d_weight), "step")
    assert d_a.stride() == operands.a.stride()
    assert d_weight.stride() == operands.weight.stride()
    assert not operands.a.requires_grad
    assert operands.weight.grad is None


def test_the_zoo_measures_the_choice_beside_what_it_chooses_from():
    names = [provider.name for provider in known.zoo()]
    assert names[: 1 + len(known.backends())] == ["auto", *known.backends()]
    assert names[-4:] == ["quack", "torch", "loop", "dense"]
    assert [provider.name for provider in known.select(["torch", "auto"], known.zoo())] == ["auto", "torch"]


def test_a_new_backend_of_grouped_mm_is_measured_as_soon_as_it_is_accepted(monkeypatch):
    assert [p.name for p in known.providers() if p.role == "ours"] == ["triton", "cute"]
    monkeypatch.setattr(known.product_checks, "BACKENDS", ("auto", "triton", "torch", "new"))
    assert [p.name for p in known.providers() if p.role == "ours"] == ["triton", "new"]
    assert known.select(["new"])[0].label == "grouped_mm (new)"


def test_cute_is_left_out_with_a_reason_where_it_cannot_run(monkeypatch):
    (cute,) = known.select(["cute"])
    monkeypatch.setattr(known.cute, "runs_on", lambda device: False)
    assert "compute capability 9.0" in cute.unavailable()
    monkeypatch.setattr(known.cute, "runs_on", lambda device: True)
    monkeypatch.setattr(known.cute, "installed", lambda: False)
    assert "[cutlass]" in cute.unavailable()
    monkeypatch.setattr(known.cute, "installed", lambda: True)
    assert cute.unavailable() is None
    assert known.select(["triton"])[0].unavailable() is None


def test_dense_is_no_ceiling_where_memory_bounds():
    assert "copy bandwidth" in known.Dense().unsuited(DECODE)
    assert known.Dense().unsuited(TINY) is None


def test_providers_say_what_keeps_them_away(monkeypatch):
    present = {"quack": False, "cutlass": True}
    monkeypatch.setattr(known.importlib.util, "find_spec", lambda name: present.get(name) or None)
    assert known.Quack().unavailable() == "quack-kernels is not installed"
    present |= {"quack": True, "cutlass": False}
    assert known.Quack().unavailable() == "nvidia-cutlass-dsl is not installed"
    monkeypatch.delattr(torch.nn.functional, "grouped_mm")
    assert known.Torch().unavailable() is None, "the older name will do"
    monkeypatch.delattr(torch, "_grouped_mm")
    assert "has no grouped_mm" in known.Torch().unavailable()
    odd = Row("odd", "", (4,), 12, 20, "compute")
    assert known.Torch().unsuited(odd)
    assert "multiple of 64, got 20" in known.Tutorial().unsuited(odd)


def test_unknown_providers_are_refused():
    assert [provider.name for provider in known.select(["dense", "torch"])] == ["torch", "dense"]
    with pytest.raises(ValueError, match=r"providers must be among .*torch.*; got 'cublas'"):
        known.select(["cublas"])


def test_quack_is_asked_for_the_right_products(monkeypatch):
    """Its calls, on a stand-in that computes what QuACK's source says that it does."""
    asked = []

    def gemm(A, B, D, C, semaphore, tile_M, tile_N, cluster_M, cluster_N, *, pingpong, persistent,
             is_dynamic_persistent=False, cu_seqlens_m=None, cu_seqlens_k=None):  # fmt: skip
        asked.append((tile_M, tile_N, cluster_M, cluster_N, pingpong, is_dynamic_persistent))
        assert (semaphore is not None) == is_dynamic_persistent
        if semaphore is not None:
            assert semaphore.tolist() == [0], "the counter starts at 0"
            semaphore.fill_(5)
        starts = cu_seqlens_m if cu_seqlens_k is None else cu_seqlens_k
        assert starts.dtype == torch.int32
        for g, (start, end) in enumerate(zip(starts.tolist(), starts.tolist()[1:])):
            if cu_seqlens_k is None:
                assert A.stride(-1) == D.stride(-1) == 1
                D[start:end] = (A[start:end].float() @ B[g].float().mT).bfloat16()
            else:
                assert A.stride(-2) == B.stride(-2) == 1
                D[g] = (A[:, start:end].float() @ B[:, start:end].float().mT).bfloat16()

    module = types.ModuleType("quack.gemm")
    module.gemm = gemm
    monkeypatch.setitem(sys.modules, "quack", types.ModuleType("quack"))
    monkeypatch.setitem(sys.modules, "quack.gemm", module)
    operands = make_operands(TINY, "cpu")
    calls = known.Quack().prepare(operands)
    for of, count in (("forward", 18), ("called", 1), ("dA", 6), ("dB", 6)):
        asked.clear()
        assert len(calls.of(of)) == count
        for name, function in calls.of(of).items():
            for _ in range(2):
                operands.verify(function(), of)
            assert asked[-1][-1] == name.endswith("dynamic")
        assert len(set(asked)) == count


def test_the_tutorials_kernel_gets_float16_groups_and_each_of_its_configurations(monkeypatch):
    from course_kernels.bench import tutorial_peer

    class Plan:
        def __init__(self, group_A, group_B, config):
            assert all(m.dtype == torch.float16 and m.is_contiguous() for m in [*group_A, *group_B])
            self.group_A, self.group_B, self.config = group_A, group_B, None

        def run(self):
            asked.append(self.config["NUM_SM"])
            return [(a.float() @ b.float()).half() for a, b in zip(self.group_A, self.group_B)]

    asked, settings = [], [dict(NUM_SM=n, BLOCK_M=128, BLOCK_N=64, BLOCK_K=32) for n in (84, 132)]
    monkeypatch.setattr(tutorial_peer, "TutorialPlan", Plan)
    monkeypatch.setattr(tutorial_peer, "configurations", lambda: settings)
    operands = make_operands(TINY, "cpu")
    calls = known.Tutorial().prepare(operands)
    assert list(calls.forward) == ["128x64x32, 84 programs", "128x64x32, 132 programs"]
    for function in calls.forward.values():
        operands.verify(function(), "forward")
    assert asked == [84, 132]
    assert not calls.d_a
    assert not calls.d_b
