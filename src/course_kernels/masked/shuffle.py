"""Weights shuffled once for the matrix instructions of AMD's GPUs, and a tensor type that remembers it.

A shuffled weight has the shape and bytes of a plain one in another order. Nothing in the numbers shows it, and a
product with the wrong order is wrong silently. So the result is a ``ShuffledWeight``, which can be kept, moved, saved
and split into groups, and computes nothing.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from course_kernels import runtime
from course_kernels.contexts import has_memory, is_compiling, is_traced, refuse_dtensors
from course_kernels.dtypes import FP8, FP8_FNUZ, dtype_name
from course_kernels.engine.descriptors import LINES, PACK_BYTES, unshuffled
from course_kernels.type_checks import check_dense

DTYPES = (torch.float16, torch.bfloat16, FP8, FP8_FNUZ)
DEPTH = 32  # K is a multiple of it, in elements, as N is of LINES


class ShuffledWeight(Tensor):
    """A weight in the order of ``shuffle_weight``: a tensor that is kept, moved and saved, and not computed with.

    Its mark outlives ``detach``, ``clone``, ``to`` and ``cuda`` without a change of dtype, ``contiguous``,
    ``pin_memory``, an index of groups, ``torch.nn.Parameter``, ``copy.deepcopy``, ``state_dict``, and saving and
    loading. ``copy_`` copies from another shuffled weight alone. Other operations raise TypeError. Where torch does
    not ask the class, the numbers are taken without the mark: by ``torch.tensor``, ``as_subclass``, DLPack, ``set_`` of
    the storage, and an assignment to ``data`` of a plain tensor.
    """

    is_shuffled = True

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _plain_results():
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        rule = _rules().get(func)
        if rule is None:
            name = getattr(func, "__name__", func)
            if name == "__get__":  # of a property, which it knows
                name = func.__self__.__name__
            raise TypeError(_refusal(name))
        return rule(func, args, kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> ShuffledWeight:
        if id(self) not in memo:
            memo[id(self)] = self.detach().clone().requires_grad_(self.requires_grad)
        return memo[id(self)]

    def __repr__(self, **_: Any) -> str:
        return f"ShuffledWeight(shape={tuple(self.shape)}, dtype={self.dtype}, device='{self.device}')"


def _refusal(name) -> str:
    return f"this weight is shuffled, and {name} does not know its order: unshuffle_weight first"


def _refuse_operator(name: str):
    """An operator. torch's own would turn our TypeError into a search for another operand that knows better."""

    def refuse(self, *_):
        raise TypeError(_refusal(name))

    return refuse


_BINARY = ("add", "sub", "mul", "truediv", "floordiv", "mod", "divmod", "pow", "matmul", "and", "or", "xor")
for _name in (
    *(f"__{side}{name}__" for name in (*_BINARY, "lshift", "rshift") for side in ("", "r", "i")),
    *(f"__{name}__" for name in ("lt", "le", "gt", "ge", "eq", "ne")),
):
    setattr(ShuffledWeight, _name, _refuse_operator(_name))
ShuffledWeight.__hash__ = Tensor.__hash__


@functools.cache
def _plain_results() -> frozenset:
    """What says something about a tensor, or changes neither its values nor their order, and returns no other one."""
    attributes = (
        "shape", "dtype", "device", "layout", "ndim", "requires_grad", "grad", "grad_fn", "is_leaf", "is_cuda",
        "is_cpu", "is_meta", "is_sparse", "is_quantized", "is_nested", "itemsize", "nbytes", "_version", "_base",
        "_backward_hooks", "names", "output_nr", "is_mkldnn", "is_sparse_csr", "is_mps", "is_xpu",
    )  # fmt: skip
    methods = (
        "size", "stride", "dim", "numel", "nelement", "ndimension", "element_size", "storage_offset", "data_ptr",
        "untyped_storage", "storage", "_typed_storage", "is_contiguous", "is_pinned", "is_shared", "is_floating_point",
        "is_complex", "is_neg", "is_conj", "is_same_size", "get_device", "__len__", "__hash__",
        "_reduce_ex_internal", "__reduce_ex__", "__setstate__", "register_hook", "is_inference", "is_signed",
        "register_post_accumulate_grad_hook", "_is_view", "_is_zerotensor",
    )  # fmt: skip
    getters = [getattr(Tensor, name) for name in attributes if hasattr(Tensor, name)]
    setters = [getattr(Tensor, name).__set__ for name in ("requires_grad", "grad", "_backward_hooks")]
    named = [getattr(Tensor, name) for name in methods if hasattr(Tensor, name)]
    functions = (torch.is_floating_point, torch.is_complex, torch.is_tensor, torch.numel, torch.is_neg, torch.is_conj)
    functions += (torch.is_same_size, torch._has_compatible_shallow_copy_type)
    return frozenset([*(getter.__get__ for getter in getters), *setters, *named, *functions])


