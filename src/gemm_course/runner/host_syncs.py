"""Records steps that make the CPU wait for a GPU's values, and loops of many small steps. Works without a GPU, too.

A ``TorchFunctionMode`` sees the functions that an answer calls, so it can name them. A ``TorchDispatchMode`` below it
sees every value that torch's own C++ code reads, such as a tensor in the place of a number.

FakeTensorMode is no substitute. It accepts a third of the waits that the tests list: a mask that is assigned through
(`x[mask] = values`), `masked_fill` by a tensor's value, `histc`, `.cpu()` and back. A CPU build of torch refuses to
index its "cuda" tensors at all, right answers included. And it stops at the first wait, names an operator instead of
the function that the learner called, and computes no values, so every answer would run twice.
"""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Callable, Iterator

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from gemm_course.runner.fake_gpu import FakeGPU, tensors_in
from gemm_course.runner.probes import Watch

MANY = 1000  # calls of torch's in one line: a loop over groups has less, and a loop over rows more

# Functions that read values on the host, or make a tensor whose length depends on values. Measured on an
# H100 by `torch.cuda.set_sync_debug_mode`, with their arguments; a test repeats it on a GPU.
_READS = {
    "item", "tolist", "numpy", "cpu", "__bool__", "__int__", "__float__", "__index__", "__complex__", "__contains__",
    "__array__", "equal", "allclose", "nonzero", "argwhere", "is_nonzero", "unique", "unique_consecutive",
    "masked_select", "bincount", "combinations", "segment_reduce", "to_sparse", "__repr__", "__format__", "apply_",
    "map_", "untyped_storage", "storage",
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
_MOVES = {"to", "copy_", "type", "type_as", "asarray", "tensor", "as_tensor"}
# On a CPU these read values that they do not read on a GPU: the number beside a mask, and whether classes are in range.
_READS_ON_CPU_ALONE = {"__setitem__", "one_hot"}
_OUT_OF_RANGE = re.compile("out of (bounds|range)")
# Operators whose kernels read a tensor in the place of a number, and that argument's place.
_READ_BY_KERNELS = {
    torch.ops.aten._local_scalar_dense.default: 0,
    torch.ops.aten.index_fill.int_Tensor: 3,
    torch.ops.aten.index_fill_.int_Tensor: 3,
    torch.ops.aten.masked_fill.Tensor: 2,
    torch.ops.aten.masked_fill_.Tensor: 2,
}


@contextlib.contextmanager
def recorded(watch: Watch) -> Iterator[Callable[[torch.Tensor], bool]]:
    """Record every step that makes the CPU wait; yields a function that says whether a tensor is on the GPU.

    Without a GPU, the CPU's tensors are presented as a GPU's, and functions that get tensors of both are recorded, too.
    """
    real = watch.device.type != "cpu"
    fake = None if real else FakeGPU(lambda name: watch.note("devices", name))
    on_gpu = (lambda tensor: tensor.device.type != "cpu") if real else fake.has
    functions = _Functions(watch, on_gpu)
    with fake or contextlib.nullcontext(), _Scalars(functions), functions:
        yield on_gpu
    line, calls = functions.calls.most_common(1)[0] if functions.calls else (0, 0)
    if calls > MANY:
        watch.note("calls", str(line), count=calls)


class _Functions(TorchFunctionMode):
    """Notes calls of torch's functions that wait, and how many there are in each line."""

    def __init__(self, watch: Watch, on_gpu: Callable[[torch.Tensor], bool]):
        super().__init__()
        self._watch, self._on_gpu = watch, on_gpu
        self._inside, self._noted = "", False
        self.calls: Counter = Counter()

    def value_read(self, tensor: torch.Tensor) -> None:
        """Note that the value of a tensor was read, in the call that is under way."""
        if not self._noted and self._inside not in _READS_ON_CPU_ALONE and self._on_gpu(tensor):
            by = f"{self._inside}() takes a number, and reads it" if self._inside else "a value is read"
            self._note(f"{by} in Python from a tensor")

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = getattr(function, "__name__", "")
        if name == "__get__":  # of an attribute
            return function(*args, **kwargs)
        self.calls[self._watch.line()] += 1
        self._inside, self._noted = name, False

        def tensors(args, kwargs=None) -> list[torch.Tensor]:
            return [each for each in tensors_in(args, kwargs or {}) if self._on_gpu(each)]

        sources = tensors(args, kwargs)
        if sources and (what := _why(name, args, kwargs, tensors)):
            self._note(what)
        try:
            result = function(*args, **kwargs)
        except (IndexError, RuntimeError) as error:
            if sources and _OUT_OF_RANGE.search(str(error)):
                self._note(f"{name}() has an index out of range, which ends the program on a GPU")
            raise
        finally:
            self._inside = ""
        moved = name in _MOVES and bool(sources) and isinstance(result, torch.Tensor) and not self._on_gpu(result)
        if moved and not self._noted:
            self._note(f"{name}() moves values to the host")
        return result

    def _note(self, what: str) -> None:
        self._noted = True
        self._watch.note("sync", what)


class _Scalars(TorchDispatchMode):
    """Records every value that torch reads from a tensor, also in C++."""

    def __init__(self, functions: _Functions | None):
        super().__init__()
        self._functions = functions

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # torch.compile is not used here, and its import takes a second

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function in _READ_BY_KERNELS:
            self._functions.value_read(args[_READ_BY_KERNELS[function]])
        return function(*args, **(kwargs or {}))


with _Scalars(None):  # makes torch import the modules of a mode now; a confined process cannot import them
    torch.empty(1).cumsum(0)


def _why(name: str, args, kwargs, tensors: Callable) -> str | None:
    """The reason why a call of torch's makes the CPU wait for a GPU, or None.

    ``tensors`` finds those among arguments that are on the GPU.
    """
    if name in _READS:
        return f"{name.strip('_')}() reads values of a tensor in Python"
    rest = tensors(args[1:], kwargs)
    copied = name in ("tensor", "as_tensor") and isinstance((*args, *kwargs.values())[0], torch.Tensor)
    if (name in _MAKES and tensors(args, kwargs) and not copied) or (name in _SIZED and rest):
        return f"{name}() takes numbers, and reads them in Python from a tensor"
    counts = rest or len(args) + len(kwargs) == 1
    if name == "repeat_interleave" and kwargs.get("output_size") is None and counts:
        return "repeat_interleave() without output_size has to know the sizes to make its result"
    if name in ("__getitem__", "__setitem__", "index_put", "index_put_"):
        return _why_index((*args, *kwargs.values()), tensors)
    if name == "sparse_coo_tensor" and "size" not in kwargs and len(args) < 3:
        return "sparse_coo_tensor() without a size has to know the largest index"
    if name == "where" and len(args) + len(kwargs) == 1:
        return "where() with a condition alone has to count it to make its result"
    if name == "one_hot" and len(args) + len(kwargs) == 1:
        return "one_hot() without num_classes has to know the largest value"
    if name == "histc" and not {"min", "max"} & kwargs.keys() and len(args) < 3:
        return "histc() without min and max has to know the smallest and the largest value"
    return None


def _why_index(args, tensors: Callable) -> str | None:
    """The same for an index, args = (tensor, key) or (tensor, key, value, ...)."""
    keys = args[1] if isinstance(args[1], (tuple, list)) else (args[1],)
    found = [key for key in keys if isinstance(key, torch.Tensor)]
    if any(key.dtype == torch.bool for key in found):
        # One mask and a number that is not on the GPU: masked_fill_, which does not count.
        filled = len(found) == 1 and len(args) == 3 and not tensors(args[2:])
        number = filled and (not isinstance(args[2], torch.Tensor) or args[2].numel() == 1)
        return None if number else "indexing by a mask has to count it to make its result"
    if any(key.dim() == 0 for key in found):
        return "indexing by a single number of a tensor reads it in Python; by a tensor of one dimension it does not"
    ends = [end for key in keys if isinstance(key, slice) for end in (key.start, key.stop, key.step)]
    return "a slice up to a tensor's value reads it in Python" if tensors(ends) else None
