"""Chunks of tokens, one on the wire while another is computed."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

from course_kernels.distributed.wire import Wire
from course_kernels.moe.parallel import Layer


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
    wire = Wire(x.device)
    begin = wire.mark()  # what computes the tokens: no later chunk's tokens wait for the experts of an earlier one
    parts = [slice(tokens * i // chunks, tokens * (i + 1) // chunks) for i in range(chunks)]

    def send(part: slice):
        arguments = x[part], top_k_index[part], top_k_weights[part]
        return wire.run(lambda: ep.dispatch(*arguments), begin, arguments, tensors_of)

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
        results.append(wire.run(lambda y=y, handle=handle: ep.combine(y, handle), ready, [y], lambda out: [out]))
    return torch.cat([wire.wait(each) for each in results])
