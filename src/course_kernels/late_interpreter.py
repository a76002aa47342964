"""Triton's interpreter in a process that has imported Triton for its compiler.

Triton decides while it is being imported whether the functions of its own library (``tl.zeros``, ``tl.sum``) are
compiled or interpreted. ``torch.optim.AdamW``, checkpointing, the profiler and others of torch import it. Without a GPU
nothing could run such functions, so here they become what they are where the interpreter was asked for first.
"""

from __future__ import annotations

import functools
import sys
from typing import Any


def is_interpreted() -> bool:
    """Whether Triton, already imported, interprets its library's functions."""
    standard = sys.modules.get("triton.language.standard")
    return standard is not None and type(standard.zeros).__name__ == "InterpretedFunction"


def convert() -> None:
    """Make Triton, already imported, interpret its library's functions, and kernels that are defined later.

    Kernels that were defined before stay compiled ones.
    """
    from triton.language import core
    from triton.runtime.interpreter import InterpretedFunction
    from triton.runtime.jit import JITFunction

    made: dict[int, InterpretedFunction] = {}  # by identity: a compiled function's hash is that of its source

    def interpreted(function: JITFunction) -> InterpretedFunction:
        if id(function) not in made:
            made[id(function)] = InterpretedFunction(function.fn)
        return made[id(function)]

    for name, module in list(sys.modules.items()):
        # Gluon has a library of its own, which only its compiler reads.
        if name.partition(".")[0] == "triton" and not name.startswith("triton.experimental"):
            _replace(module, JITFunction, interpreted)
    for name, value in list(vars(core.tensor).items()):
        if isinstance(value, JITFunction):
            setattr(core.tensor, name, _method(interpreted(value)))
    # For kernels that are defined later. Triton's own setter would change the environment.
    vars(sys.modules["triton.knobs"].runtime)["interpret"] = True


def _replace(module: Any, kind: type, interpreted: Any) -> None:
    """Put interpreted functions in the place of a module's compiled ones."""
    for name, value in list(getattr(module, "__dict__", {}).items()):
        if isinstance(value, kind):
            setattr(module, name, interpreted(value))


def _method(function: Any) -> Any:
    """A library function as a method of blocks: Triton wraps it likewise."""

    @functools.wraps(function.fn)
    def method(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return method
