"""Exercise 07: the key of every batch."""

from __future__ import annotations

from collections.abc import Callable

import torch


def prepare(inputs: dict, watch) -> Callable:
    """Lay out the inputs; returns the call, which asks for every batch's key, in plain types."""

    def call(answer) -> list:
        found = []
        for total_m, groups, N, K, name in inputs["calls"]:
            key = answer(total_m, groups, N, K, getattr(torch, name))
            found.append({"key": _plain(key), "kind": _kind(key), "hashes": _hashes(key)})
        return found

    return call


def _plain(key) -> object:
    """A key with types by their names."""
    if isinstance(key, (tuple, list)):
        return [_plain(part) for part in key]
    return str(key) if isinstance(key, torch.dtype) else key


def _kind(key) -> str:
    """The type of a key, with what it holds that cannot be part of one."""
    wrong = next((part for part in key if not _hashes(part)), None) if isinstance(key, tuple) else None
    return type(key).__name__ + ("" if wrong is None else f" that holds a {_kind(wrong)}")


def _hashes(key) -> bool:
    if isinstance(key, tuple):
        return all(map(_hashes, key))
    return type(key) in (int, float, str, bool, torch.dtype)  # one of a learner's own type does not come back
