"""Chunks in order, with stand-ins; values and gradients of ranks are those of ``test_expert_parallel``."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from course_kernels import runtime
from course_kernels.distributed.chunks import overlapped
from course_kernels.distributed.expert_parallel import Dispatched, ExpertParallel
from course_kernels.distributed.motion import Choices
from course_kernels.moe import Routing


class Noting:
    """Halves of a journey that lead nowhere."""

    def __init__(self):
        self.steps = []

    def dispatch(self, x, ids, weights):
        self.steps.append(("dispatch", x.shape[0]))
        return Dispatched(x, Choices(ids, weights, Routing.of(ids, 2)), x.shape[0])

    def combine(self, y, handle):
        self.steps.append(("combine", handle))
        return y


def test_the_next_chunk_leaves_before_results_return():
    ep, x = Noting(), torch.arange(14.0).reshape(7, 2)

    def layer(rows, weights, routing):
        ep.steps.append(("experts", rows.shape[0]))
        return rows * 2

    out = overlapped(ep, layer, x, torch.zeros(7, 1, dtype=torch.int64), torch.ones(7, 1), 3)
    assert torch.equal(out, x * 2)
    assert ep.steps == [
        ("dispatch", 2), ("experts", 2), ("dispatch", 2), ("combine", 2), ("experts", 2), ("dispatch", 3),
        ("combine", 2), ("experts", 3), ("combine", 3),
    ]  # fmt: skip


def test_products_leave_sms_to_exchanges_at_the_same_time(monkeypatch):
    monkeypatch.setattr(runtime, "num_sms", lambda device: 132)

    def sms(chunks, device="cuda", given=None):
        return ExpertParallel.products_sms(SimpleNamespace(chunks=chunks), torch.device(device), given)

    assert (sms(1), sms(2), sms(2, given=50), sms(2, device="cpu")) == (None, 116, 50, None)


@pytest.mark.gpu
@pytest.mark.skipif(runtime.mode() != "gpu", reason="needs a GPU")
def test_tokens_travel_while_experts_of_an_earlier_chunk_compute():
    def event() -> torch.cuda.Event:
        made = torch.cuda.Event(enable_timing=True)
        made.record()
        return made

    class Timed(Noting):
        def dispatch(self, *given):
            found = super().dispatch(*given)
            sent.append(event())
            return found

    def layer(rows, weights, routing):
        torch.cuda._sleep(50_000_000)  # cycles: about 30 ms
        computed.append(event())
        return rows

    x, ids, weights = (
        each.cuda() for each in (torch.ones(6, 2), torch.zeros(6, 1, dtype=torch.int64), torch.ones(6, 1))
    )
    overlapped(Noting(), lambda rows, *_: rows, x, ids, weights, 3)  # compiles
    sent, computed = [], []
    overlapped(Timed(), layer, x, ids, weights, 3)
    torch.cuda.synchronize()
    for i in range(2):
        assert sent[i + 1].elapsed_time(computed[i]) > 5, f"chunk {i + 1} waited for the experts of chunk {i}"
