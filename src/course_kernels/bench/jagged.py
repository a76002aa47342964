"""Rows and providers of products with one B for all groups: `grouped_gemm_jagged`, its peers, and cuBLAS.

With a shared B the whole batch is one dense GEMM, so cuBLAS on the packed rows is the ceiling, and at the same time the
simplest way to compute the product: it ignores the offsets, as it may where they end at the last row.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.metadata
import importlib.util

import torch
from torch import Tensor

from course_kernels import grouped_gemm_jagged, grouped_gemm_jagged_persistent, runtime
from course_kernels.bench.interface import Calls, Provider
from course_kernels.bench.operands import Operands
from course_kernels.bench.providers import Torch
from course_kernels.bench.rows import Row, by_name, describe
from course_kernels.jagged.tuned import find_config

__all__ = [
    "Cublas",
    "Document",
    "HelionDefault",
    "Ours",
    "SharedRow",
    "TorchExpanded",
    "operands_of",
    "providers",
    "rows",
]

_FUNCTIONS = {"simple": grouped_gemm_jagged, "persistent": grouped_gemm_jagged_persistent}


@dataclasses.dataclass(frozen=True)
class SharedRow(Row):
    """A row whose groups share one weight."""

    def bytes_moved(self, pass_name: str = "forward", operand_bytes: int = 2) -> int:
        """Bytes of A, of one B, and of the result, each counted once; the result's element is 2 bytes."""
        if pass_name not in ("forward", "called"):
            raise ValueError(f"pass_name must be 'forward' or 'called', got {pass_name!r}")
        return operand_bytes * (self.total_m + self.N) * self.K + 2 * self.total_m * self.N


def rows() -> list[SharedRow]:
    """Helion's example, TritonBench's shapes (four groups of M = N = K), and B of real layers.

    The last three are bound by arithmetic: the projections of Qwen3-30B-A3B over its 128 groups, and a large B.
    """
    real = {"zipf128-up": "qwen3-up", "zipf128-down": "qwen3-down", "jitter8-square": "square"}
    table, document = by_name(), (64, 128, 192, 256)
    return [
        SharedRow("document", describe(document, 128, 256, "64 to 256"), document, 128, 256, "compute"),
        *(
            SharedRow(f"tb-{n}", describe((n,) * 4, n, n, f"{n:,} each"), (n,) * 4, n, n, "compute")
            for n in (128, 256, 512, 1024)
        ),
        *(
            SharedRow(name, table[row].title, table[row].sizes, table[row].N, table[row].K, "compute")
            for row, name in real.items()
        ),
    ]


def operands_of(operands: Operands) -> tuple[Operands, Tensor, Tensor]:
    """A row's operands with the first weight for all groups; B (K, N), row-major; offsets (G + 1,)."""
    shared = operands.weight[:1].expand_as(operands.weight)
    offsets = torch.nn.functional.pad(operands.offs, (1, 0))
    return dataclasses.replace(operands, weight=shared), operands.weight[0].mT.contiguous(), offsets


def _missing_helion() -> str | None:
    return None if importlib.util.find_spec("helion") else "helion is not installed"


def _helion_version() -> str:
    return importlib.metadata.version("helion")


class Ours(Provider):
    """`grouped_gemm_jagged`, or the persistent one, by one of its implementations."""

    role = "ours"

    def __init__(self, kernel: str, implementation: str):
        self.kernel, self.implementation = kernel, implementation
        self.name = implementation if implementation == "auto" else f"{implementation}-{kernel}"
        self.label = f"{_FUNCTIONS[kernel].__name__} ({implementation})"

    def unavailable(self) -> str | None:
        """Helion has an extra of its own."""
        return _missing_helion() if self.implementation == "helion" else None

    def version(self) -> str | None:
        """Of Helion."""
        return _helion_version() if self.implementation == "helion" else None

    def prepare(self, operands: Operands) -> Calls:
        """Each call allocates its result, in a graph once for all replays."""
        shared, B, offsets = operands_of(operands)
        function, implementation = _FUNCTIONS[self.kernel], self.implementation
        call = {"": lambda: function(shared.a, B, offsets, implementation=implementation)}
        return Calls(forward=call, called=call, operands=shared)


class HelionDefault(Provider):
    """A Helion kernel of ours in the configuration that Helion takes where nothing was tuned."""

    role = "candidate"

    def __init__(self, kernel: str):
        self.kernel, self.name, self.label = (
            kernel,
            f"helion-{kernel}-default",
            f"Helion, {kernel}, default configuration",
        )

    def unavailable(self) -> str | None:
        """It needs Helion."""
        return _missing_helion()

    def version(self) -> str | None:
        """Of Helion."""
        return _helion_version()

    def prepare(self, operands: Operands) -> Calls:
        """The default is asked of Helion for these operands."""
        kernels = importlib.import_module("course_kernels.jagged.helion_kernels")
        shared, B, offsets = operands_of(operands)
        config = kernels.bind(self.kernel, shared.a, B, offsets).config_spec.default_config()
        call = {"": lambda: kernels.multiply(self.kernel, shared.a, B, offsets, dict(config))}
        return Calls(forward=call, operands=shared)


class Document(Provider):
    """The walk of Helion's example, group by group, with the tile of our persistent Helion kernel."""

    name, label = "helion-scanning", "Helion, group by group (as its example)"

    def unavailable(self) -> str | None:
        """It needs Helion."""
        return _missing_helion()

    def version(self) -> str | None:
        """Of Helion."""
        return _helion_version()

    def prepare(self, operands: Operands) -> Calls:
        """A worker for each SM, as in the example."""
        peer = importlib.import_module("course_kernels.bench.helion_peer")
        shared, B, offsets = operands_of(operands)
        (total_m, K), N, device = shared.a.shape, B.shape[1], runtime.Device.of(B.device)
        config = find_config("persistent", total_m, N, K, len(shared.sizes), B.dtype, device.arch)
        kernel, workers = peer.make_scanning(config), device.num_sms or 4
        call = {"": lambda: kernel(shared.a, B, offsets, workers)}
        return Calls(forward=call, operands=shared)


class TorchExpanded(Torch):
    """torch's `grouped_mm`, which wants a B for each group: views of one, or copies."""

    label = "torch grouped_mm, B for each group"

    def prepare(self, operands: Operands) -> Calls:
        """Copies are made here, once."""
        shared, B, _ = operands_of(operands)
        function, views = self.function(), B.expand(len(shared.sizes), *B.shape)
        copies = views.contiguous()
        forward = {
            "views": lambda: function(shared.a, views, offs=shared.offs),
            "copies": lambda: function(shared.a, copies, offs=shared.offs),
        }
        return Calls(forward=forward, operands=shared)


class Cublas(Provider):
    """One cuBLAS product of the packed rows: the same result, and what arithmetic allows."""

    name, label, role = "cublas", "cuBLAS on the packed rows", "ceiling"

    def prepare(self, operands: Operands) -> Calls:
        """Results go to the shared buffer; the call as a user makes it allocates its result."""
        shared, B, _ = operands_of(operands)
        return Calls(
            forward={"": lambda: torch.mm(shared.a, B, out=shared.out)},
            called={"": lambda: torch.mm(shared.a, B)},
            operands=shared,
        )


def providers() -> list[Provider]:
    """All providers, available here or not, ours first."""
    ours = [Ours(kernel, implementation) for implementation in ("triton", "helion") for kernel in _FUNCTIONS]
    defaults = map(HelionDefault, _FUNCTIONS)
    return [Ours("simple", "auto"), *ours, *defaults, Document(), TorchExpanded(), Cublas()]
