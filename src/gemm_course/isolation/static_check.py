"""Reads an answer before it runs: is it Python, and does it use only what an answer may use?

An answer computes. It has no need of files, processes, private attributes or the library's finished kernels, so being
strict costs honest answers nothing. Modules are followed from name to name: an answer reaches those in `MODULES`, and
through them no other. The results of calls are not followed: names of modules are refused there as everywhere.

This is a friendly message, and no wall. Code that passes it runs without the builtins that turn texts into attributes
(see `own_builtins`), in a process that can do little (see `landlock`) and knows no result, and its results are judged.
The check runs in that process, too: it parses a stranger's source.
"""

from __future__ import annotations

import ast
import builtins
import collections
import importlib
import re
import string
import sys
from collections.abc import Iterable
from types import (
    AsyncGeneratorType,
    CodeType,
    CoroutineType,
    FrameType,
    GeneratorType,
    ModuleType,
    TracebackType,
)
from typing import NamedTuple

import torch
import triton.language as tl

IMPORTS = ("torch", "triton", "math")
MODULES = {
    "torch", "torch.autograd", "torch.cuda", "torch.fft", "torch.linalg", "torch.nn", "torch.nn.functional",
    "torch.special", "triton", "triton.language", "triton.language.extra", "triton.language.extra.cuda",
    "triton.language.extra.libdevice", "triton.language.math", "math",
}  # fmt: skip
# Functions of Python's own modules that compute, name by name. The rest leads further: attrgetter, wraps and
# get_type_hints read attributes by names in strings, dataclass executes the names of fields, and many modules hold sys.
# `copy` sets attributes as an object's __reduce__ says, but reads none. Modules of `torch.nn` set and read attributes
# by names in strings.
STANDARD = {
    "__future__": {"annotations"},
    "bisect": {"bisect", "bisect_left", "bisect_right", "insort", "insort_left", "insort_right"},
    "collections": {"ChainMap", "Counter", "OrderedDict", "abc", "defaultdict", "deque", "namedtuple"},
    "collections.abc": {
        "Callable", "Collection", "Generator", "Hashable", "Iterable", "Iterator", "Mapping", "MutableMapping",
        "MutableSequence", "Sequence", "Set", "Sized",
    },
    "copy": {"copy", "deepcopy"},
    "fractions": {"Fraction"},
    "functools": {"cache", "cmp_to_key", "lru_cache", "partial", "reduce"},
    "itertools": {
        "accumulate", "batched", "chain", "combinations", "combinations_with_replacement", "compress", "count", "cycle",
        "dropwhile", "filterfalse", "groupby", "islice", "pairwise", "permutations", "product", "repeat", "starmap",
        "takewhile", "tee", "zip_longest",
    },
    "operator": {
        "add", "and_", "contains", "eq", "floordiv", "ge", "getitem", "gt", "itemgetter", "le", "lshift", "lt", "mod",
        "mul", "ne", "neg", "not_", "or_", "pow", "rshift", "sub", "truediv", "xor",
    },
    "torch.nn": {"functional"},
    "typing": {
        "Any", "Callable", "Dict", "Generator", "Iterable", "Iterator", "List", "Literal", "Mapping", "NamedTuple",
        "Optional", "Sequence", "Set", "Tuple", "TypeVar", "Union",
    },
}  # fmt: skip
MAX_CHARACTERS = 100_000
_PREDEFINED = {"torch": "torch", "triton": "triton", "tl": "triton.language"}  # imported in the notebook's first cell
NAMES = {
    "breakpoint", "compile", "delattr", "eval", "exec", "exit", "getattr", "globals", "hasattr", "help", "locals",
    "open", "quit", "setattr", "vars",
    "interpreter_semantic",  # which Triton's interpreter puts among the globals of a kernel
}  # fmt: skip
# Functions of torch and Triton for files, other programs, kernels from elsewhere; and what switches off our modes.
_FUNCTIONS = {
    "load", "save", "compile", "from_file", "get_device_module", "JITFunction", "DisableTorchFunction",
    "DisableTorchFunctionSubclass",
}  # fmt: skip
# The attributes of frames and of what holds them: `tb_frame`, `gi_frame`, `f_globals`, `co_consts`.
_FRAME_TYPES = (FrameType, TracebackType, GeneratorType, CoroutineType, AsyncGeneratorType, CodeType)
_OF_FRAMES = {
    name for kind in _FRAME_TYPES for name in dir(kind) if name.startswith(("ag_", "co_", "cr_", "f_", "gi_", "tb_"))
}
# Attributes of any object that lead to frames and globals, to files, and to the interpreter's form of a kernel. An
# AttributeError's `obj` is the object that lacks the attribute: torch's functions, too, look for names in strings.
_ATTRIBUTES = _OF_FRAMES | {
    "obj", "get_capture_scope", "add_pre_run_hook", "pre_run_hooks", "rewriter", "rewritten_fn", "handle", "builder",
    "semantic", "from_file", "tofile", "os", "sys", "builtins", "importlib", "ctypes", "subprocess", "modules", "bltns",
    "compile", "used_global_vals",
    "numpy",  # its arrays take any number for the address of an object: ndarray(1, "O", numbers)
}  # fmt: skip
# What numpy, torch and copy ask an object about its memory, and how to make it.
_PROTOCOLS = {
    "__array__", "__array_interface__", "__array_struct__", "__buffer__", "__cuda_array_interface__", "__deepcopy__",
    "__dlpack__", "__getattr__", "__reduce__", "__reduce_ex__", "__setstate__",
}  # fmt: skip
_DUNDER = re.compile(r"__\w+__")
# Names that only an attack needs. Other private names, such as __init__ or __file__, are in honest code, too.
_NAMES_HOSTILE = _PROTOCOLS | {"compile", "eval", "exec", "globals", "__builtins__", "__import__", "__loader__"}
_ATTRIBUTES_HOSTILE = _OF_FRAMES | _PROTOCOLS | {
    "__base__", "__bases__", "__builtins__", "__closure__", "__code__", "__dict__", "__getattribute__", "__globals__",
    "__import__", "__loader__", "__mro__", "__self__", "__subclasses__", "__traceback__", "add_pre_run_hook", "bltns",
    "builtins", "ctypes", "get_capture_scope", "importlib", "obj", "os", "pre_run_hooks", "rewriter", "rewritten_fn",
    "subprocess", "sys", "used_global_vals",
}  # fmt: skip
_FORMATS = {"format", "format_map"}  # their text may name attributes: "{0.__globals__}"
# Types of an answer's values. Their own attributes may be called like a module: `a.copy()`, `x.select(0, 1)`.
_VALUES = (torch.Tensor, list, dict, set, str, int, float, tl.core, collections.Counter, collections.deque)
_MODULE_NAMES = sys.stdlib_module_names.difference(*map(dir, _VALUES))
_METHODS = {
    "__init__", "__call__", "__len__", "__iter__", "__next__", "__getitem__", "__contains__", "__repr__", "__str__",
    "__eq__", "__lt__", "__hash__", "__enter__", "__exit__",
}  # fmt: skip
_PATTERNS = {name for name in dir(builtins) if isinstance(getattr(builtins, name), type)}


