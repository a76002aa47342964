"""The problems that `grouped_mm` is measured on: nine rows with shapes of real layers, and four with harder sizes.

Each is the forward product of a layer of experts: (total_m, K) times a weight per group, (G, N, K) transposed, in
bfloat16. Python's generator draws the sizes from a seed, so they are the same on every machine.
"""

from __future__ import annotations

import difflib
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

__all__ = [
    "EVERY_PASS",
    "PASSES",
    "Row",
    "by_name",
    "describe",
    "equal",
    "jittered",
    "named",
    "rows",
    "select",
    "title_of",
    "variants",
    "zipf",
]

# The passes of a row. "called" is the forward product as a user calls it; the others are CUDA graphs.
PASSES = ("forward", "called", "dA", "dB")
# "step" is what a training step makes of them: forward and backward through autograd, measured where it is asked for.
EVERY_PASS = (*PASSES, "step")
_PRODUCTS_OF_A_STEP = ("forward", "dA", "dB")
_ELEMENT_BYTES = 2  # of bfloat16, the dtype of results and, by default, of operands
T = TypeVar("T")


@dataclass(frozen=True)
class Row:
    """One grouped product.

    Attributes:
        name: short, for the command line and records.
        title: for tables and figures, in the form of ``describe``.
        sizes: rows of each group; any may be 0.
        N, K: extents of every group's weight.
        kind: what bounds it on an H200: "compute" (arithmetic) or "memory" (reading the weights).
    """

    name: str
    title: str
    sizes: tuple[int, ...]
    N: int
    K: int
    kind: str

    @property
    def total_m(self) -> int:
        """Rows of all groups."""
        return sum(self.sizes)

    @property
    def groups(self) -> int:
        """Number of groups, empty ones included."""
        return len(self.sizes)

    @property
    def flops(self) -> int:
        """Multiplications and additions of the product, and of each gradient."""
        return 2 * self.total_m * self.N * self.K

    def bytes_moved(self, pass_name: str = "forward", operand_bytes: int = _ELEMENT_BYTES) -> int:
        """Bytes of operands and result of one of `EVERY_PASS`, each counted once; a result's element is 2 bytes.

        The weight of an empty group is not read, but its gradient is written. A step's are those of its three products.
        """
        if pass_name == "step":
            return sum(self.bytes_moved(each, operand_bytes) for each in _PRODUCTS_OF_A_STEP)
        weights = (self.groups if pass_name == "dB" else sum(size > 0 for size in self.sizes)) * self.N * self.K
        rows_a, rows_out = self.total_m * self.K, self.total_m * self.N
        result = {"dA": rows_a, "dB": weights}.get(pass_name, rows_out)
        return operand_bytes * (rows_a + rows_out + weights - result) + _ELEMENT_BYTES * result

    def rate(self, us: float, pass_name: str = "forward", operand_bytes: int = _ELEMENT_BYTES) -> float:
        """TFLOP/s of a compute-bound row, TB/s of a memory-bound one, for a pass that took `us` microseconds."""
        flops = self.flops * (len(_PRODUCTS_OF_A_STEP) if pass_name == "step" else 1)
        return (flops if self.kind == "compute" else self.bytes_moved(pass_name, operand_bytes)) / us / 1e6

    @property
    def unit(self) -> str:
        """Unit of `rate`."""
        return "TFLOP/s" if self.kind == "compute" else "TB/s"


def describe(sizes: Sequence[int], N: int, K: int, routing: str = "") -> str:
    """A row's title: "128 experts, 32,768 tokens (Zipf), N 1536, K 2048"; ``routing`` says how the sizes were drawn."""
    how = f" ({routing})" if routing else ""
    return f"{len(sizes)} experts, {sum(sizes):,} tokens{how}, N {N}, K {K}"


def title_of(entry: Mapping, lines: int = 1) -> str:
    """The title of a record's row; ``lines``: 2 breaks it before its extents."""
    return entry["title"].replace(", N ", "\nN ") if lines == 2 else entry["title"]


def _row(name: str, routing: str, sizes: tuple[int, ...], N: int, K: int, kind: str) -> Row:
    return Row(name, describe(sizes, N, K, routing), sizes, N, K, kind)


