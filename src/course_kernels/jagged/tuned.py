"""Which configuration a Helion kernel runs with: tables in ``helion_configs``, and one fixed choice where they end.

``benchmarks/helion_tune.py`` writes a table with Helion's own autotuner, and with the machine and the versions that it
ran on. Nothing is tuned at call time.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import NamedTuple

import torch

from course_kernels.dtypes import dtype_name

__all__ = ["TABLES", "Entry", "find_config", "forget_tables", "read_table", "starting_config"]

TABLES = Path(__file__).parent / "helion_configs"
KERNELS = ("simple", "persistent")
# float16 and bfloat16 serve each other.
_DTYPES = {torch.float16: "bfloat16", torch.bfloat16: "bfloat16", torch.float32: "float32"}
# Values of ``helion.Config`` that are ours: tunables that only the persistent kernel registers.
_PERSISTENT = {"group_m": 8, "workers_per_sm": 1}


class Entry(NamedTuple):
    """One tuned shape.

    Attributes:
        kernel: "simple" or "persistent".
        dtype: of the result: "bfloat16" (for all 16-bit types) or "float32".
        shape: total_m, N, K and G.
        us: time that was measured with the configuration; None where nothing was.
        config: values of ``helion.Config``.
    """

    kernel: str
    dtype: str
    shape: tuple[int, int, int, int]
    us: float | None
    config: dict


def starting_config(kernel: str, dtype: torch.dtype, interpreted: bool) -> dict:
    """A configuration that runs everywhere, before anything was tuned: 64×64 tiles of 48 KiB, which fit every GPU with
    tensor cores; smaller ones for the interpreter."""
    block, stages = ([32, 32, 32], 1) if interpreted else ([64, 64, 128 // dtype.itemsize], 3)
    config = {"block_sizes": block, "num_warps": 4, "num_stages": stages}
    return config | (_PERSISTENT if kernel == "persistent" else {})


def find_config(
    kernel: str, total_m: int, N: int, K: int, G: int, dtype: torch.dtype, arch: tuple[int, int] | str | None
) -> dict:
    """The configuration for a product.

    Args:
        kernel: "simple" or "persistent".
        total_m, N, K, G: extents and the number of groups.
        dtype: of the result.
        arch: compute capability such as (9, 0), the name of an AMD GPU, or None for the interpreter.

    Returns:
        Values of ``helion.Config``: those of the architecture's entry nearest in octaves of rows per group, N and K
        (ties: the first), else ``starting_config``'s. What was tuned on one architecture is for no other: a
        configuration may use instructions that others do not have.
    """
    table = read_table(f"sm_{arch[0]}{arch[1]}") if isinstance(arch, tuple) else ()
    fitting = [entry for entry in table if (entry.kernel, entry.dtype) == (kernel, _DTYPES[dtype])]
    if not fitting:
        return starting_config(kernel, dtype, interpreted=arch is None)

    def distance(entry: Entry) -> int:
        pairs = zip(_extents(total_m, N, K, G), _extents(*entry.shape))
        return sum(abs(mine.bit_length() - other.bit_length()) for mine, other in pairs)

    return min(fitting, key=distance).config


def _extents(total_m: int, N: int, K: int, G: int) -> tuple[int, int, int]:
    return total_m // max(1, G), N, K


@functools.cache
def read_table(arch: str) -> tuple[Entry, ...]:
    """The entries of an architecture's table, "sm_90"; none without a table.

    Raises:
        ValueError: the file is damaged; the message says where.
    """
    path = TABLES / f"{arch}.json"
    if not path.is_file():
        return ()
    try:
        rows = json.loads(path.read_text())["entries"]
        entries = tuple(
            Entry(row["kernel"], row["dtype"], tuple(map(int, row["shape"])), row["us"], dict(row["config"]))
            for row in rows
        )
    except (json.JSONDecodeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is no table of Helion configurations: {type(error).__name__}: {error}") from None
    for number, entry in enumerate(entries):
        if entry.kernel not in KERNELS or entry.dtype not in _DTYPES.values() or len(entry.shape) != 4:
            raise ValueError(f"{path}, entry {number}: unknown kernel or dtype, or a wrong shape: {entry[:3]}")
        if "block_sizes" not in entry.config:
            raise ValueError(f"{path}, entry {number}: config has no block_sizes: {entry.config}")
    return entries


def forget_tables() -> None:
    """Read the tables again at the next lookup."""
    read_table.cache_clear()


def table_dtype(dtype: torch.dtype) -> str:
    """The dtype under which a table has a result's dtype."""
    return _DTYPES.get(dtype, dtype_name(dtype))
