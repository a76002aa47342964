"""What an answer may use, read from its source before it runs."""

from __future__ import annotations

import builtins
import importlib
import re
import types
from types import ModuleType

import pytest

from answers import OFFSETS as RIGHT
from gemm_course.isolation import static_check

# Ways to give an attribute of a class a name of Python's own.
BINDS = (
    "__array_interface__ = {}", "__array_interface__: dict = {}", "def __array_interface__(self): pass",
    "match {}:\n        case __array_interface__: pass", "match [1]:\n        case [*__array_interface__]: pass",
    "match {}:\n        case {**__array_interface__}: pass", "from math import pi as __array_interface__",
    "class __array_interface__: pass", "for __array_interface__ in [{}]: pass",
    "try: f()\n    except E as __array_interface__: pass", "(__array_interface__ := {})",
)  # fmt: skip


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("torch.equal = lambda a, b: True", "line 1: this replaces torch.equal, which changes nothing"),
        ("list.__getitem__ = print", "has no need of .__getitem__"),
        ("torch.Tensor.__eq__ = lambda a, b: True", "has no need of .__eq__"),
        ("torch.Tensor.equal = lambda a, b: True", "replaces torch.Tensor.equal"),
        ("import torch as t\nt.allclose = lambda a, b: True", "line 2: this replaces t.allclose"),
        ("for torch.equal in [print]: pass", "replaces torch.equal"),
        ("with open('x') as torch.equal: pass", "replaces torch.equal"),
        ("del tl.dot", "replaces tl.dot"),
        ("t = torch", "torch is a module"),
        ("modules = [torch]", "torch is a module"),
        ("def f(x=torch): pass", "torch is a module"),
        ("(t := torch).equal", "torch is a module"),
        ("import gemm_course.judging.judge", "the finished library"),
        ("from course_kernels import grouped_mm", "the finished library"),
        ("from torch import *", "import what is needed from torch by its name"),
        ("from torch import os", "cannot import os"),
        ("from torch.utils import collect_env", "cannot import torch.utils"),
        ("import torch.utils.benchmark", "cannot import torch.utils.benchmark"),
        ("from torch import utils", "cannot import torch.utils"),
        ("torch.os", "has no need of .os"),
        ("torch.ｏｓ", "has no need of .os"),
        ("ｅval('1')", "has no need of eval"),
        ("torch.utils.collect_env.run('id')", "has no need of torch.utils"),
        ("torch.fx.node.operator.attrgetter('os')(torch)", "no need of torch.fx|torch is a module|no need of operator"),
        ("torch.nn.functional.torch.load", "has no need of .load"),
        ("torch.load('solutions/01_offsets.ipynb')", "has no need of .load"),
        ("from torch import load", "cannot import load"),
        ("torch.UntypedStorage.from_file('x')", "has no need of .from_file"),
        ("torch.ops.load_library('x')", "has no need of torch.ops"),
        ("getattr(torch, 'o' + 's')", "has no need of getattr"),
        ("[].__class__.__base__.__subclasses__()", "has no need of .__subclasses__"),
        ("__builtins__['open']", "has no need of __builtins__"),
        ("(x for x in ()).gi_frame.f_builtins", "has no need of .(gi_frame|f_builtins)"),
        ("class C:\n    def __exit__(self, a, b, tb):\n        tb.tb_frame", "line 3: .* no need of .tb_frame"),
        ("match 1:\n    case object(__class__=c): pass", "patterns that look into classes"),
        *((f"{binds}\nmatch 1:\n    case int(x): pass", "patterns that look into classes")
          for binds in ("int = type('P', (), {})", "for int in []: pass", "class int: pass", "def f(int): pass",
                        "from torch import Tensor as int", "match 1:\n    case {**int}: pass")),
        ("class P:\n    __match_args__ = ('gi_frame',)", "has no need of __match_args__"),
        ("class M(type):\n    def __instancecheck__(c, o): return True", "has no need of __instancecheck__"),
        ("triton.JITFunction(print).get_capture_scope()", "has no need of"),
        ("import os", "cannot import os; it computes with what is in torch, triton, math, bisect, collections, c"),
        ("import collections.abc\ncollections.abc.sys.path", r"no need of \.?sys$"),  # from 3.13 on it is there
        ("import collections.abc\ncollections.abc.ABCMeta.x", "no need of collections.abc.ABCMeta; of .* use Call"),
        ("import collections as c\nc._sys", "no need of"),
        ("from collections import abc\nabc.GenericAlias", "no need of collections.abc.Gen"),
        ("from collections.abc import sys", "no need of collections.abc.sys"),
        ("import functools\nfunctools.update_wrapper(1, 2, ('f_globals',), ())", "no need of functools.update_wrapper"),
        ("from functools import wraps", "no need of functools.wraps"),
        ("from functools import GenericAlias as g", "no need of functools.GenericAlias"),
        ("import operator\noperator.attrgetter('os')", "no need of operator.attrgetter"),
        ("from operator import methodcaller as m", "no need of operator.methodcaller"),
        ("from typing import get_type_hints", "no need of typing.get_type_hints"),
        ("import typing as t\nt.types", "no need of typing.types"),
        ("from typing import sys", "no need of typing.sys"),
        ("import copy\ncopy.types.FunctionType", "no need of copy.types"),
        ("import itertools, copy\nx = [copy]", "line 2: copy is a module"),
        ("import bisect\nbisect.insort = print", "replaces bisect.insort"),
        ("from dataclasses import dataclass", "cannot import dataclasses"),
        ("from __future__ import barry_as_FLUFL", "no need of __future__.barry"),
        ("x = 1\nx.handle.data", "line 2: an answer has no need of .handle"),
        ("x = '\\\n" + "(" * 300, "not Python yet"),
        ("x = " + "-" * 50_000 + "1", "cannot be read as Python"),
        ("# " + "x" * 200_000, "characters; an answer takes a few lines"),
        ("\0", "^this is not Python yet: source code|^this cannot be read as Python$"),  # the latter by Python 3.10
        ("torch.classes.a.b", "line 1: an answer has no need of torch.classes"),
        ("torch.classes.a.b.c()", "no need of torch.classes"),
        ("torch.ops.a.b", "no need of torch.ops"),
        ("b = torch.get_device_module('cuda').traceback", "no need of .get_device_module|no need of .traceback"),
        ("x = f().traceback.linecache", "no need of .(traceback|linecache), which is a module's name"),
        ("x = [].enum.bltns", "no need of .(enum|bltns)"),
        ("if hasattr(1, 'cache_key'): pass", "no need of hasattr"),
        ("torch.nn.Module().compile(backend=print)", "no need of .compile"),
        ("kernel.used_global_vals", "no need of .used_global_vals"),
        ("\ud800", "cannot be read"),
        ("from fractions import re", "no need of fractions.re"),
        ("x = torch.nn.ParameterDict()", "no need of torch.nn.ParameterDict; of torch.nn it may use functional"),
        ("from torch.nn import Module", "no need of torch.nn.Module"),
        ("c = torch.CompilationUnit('')", "no need of .CompilationUnit"),
        ("from torch import ScriptFunction", "cannot import ScriptFunction"),
        ("with torch.DisableTorchFunction(): pass", "no need of .DisableTorchFunction"),
        ("torch.ones(1).numpy()", "no need of .numpy: .tolist()"), ("f = torch.Tensor.numpy", "no need of .numpy"),
        ("interpreter_semantic", "no need of interpreter_semantic"),
        *((f"class V:\n    {binds}", "has no need of __array_interface__") for binds in BINDS),
        ("type('V', (), {'__array_interface__': 1})", "has no need of __array_interface__"),
        ("f(__reduce__=3)", "has no need of __reduce__"),
    ],
)  # fmt: skip
def test_a_violation_says_what_an_answer_has_no_need_of(source, says):
    assert static_check.find_violation(RIGHT, "describe_groups") is None
    source = f"{source}\n{RIGHT}" if "case" not in source else source + RIGHT
    violation = static_check.find_violation(source, "describe_groups")
    assert violation is not None
    text = f"line {violation.line}: {violation.text}" if violation.line else violation.text
    assert re.search(says, text), text


