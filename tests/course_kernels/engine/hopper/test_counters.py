"""Counters of dynamic orders: one for each stream, one for each captured launch. That kernels leave them 0, and what
happens where they run at the same time, is in ``test_dynamic_order_gpu``."""

from __future__ import annotations

import contextlib
import gc
import weakref
from types import SimpleNamespace

import pytest
import torch

from course_kernels.engine.hopper import counters as cute_counters
from course_kernels.engine.hopper.counters import take

CPU = torch.device("cpu", 0)


@pytest.fixture
def cuda(monkeypatch):
    """A GPU's streams without a GPU: what is current, what is captured, and how often somebody waited."""
    state = SimpleNamespace(stream=0, capturing=False, waited=0)

    class Stream:
        def __init__(self, device):
            assert not state.capturing, "no memory can be reserved while a graph is captured"

        def synchronize(self):
            state.waited += 1

    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: state.capturing)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: state.stream, raising=False)
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext())
    monkeypatch.setattr(cute_counters, "AT_A_TIME", 4)
    monkeypatch.setattr(cute_counters, "_of_streams", {})
    monkeypatch.setattr(cute_counters, "_free", {})
    monkeypatch.setattr(cute_counters, "_kept", [])
    return state


def taken(cuda, stream=0, capturing=False, device=CPU):
    cuda.stream, cuda.capturing = stream, capturing
    counter = take(device)
    assert (counter.shape, counter.dtype, counter.item()) == ((1,), torch.float64, 0.0)
    return counter


def test_each_stream_of_each_device_has_one(cuda):
    first = [taken(cuda, stream, device=device) for device in (CPU, torch.device("cpu", 1)) for stream in (0, 7)]
    assert len({each.data_ptr() for each in first}) == 4
    again = [taken(cuda, stream, device=device) for device in (CPU, torch.device("cpu", 1)) for stream in (0, 7)]
    assert all(one is other for one, other in zip(first, again))
    assert cuda.waited == 2, "once for each device"


def test_each_captured_launch_has_one(cuda):
    counters = [taken(cuda)] + [taken(cuda, stream=3, capturing=True) for _ in range(3)]
    assert len({each.data_ptr() for each in counters}) == 4
    assert taken(cuda) is counters[0]


def test_memory_of_a_captured_launch_stays_its_own(cuda):
    """Its graph holds an address, and no tensor."""
    taken(cuda)
    captured = [taken(cuda, capturing=True) for _ in range(3)]
    taken(cuda)
    captured += [taken(cuda, capturing=True) for _ in range(4)]
    blocks = [weakref.ref(each) for each in {id(each._base): each._base for each in captured}.values()]
    del captured
    gc.collect()
    assert len(blocks) == 2
    assert all(block() is not None for block in blocks)


def test_without_a_reserve_a_graph_sets_its_own(cuda):
    for _ in range(2):
        assert taken(cuda, capturing=True)._base is None, "not one of a reserve"
    assert cuda.waited == 0
    counters = [taken(cuda)] + [taken(cuda, capturing=True) for _ in range(4)]
    assert [each._base is None for each in counters] == [False] * 4 + [True], "four are reserved at a time"


def test_the_next_launch_outside_of_a_graph_reserves_more(cuda):
    before = taken(cuda)
    captured = [taken(cuda, capturing=True) for _ in range(3)]
    assert taken(cuda) is before, "a stream keeps its own"
    assert cuda.waited == 2
    captured += [taken(cuda, capturing=True) for _ in range(4)]
    assert len({each.data_ptr() for each in (before, *captured)}) == 8
    assert all(each._base is not None for each in captured)


def test_the_stream_of_each_thread_shares_none(cuda):
    counters = [taken(cuda, stream=2) for _ in range(3)]
    assert len({each.data_ptr() for each in counters}) == 3
    assert not cute_counters._of_streams


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty")
def test_on_a_gpu_graphs_that_use_up_a_reserve_keep_their_counters():
    """Memory asked for afterwards, and written, is not where a graph's counter is."""
    device, addresses = torch.device("cuda", torch.cuda.current_device()), set()
    for _ in range(2 * cute_counters.AT_A_TIME):
        take(device)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            addresses.add(take(device).data_ptr())
    assert len(addresses) == 2 * cute_counters.AT_A_TIME
    for other in [torch.ones(cute_counters.AT_A_TIME, dtype=torch.float64, device=device) for _ in range(20)]:
        assert not {other.data_ptr() + 8 * i for i in range(other.numel())} & addresses


@pytest.mark.gpu
def test_on_a_gpu_memory_of_a_graph_is_not_used():
    """A reserve made while memory goes to a graph's pool, as in the first run of `mode="reduce-overhead"`."""
    device = torch.device("cuda", torch.cuda.current_device())
    streams, free = dict(cute_counters._of_streams), dict(cute_counters._free)
    cute_counters._of_streams.clear()
    cute_counters._free.clear()
    try:
        pool = torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(pool):
            outside = torch.ones(1, device=device)
            counter = take(device)
        held = {block["address"] for segment in pool.snapshot() for block in segment["blocks"]}
        assert outside.data_ptr() in held, "this thread's memory is the pool's"
        assert counter.data_ptr() - counter.storage_offset() * 8 not in held
        assert counter.item() == 0.0
    finally:
        cute_counters._of_streams.update(streams)
        cute_counters._free.update(free)
