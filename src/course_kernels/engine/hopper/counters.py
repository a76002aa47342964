"""Counters that give the clusters of a launch in CuTe DSL their tile numbers, where the order is dynamic.

A launch finds its counter at 0 and leaves it at 0. Two launches must not use one counter at the same time. Launches on
one stream run one after the other, so each stream has one counter. Replays of a graph may run at the same time as a
stream, so each captured launch has a counter of its own, until the process ends.
"""

from __future__ import annotations

import threading

import torch
from torch import Tensor

AT_A_TIME = 1024
_PER_THREAD = 2  # the handle of CUDA's per-thread default stream, a different stream in each thread
_of_streams: dict[tuple[int, int], Tensor] = {}
_free: dict[int, list[Tensor]] = {}
_kept: list[Tensor] = []  # keeps all counters alive: a graph holds its counter's address, not a tensor


def take(device: torch.device) -> Tensor:
    """Take the counter, (1,) float64, for one launch on the current stream of ``device``, the current device."""
    if torch.cuda.is_current_stream_capturing():
        # Memory allocated now belongs to the graph, which sets it to 0 in each replay.
        return _any_free(device)
    stream = torch._C._cuda_getCurrentRawStream(device.index)
    if stream == _PER_THREAD:
        return torch.zeros(1, dtype=torch.float64, device=device)
    if not _free.get(device.index):
        # In another thread: before a capture, torch may assign all memory that this thread allocates to the graph.
        thread = threading.Thread(target=_reserve, args=(device,))
        thread.start()
        thread.join()
    found = _of_streams.get((device.index, stream))
    return _of_streams.setdefault((device.index, stream), _any_free(device)) if found is None else found


def _any_free(device: torch.device) -> Tensor:
    """Take a free counter; if there is none, make one that the current stream sets to 0."""
    try:
        return _free[device.index].pop()
    except LookupError:  # also where another thread has just taken the last one
        return torch.zeros(1, dtype=torch.float64, device=device)


def _reserve(device: torch.device) -> None:
    """Add ``AT_A_TIME`` counters to the free ones."""
    stream = torch.cuda.Stream(device)
    with torch.cuda.stream(stream):
        counters = torch.zeros(AT_A_TIME, dtype=torch.float64, device=device)
    stream.synchronize()  # from now on any stream finds zeros
    _kept.append(counters)
    _free.setdefault(device.index, []).extend(counters.split(1))
