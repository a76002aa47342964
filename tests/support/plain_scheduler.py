"""The Hopper kernel's scheduler as plain Python: its own source, with nothing of the compiler's around it."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from course_kernels.kernels.cute_sm90 import config


def load(arch: SimpleNamespace, name: str = "scheduler", **others: ModuleType) -> ModuleType:
    """The scheduler's module anew, or the one called ``name``, with Python's integers for the kernel's and ``arch`` for
    ``cute.arch``. It imports ``others`` for the kernel's modules of these names. What others import, and may have
    compiled, stays as it is."""
    stand_in = ModuleType("cutlass")
    vars(stand_in).update(Boolean=bool, Int32=int, Float64=float, Constexpr=type, const_expr=bool, min=min, max=max)
    stand_in.range = lambda *bounds, unroll: range(*bounds)
    stand_in.range_constexpr = range
    stand_in.cute = SimpleNamespace(
        jit=lambda function: function, Tensor=tuple, Pointer=object, size=len, ceil_div=lambda a, b: -(-a // b),
        arch=arch,
    )  # fmt: skip
    path = Path(config.__file__).with_name(f"{name}.py")
    spec = importlib.util.spec_from_file_location(f"plain_{name}", path)
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patched:
        patched.setitem(sys.modules, "cutlass", stand_in)
        for other, found in others.items():
            patched.setitem(sys.modules, f"course_kernels.kernels.cute_sm90.{other}", found)
        spec.loader.exec_module(module)
    return module
