"""The contract between a benchmark and a provider: operands, passes, reasons."""

from __future__ import annotations

import abc
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from course_kernels.bench.gpu_timer import Result
from course_kernels.bench.rows import Row

__all__ = [
    "ROLES",
    "Calls",
    "Function",
    "Provider",
    "Unverified",
    "Verified",
    "WrongResult",
    "is_out_of_memory",
    "one_line",
]

ROLES = ("ours", "candidate", "peer", "ceiling")


class WrongResult(AssertionError):
    """A provider's result is not the product."""


class Verified(Protocol):
    """Operands that can verify the results computed from them."""

    def verify(self, result: Result | None, pass_name: str) -> None:
        """Raise ``WrongResult`` unless the result of a pass is right."""


@dataclass(frozen=True)
class Calls:
    """The passes of a row by one provider: candidate → function that enqueues the pass and returns its result.

    Attributes:
        forward, called, d_a, d_b: results (total_m, N), (total_m, N), (total_m, K) and (G, N, K), or a list of their
            groups. `called` is the product as a user calls it; the others are for CUDA graphs and may write into the
            operands' buffers. An empty table: the provider has no such pass.
        step: forward and backward through autograd; the result is (out, d_a, d_weight).
        operands: verifies the results, if they are not the results of the row's operands.
    """

    forward: dict[str, Callable[[], Tensor]]
    called: dict[str, Callable[[], Tensor]] = field(default_factory=dict)
    d_a: dict[str, Callable[[], Tensor]] = field(default_factory=dict)
    d_b: dict[str, Callable[[], Tensor]] = field(default_factory=dict)
    operands: Verified | None = None
    step: dict[str, Callable[[], tuple[Tensor, Tensor, Tensor]]] = field(default_factory=dict)

    def of(self, pass_name: str) -> dict[str, Callable[[], Tensor]]:
        """The candidates of one of `rows.EVERY_PASS`."""
        by_pass = {"forward": self.forward, "called": self.called, "dA": self.d_a, "dB": self.d_b, "step": self.step}
        return by_pass[pass_name]


class Provider(abc.ABC):
    """Something that computes grouped products.

    Attributes:
        name: for the command line and records.
        label: for tables and figures.
        role: one of `ROLES`. A candidate is one of the configurations that ours chooses from; a ceiling does other work
            of the same size and is no peer.
    """

    name: str
    label: str
    role: str = "peer"

    def unavailable(self) -> str | None:
        """Why it cannot run here, or None."""
        return None

    def unsuited(self, row: Row) -> str | None:
        """Why it does not compute this row, or None."""
        return None

    def version(self) -> str | None:
        """Version of its package, if that is not torch."""
        return None

    @abc.abstractmethod
    def prepare(self, operands) -> Calls:
        """Make the functions of a row's passes, and everything that is made only once.

        Args:
            operands: the row's operands, a `Verified`; for `grouped_mm`, ``operands.Operands``.
        """


class Function(Provider):
    """A provider made from a function, for problems that only one program measures.

    Args:
        name: name and label.
        prepare: operands → the passes.
    """

    def __init__(self, name: str, prepare: Callable[..., Calls], role: str = "peer"):
        self.name, self.label, self.role, self._prepare = name, name, role, prepare

    def prepare(self, operands) -> Calls:
        """The function's passes."""
        return self._prepare(operands)


class Unverified:
    """A replacement for operands if a result is not compared: of an empty launch, a read, other work."""

    def verify(self, result: Result | None, pass_name: str) -> None:
        """Do nothing."""


def one_line(error: Exception) -> str:
    """An exception as a line that fits a table's footnote."""
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:200]}".rstrip(": ")


def is_out_of_memory(error: BaseException | None) -> bool:
    """Whether the device's memory ran out. Ending a failed capture may raise another error, so its context counts."""
    while error is not None and not isinstance(error, torch.OutOfMemoryError):
        error = error.__cause__ or error.__context__
    return error is not None
