"""The Triton kernel that Helion writes for a call: its text, the Helion line of each of its lines, and its compilation.

Nothing here imports Helion: a kernel that is passed in brings it along.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
import tempfile
import textwrap
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from course_kernels.codegen import Build, Compiled, compile_many
from course_kernels.codegen.packed import specialize

_COMMENT = re.compile(r"^\s*# src\[.*?:(\d+)(?:-\d+)?\]: ")
_COPY = re.compile(r"^\s*(\w+?)(_copy(_\d+)*)+ = \w+$")
_COLUMNS = 116


class Generated(NamedTuple):
    """A kernel that Helion wrote, and how it is launched.

    Attributes:
        name: of the Triton kernel.
        lines: (position of a line in ``helion`` or None, line) of the kernel, from ``def`` on.
        helion: source lines of the Helion function, from ``def`` on.
        module: the file that Helion wrote, less comments, without the host's function.
        programs: of the launch.
        signature, constexprs, divisible_by_16: types of the arguments, as for ``codegen.Build``.
        num_warps, num_stages: of the launch.
    """

    name: str
    lines: tuple[tuple[int | None, str], ...]
    helion: tuple[str, ...]
    module: str
    programs: int
    signature: dict
    constexprs: dict
    divisible_by_16: tuple[str, ...]
    num_warps: int
    num_stages: int

    @property
    def text(self) -> str:
        """The kernel, long lines wrapped, without the copies ``x_copy = x`` that mean nothing."""
        lines = _without_copies([line for _, line in self.lines])
        return "\n".join(part for line in lines for part in _wrapped(line))

    def loops(self) -> list[str]:
        """What the kernel's loops run over, outer before inner."""
        return [re.search(r"tl\.range\((.*)\):$", line)[1] for _, line in self.lines if "in tl.range(" in line]


def kernel_lines(kernel: Any, *arguments: Any) -> list[str]:
    """The lines of ``Generated.text``, not wrapped, also where the launch would ask a GPU for its number of SMs."""
    (config,) = kernel.configs
    code = kernel.bind(arguments).to_triton_code(config)
    name = re.search(r"^def (_helion_\w+)\(", code, re.MULTILINE)[1]
    return _without_copies([line for _, line in _numbered(code, name, 0, 0)])


def generated(kernel: Any, *arguments: Any) -> Generated:
    """The Triton kernel that Helion writes for a call of a kernel with one configuration. Nothing is launched.

    Args:
        kernel: a ``helion.Kernel`` that was made with ``config``.
        arguments: of the call. Tensors may be large: no element is read.
    """
    (config,) = kernel.configs
    bound = kernel.bind(arguments)
    code = bound.to_triton_code(config)
    launches = []

    def launch(function, grid, *values, **options):
        launches.append((function, grid, values, options))

    bound.compile_config(config)(*arguments, _launcher=launch)
    ((function, grid, values, options),) = launches
    names = list(inspect.signature(function.fn).parameters)
    signature, constexprs, divisible = specialize(function, dict(zip(names, values)))
    source, first = inspect.getsourcelines(kernel.fn)
    skipped = next(i for i, line in enumerate(source) if line.startswith("def "))
    helion = tuple(line.rstrip() for line in source[skipped:])
    programs = 1
    for extent in grid:
        programs *= int(extent)
    return Generated(
        function.fn.__name__, tuple(_numbered(code, function.fn.__name__, first + skipped, len(helion))), helion,
        _device_code(code), programs, signature, constexprs, divisible, options["num_warps"], options["num_stages"],
    )  # fmt: skip


def compile_all(kernels: dict[str, Generated], target: str = "sm_90") -> dict[str, Compiled]:
    """Compile kernels that Helion wrote for a GPU that this machine need not have."""
    with tempfile.TemporaryDirectory() as folder:
        builds = []
        for number, one in enumerate(kernels.values()):
            path = Path(folder, f"kernel_{number}.py")
            path.write_text(one.module, encoding="utf-8")
            options = one.signature, one.constexprs, one.divisible_by_16, one.num_warps, one.num_stages
            builds.append(Build(f"{path}:{one.name}", *options, label=one.name))
        return dict(zip(kernels, compile_many([(build, target) for build in builds], workers=1)))


def source_lines(*functions: Callable) -> int:
    """Lines of the functions' bodies and headers, without comments, documentation and decorators."""
    total = 0
    for one in functions:
        (function,) = ast.parse(textwrap.dedent(inspect.getsource(getattr(one, "fn", one)))).body
        documented = ast.get_docstring(function) is not None
        function.body, function.decorator_list = function.body[documented:], []
        total += len(ast.unparse(function).splitlines())
    return total


def lines_from(kernel: Generated) -> dict[int, int]:
    """Position of a line in ``helion`` → number of Triton lines made from it, without lines that only copy."""
    return dict(Counter(at for at, line in kernel.lines[1:] if at is not None and not _COPY.match(line)))


def _without_copies(lines: list[str]) -> list[str]:
    """Lines without the copies ``x_copy = x``, whose names become those of what they copy."""
    copies = {line.split(" = ")[0].strip() for line in lines if _COPY.match(line)}
    kept = [line for line in lines if not _COPY.match(line)]
    if not copies:
        return kept
    names = re.compile(r"\b(" + "|".join(sorted(copies, key=len, reverse=True)) + r")\b")
    return [names.sub(lambda found: re.sub(r"(_copy(_\d+)*)+$", "", found[0]), line) for line in kept]


def _wrapped(line: str) -> list[str]:
    further = " " * (len(line) - len(line.lstrip()) + 8)
    options = dict(subsequent_indent=further, break_long_words=False, break_on_hyphens=False)
    return textwrap.wrap(line, _COLUMNS, **options)


def _device_code(code: str) -> str:
    """What Triton compiles: the imports, the constants and the jitted functions of a generated file."""
    kept = []
    for node in ast.parse(code).body:
        if isinstance(node, ast.ImportFrom) and node.module == "__future__":
            continue
        if isinstance(node, ast.Import) and any(alias.asname == "_source_module" for alias in node.names):
            continue
        if isinstance(node, ast.FunctionDef) and not node.decorator_list:
            continue
        if isinstance(node, ast.ImportFrom) and node.module.split(".")[0] == "helion":
            kept += [_loaded_alone(f"{node.module}.{alias.name}", alias.asname or alias.name) for alias in node.names]
            continue
        kept.append(ast.unparse(node))
    return "\n\n".join(kept) + "\n"


def _loaded_alone(module: str, name: str) -> str:
    """Code that gives a name to a module of Helion's, loaded without the package, which takes seconds to import."""
    file = getattr(sys.modules.get(module), "__file__", None)
    if file is None:  # a function of the host's
        return ""
    return (
        "import importlib.util as _util\n"
        f"_spec = _util.spec_from_file_location({name!r}, {file!r})\n"
        f"{name} = _util.module_from_spec(_spec)\n"
        f"_spec.loader.exec_module({name})"
    )


def _numbered(code: str, name: str, first: int, count: int):
    """The kernel's lines, each with the position of the Helion line that Helion's comments say it came from."""
    lines = code.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith(f"def {name}("))
    at, block = None, False
    for line in lines[start:]:
        if line and not line.startswith(" ") and not line.startswith("def " + name):
            return
        if found := _COMMENT.match(line):
            # Of several comments in a row, the first one names the statement.
            if not block:
                at = int(found[1]) - first
                at = at if 0 <= at < count else None
            block = True
        elif line.strip():
            block = False
            yield at, line
