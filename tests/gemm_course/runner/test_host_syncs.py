"""Host syncs of a function are recorded, with the CPU's tensors presented as a GPU's."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from gemm_course.runner import host_syncs
from gemm_course.runner.probes import Watch


def recorded(function):
    """The events of `function(tensor)`, as (kind, what)."""
    watch = Watch(__file__)
    watch.device = torch.device("cpu")
    tensor = torch.tensor([3, 1, 2])
    with host_syncs.recorded(watch) as there:
        assert there(tensor)
        function(tensor)
    return [(event["kind"], event["what"]) for event in watch.report()["events"]]


def test_each_host_sync_is_one_event_that_names_its_cause():
    assert recorded(lambda each: each.sum().item()) == [("sync", "item() reads values of a tensor in Python")]
    ((_, said),) = recorded(lambda each: torch.nn.functional.pad(each, (0, each[1])))
    assert said == "pad() takes numbers, and reads them in Python from a tensor"


def test_a_number_that_torch_itself_reads_is_seen_whatever_function_takes_it():
    ((kind, said),) = recorded(lambda each: torch.movedim(each.view(1, 3), each[1] * 0, 1))
    assert (kind, said) == ("sync", "movedim() takes a number, and reads it in Python from a tensor")


def test_values_of_a_tensor_on_the_host_may_be_read():
    assert recorded(lambda each: torch.tensor([1, 2]).tolist()) == []
    assert recorded(lambda each: torch.zeros(int(torch.tensor(2)), device=each.device)) == []


def test_tensors_of_both_devices_are_noted_with_the_function():
    assert recorded(lambda each: each + torch.arange(3)) == [("devices", "add")]
    assert recorded(lambda each: each + torch.arange(3, device=each.device)) == []
    assert recorded(lambda each: torch.where(each > 1, each, torch.tensor(0))) == []


# Of a tensor x (3,): places i, a mask m; and a single number, t on the GPU and c on the host.
WAITS = {
    "x.index_fill(0, i[:1], t)": "index_fill() takes a number, and reads it in Python from a tensor",
    "x.index_fill_(0, i[:1], t)": "index_fill_() takes a number",
    "x.masked_fill(m, t)": "masked_fill() takes a number",
    "x.masked_fill_(m, t)": "masked_fill_() takes a number",
    "x.__setitem__(m, t)": "indexing by a mask has to count it",
    "x.__setitem__(m, x[:2].clone())": "indexing by a mask has to count it",
    "x.index_put((m,), t)": "indexing by a mask has to count it",
    "x.index_put_([m], values=x[:2].clone())": "indexing by a mask has to count it",
    "x.diag().__setitem__((m, i[:2]), 1)": "indexing by a mask has to count it",
    "x[m]": "indexing by a mask has to count it",
    "x[t]": "indexing by a single number",
    "x.__setitem__(t, 1)": "indexing by a single number",
    "x[:t]": "a slice up to a tensor's value",
    "torch.full((3,), t, device=x.device)": "full() takes numbers",
    "torch.full_like(x, t)": "full_like() takes a number",
    "torch.add(x, x, alpha=t)": "add() takes a number",
    "x.clamp(t, 9)": "clamp() takes a number",
    "x.topk(t - t + 1)": "topk() takes a number",
    "x.cumsum(t - t)": "cumsum() takes a number",
    "x.sum(t - t)": "sum() takes a number",
    "x.unsqueeze(t - t)": "unsqueeze() takes a number",
    "F.pad(x, (0, 2), value=t)": "pad() takes numbers",
    "F.one_hot(x)": "one_hot() without num_classes",
    "torch.tensor([t])": "tensor() takes numbers",
    "torch.histc(x.float(), 3)": "histc() without min and max",
    "x.bincount(minlength=4)": "bincount() reads values",
    "x.repeat_interleave(x)": "repeat_interleave() without output_size",
    "torch.where(m)": "where() with a condition alone",
    "torch.segment_reduce(x.float(), 'sum', lengths=i * 0 + 1)": "segment_reduce() reads values",
    "x.to_sparse()": "to_sparse() reads values",
    "x.new_full((2,), t)": "new_full() takes numbers",
}
GOES_ON = [
    "x.index_fill(0, i[:1], 2)", "x.index_fill(0, i[:1], c)", "x.masked_fill(m, 2)", "x.masked_fill(m, c)",
    "x.fill_(t)", "x.clamp(t)", "torch.clamp(x, min=t, max=t)", "torch.where(m, t, x)", "x.__setitem__(m, 1)",
    "x.__setitem__(m, c)", "x.index_put((m,), c)", "x.index_put((i,), t)", "x.__setitem__(0, t)",
    "x.__setitem__(slice(None), t)", "x.__setitem__(i, t)", "x.diag().__setitem__((m, 0), 1)",
    "x.diag().__setitem__((slice(None), m), 1)", "x[i]", "x ** t", "x < t", "x // t", "torch.maximum(x, t)",
    "x.index_select(0, t)", "F.one_hot(x, 5)", "x.masked_scatter(m, x)", "torch.isin(x, x)", "x.expand(2, 3)",
    "torch.as_tensor(t)", "torch.histc(x.float(), 3, 0, 1)", "torch.searchsorted(x, t)",
    "x.repeat_interleave(x, output_size=6)", "x.scatter(0, i, 1)", "torch.stack([t, t])", "torch.block_diag(t, t)",
    "x.new_full((2,), c)",
]  # fmt: skip


def names(device):
    x = torch.tensor([1, 3, 2], device=device)
    i = torch.tensor([2, 0, 1], device=device)
    return {"x": x, "t": x.min(), "m": x > 1, "i": i, "c": torch.tensor(2), "torch": torch, "F": F}


@pytest.mark.parametrize("code", [*WAITS, *GOES_ON])
def test_a_number_in_a_tensor_is_read_by_some_functions_and_not_by_others(code):
    watch = Watch(__file__)
    watch.device = torch.device("cpu")
    values = names("cpu")
    with host_syncs.recorded(watch):
        values["c"] = torch.tensor(2)
        eval(code, values)
    said = [event["what"] for event in watch.report()["events"]]
    assert len(said) == (code in WAITS), said
    assert WAITS.get(code, "") in "".join(said)


@pytest.mark.gpu
@pytest.mark.parametrize("code", [*WAITS, *GOES_ON])
def test_a_gpu_says_the_same(code):
    values = names("cuda")
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        if code in WAITS:
            with pytest.raises(RuntimeError, match="synchroniz"):
                eval(code, values)
        else:
            eval(code, values)
    finally:
        torch.cuda.set_sync_debug_mode(before)


def test_many_calls_in_a_line_are_counted():
    ((kind, _),) = recorded(lambda each: [each + 1 for _ in range(host_syncs.MANY + 1)])
    assert kind == "calls"
    assert recorded(lambda each: [each + 1 for _ in range(host_syncs.MANY // 2)]) == []
