"""deepgemm inside torch's machinery: compiled in one graph, traced with tensors without memory, counted as a write."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from course_kernels import GemmConfig, deepgemm, runtime, shuffle_weight
from masked_operands import DEVICE, FP8, case, result_for

pytestmark = [pytest.mark.gpu] if runtime.mode() == "gpu" else []


def test_compiled_in_one_graph():
    made = case(FP8, "group", K=96)

    @torch.compile(backend="aot_eager", fullgraph=True)
    def compiled(x, w, y, sizes, x_scale, w_scale):
        deepgemm(x, w, y, sizes, x_scale, w_scale, config=GemmConfig(32, 32, 32), expected_m=20)
        return y[:, 0] + 1

    y, _ = result_for(made)
    before = y.clone()
    after = compiled(*made[:2], y, *made[2:])
    made.check(y, before)
    assert torch.equal(after.nan_to_num(0.5), (y[:, 0] + 1).nan_to_num(0.5))


def test_shuffled_bytes_in_a_compiled_graph():
    made = case(K=96)
    weight = shuffle_weight(made.WQ).untyped_storage()
    plain = torch.empty(0, dtype=torch.float16, device=DEVICE).set_(weight, 0, made.WQ.shape)

    @torch.compile(backend="aot_eager", fullgraph=True)
    def compiled(x, w, y, sizes):
        return deepgemm(x, w, y, sizes, shuffled=True)

    y, _ = result_for(made)
    before = y.clone()
    compiled(made.XQ, plain, y, made.group_layout)
    made.check(y, before)


def test_a_marked_weight_breaks_the_graph_and_is_right():
    """Dynamo cannot take the mark off inside a graph."""
    made = case(K=96)
    marked = shuffle_weight(made.WQ)

    @torch.compile(backend="aot_eager")
    def compiled(x, w, y, sizes):
        return deepgemm(x * 1, w, y, sizes) * 1

    y, _ = result_for(made)
    before = y.clone()
    compiled(made.XQ, marked, y, made.group_layout)
    made.check(y, before)


def test_operator():
    made = case(torch.float16)
    y = torch.zeros(4, 40, 48, device=DEVICE)
    arguments = (*made[:2], y, made.group_layout, None, None, False, 0, False, "auto", "")
    torch.library.opcheck(torch.ops.course_kernels.deepgemm, arguments, test_utils=("test_schema", "test_faketensor"))


def test_without_memory_form_is_checked():
    with FakeTensorMode():
        x, w = torch.empty(2, 5, 96, dtype=torch.float16), torch.empty(2, 32, 96, dtype=torch.float16)
        y, sizes = torch.empty(2, 5, 32), torch.empty(2, dtype=torch.int32)
        assert deepgemm(x, w, y, sizes) is y
        with pytest.raises(ValueError, match=r"Y must be \(G, max_M, N\)"):
            deepgemm(x, w, y[:, :, :31], sizes)
    x, w, y, sizes = (t.to("meta") for t in (*case()[:2], torch.zeros(4, 40, 48), case().group_layout))
    assert deepgemm(x, w, y, sizes) is y


def test_a_write_is_a_new_version_and_no_gradient_is_lost():
    made, y = case(), torch.zeros(4, 40, 48, device=DEVICE)
    version = y._version
    deepgemm(*made[:2], y, made.group_layout)
    assert y._version > version
    weight = made.WQ.clone().requires_grad_()
    with pytest.raises(TypeError, match="WQ requires a gradient"):
        deepgemm(made.XQ, weight, y, made.group_layout)
    with torch.no_grad():
        deepgemm(made.XQ, weight, y, made.group_layout)


@pytest.mark.parametrize("shuffled", [False, True])
def test_a_call_shows_in_a_profile(shuffled):
    made = case(K=96)
    weight = shuffle_weight(made.WQ) if shuffled else made.WQ
    y, _ = result_for(made)
    before = y.clone()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        deepgemm(made.XQ, weight, y, made.group_layout)
    assert {event.key: event.count for event in profile.key_averages()}.get("course_kernels::deepgemm") == 1
    made.check(y, before)


def test_vmap_makes_a_call_for_each_element():
    made = case(torch.float16)
    x = torch.stack([made[0], made[0].flip(0)])
    y = torch.full((2, 4, 40, 48), torch.nan, dtype=torch.float32, device=DEVICE)
    found = torch.func.vmap(deepgemm, in_dims=(0, None, 0, None))(x, made[1], y, made.group_layout)
    for each, given, wanted in zip(found, x, torch.full_like(y, torch.nan)):
        assert torch.equal(each.nan_to_num(), deepgemm(given, made[1], wanted, made.group_layout).nan_to_num())
    with pytest.raises(RuntimeError, match="Y must be one of the batched arguments"):
        torch.func.vmap(deepgemm, in_dims=(0, None, None, None))(x, made[1], y[0], made.group_layout)
