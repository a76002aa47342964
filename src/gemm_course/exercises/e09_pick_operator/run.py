"""Exercise 09: the call with descriptions of operators and with operands."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import NamedTuple

import torch

ALIGNMENT_BYTES = 16
ALONG_K, ALONG_N = (0, 1, 0), (0, 0, 1)


class Operator(NamedTuple):
    """An operator's design, and the operands that it takes."""

    targets: tuple[str, ...]  # GPUs that it can be compiled for
    dtype: torch.dtype  # of A, B and C
    tile: tuple[int, int, int]  # rows, columns and depth for one CTA at a time, or for two together
    cluster: tuple[int, int]  # CTAs along M and along N that are launched together
    ctas: int  # that share a tile's rows, 1 or 2
    stages: int | None  # blocks in flight; None: decided by the compiler
    b_stride: tuple[int, int, int] = ALONG_K  # where B (G, K, N) has stride 1: (0, 1, 0) along K, (0, 0, 1) along N
    divisibility: int = 8  # every other stride of A, B and C is a multiple of so many elements
    offsets: torch.dtype = torch.int32  # of the groups' ends


def from_plain(catalogue: list) -> list[Operator]:
    """The operators of a case's catalogue."""
    return [
        Operator(tuple(targets), getattr(torch, dtype), tuple(tile), tuple(cluster), ctas, stages, tuple(b_stride),
                 divisibility, getattr(torch, offsets))
        for targets, dtype, tile, cluster, ctas, stages, b_stride, divisibility, offsets in catalogue
    ]  # fmt: skip


def prepare(inputs: dict, watch) -> Callable:
    """Lay out the inputs; returns the call, which gives the operator's place in the catalogue, and the operands."""
    catalogue, sizes = from_plain(inputs["catalogue"]), inputs["sizes"]
    mat_b = inputs["mat_b"].clone()
    mat_b = mat_b.mT.contiguous().mT if inputs["along_k"] else mat_b
    offs = torch.tensor(list(itertools.accumulate(sizes)), dtype=getattr(torch, inputs["offsets"]))
    given = inputs["mat_a"].clone(), mat_b, offs

    def call(answer) -> dict | None:
        listed, counted = list(catalogue), list(sizes)
        value = answer(listed, inputs["target"], counted, *given)
        if value is None:
            return None
        if type(value) not in (tuple, list) or len(value) != 4:
            length = f" of {len(value)}" if type(value) in (tuple, list) else ""
            return {"form": f"a {type(value).__name__}{length}"}
        at = [i for i, each in enumerate(catalogue) if each is value[0]]
        operands = [_described(each, was) for each, was in zip(value[1:], given)]
        changed = "catalogue" if listed != catalogue else "sizes" if counted != sizes else ""
        found = {"at": at[0] if at else None, "kind": type(value[0]).__name__}
        return {**found, "operands": operands, "changed": changed}

    return call


def _described(tensor, given: torch.Tensor) -> dict:
    if type(tensor) is not torch.Tensor or tensor.layout != torch.strided or tensor.device.type != "cpu":
        return {"kind": f"{type(tensor).__name__} on {getattr(tensor, 'device', 'the host')}"}
    shape, stride = list(tensor.shape), list(tensor.stride())
    span = 1 + sum((extent - 1) * step for extent, step in zip(shape, stride)) if tensor.numel() else 0
    return {
        "kind": "Tensor", "shape": shape, "stride": stride, "past": tensor.data_ptr() % ALIGNMENT_BYTES,
        "flat": torch.as_strided(tensor.detach(), (span,), (1,)).clone(),
        "kept": tensor.data_ptr() == given.data_ptr() and tensor.stride() == given.stride(),
    }  # fmt: skip