def _same(func, args, kwargs):
    """Results that hold the same values in the same order."""
    given = args[0]
    with torch._C.DisableTorchFunctionSubclass():
        if isinstance(given, ShuffledWeight):
            result = func(*args, **kwargs)
            if isinstance(result, Tensor) and result.dtype == given.dtype and _has_whole_groups(result):
                return result if isinstance(result, ShuffledWeight) else result.as_subclass(ShuffledWeight)
    raise TypeError("this weight is shuffled, and another dtype or order would spoil it: unshuffle_weight first")


def _index(func, args, kwargs):
    """Groups of a weight (G, N, K): an integer, a slice, or a list or tensor of groups."""
    weight, at = args
    with torch._C.DisableTorchFunctionSubclass():
        if isinstance(at, Tensor):
            groups = at.dim() == 1 and at.dtype in (torch.int32, torch.int64, torch.bool)
        elif isinstance(at, list):
            groups = all(type(i) is int for i in at)
        else:
            groups = type(at) is int or isinstance(at, slice)
        if groups and isinstance(weight, ShuffledWeight) and weight.dim() == 3:
            return func(*args, **kwargs).as_subclass(ShuffledWeight)
    raise TypeError(
        "this weight is shuffled, and only whole groups of (G, N, K) can be taken out of it: unshuffle_weight first"
    )


def _unbind(func, args, kwargs):
    """The groups of a weight (G, N, K) one by one."""
    weight, dim = args[0], kwargs.get("dim", args[1] if len(args) > 1 else 0)
    with torch._C.DisableTorchFunctionSubclass():
        if weight.dim() == 3 and dim in (0, -3):
            return tuple(each.as_subclass(ShuffledWeight) for each in weight.unbind())
    raise TypeError("this weight is shuffled, so a single line of it cannot be read: unshuffle_weight first")


def _iterate(func, args, kwargs):
    return iter(_unbind(func, args, kwargs))


def _copy(func, args, kwargs):
    """Values of a shuffled weight to a shuffled weight."""
    to, source = args[0], args[1] if len(args) > 1 else kwargs.get("src")
    with torch._C.DisableTorchFunctionSubclass():
        both = isinstance(to, ShuffledWeight) and isinstance(source, ShuffledWeight)
        if both and (to.shape, to.dtype) == (source.shape, source.dtype):
            return func(*args, **kwargs)
        kinds = [(type(each).__name__, tuple(each.shape), each.dtype) for each in (to, source)]
    raise TypeError(
        f"copy_ to or from a shuffled weight takes two of one shape and dtype, got {kinds[0]} and {kinds[1]}: "
        "unshuffle_weight first"
    )


def _set_data(func, args, kwargs):
    """``weight.data = other``, as a module that is moved does it."""
    with torch._C.DisableTorchFunctionSubclass():
        if all(isinstance(each, ShuffledWeight) for each in args) and args[0].dtype == args[1].dtype:
            return func(*args, **kwargs)
    raise TypeError("data of a shuffled weight is another of its dtype: unshuffle_weight first")


def _has_whole_groups(weight: Tensor) -> bool:
    """Whether every group is contiguous."""
    return weight.dim() in (2, 3) and (not weight.numel() or weight.stride()[-2:] == (weight.shape[-1], 1))


@functools.cache
def _rules() -> dict:
    """What else there is: function → what to do with a call."""
    same = ("detach", "clone", "to", "cuda", "cpu", "contiguous", "pin_memory", "requires_grad_", "share_memory_")
    rules = {getattr(Tensor, name): _same for name in same}
    rules |= {torch.detach: _same, torch.clone: _same, torch.empty_like: _same, Tensor.data.__get__: _same}
    rules |= {Tensor.__getitem__: _index, Tensor.unbind: _unbind, torch.unbind: _unbind, Tensor.__iter__: _iterate}
    return rules | {Tensor.copy_: _copy, Tensor.data.__set__: _set_data}


# torch.load(weights_only=True), the default, makes no others than these.
torch.serialization.add_safe_globals([ShuffledWeight])


