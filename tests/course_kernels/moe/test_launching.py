"""Launches of small kernels: in the interpreter bfloat16 is widened, strides and all."""

from __future__ import annotations

import pytest
import torch

from course_kernels import runtime
from course_kernels.codegen import Build, compile_many
from course_kernels.codegen.packed import specialize
from course_kernels.distributed import plan
from course_kernels.moe import Routing, launching, steps
from course_kernels.testing import integers
from moe_layers import DEVICE, adapted, make

pytestmark = [pytest.mark.gpu] if runtime.mode() == "gpu" else []


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_strides_that_no_dense_copy_has(dtype):
    """Steps of 0, and of more than there are elements."""
    wide = integers((9, 50), dtype, 1, device=DEVICE)
    routing = Routing.of(torch.tensor([[0], [0], [0]], device=DEVICE), 1)
    for x in (wide[::4, 5:45:3], wide[:1].expand(3, 50), wide[:3, :1].expand(3, 7), wide.mT[3:6]):
        assert torch.equal(steps.gather(x, routing), x)


def test_what_is_written_is_copied_back():
    x = torch.ones(2, 3, dtype=torch.bfloat16, device=DEVICE)
    out = torch.zeros(2, 3, dtype=torch.bfloat16, device=DEVICE)
    routing = Routing.of(torch.tensor([[0], [0]], device=DEVICE), 1)
    launching.launch(
        "moe_rows", "gather_kernel", 2, 2, x_ptr=x, index_ptr=routing.tokens, offs_ptr=routing.ends, slots_ptr=None,
        weights_ptr=None, out_ptr=out, stride_t=3, stride_h=1, COLS=3, EXPERTS=1, TOP_K=1, BLOCK_M=1, BLOCK_N=16,
    )  # fmt: skip
    assert (out == 1).all()
    assert (x == 1).all()


@pytest.mark.skipif(runtime.mode() != "gpu", reason="plans are for GPUs")
def test_another_number_of_tokens_needs_no_other_plan():
    before = None
    for tokens in (5, 64, 1000):
        ids = torch.zeros(tokens, 1, dtype=torch.int64, device=DEVICE)
        x = torch.randn(tokens, 32, device=DEVICE)
        assert torch.equal(steps.gather(x, Routing.of(ids, 1)), x)
        before = before or len(launching._known)
        assert len(launching._known) == before


@pytest.mark.skipif(runtime.mode() != "interpreter", reason="on a GPU they run")
def test_what_is_interpreted_compiles_for_hopper_without_spills(monkeypatch):
    """The interpreter takes what the compiler refuses. These are the layer's kernels beside its products."""
    builds, interpret = {}, launching._interpret

    def note(module, name, programs, tokens, arguments, tensors):
        given = launching._with_tokens(arguments, tokens) | ({"ROUND": False} if "ROUND" in arguments else {})
        signature, constants, divisible = specialize(launching._kernel(module, name), given)
        found = Build(f"course_kernels.kernels.{module}:{name}", signature, constants, divisible)
        builds[module, name, str(signature), str(constants)] = found
        interpret(module, name, programs, tokens, arguments, tensors)

    monkeypatch.setattr(launching, "_interpret", note)
    shape = dict(tokens=4, hidden=32, inner=64, experts=2, dtype=torch.bfloat16, backend="triton")
    for options in (dict(), dict(weights_on="input"), dict(activation="relu2", bias=True)):
        for recipe in ("rowwise", "blockwise"):
            make(**shape, fp8_recipe=recipe, **options).leaves()().sum().backward()
    make(**shape, weights_on="input").leaves()().sum().backward()
    adapted(make(**shape)).leaves()().sum().backward()
    made = torch.Generator().manual_seed(0)
    for count in (8, 520):  # few and many choices are sorted by other kernels
        ids = torch.randint(-1, 9, (count, 3), generator=made)
        sends = plan.sends_of(ids, 2, 4, "triton")
        plan.to_choices(plan.of_choices(torch.rand(count, 3, generator=made), sends, "triton"), sends, "triton")
        Routing.of(torch.randint(9, (count, 4), generator=made), 9, backend="triton")
    names = {name for _, name, *_ in builds}
    assert {"quantize_tokens_kernel", "quantize_column_blocks_kernel", "sends_kernel", "pick_kernel"} <= names
    assert {"sort_few_kernel", "activation_gradient_kernel", "combine_kernel", "dots_kernel"} <= names
    compiled = compile_many([(each, "sm_90") for each in builds.values()], workers=2)
    assert {str(build): each.spills.bytes for build, each in zip(builds.values(), compiled) if each.spills.bytes} == {}
