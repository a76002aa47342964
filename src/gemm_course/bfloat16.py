"""bfloat16 in Triton's interpreter, which computes with its bit patterns, and cuts off where a GPU rounds.

Kernels of the library have float32 copies there. A learner's own kernel has none, so the course repairs the
interpreter: operations on bfloat16 are computed in float32, and rounded to the nearest number. Atomic updates of
bfloat16 are refused, with the way to do without. Upstream does not repair it (issue 11584 of triton-lang/triton).
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.util
import sys
from types import ModuleType

_INTERPRETER = "triton.runtime.interpreter"
# Methods of the interpreter's builder that compute with the values of their arguments.
_COMPUTING = ("binary_op", "unary_op", "create_clampf", "create_fma", "create_rsqrt", "create_erf", "create_dot")
_CASTS = ("cast_impl", "create_fp_to_fp")
_PRINTS = "create_print"
NO_ATOMICS = (
    "Triton's interpreter adds bit patterns of bfloat16: let atomics work on a tensor of torch.float32, and convert it "
    "after the launch"
)


class _Finder(importlib.abc.MetaPathFinder):
    """Repairs the interpreter right after its import."""

    def find_spec(self, name, path=None, target=None):
        if name != _INTERPRETER:
            return None
        sys.meta_path.remove(self)  # the others find it, and nothing else is looked for by this one
        spec = importlib.util.find_spec(name)
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            repair(module)

        spec.loader.exec_module = exec_module
        return spec


def install() -> None:
    """Repair Triton's interpreter now, or when it is imported. Does nothing the second time."""
    if _INTERPRETER in sys.modules:
        repair(sys.modules[_INTERPRETER])
    elif not any(isinstance(each, _Finder) for each in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def repair(interpreter: ModuleType) -> None:
    """Compute operations on bfloat16 in float32. What is missing in this version of Triton stays as it is."""
    import numpy as np
    import triton.language as tl

    builder, handle = interpreter.InterpreterBuilder, interpreter.TensorHandle
    if hasattr(builder, "repaired"):
        return
    builder.repaired = True
    bits = np.dtype(np.uint16)

    def holds(each) -> bool:
        return type(each) is handle and each.data.dtype == bits and each.dtype.scalar == tl.bfloat16

    def widened(each):
        if not holds(each):
            return each
        return handle((each.data.astype(np.uint32) << 16).view(np.float32), tl.float32)

    def narrowed(each):
        """To the nearest; a comparison's truth values keep theirs. Halfway, to the even one; NaN stays NaN."""
        if each.data.dtype != np.float32:
            return handle(each.data, tl.bfloat16)
        whole = np.ascontiguousarray(each.data).view(np.uint32).reshape(each.data.shape)
        nearest = (whole.astype(np.uint64) + 0x7FFF + ((whole >> 16) & 1)) >> 16
        nearest = np.where(np.isnan(each.data), (whole >> 16) | 0x40, nearest)
        return handle(nearest.astype(bits), tl.bfloat16)

    def computing(method):
        @functools.wraps(method)
        def compute(self, *arguments):
            for each in arguments:  # a loop, since every operation of every kernel comes here
                if type(each) is handle and each.data.dtype == bits and holds(each):
                    break
            else:
                return method(self, *arguments)
            result = method(self, *map(widened, arguments))
            return narrowed(result) if result.dtype.scalar == tl.float32 and _narrows(method, arguments) else result

        return compute

    def _narrows(method, arguments) -> bool:
        # The sum of a product is its third argument's type.
        return method.__name__ != "create_dot" or holds(arguments[2])

    def casting(method):
        @functools.wraps(method)
        def cast(self, source, target, *options):
            if target.scalar == tl.bfloat16 and source.dtype.scalar != tl.bfloat16:
                wide = tl.float32 if not target.is_block() else tl.block_type(tl.float32, target.shape)
                return narrowed(source if source.dtype.scalar == tl.float32 else method(self, source, wide, *options))
            if holds(source) and target.scalar == tl.float32:
                return widened(source)
            return method(self, widened(source) if target.scalar != tl.bfloat16 else source, target, *options)

        return cast

    def printing(method):
        @functools.wraps(method)
        def write(self, prefix, in_hex, values, *options):
            return method(self, prefix, in_hex, values if in_hex else [widened(each) for each in values], *options)

        return write

    def atomic(method):
        @functools.wraps(method)
        def update(self, operation, pointers, value, *rest):
            if holds(value):
                raise TypeError(NO_ATOMICS)
            return method(self, operation, pointers, value, *rest)

        return update

    def reducing(apply):
        @functools.wraps(apply)
        def reduce(self, given):
            inputs = given if isinstance(given, tuple) else (given,)
            narrow = [holds(getattr(each, "handle", None)) for each in inputs]
            if not any(narrow):
                return apply(self, given)
            results = apply(self, tuple(_as(each, widened(each.handle)) for each in inputs))
            results = tuple(
                _as(each, narrowed(each.handle)) if was and each.dtype == tl.float32 else each
                for each, was in zip(results, narrow)
            )
            return results if isinstance(given, tuple) else results[0]

        return reduce

    def _as(tensor, new):
        kind = tl.block_type(new.dtype.scalar, tensor.type.shape) if tensor.type.is_block() else new.dtype.scalar
        return tl.core.tensor(new, kind)

    if not hasattr(builder, "get_bf16"):  # a constant
        builder.get_bf16 = lambda self, value: narrowed(self.get_fp32(value))
    wrappers = {
        **dict.fromkeys(_COMPUTING, computing), **dict.fromkeys(_CASTS, casting),
        _PRINTS: printing, "create_atomic_rmw": atomic,
    }  # fmt: skip
    for name, wrapper in wrappers.items():
        if (method := getattr(builder, name, None)) is not None:
            setattr(builder, name, wrapper(method))
    operations = getattr(interpreter, "ReduceScanOpInterface", None)
    if operations is not None:
        operations.apply = reducing(operations.apply)
