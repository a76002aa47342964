"""The builtins of an answer: Python's own, without those that turn a text into an attribute, a class or code.

`static_check` refuses their names where they are written. Here they are gone, however the answer gets at a name. With a
class made from texts, for example, numpy takes any address for an array of objects, if the class says so in the right
attribute; and what `deepcopy` notes in a memo is not the answer's.
"""

from __future__ import annotations

import builtins
import copy
from types import ModuleType

from gemm_course.isolation.static_check import NAMES

# By class statements, by assertions, and by what CuTe DSL makes of a function with an `if` or a loop.
_NEEDED = {"__build_class__", "__debug__", "locals"}
_type, _import = builtins.type, builtins.__import__


def of_an_answer() -> dict[str, object]:
    """The builtins of one answer's module, by name. They go into it as ``__builtins__`` before it is executed."""
    kept = {
        name: value
        for name, value in vars(builtins).items()
        if name in _NEEDED or not (name in NAMES or name.startswith("_"))
    }
    return {**kept, "type": type_of, "__import__": _import_for_an_answer}


def type_of(value, /):
    """The type of a value that is no class. Raises TypeError for a class: its type makes classes from texts."""
    found = _type(value)
    if issubclass(found, _type):
        raise TypeError("an answer has no need of the type of a class")
    return found


def _deepcopy(value, /):
    return copy.deepcopy(value)


type_of.__name__ = type_of.__qualname__ = "type"  # in Python's messages
_deepcopy.__name__ = _deepcopy.__qualname__ = "deepcopy"
_COPY = ModuleType("copy")
_COPY.copy, _COPY.deepcopy = copy.copy, _deepcopy


def _import_for_an_answer(name, globals=None, locals=None, fromlist=(), level=0) -> ModuleType:
    found = _import(name, globals, locals, fromlist, level)
    return _COPY if found is copy else found