@pytest.mark.parametrize(
    "source",
    [
        "import math\nfrom math import log2\nimport torch.nn.functional as F\nF.pad(torch.ones(2), (0, math.floor(1)))",
        "import triton.language as tl\ndesc = tl.make_tensor_descriptor\nx = desc.load([0, 0]) if False else tl.load",
        "def f(x: torch.Tensor, y=torch.float32) -> torch.Tensor:\n    return torch.nn.functional.relu(x).copy()",
        "sorted(range(2), key=[3, 1].__getitem__)",
        "import heapq\nfrom heapq import heappush\nheapq.heapify([])",
        "from __future__ import annotations\nimport collections.abc, itertools as it\nfrom typing import Any\n"
        "def f(x: collections.abc.Sequence, y: Any = it.chain([1])): collections.deque(x, maxlen=3)",
        "from fractions import Fraction\nFraction(1, 3) + 1",
        "if __name__ == '__main__': print('a __repr__ of mine')\nclass A:\n    def __repr__(self): return type(self)",
        "tl.PropagateNan.ALL, torch.Size, torch.Generator",
        "import copy, functools, operator\nfrom collections import Counter, defaultdict\nfrom bisect import bisect\n"
        "functools.reduce(operator.add, copy.deepcopy([1, 2])), bisect([1], 1), defaultdict(list), Counter('a').update",
        "match 3:\n    case int(x): pass\n    case [a, b]: pass\n",
        "class Free:\n    def __init__(self): self.load = 3\n    def __lt__(self, other): return True",
        "x = torch.ones(2).select(0, 1)\ny = [1].copy()\nclass A:\n    queue = []\nA.queue, A().queue",
        "tl.math.exp2, torch.linalg.norm, torch.cuda.synchronize, tl.extra.libdevice",
    ],
)
def test_honest_answers_pass(source):
    assert static_check.find_violation(source + "\n" + RIGHT, "describe_groups", ["heapq"]) is None


