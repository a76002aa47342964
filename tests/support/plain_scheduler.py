"""The Hopper kernel's scheduler as plain Python: its own source, with nothing of the compiler's around it."""

from __future__ import annotations

import ast
import functools
import sys
from pathlib import Path
from types import CodeType, ModuleType, SimpleNamespace

import pytest

from course_kernels.kernels.cute_sm90 import config


class Ends(tuple):
    """Ends of groups, which have 32 bits unless ``element_type`` is the stand-in's ``Int64``."""

    element_type: type = int


class Int64(int):
    """Marks ends of 64 bits."""


class WideEnds(Ends):
    """Ends of 64 bits."""

    element_type = Int64


class _Lanes(ast.NodeTransformer):
    """Makes every function a generator, and every call of a generator a ``yield from``."""

    def __init__(self, generators: set[str]):
        self.generators = generators

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        """Add a `yield` that never runs, which makes the function a generator."""
        self.generic_visit(node)
        node.body += ast.parse("if False: yield").body
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """Put `yield from` before a call of a generator."""
        self.generic_visit(node)
        name = getattr(node.func, "id", getattr(node.func, "attr", None))
        return ast.YieldFrom(node) if name in self.generators else node


def load(
    arch: SimpleNamespace, exchanges: frozenset[str] = frozenset(), name: str = "scheduler", **others: ModuleType
) -> ModuleType:
    """A new copy of the scheduler's module, or of the one called ``name``, with Python's integers for the kernel's and
    ``arch`` for ``cute.arch``. It imports ``others`` for the kernel's modules of these names. The imported modules are
    not changed.

    ``exchanges`` names the functions of ``arch`` that are generators. If there are any, every function of the module
    becomes a generator, and a test that runs a warp switches lanes where they exchange values.
    """
    stand_in = ModuleType("cutlass")
    vars(stand_in).update(
        Boolean=bool, Int32=int, Int64=Int64, Float64=float, Constexpr=type, const_expr=bool, min=min, max=max
    )
    stand_in.range = lambda *bounds, unroll: range(*bounds)
    stand_in.range_constexpr = range
    stand_in.cute = SimpleNamespace(
        jit=lambda function: function, Tensor=tuple, Pointer=object, size=len, ceil_div=lambda a, b: -(-a // b),
        arch=arch,
    )  # fmt: skip
    module = ModuleType(f"plain_{name}")
    with pytest.MonkeyPatch.context() as patched:
        patched.setitem(sys.modules, "cutlass", stand_in)
        patched.setitem(sys.modules, module.__name__, module)
        for other, found in others.items():
            patched.setitem(sys.modules, f"course_kernels.kernels.cute_sm90.{other}", found)
        exec(_code(name, exchanges), vars(module))
    return module


@functools.cache
def _code(name: str, exchanges: frozenset[str]) -> CodeType:
    path = Path(config.__file__).with_name(f"{name}.py")
    tree = ast.parse(path.read_text(encoding="utf-8"))
    if exchanges:
        functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
        tree = ast.fix_missing_locations(_Lanes(functions | exchanges).visit(tree))
    return compile(tree, str(path), "exec")
