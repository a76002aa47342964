"""A stream of its own, on which ranks exchange while another stream computes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor

_streams: dict[tuple[torch.device, str], torch.cuda.Stream] = {}


class Wire:
    """A stream of exchanges, beside the current one, which computes; on CPUs nothing but calls.

    Args:
        device: of the tensors.
        name: each name has a stream of its own.
    """

    def __init__(self, device: torch.device, name: str = "exchanges"):
        self.stream = None
        if device.type == "cuda":
            if (device, name) not in _streams:
                _streams[device, name] = torch.cuda.Stream(device, priority=-1)
            self.stream, self.compute = _streams[device, name], torch.cuda.current_stream(device)

    def mark(self) -> torch.cuda.Event | None:
        """The work so far of the stream that computes."""
        return self.compute.record_event() if self.stream is not None else None

    def run(
        self, function: Callable, after: torch.cuda.Event | None, given: Iterable[Tensor] = (),
        tensors: Callable[..., Iterable[Tensor]] = lambda result: (),
    ) -> tuple:  # fmt: skip
        """Call a function on the stream, after what computes its arguments, the ``given`` tensors. Its result's
        ``tensors`` are then used on the other stream."""
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


@contextlib.contextmanager
def settling(settle: Callable[[], None] | None) -> Iterator[None]:
    """Around work on rows that are arriving: where it raises, wait for them all the same. A signal that nobody takes
    back would be taken for that of a later call, and the rows are read until they are sent."""
    try:
        yield
    except BaseException:
        if settle is not None:
            with contextlib.suppress(Exception):  # the first error says more
                settle()
        raise
