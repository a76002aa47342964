"""What a benchmark gives a provider, and what it asks of it."""

from __future__ import annotations

import abc
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from course_kernels.bench.rows import Row

__all__ = ["ROLES", "Calls", "Operands", "Provider", "make_operands"]

ROLES = ("ours", "candidate", "peer", "ceiling")


@dataclass(frozen=True)
class Operands:
    """What every provider reads and may write.

    Attributes:
        a: (total_m, K), row-major.
        weight: (G, N, K), row-major, as a layer stores it; the product's B is `weight.mT`.
        d_out: (total_m, N), row-major, the gradient of the result.
        offs: (G,) int32 exclusive ends, on the device.
        sizes: rows of each group, known to the host.
        out, d_a, d_weight: shaped as the result, `a` and `weight`, for providers that write where they are told.
        scale_a, scale_b: (total_m,) and (G, N) float32, factors of the product's rows and columns; with 8-bit operands
            alone, which have no gradients: `d_out`, `d_a` and `d_weight` are None there.
    """

    a: Tensor
    weight: Tensor
    d_out: Tensor | None
    offs: Tensor
    sizes: tuple[int, ...]
    out: Tensor
    d_a: Tensor | None
    d_weight: Tensor | None
    scale_a: Tensor | None = None
    scale_b: Tensor | None = None

    def as_dense(self) -> Operands:
        """One group of all rows with the first weight: the dense product of the same size."""

        def first(value: Tensor | None) -> Tensor | None:
            return None if value is None else value[:1]

        return replace(
            self, weight=self.weight[:1], offs=self.offs[-1:], sizes=(sum(self.sizes),),
            d_weight=first(self.d_weight), scale_b=first(self.scale_b),
        )  # fmt: skip


def make_operands(row: Row, device: torch.device | str, dtype: torch.dtype = torch.bfloat16, seed: int = 0) -> Operands:
    """Random normal operands of a row, scaled so that results are near 1.

    Args:
        row: the problem.
        device: of the tensors.
        dtype: of the operands and results; results of 8-bit operands are bfloat16.
        seed: chooses the draw.

    Returns:
        The operands; results hold NaN.
    """
    generator = torch.Generator(device).manual_seed(seed)

    def normal(*shape: int, scale: float = 1.0) -> Tensor:
        # Filled in place: a float32 copy of 30 GB of weights would have to fit beside them.
        return torch.empty(shape, dtype=dtype, device=device).normal_(0.0, scale, generator=generator)

    def nothing(*shape: int) -> Tensor:
        return torch.full(shape, float("nan"), dtype=dtype if dtype.itemsize > 1 else torch.bfloat16, device=device)

    def factors(*shape: int, scale: float = 1.0) -> Tensor:
        return torch.empty(shape, device=device).uniform_(0.5 * scale, 1.5 * scale, generator=generator)

    def narrow(*shape: int) -> Tensor:
        # A matrix at a time, since float8 cannot be drawn and a wider copy of all weights need not fit.
        values = torch.empty(shape, dtype=dtype, device=device)
        for part in values.unbind() if len(shape) == 3 else [values]:
            part.copy_(torch.empty(part.shape, device=device).normal_(generator=generator))
        return values

    G, M, N, K = row.groups, row.total_m, row.N, row.K
    offs = torch.tensor(row.sizes, dtype=torch.int32).cumsum(0, dtype=torch.int32).to(device)
    if dtype.itemsize == 1:
        scales = dict(scale_a=factors(M), scale_b=factors(G, N, scale=K**-0.5))
        return Operands(narrow(M, K), narrow(G, N, K), None, offs, row.sizes, nothing(M, N), None, None, **scales)
    return Operands(
        a=normal(M, K),
        weight=normal(G, N, K, scale=K**-0.5),
        d_out=normal(M, N),
        offs=offs,
        sizes=row.sizes,
        out=nothing(M, N),
        d_a=nothing(M, K),
        d_weight=nothing(G, N, K),
    )


@dataclass(frozen=True)
class Calls:
    """A row's passes as one provider computes them: candidate → function that enqueues the pass and returns its result.

    Attributes:
        forward, called, d_a, d_b: results (total_m, N), (total_m, N), (total_m, K) and (G, N, K), or a list of their
            groups. `called` is the product as a user calls it; the others are for CUDA graphs and may write into the
            operands' buffers. An empty table: the provider has no such pass.
        operands: what the results are right for, where that is not the row itself.
    """

    forward: dict[str, Callable[[], Tensor]]
    called: dict[str, Callable[[], Tensor]] = field(default_factory=dict)
    d_a: dict[str, Callable[[], Tensor]] = field(default_factory=dict)
    d_b: dict[str, Callable[[], Tensor]] = field(default_factory=dict)
    operands: Operands | None = None

    def of(self, which: str) -> dict[str, Callable[[], Tensor]]:
        """The candidates of one of `rows.PASSES`."""
        return {"forward": self.forward, "called": self.called, "dA": self.d_a, "dB": self.d_b}[which]


class Provider(abc.ABC):
    """Something that computes grouped products.

    Attributes:
        name: for the command line and records.
        label: for tables and figures.
        role: one of `ROLES`; a candidate is one way to compute what ours chooses from, a ceiling does other work of the
            same size and is no peer.
    """

    name: str
    label: str
    role: str = "peer"

    def unavailable(self) -> str | None:
        """Why it cannot run here; None where it can."""
        return None

    def unsuited(self, row: Row) -> str | None:
        """Why it does not compute this row; None where it does."""
        return None

    def version(self) -> str | None:
        """Version of the package that it comes from, where that is not torch."""
        return None

    @abc.abstractmethod
    def prepare(self, operands: Operands) -> Calls:
        """Functions for a row's passes; whatever must be made once is made here."""
