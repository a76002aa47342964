"""An answer's builtins: what it computes with is there, and nothing that makes an attribute or a class of a text."""

from __future__ import annotations

import copy

import pytest

from gemm_course.isolation import own_builtins


def run(source):
    names = {"__name__": "answer", "__builtins__": own_builtins.of_an_answer()}
    exec(source, names)
    return names


@pytest.mark.parametrize(
    "source",
    [
        "type('V', (), {})", "type(3)('V')", "type(type(3))('V', (), {})", "type(*['V', (), {}])",
        "list(map(type, ['V'], [()], [{}]))", "class M(type): pass", "type(int)", "from typing import Any\ntype(Any)",
        "from collections.abc import Sequence\ntype(Sequence)", "getattr(3, 'real')", "hasattr(3, 'real')",
        "class C: pass\nsetattr(C, 'x', 3)", "open('x')", "eval('1')", "vars()", "globals()", "__loader__",
        "from copy import deepcopy\ndeepcopy([], {})", "import copy\ncopy.deepcopy([], memo={})",
        "import copy\nlist(map(copy.deepcopy, [[]], [{}]))", "import copy\ncopy.error",
        "from copy import dispatch_table", "import itertools, copy as c\nc._deepcopy_dispatch",
    ],
)  # fmt: skip
def test_what_leads_from_a_text_is_gone(source):
    with pytest.raises((TypeError, NameError, ValueError, AttributeError, ImportError)):
        run(source)


def test_an_answer_computes_with_the_rest():
    names = run(
        "import collections.abc, math, copy\nfrom copy import copy as again, deepcopy\n"
        "from fractions import Fraction\nfrom typing import NamedTuple\n"
        "class Pair(NamedTuple):\n    a: int\n    b: int = 2\n"
        "class Each:\n    def __init__(self, x): self.x = type(x)(3)\n"
        "row = [[1]]\nown, same = deepcopy(row), again(row)\nrow[0][0] = 7\n"
        "found = own, same, type(2.5) is float, Pair(1), Each(1.5).x, sorted([2, 1], key=type(1)), Fraction(1, 3) * 3\n"
        "assert isinstance([], collections.abc.Sequence)\n"
        "def late():\n    from math import pi\n    return max(abs(pi), 1, key=float)\nlate()\n"
        "try: 1 / 0\nexcept ArithmeticError as error: print(error)"
    )
    assert names["found"] == ([[1]], [[7]], True, (1, 2), 3.0, [1, 2], 1)
    assert copy.deepcopy([1], {}) == [1], "Python's own is what it was"
