"""Exercise 16: a call for each of several simulated ranks, and the exchange of counts between them.

A rank that calls ``exchange`` waits for all others. One process cannot wait for itself, so each rank is called twice:
first until it waits, to learn what it sends, then with the counts of all ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

MORE = 16  # numbers of a wrong list that an error shows


class _WaitsError(BaseException):
    """A rank waits for the others; no ``except Exception`` of an answer ends that."""


def prepare(inputs: dict, watch) -> Callable:
    """Lay out the inputs; returns the call for all ranks."""
    ids, experts = inputs["ids"], inputs["experts"]
    ranks = len(ids)

    def once(answer, rank: int, received: list[int] | None) -> dict:
        """One rank's call: its result, and what it gave to each exchange. Without ``received`` it ends at the first."""
        given: list[list[int]] = []

        def exchange(counts):
            given.append(_counts(counts, ranks))
            if received is None:
                raise _WaitsError
            return torch.tensor(received, dtype=torch.int64)

        try:
            value = answer(ids[rank].clone(), experts, ranks, exchange)
        except _WaitsError:
            return {"given": given}
        return {"given": given, "value": _plain(value) if isinstance(value, (list, tuple)) else value}

    def call(answer) -> list[dict]:
        first = [once(answer, rank, None) for rank in range(ranks)]
        if not all(each["given"] for each in first):
            return first
        columns = [[each["given"][0][rank] for each in first] for rank in range(ranks)]
        return [once(answer, rank, columns[rank]) for rank in range(ranks)]

    return call


def _counts(counts, ranks: int) -> list[int]:
    """The numbers that were given to ``exchange``, one for each rank."""
    found = counts.tolist() if isinstance(counts, torch.Tensor) else counts
    if not isinstance(found, (list, tuple)):
        raise TypeError(f"exchange() needs a tensor or a list of {ranks} integers, got a {type(counts).__name__}")
    found = [each.item() if isinstance(each, torch.Tensor) and each.numel() == 1 else each for each in found]
    if len(found) != ranks or not all(type(each) is int for each in found):
        shown = ", ".join(map(str, found[:MORE])) + (", ..." if len(found) > MORE else "")
        raise ValueError(f"exchange() needs {ranks} integers, one for each rank, got {len(found)}: [{shown}]")
    return found


def _plain(value) -> list:
    """The parts of a result, where lists of tensors are lists of their numbers."""
    return [list(_numbers(part)) if isinstance(part, (list, tuple)) else part for part in value]


def _numbers(part) -> Iterator:
    for each in part:
        if isinstance(each, torch.Tensor):
            yield each.tolist()
        else:
            yield list(_numbers(each)) if isinstance(each, (list, tuple)) else each
