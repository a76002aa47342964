"""Records steps that make the CPU wait for a GPU's values, and loops of many small steps. Works without a GPU, too.

A ``TorchFunctionMode`` sees the functions that an answer calls, so it can name them. A ``TorchDispatchMode`` below it
sees every value that torch's own C++ code reads, such as a tensor in the place of a number.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from gemm_course.runner.fake_gpu import FakeGPU, tensors_in
from gemm_course.runner.probes import Watch

MANY = 1000  # calls of torch's in one line: a loop over groups has less, and a loop over rows more

# Functions that read values on the host, or make a tensor whose length depends on values.
_READS = {
    "item", "tolist", "numpy", "cpu", "__bool__", "__int__", "__float__", "__index__", "__complex__", "__contains__",
    "__array__", "equal", "allclose", "nonzero", "argwhere", "is_nonzero", "unique", "unique_consecutive",
    "masked_select", "bincount", "combinations", "__repr__", "__format__", "apply_", "map_", "untyped_storage",
    "storage",
}  # fmt: skip
# Functions that take numbers: a tensor in their place is read.
_MAKES = {
    "arange", "zeros", "ones", "empty", "full", "linspace", "logspace", "eye", "rand", "randn", "randint", "randperm",
    "tril_indices", "triu_indices", "tensor", "as_tensor",
}  # fmt: skip
_SIZED = {
    "expand", "repeat", "tile", "reshape", "view", "narrow", "chunk", "split", "roll", "unflatten", "new_zeros",
    "new_ones", "new_empty", "new_full", "tensor_split", "as_strided", "broadcast_to", "pad",
}  # fmt: skip
_MOVES = {"to", "copy_", "type", "type_as", "asarray"}


@contextlib.contextmanager
def recorded(watch: Watch) -> Iterator[Callable[[torch.Tensor], bool]]:
    """Record every step that makes the CPU wait; yields a function that says whether a tensor is on the GPU.

    Without a GPU, the CPU's tensors are presented as a GPU's, and functions that get tensors of both are recorded, too.
    """
    real = watch.device.type != "cpu"
    fake = None if real else FakeGPU(lambda name: watch.note("devices", name))
    there = (lambda tensor: tensor.device.type != "cpu") if real else fake.has
    seen = _Functions(watch, there)
    with fake or contextlib.nullcontext(), _Scalars(seen), seen:
        yield there
    line, calls = seen.calls.most_common(1)[0] if seen.calls else (0, 0)
    if calls > MANY:
        watch.note("calls", str(line), count=calls)


class _Functions(TorchFunctionMode):
    """Notes calls of torch's functions that wait, and how many there are in each line."""

    def __init__(self, watch: Watch, there: Callable[[torch.Tensor], bool]):
        super().__init__()
        self._watch, self._there = watch, there
        self._inside, self._told = "", False
        self.calls: Counter = Counter()

    def value_read(self, tensor: torch.Tensor) -> None:
        """Note that the value of a tensor was read, in the call that is under way."""
        # A mask and a number are filled in without counting: on a CPU the number is read back from a tensor.
        if not self._told and self._inside != "__setitem__" and self._there(tensor):
            by = f"{self._inside}() takes a number, and reads it" if self._inside else "a value is read"
            self._note(f"{by} in Python from a tensor")

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = getattr(function, "__name__", "")
        if name == "__get__":  # of an attribute
            return function(*args, **kwargs)
        self.calls[self._watch.line()] += 1
        sources = [each for each in tensors_in(args, kwargs) if self._there(each)]
        self._inside, self._told = name, False
        if sources and (what := _why(name, args, kwargs)):
            self._note(what)
        try:
            result = function(*args, **kwargs)
        finally:
            self._inside = ""
        moved = name in _MOVES and bool(sources) and isinstance(result, torch.Tensor) and not self._there(result)
        if moved and not self._told:
            self._note(f"{name}() moves values to the host")
        return result

    def _note(self, what: str) -> None:
        self._told = True
        self._watch.note("sync", what)


class _Scalars(TorchDispatchMode):
    """Records every value that torch reads from a tensor, also in C++."""

    def __init__(self, seen: _Functions | None):
        super().__init__()
        self._seen = seen

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # torch.compile is not used here, and its import takes a second

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function is torch.ops.aten._local_scalar_dense.default:
            self._seen.value_read(args[0])
        return function(*args, **(kwargs or {}))


with _Scalars(None):  # makes torch import the modules of a mode now; a confined process cannot import them
    torch.empty(1).cumsum(0)


def _why(name: str, args, kwargs) -> str | None:
    """Why a call of torch's makes the CPU wait for a GPU, in words; None if it does not."""
    if name in _READS:
        return f"{name.strip('_')}() reads values of a tensor in Python"
    rest = tensors_in(args[1:], kwargs)
    if (name in _MAKES and tensors_in(args, kwargs)) or (name in _SIZED and rest):
        return f"{name}() takes numbers, and reads them in Python from a tensor"
    counts = rest or len(args) + len(kwargs) == 1
    if name == "repeat_interleave" and kwargs.get("output_size") is None and counts:
        return "repeat_interleave() without output_size has to know the sizes to make its result"
    if name in ("__getitem__", "__setitem__"):
        return _why_index(args)
    if name == "where" and len(args) + len(kwargs) == 1:
        return "where() with a condition alone has to count it to make its result"
    if name == "one_hot" and len(args) + len(kwargs) == 1:
        return "one_hot() without num_classes has to know the largest value"
    return None


def _why_index(args) -> str | None:
    """The same for an index, args = (tensor, key) or (tensor, key, value)."""
    keys = args[1] if isinstance(args[1], tuple) else (args[1],)
    if any(tensor.dtype == torch.bool for tensor in tensors_in(keys, {})):
        # A mask and a single number: masked_fill_, which does not count.
        filled = len(args) > 2 and (not isinstance(args[2], torch.Tensor) or args[2].dim() == 0)
        return None if filled else "indexing by a mask has to count it to make its result"
    if any(isinstance(key, torch.Tensor) and key.dim() == 0 for key in keys):
        return "indexing by a single number of a tensor reads it in Python; by a tensor of one dimension it does not"
    ends = [end for key in keys if isinstance(key, slice) for end in (key.start, key.stop, key.step)]
    return "a slice up to a tensor's value reads it in Python" if tensors_in(ends, {}) else None
