"""Memory of strided tensors: whether they overlap in it (exact for tensors of the same strides, conservative for
others), and whether it is still where it was."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, UntypedStorage

_MAX_STEPS = 64  # steps of one stride to try; tensors that need more count as overlapping


def check_dense(name: str, value) -> None:
    """Raise unless a value is a tensor with strides."""
    if not isinstance(value, Tensor):
        got = f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__
        raise TypeError(f"{name} must be a torch.Tensor, got {got}")
    if torch.compiler.is_compiling():  # only strided tensors there; a backward cannot read a layout
        return
    if value.layout != torch.strided or value.is_nested:
        layout = "nested" if value.is_nested else value.layout
        raise TypeError(f"{name} must be a dense (strided) tensor, got layout {layout}")


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


# Of torch's CUDA builds, for its own CUDA graphs, and private: used where it does what is expected.
_same_addresses = getattr(torch._C, "_tensors_data_ptrs_at_indices_equal", None)


class FixedMemory:
    """Tensors whose addresses are kept beyond a call: holds their memory, and notices where they have another.

    Holding a tensor does not hold its memory: ``x.data = y``, ``x.set_(...)`` and ``resize_`` give it another one.

    Args:
        groups: the tensors by the names of arguments.
    """

    def __init__(self, groups: Mapping[str, Sequence[Tensor]]):
        self._names = [f"{name}[{i}]" for name, group in groups.items() for i in range(len(group))]
        self._tensors = [tensor for group in groups.values() for tensor in group]
        self._addresses = list(map(Tensor.data_ptr, self._tensors))
        owners: dict[int, int] = {}  # storage → the first of its tensors
        for i, tensor in enumerate(self._tensors):
            owners.setdefault(tensor.untyped_storage()._cdata, i)
        self._owners = list(owners.values())
        self._storages = [self._tensors[i].untyped_storage() for i in self._owners]
        self._bytes = list(map(UntypedStorage.nbytes, self._storages))
        self._indices = list(range(len(self._tensors)))
        try:
            self._fast = _same_addresses if self._is_same(_same_addresses) else None
        except (TypeError, RuntimeError):
            self._fast = None

    def check(self) -> None:
        """Takes 50 ns for each storage and each tensor; for the latter less with a CUDA build of torch.

        Raises:
            RuntimeError: a tensor has another address, or less memory there; the message names it.
        """
        # A storage that was resized may have the same address again, and end earlier.
        sizes = map(UntypedStorage.nbytes, self._storages)
        changed = [i for i, now, before in zip(self._owners, sizes, self._bytes) if now < before]
        if not changed and self._fast is not None and self._is_same(self._fast):
            return
        addresses = map(Tensor.data_ptr, self._tensors)
        changed += [i for i, (now, before) in enumerate(zip(addresses, self._addresses)) if now != before]
        if changed:
            name = self._names[changed[0]]
            raise RuntimeError(
                f"{name} has other memory than when the plan was made, as after {name}.data = ..., set_() or "
                "resize_(): make a new plan"
            )

    def _is_same(self, compare) -> bool:
        return compare(self._tensors, self._addresses, self._indices)
