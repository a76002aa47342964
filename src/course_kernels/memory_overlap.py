"""Whether strided tensors overlap in memory, and whether a write into one is safe. Exact for tensors of the same
strides, conservative for others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

_MAX_STEPS = 64  # steps of one stride to try; tensors that need more count as overlapping


def overlaps_itself(tensor: Tensor) -> bool:
    """Whether two elements share an address: a stride is no larger than the reach of the smaller strides."""
    if not tensor.numel():
        return False
    reach = 0
    for stride, size in sorted((stride, size) for stride, size in zip(tensor.stride(), tensor.shape) if size > 1):
        if stride <= reach:
            return True
        reach += stride * (size - 1)
    return False


def byte_range(tensor: Tensor) -> tuple[int, int]:
    """(first, one past the last) address of a tensor; both the same for an empty one."""
    start = tensor.data_ptr()
    if not tensor.numel():
        return start, start
    last = sum(stride * (size - 1) for stride, size in zip(tensor.stride(), tensor.shape))
    return start, start + (last + 1) * tensor.element_size()


def share_memory(x: Tensor, y: Tensor) -> bool:
    """Whether two dense tensors of any rank have an address in common.

    Exact where both have the same strides, as interlocking slices of one buffer do (even rows and odd rows, left
    columns and right columns); a matrix and a batch of matrices may differ in rank. Other tensors whose address
    ranges meet count as sharing memory.
    """
    (x_start, x_end), (y_start, y_end) = byte_range(x), byte_range(y)
    if x_end <= y_start or y_end <= x_start:
        return False
    if x.dim() > y.dim():
        x, y, x_start, y_start = y, x, y_start, x_start
    size, missing = x.element_size(), y.dim() - x.dim()
    if x.stride() != y.stride()[missing:] or size != y.element_size() or (x_start - y_start) % size:
        return True
    extents = sorted(zip(y.stride(), (1,) * missing + tuple(x.shape), y.shape), reverse=True)
    return _reaches((x_start - y_start) // size, [extent for extent in extents if max(extent[1:]) > 1])


def are_apart(tensor: Tensor, others: Sequence[Tensor | None]) -> bool:
    """Whether a tensor surely shares no address with the others. Compares only the first and last addresses, so columns
    of one matrix count as not apart."""
    start, end = byte_range(tensor)
    for other in others:
        if other is not None:
            first, last = byte_range(other)
            if first < end and start < last:
                return False
    return True


def _reaches(distance: int, extents: list[tuple[int, int, int]]) -> bool:
    """Whether steps within both tensors' extents, largest stride first, add up to a distance."""
    if not extents:
        return distance == 0
    (stride, x_size, y_size), *rest = extents
    if not stride:
        return _reaches(distance, rest)
    # The reach of the smaller strides, backwards and forwards, bounds the steps of this one.
    back = sum(step * (size - 1) for step, size, _ in rest)
    forth = sum(step * (size - 1) for step, _, size in rest)
    least, most = max(1 - x_size, -((forth - distance) // stride)), min(y_size - 1, (distance + back) // stride)
    if most - least >= _MAX_STEPS:
        return True
    return any(_reaches(distance - i * stride, rest) for i in range(least, most + 1))


def check_apart(operands: dict[str, tuple[torch.Tensor, ...]], out: list[torch.Tensor]) -> None:
    """Raise ValueError, naming both matrices, for outputs that share memory with an operand or with each other."""
    named = [
        (*byte_range(t), name, i, t) for name, group in {**operands, "out": out}.items() for i, t in enumerate(group)
    ]
    reaching: list[tuple] = []  # matrices whose addresses reach past the start of the present one
    for entry in sorted(named, key=lambda entry: entry[:2]):
        start, end, name, i, matrix = entry
        reaching = [other for other in reaching if other[1] > start]
        for _, _, other_name, other_i, other in reaching:
            if "out" in (name, other_name) and share_memory(matrix, other):
                first, second = sorted(((name, i), (other_name, other_i)), key=lambda pair: pair[0] != "out")
                raise ValueError(
                    f"{first[0]}[{first[1]}] shares memory with {second[0]}[{second[1]}]; they must not overlap"
                )
        if end > start:
            reaching.append(entry)


def check_writable(name: str, tensor: Tensor) -> None:
    """Raise ValueError, naming the argument, for an inference tensor outside of inference mode, as torch does."""
    if tensor.is_inference() and not torch.is_inference_mode_enabled():
        raise ValueError(
            f"{name} was made in torch.inference_mode(), and can be written to there alone: pass a clone of it"
        )


def check_detached(name: str, tensor: Tensor) -> None:
    """Raise where autograd would lose a write into a tensor."""
    if tensor.requires_grad and torch.is_grad_enabled():
        raise ValueError(f"{name} requires a gradient, which a write into it would lose: pass {name}.detach()")


def check_written(name: str, tensor: Tensor, others: Mapping[str, Tensor | None] | None) -> None:
    """Raise if writing to a tensor would change another argument or a second element; nothing is written.

    Args:
        name: of the tensor.
        tensor: the tensor to write to.
        others: arguments by name that it must not overlap; None if addresses cannot be compared.

    Raises:
        ValueError: the tensor cannot be written to; the message names it, and an argument that it overlaps.
    """
    check_writable(name, tensor)
    if others is None:
        return
    if tensor.is_neg():  # its memory would hold the result with the wrong sign
        raise ValueError(f"{name} is a lazily negated view, which kernels cannot write: pass another tensor")
    if not tensor.is_contiguous() and overlaps_itself(tensor):
        raise ValueError(f"{name} has elements that share memory (strides {tensor.stride()}); pass a clone of it")
    for other, each in others.items():
        if each is not None and share_memory(tensor, each):
            raise ValueError(f"{name} shares memory with {other}; they must not overlap")


def check_has_memory(tensors: Mapping[str, Tensor | None]) -> None:
    """Raise ValueError, naming it, for a tensor that has elements, and whose storage was resized to 0."""
    for name, tensor in tensors.items():
        if tensor is not None and tensor.numel() and not tensor.data_ptr():
            raise ValueError(
                f"{name} of shape {tuple(tensor.shape)} has no memory: its storage was resized to 0, as FSDP does with "
                "parameters that are not in use"
            )
