"""Tensors of a plan, whose addresses are kept beyond a call: whether their memory is still where it was."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, UntypedStorage

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