@pytest.mark.parametrize("module", static_check.STANDARD)
def test_no_name_that_an_answer_may_use_is_a_module_but_two(module):
    found = importlib.import_module(module)
    modules = {name for name in static_check.STANDARD[module] if isinstance(getattr(found, name, None), ModuleType)}
    assert modules == {"collections": {"abc"}, "torch.nn": {"functional"}}.get(module, set())
    assert found.__name__ == module, "by which it is looked up"


def test_a_module_that_raises_when_asked_is_a_message(monkeypatch):
    class Odd(ModuleType):
        def __getattr__(self, name):
            raise RuntimeError("tried to make a class")

    monkeypatch.setattr(static_check.torch.fft, "odd", Odd("torch.fft"), raising=False)
    found = static_check.find_violation("torch.fft.odd.x\n" + RIGHT, "describe_groups")
    assert found == static_check.Violation("this cannot be read: RuntimeError: tried to make a class")


# Fields that name attributes or items, in each place of a format string.
FIELDS = (
    "{0.__globals__}", "{.f}", "{a.b}", "{0[x]}", "{[0]}", "{0!r:{1.f}}", "{0:{1:{2.f}}}", "{0:>{1[0]}}",
    "{{}} {0.f}", "{",
)  # fmt: skip


@pytest.mark.parametrize("text", FIELDS)
def test_no_format_string_reads_an_attribute(text):
    """Nor one that is written elsewhere. The AttributeError of a name that is missing would hold the object."""
    calls = (
        f"{text!r}.format(f)", f"{text!r}.format_map(f)", f"text = {text!r}\ntext.format(f)",
        f"str.format({text!r}, f)", f"list(map(str.format, [{text!r}]))",
        f"(f'{{1}}' + {text!r}).format(f)", f"type('').format({text!r}, f)",
    )  # fmt: skip
    for call in calls:
        assert "format" in static_check.find_violation(f"{call}\n{RIGHT}", "describe_groups").text, call