class Violation(NamedTuple):
    """A reason to refuse an answer, and its line; 0 if it is about no line."""

    text: str
    line: int = 0
    hostile: bool = False  # whether it reaches for the interpreter's insides, for which an honest answer has no use


def find_violation(source: str, function: str, imports: Iterable[str] = ()) -> Violation | None:
    """Find the first thing in an answer that is not Python or not permitted. None if there is none.

    It may import `imports`, with their submodules, beyond `IMPORTS` and `STANDARD`.
    """
    if len(source) > MAX_CHARACTERS:
        return Violation(f"the cell has {len(source)} characters; an answer takes a few lines")
    try:
        tree = ast.parse(source)
        return _undefined(tree, function) or _Reader(imports).find_violation(tree)
    except SyntaxError as error:
        code = (error.text or "").strip()
        return Violation(f"this is not Python yet: {error.msg}" + (f": {code}" if code else ""), error.lineno or 0)
    except (ValueError, RecursionError, MemoryError):
        return Violation("this cannot be read as Python")
    except Exception as error:  # a module that does odd things when it is asked for an attribute
        return Violation(f"this cannot be read: {type(error).__name__}: {str(error)[:200]}")


def _undefined(tree: ast.Module, function: str) -> Violation | None:
    defined = {node.name for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    if function in defined:
        return None
    near = f"; it defines {', '.join(sorted(defined))}" if defined else ""
    return Violation(f"the cell must define the function {function}{near}")


def _not_in(module: str, name: str) -> str | None:
    """The problem with a name of one of Python's own modules, or None."""
    if module not in STANDARD or name in STANDARD[module]:
        return None
    return f"an answer has no need of {module}.{name}; of {module} it may use {', '.join(sorted(STANDARD[module]))}"


def _given_name(node: ast.AST) -> str:
    """The name of Python's own, such as __array__, that a node gives to something or holds as its whole text; or ""."""
    if isinstance(node, ast.alias):
        names = [node.asname]
    elif isinstance(node, ast.Constant):
        names = [node.value if node.value != "__main__" else None]
    else:
        names = [getattr(node, field, None) for field in ("name", "arg", "rest")]
    return next((name for name in names if isinstance(name, str) and _DUNDER.fullmatch(name)), "")


def _is_torchs_own(module: str, value: object) -> bool:
    """True for classes of torch's C++ library beside tensors: compilers of TorchScript, readers of files."""
    return module == "torch" and type(value).__name__ == "pybind11_type"


def _is_hostile(node: ast.AST, own: set[str]) -> bool:
    """True if a refused node names a way to frames, globals or the builtins. `own`: attributes that the answer makes.

    An AttributeError's `obj` is such a way, and an answer may call an attribute of its own so.
    """
    if isinstance(node, ast.Name):
        return node.id in _NAMES_HOSTILE
    if isinstance(node, ast.Attribute):
        listed = node.attr in _ATTRIBUTES_HOSTILE and not (node.attr == "obj" and "obj" in own)
        return listed or (_format_problem(node) == _FIELDS and _names_private(node.value.value))
    if isinstance(node, ast.MatchClass):
        return not _ATTRIBUTES_HOSTILE.isdisjoint(node.kwd_attrs)
    return _given_name(node) in _ATTRIBUTES_HOSTILE


_FIELDS = "a format string names whole values, as in {} or {0}, and no attribute or item of them"
_NO_TEXT = "this formats a text that is not written here: an answer has f-strings"


def _format_problem(node: ast.Attribute) -> str | None:
    """The problem with `.format` or `.format_map` of a text, or None: its fields may name attributes and items."""
    text = node.value
    if node.attr not in _FORMATS:
        return None
    if not (isinstance(text, ast.Constant) and isinstance(text.value, str)):
        return _NO_TEXT
    return _FIELDS if _names_parts(text.value) else None


def _fields(text: str) -> list[str]:
    """The names in the fields of a format string and of its specifications. ValueError if it is malformed."""
    found = []
    for _, name, spec, _ in string.Formatter().parse(text):
        found += [name or "", *(_fields(spec) if spec and "{" in spec else ())]
    return found


def _names_parts(text: str) -> bool:
    """True if a field of a format string names a part of a value, or if the string is malformed."""
    try:
        return any("." in name or "[" in name for name in _fields(text))
    except ValueError:
        return True


def _names_private(text: str) -> bool:
    """True if a field of a well-formed format string names something private of Python's, such as __globals__."""
    try:
        return any("__" in name for name in _fields(text))
    except ValueError:
        return False


class _Reader:
    """Follows modules through one answer, and finds the first thing that it may not use."""

    def __init__(self, imports: Iterable[str]):
        self._extra = tuple(imports)
        self._modules = {name: importlib.import_module(module) for name, module in _PREDEFINED.items()}
        self._used: set[ast.Name] = set()  # names of modules whose attributes are used
        self._bound: set[str] = set()  # names to which the answer may give another meaning
        self._own: set[str] = set()  # attributes that it makes itself, and what it binds

    def find_violation(self, tree: ast.Module) -> Violation | None:
        nodes = list(ast.walk(tree))
        for node in nodes:
            if isinstance(node, (ast.Import, ast.ImportFrom)) and (found := self._import(node)):
                return Violation(found, node.lineno)
        self._used = {node.value for node in nodes if isinstance(node, ast.Attribute)}
        self._bound = {node.id for node in nodes if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)}
        self._bound |= {getattr(node, field, None) for node in nodes for field in ("name", "arg", "asname", "rest")}
        stored = {node.attr for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)}
        self._own = self._bound | stored
        for node in nodes:
            if found := self._violation(node):
                hostile = any(_is_hostile(each, stored) and bool(self._violation(each)) for each in nodes)
                return Violation(found, node.lineno, hostile)
        return None

    def _is_allowed(self, module: ModuleType) -> bool:
        name = module.__name__
        extra = any(name == each or name.startswith(each + ".") for each in self._extra)
        return extra or name in MODULES or name in STANDARD

    def _import(self, node: ast.Import | ast.ImportFrom) -> str | None:
        """The problem with an import, or None; notes the modules that it binds."""
        plain = isinstance(node, ast.Import)
        for name in [alias.name for alias in node.names] if plain else ["." * node.level + (node.module or "")]:
            top = name.split(".")[0]
            if top in ("course_kernels", "gemm_course"):
                return "this uses the finished library; the exercise is to write it yourself"
            if name not in MODULES and name not in STANDARD and top not in self._extra:
                known = ", ".join([*IMPORTS, *self._extra, *filter(str.isalpha, STANDARD)])
                return f"an answer cannot import {name}; it computes with what is in {known}"
            if name in STANDARD:
                importlib.import_module(name)
        for alias in node.names:
            if plain:
                bound = alias.asname or alias.name.split(".")[0]
                value = sys.modules.get(alias.name if alias.asname else bound)
            elif alias.name == "*":
                return f"import what is needed from {node.module} by its name: * also replaces sum, min and others"
            else:
                bound = alias.asname or alias.name
                if unknown := _not_in(node.module or "", alias.name):
                    return unknown
                if alias.name.startswith("_") or alias.name in _ATTRIBUTES:
                    return f"an answer cannot import {alias.name}"
                module = sys.modules.get(node.module)
                value = None if module is None else getattr(module, alias.name, None)
                refused = alias.name in _FUNCTIONS or _is_torchs_own(node.module or "", value)
                if node.module in MODULES and refused and node.module != "triton.language":
                    return f"an answer cannot import {alias.name}"
            if isinstance(value, ModuleType):
                if not self._is_allowed(value):
                    return f"an answer cannot import {value.__name__}"
                self._modules[bound] = value
            elif bound in self._modules:
                return f"{bound} is a module here: give what is imported another name"
        return None

    def _module(self, node: ast.expr) -> ModuleType | None:
        """The module that an expression is, such as `torch.nn`; the first that it may not use, which is not entered."""
        if isinstance(node, ast.Name):
            return self._modules.get(node.id)
        if isinstance(node, ast.Attribute) and (parent := self._module(node.value)) is not None:
            if not self._is_allowed(parent):
                return parent
            found = getattr(parent, node.attr, None)
            return found if isinstance(found, ModuleType) else None
        return None

    def _violation(self, node: ast.AST) -> str | None:
        if isinstance(node, ast.Name):
            return self._name(node)
        if isinstance(node, ast.Attribute):
            return self._attribute(node)
        if isinstance(node, ast.MatchClass):
            plain = isinstance(node.cls, ast.Name) and node.cls.id in _PATTERNS - self._bound and not node.kwd_attrs
            return None if plain else "an answer has no need of patterns that look into classes"
        function = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        if function and node.name.startswith("__") and node.name not in _METHODS:
            return f"an answer has no need of {node.name}"
        return f"an answer has no need of {name}" if (name := _given_name(node)) and not function else None

    def _name(self, node: ast.Name) -> str | None:
        if node.id in NAMES or (node.id.startswith("__") and node.id != "__name__"):
            return f"an answer has no need of {node.id}"
        if node.id in self._modules and node not in self._used:
            return f"{node.id} is a module: an answer uses what is in it, and keeps its name"
        return None

    def _attribute(self, node: ast.Attribute) -> str | None:
        subscript = node.attr == "__getitem__" and isinstance(node.ctx, ast.Load)  # as a function, such as a `key`
        if (node.attr.startswith("_") and not subscript) or node.attr in _ATTRIBUTES:
            instead = ": .tolist() gives Python's numbers" if node.attr == "numpy" else ""
            return f"an answer has no need of .{node.attr}{instead}"
        if problem := _format_problem(node):
            return problem
        parent = self._module(node.value)
        if parent is None and node.attr in _MODULE_NAMES - self._own:
            return f"an answer has no need of .{node.attr}, which is a module's name"
        if parent is not None:
            if unknown := _not_in(parent.__name__, node.attr):
                return unknown
            module = self._module(node)
            if module is not None and not self._is_allowed(module):
                return f"an answer has no need of {module.__name__}"
            own = _is_torchs_own(parent.__name__, getattr(parent, node.attr, None))
            if own or (node.attr in _FUNCTIONS and parent.__name__ in MODULES - {"triton.language"}):
                return f"an answer has no need of .{node.attr}"
        if isinstance(node.ctx, (ast.Store, ast.Del)):
            root = node.value
            while isinstance(root, ast.Attribute):
                root = root.value
            if isinstance(root, ast.Name) and root.id in self._modules:
                return (
                    f"this replaces {ast.unparse(node)}, which changes nothing: results are compared in another process"
                )
        return None
