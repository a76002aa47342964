"""Kernels of notebook cells compile, with what they call, name and are passed."""

from __future__ import annotations

import linecache
import types

import pytest

from course_kernels import codegen
from course_kernels.codegen import cells

CELL = """
@triton.jit
def halve(x):
    return x / TWO


@triton.jit
def minus(x, y):
    return x - halve(y)


@triton.jit
def apply(x_ptr, y_ptr, size, math_, BLOCK: tl.constexpr, FUNCTION: tl.constexpr):
    at = tl.arange(0, BLOCK)
    block = tl.load(x_ptr + at, mask=at < size, other=0.0)
    tl.store(y_ptr + at, FUNCTION(relu(block), block), mask=at < size)
"""
RELU = "import triton\nimport triton.language as tl\n\n\n@triton.jit\ndef relu(x):\n    return tl.maximum(x, 0.0)\n"
SIGNATURE = {"x_ptr": "*fp32", "y_ptr": "*fp32", "size": "i32", "math_": "i32"}


@pytest.fixture
def cell(tmp_path, monkeypatch):
    """Names after a cell ran that has the kernel above, as IPython runs it: source in ``linecache``, and no file."""
    import importlib

    from course_kernels.kernels.language import tl, triton

    (tmp_path / "activations_of_a_file.py").write_text(RELU)
    monkeypatch.syspath_prepend(tmp_path)
    relu = importlib.import_module("activations_of_a_file").relu
    name = "<a cell>"
    monkeypatch.setitem(linecache.cache, name, (len(CELL), None, CELL.splitlines(keepends=True), name))
    space = {"__name__": "__main__", "triton": triton, "tl": tl, "relu": relu, "TWO": tl.constexpr(2.0)}
    # Variables of other cells that have names of arguments, or a type that kernels do not accept.
    space |= {"size": object(), "math_": types, "block": [1]}
    exec(compile(CELL, name, "exec"), space)
    return types.SimpleNamespace(**{key: space[key] for key in ("halve", "minus", "apply")})


def test_a_kernel_of_a_cell_compiles_with_all_that_it_names(cell):
    one = codegen.compile_kernel(
        cell.apply, "sm_90", signature=SIGNATURE, constexprs={"BLOCK": 128, "FUNCTION": cell.minus}
    )
    assert str(one.build) == "apply"
    assert "max.f32" in one.ptx, "the imported function"
    assert "sub" in one.ptx or "fma" in one.ptx, "the function that was passed, and what it calls"


def test_the_file_has_each_function_once_after_what_it_names(cell):
    text = cells.write_file(cells.plain_function(cell.minus), cell.apply).read_text()
    order = ["from activations_of_a_file import relu as relu", "TWO = ", "def halve", "def minus", "def apply"]
    places = [text.index(each) for each in order]
    assert places == [places[0], *sorted(places[1:])]
    assert all(text.count(each) == 1 for each in order)
    assert "types" not in text, "arguments and local names are not copied from the cell"
    assert cells.write_file(cell.minus, cell.apply) == cells.write_file(cell.minus, cell.apply)


def test_a_changed_cell_is_another_file(cell, monkeypatch):
    before = cells.write_file(cell.apply)
    changed = CELL.replace("other=0.0", "other=1.0")
    monkeypatch.setitem(
        linecache.cache, "<a cell>", (len(changed), None, changed.splitlines(keepends=True), "<a cell>")
    )
    assert cells.write_file(cell.apply) != before


def test_a_function_without_source_is_named():
    space = {}
    exec("def nowhere(): pass", space)
    with pytest.raises(ValueError, match="kernel 'nowhere' must have source code, like a function in a cell"):
        codegen.compile_kernel(space["nowhere"], "sm_90")