def shuffle_weight(w: Tensor, layout: tuple[int, int] = (16, 16)) -> ShuffledWeight:
    """Reorder a weight for matrix instructions that take 16 lines, and 16 bytes of each line at a time.

    >>> shuffled = shuffle_weight(torch.ones(2, 16, 32).half())  # for deepgemm
    >>> shuffled.shape, shuffled.is_shuffled
    (torch.Size([2, 16, 32]), True)

    Element (n, k) of (N, K) goes to place ((n // 16) * (K // P) + k // P) * 16 * P + n % 16 * P + k % P of the group,
    where P elements are 16 bytes.

    Args:
        w: (N, K) or (G, N, K), float16, bfloat16, float8_e4m3fn or float8_e4m3fnuz, any strides. N is a multiple of 16
            and K of 32.
        layout: (16, 16); there is no other.

    Returns:
        A contiguous copy of the same shape, which remembers its order; see ``ShuffledWeight``.

    Raises:
        TypeError: w is no dense tensor of these dtypes, or is shuffled already.
        ValueError: its shape, or the layout.
        RuntimeError: under ``torch.export``, ``make_fx`` or ``torch.jit.trace``.

    Notes:
        Bit for bit what ``aiter.ops.shuffle.shuffle_weight`` of AMD's AITER makes of these types with its defaults.
        NVIDIA's GPUs gain nothing from it: leave weights plain there. The copy has no gradient.
    """
    marked: ShuffledWeight = _marked(w, layout)
    return marked


@runtime.outside_graphs("shuffle_weight marks what it returns, which graphs cannot")
def _marked(w, layout):
    """A checked and shuffled copy with its mark."""
    if layout not in ((16, 16), [16, 16]):
        raise ValueError(f"layout must be (16, 16), got {layout!r}")
    check_weight("w", w)
    if isinstance(w, ShuffledWeight):
        raise TypeError("w is shuffled already")
    if torch.compiler.is_exporting() or is_traced():
        raise RuntimeError(
            "shuffle_weight cannot be exported or traced, for it marks what it returns: shuffle weights before"
        )
    *groups, lines, depth = w.shape
    pack = PACK_BYTES // w.element_size()
    parts = w.detach().reshape(*groups, lines // LINES, LINES, depth // pack, pack)
    shuffled = parts.transpose(-3, -2).contiguous().reshape(w.shape)
    if not (is_compiling() or shuffled.is_meta or has_memory(shuffled)):
        kind = type(shuffled).__name__
        raise TypeError(
            f"w must have memory, or be a meta tensor, got a {kind}: shuffle weights before they are traced"
        )
    return shuffled.as_subclass(ShuffledWeight)


def unshuffle_weight(w: Tensor) -> Tensor:
    """Undo ``shuffle_weight``.

    >>> weight = torch.arange(16 * 32.0).reshape(16, 32).half()
    >>> torch.equal(unshuffle_weight(shuffle_weight(weight)), weight)
    True

    Args:
        w: what it returned; or a plain tensor of the same numbers in that order, any strides.

    Returns:
        A contiguous plain tensor.

    Raises:
        TypeError, ValueError: as ``shuffle_weight`` for dtype and shape.
    """
    check_weight("w", w)
    w = plain(w.detach())
    return unshuffled(w)


def check_weight(name: str, w) -> None:
    """Raise unless a tensor has a shape and dtype that ``shuffle_weight`` takes."""
    check_dense(name, w)
    refuse_dtensors("a shuffled weight", **{name: w})
    if w.dtype not in DTYPES:
        raise TypeError(f"{name} must be {', '.join(map(dtype_name, DTYPES))} to be shuffled, got {w.dtype}")
    shape = tuple(w.shape)
    if len(shape) not in (2, 3):
        raise ValueError(f"{name} must be (N, K) or (G, N, K) to be shuffled, got shape {shape}")
    if shape[-2] % LINES or shape[-1] % DEPTH:
        raise ValueError(
            f"{name} must have N in multiples of {LINES} and K in multiples of {DEPTH} to be shuffled, got N = "
            f"{shape[-2]} and K = {shape[-1]}"
        )


def plain(tensor: Tensor) -> Tensor:
    """The tensor without its mark: the same memory."""
    if type(tensor) is not ShuffledWeight:
        return tensor
    with torch._C.DisableTorchFunctionSubclass():
        return tensor.as_subclass(Tensor)
