"""Chunks of tokens, one on the wire while another is computed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

import torch
from torch import Tensor

from course_kernels.moe.parallel import Layer

_wires: dict[torch.device, torch.cuda.Stream] = {}


class Halves(Protocol):
    """``ExpertParallel``, as it is used here."""

    def dispatch(self, x: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Any:
        """Send tokens to the ranks of their experts."""
        ...

    def combine(self, y: Tensor, handle: Any) -> Tensor:
        """Return results to the ranks of their tokens."""
        ...


def overlapped(ep: Halves, layer: Layer, x: Tensor, top_k_index: Tensor, top_k_weights: Tensor, chunks: int) -> Tensor:
    """Apply a layer to chunks of tokens, as equal as they can be; arguments as for ``ExpertParallel.feed_forward``.

    On a GPU all exchanges run on a second stream: the next chunk's tokens travel while this one's are computed, and
    this one's results travel while the next is. Autograd runs each step's backward on its stream, so it overlaps, too.
    All ranks cut into as many chunks, whatever their number of tokens.
    """
    tokens = x.shape[0]
    wire = _Wire(x.device)
    begin = wire.mark()  # what computes the tokens: no later chunk's tokens wait for the experts of an earlier one
    parts = [slice(tokens * i // chunks, tokens * (i + 1) // chunks) for i in range(chunks)]

    def send(part: slice):
        arguments = x[part], top_k_index[part], top_k_weights[part]
        return wire.run(lambda: ep.dispatch(*arguments), arguments, tensors_of, begin)

    def tensors_of(sent) -> list[Tensor]:
        rows, (index, weights, routing), _ = sent
        return [rows, index, weights, *routing]

    results, here = [], send(parts[0])
    for i in range(chunks):
        rows, choices, handle = wire.wait(here)
        y = layer(rows, choices.weights, choices.routing)
        ready = wire.mark()
        if i + 1 < chunks:
            here = send(parts[i + 1])
        results.append(wire.run(lambda y=y, handle=handle: ep.combine(y, handle), [y], lambda out: [out], ready))
    return torch.cat([wire.wait(each) for each in results])


class _Wire:
    """The stream of exchanges; on CPUs nothing but calls."""

    def __init__(self, device: torch.device):
        self.stream = None
        if device.type == "cuda":
            self.stream = _wires.setdefault(device, torch.cuda.Stream(device))
            self.compute = torch.cuda.current_stream(device)

    def mark(self) -> torch.cuda.Event | None:
        """The work so far of the stream that computes."""
        return self.compute.record_event() if self.stream is not None else None

    def run(
        self, function: Callable, given: Iterable[Tensor], tensors: Callable, after: torch.cuda.Event | None
    ) -> tuple:
        """Call a function on the stream, after what computes its arguments. Its result's ``tensors`` are then used on
        the other one."""
        if self.stream is None:
            return function(), None
        self.stream.wait_event(after)
        with torch.cuda.stream(self.stream):
            for tensor in given:
                tensor.record_stream(self.stream)
            result = function()
            for tensor in tensors(result):
                tensor.record_stream(self.compute)
            return result, self.stream.record_event()

    def wait(self, found: tuple):
        """The result of ``run``, from now on there for what computes."""
        result, event = found
        if event is not None:
            self.compute.wait_event(event)
        return result