@pytest.mark.parametrize(
    "honest", ["'{} of {0:>{1}} {{x}}'.format(1, 2)", "'{a:.2f}'.format(a=1.0)", "f'{[1][0]}'", "'%s' % 3"]
)
def test_a_plain_format_string_passes(honest):
    assert static_check.find_violation(f"{honest}\n{RIGHT}", "describe_groups") is None


def test_no_attribute_of_a_frame_or_of_an_exception_leads_to_an_object():
    kinds = (types.FrameType, types.TracebackType, types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType)
    errors = [each for each in vars(builtins).values() if isinstance(each, type) and issubclass(each, BaseException)]
    # Texts and numbers, what the answer itself raised or returned, and methods.
    harmless = {
        "add_note", "args", "with_traceback", "errno", "filename", "filename2", "strerror", "characters_written",
        "name", "msg", "lineno", "offset", "end_lineno", "end_offset", "text", "print_file_and_line", "encoding",
        "object", "start", "end", "reason", "path", "name_from", "code", "value", "message", "exceptions", "subgroup",
        "split", "derive", "close", "send", "throw", "aclose", "asend", "athrow", "clear",
    }  # fmt: skip
    for kind in (*kinds, *errors):
        for name in dir(kind):
            if name not in harmless:
                found = static_check.find_violation(f"def g(x): return x.{name}\n{RIGHT}", "describe_groups")
                assert found is not None, f"{kind.__name__}.{name}"


@pytest.mark.parametrize(
    ("source", "hostile"),
    [
        ("'{0.__globals__}'.format(print)", True), ("e.obj", True), ("(x for x in ()).gi_frame", True),
        ("[].__class__.__base__.__subclasses__()", True), ("eval('1')", True), ("import os\n__builtins__", False),
        ("getattr(torch, 'a')", False), ("import numpy", False), ("open('log')", False), ("x.__class__", False),
        ("hasattr(1, 'a')\ne.obj", True), ("t = torch", False), ("def f(:", False),
        ("class C(list):\n    def __init__(self): super().__init__()", False), ("'{0.shape}'.format(x)", False),
        ("'{0[0]}'.format(s)", False), ("'{'.format(3)", False), ("'{0.__x'.format(3)", False),
        ("'{0.shape} __x__'.format(x)", False), ("'{0:{1.__globals__}}'.format(1, f)", True),
        ("print(__file__)", False), ("a.__setitem__(0, 1)", False), ("x.__matmul__(y)", False),
        ("x.__add__(1)", False), ("m.modules()", False), ("t.obj = 3\nprint(t.obj)", False),
        ("t.obj = 3\ne.__traceback__", True), ("obj = 3\ne.obj", True), ("arr.tofile('x')", False),
        ("[].enum.bltns", True), ("__import__('os')", True), ("f.__globals__", True), ("print.__self__", True),
        ("type('V', (), {'__array_interface__': 1})", True), ("match 1:\n    case __array__: pass", True),
        ("match 1:\n    case object(__globals__=g): pass", True),
        ("def __getattr__(self, name): pass", True), ("x = '__init__'", False), ("torch.nn.Module()", False),
        ("kernel.used_global_vals", True), ("triton.JITFunction(print).get_capture_scope()", True),
    ],
)  # fmt: skip
def test_what_only_an_attack_needs_is_marked(source, hostile):
    assert static_check.find_violation(f"{source}\n{RIGHT}", "describe_groups").hostile is hostile
