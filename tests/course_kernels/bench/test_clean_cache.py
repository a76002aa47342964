"""Before each call L2 is overwritten, then other memory is read; and a read reads everything."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from course_kernels import runtime
from course_kernels.bench import clean_cache, timing


@pytest.fixture
def called(monkeypatch):
    """What was called, in order, in place of a device. A call takes as many ms as there were calls before it."""
    found = []

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing

        def record(self):
            self.at = len(found)

        def elapsed_time(self, end):
            return sum(range(self.at, end.at))

    def make(*_, **__):
        buffer = SimpleNamespace()
        buffer.zero_ = lambda: found.append(("written", buffer))
        return buffer

    cuda = SimpleNamespace(Event=Event, synchronize=lambda: None)
    fake = SimpleNamespace(cuda=cuda, int32=None, empty=make, zeros=make)
    monkeypatch.setattr(clean_cache, "torch", fake)
    monkeypatch.setattr(timing, "torch", fake)
    monkeypatch.setattr(clean_cache, "read", lambda buffer: found.append(("read", buffer)))
    return found


def test_other_memory_is_read_after_the_cache_was_overwritten(called):
    functions = {name: lambda name=name: called.append(name) for name in "abc"}
    times = clean_cache.interleaved_us(functions, repeats=20)
    assert [len(values) for values in times.values()] == [20] * 3
    (written, read), *_ = pairs = list(zip(called[0::3], called[1::3], strict=True))
    assert [written[0], read[0]] == ["written", "read"]
    assert written[1] is not read[1], "a read of the same memory would find it in the cache"
    assert pairs == [(written, read)] * 60
    names = called[2::3]
    at = {name: [3 * i + 2 for i, each in enumerate(names) if each == name] for name in "abc"}
    assert times == {name: [1e3 * i for i in at[name]] for name in "abc"}, "only the call is timed"
    called.clear()
    timing.interleaved_us(functions, repeats=20)
    assert called[1::2] == names, "the same order as where the cache is left dirty"


@pytest.mark.parametrize("size", [1, 16384, 40000])
def test_a_read_reads_everything(size):
    source = torch.arange(size, dtype=torch.int32, device=runtime.device())
    sums = clean_cache.read(source)
    assert sums.tolist() == [int(block.sum()) for block in source.split(16384)]
