"""One specialisation of a kernel: the types and compile-time values of one kind of launch."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from enum import IntEnum

from course_kernels.kernels.codes import Layout

LIST_KERNELS = ("naive", "round_robin", "tma")
PACKED_KERNELS = ("contiguous", "transposed")
KERNELS = (*LIST_KERNELS, *PACKED_KERNELS, "masked")
LAYOUTS = {"any": Layout.ANY, "row": Layout.ROW_MAJOR, "col": Layout.COL_MAJOR}


@dataclasses.dataclass(frozen=True, eq=False)
class Build:
    """One specialisation of a kernel, ready to be compiled.

    Args:
        kernel: "naive", "round_robin", "tma", "contiguous", "transposed", "masked", or "module:function" or
            "path/to/file.py:function" for any ``@triton.jit`` function.
        signature: type of each run-time argument by name, as Triton writes them: ``"*fp16"``, ``"i32"``, ...
        constexprs: value of each compile-time argument by name, and of each run-time argument that is None or 1;
            a ``FunctionName`` for a function of the kernel's module.
        divisible_by_16: names of run-time arguments that are multiples of 16 (addresses: of 16 bytes). Triton looks
            at the arguments of a launch to find them; only with them are loads and stores wide.
        num_warps: warps per program.
        num_stages: blocks in flight in a pipelined loop.
        label: name to show instead of ``kernel``'s.
        options: further options of Triton's compiler, such as ``waves_per_eu`` of its AMD backend.
    """

    kernel: str
    signature: Mapping[str, str]
    constexprs: Mapping[str, object] = dataclasses.field(default_factory=dict)
    divisible_by_16: tuple[str, ...] = ()
    num_warps: int = 4
    num_stages: int = 3
    label: str = ""
    options: Mapping[str, int] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.kernel not in KERNELS and ":" not in self.kernel:
            raise ValueError(
                f"kernel must be one of {KERNELS}, 'module:function' or 'path/to/file.py:function', got {self.kernel!r}"
            )
        object.__setattr__(self, "signature", dict(self.signature))
        # Codes as plain numbers: two spellings of one build are equal.
        plain = {name: int(value) if isinstance(value, IntEnum) else value for name, value in self.constexprs.items()}
        object.__setattr__(self, "constexprs", plain)
        object.__setattr__(self, "divisible_by_16", tuple(sorted(self.divisible_by_16)))
        if both := self.signature.keys() & self.constexprs.keys():
            raise ValueError(f"arguments are either in signature or in constexprs, got {sorted(both)} in both")
        if unknown := set(self.divisible_by_16) - self.signature.keys():
            raise ValueError(f"divisible_by_16 must name arguments of signature, got {sorted(unknown)}")

    def _key(self) -> tuple:
        constexprs = tuple(sorted((name, repr(value)) for name, value in self.constexprs.items()))
        return (
            self.kernel, tuple(sorted(self.signature.items())), constexprs, self.divisible_by_16,
            self.num_warps, self.num_stages, *sorted(self.options.items()),
        )  # fmt: skip

    def __eq__(self, other: object) -> bool:
        return self._key() == other._key() if isinstance(other, Build) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._key())

    def __str__(self) -> str:
        return self.label or self.kernel
