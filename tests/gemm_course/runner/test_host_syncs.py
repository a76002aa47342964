"""Host syncs of a function are recorded, with the CPU's tensors presented as a GPU's."""

from __future__ import annotations

import torch

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


def test_many_calls_in_a_line_are_counted():
    ((kind, _),) = recorded(lambda each: [each + 1 for _ in range(host_syncs.MANY + 1)])
    assert kind == "calls"
    assert recorded(lambda each: [each + 1 for _ in range(host_syncs.MANY // 2)]) == []