def jittered(groups: int, mean: float, seed: int) -> tuple[int, ...]:
    """Sizes drawn evenly within ±30 % of a mean. The sums of the rows below are within 0.2 % of groups × mean."""
    draw = random.Random(seed)
    return tuple(round(mean * draw.uniform(0.7, 1.3)) for _ in range(groups))


def zipf(groups: int, total: int, seed: int, exponent: float = 0.8, most: int | None = None) -> tuple[int, ...]:
    """Sizes in proportion to rank ** -exponent that sum to `total`; the groups' ranks are drawn.

    No group gets more than `most` rows: first ranks then have `most`, and the others share the rest by the same law.
    """
    weights = [rank**-exponent for rank in range(1, groups + 1)]
    full, rest = 0, total
    while most is not None and full < groups and rest * weights[full] > most * math.fsum(weights[full:]):
        full, rest = full + 1, rest - most
    exact = [most] * full + [rest * weight / math.fsum(weights[full:]) for weight in weights[full:]]
    sizes = [math.floor(size) for size in exact]
    for i in sorted(range(groups), key=lambda i: sizes[i] - exact[i])[: total - sum(sizes)]:
        sizes[i] += 1
    random.Random(seed).shuffle(sizes)
    return tuple(sizes)


def equal(groups: int, total: int) -> tuple[int, ...]:
    """Sizes as equal as whole numbers can be."""
    return tuple(total * (g + 1) // groups - total * g // groups for g in range(groups))


def rows() -> list[Row]:
    """The nine rows of the performance targets: seven bound by arithmetic, then two of decoding, bound by memory."""
    return [
        _row("equal12", "equal", equal(12, 8192), 2048, 1024, "compute"),
        _row("jitter4", "±30%", jittered(4, 8192, 1), 6144, 7168, "compute"),
        _row("jitter8-tall", "±30%", jittered(8, 4096, 154), 7168, 3072, "compute"),
        _row("jitter8-square", "±30%", jittered(8, 4096, 351), 4096, 4096, "compute"),
        _row("zipf8", "Zipf", zipf(8, 16384, 4), 14336, 4096, "compute"),
        _row("zipf128-up", "Zipf", zipf(128, 32768, 5), 1536, 2048, "compute"),
        _row("zipf128-down", "Zipf", zipf(128, 32768, 6), 2048, 768, "compute"),
        _row("decode256", "4 each", (4,) * 256, 4096, 7168, "memory"),
        _row("decode32", "20 each", (20,) * 32, 7168, 2048, "memory"),
    ]


def variants() -> list[Row]:
    """Four rows with harder sizes: jittered, all rows in one group, every other group empty, one row a group."""
    halved = tuple(size * (g % 2) for g, size in enumerate(equal(128, 65536)))
    return [
        _row("jitter12", "±30%", jittered(12, 8192 / 12, 11), 2048, 1024, "compute"),
        _row("one-hot8", "all to one", (0, 0, 0, 16384, 0, 0, 0, 0), 4096, 4096, "compute"),
        _row("half-empty128", "half empty", halved, 1536, 2048, "compute"),
        _row("single256", "1 each", (1,) * 256, 4096, 7168, "memory"),
    ]


def by_name() -> dict[str, Row]:
    """Every row and variant by its name."""
    return {row.name: row for row in [*rows(), *variants()]}


def select(names: Sequence[str] | None) -> list[Row]:
    """Rows by name, as ``named``."""
    return named("rows", by_name(), names)


def named(what: str, table: Mapping[str, T], names: Sequence[str] | None) -> list[T]:
    """Entries of a table by name, in the order of the table, each once.

    Args:
        what: the argument's name, for the error.
        names: names or beginnings of names ("zipf128" selects two rows). None selects all.

    Raises:
        ValueError: a name that is not the beginning of any entry's name.
    """
    if names is None:
        return list(table.values())
    for name in names:
        if not any(known.startswith(name) for known in table):
            near = difflib.get_close_matches(name, table, n=3)
            hint = f"did you mean {', '.join(near)}?" if near else f"there are: {', '.join(table)}"
            raise ValueError(f"{what} must be names or beginnings of names, got {name!r}; {hint}")
    # A full name selects one entry, even if another name begins with it.
    chosen = {k for name in names for k in ([name] if name in table else [x for x in table if x.startswith(name)])}
    return [entry for name, entry in table.items() if name in chosen]
