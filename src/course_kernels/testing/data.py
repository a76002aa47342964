"""Cases and inputs for tests, checks and notebooks; the choice of problems is apart from their data.

Everything is seeded, so that a failure can be repeated, and is made on the CPU first, so that a CPU and a GPU see the
same numbers.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from course_kernels.testing.canaries import strided_like

__all__ = [
    "ROUTERS", "Problem", "empty_problems", "integers", "make_operands", "ragged_problems", "reference_problems",
    "route", "routed_sizes",
]  # fmt: skip


# ---- cases


class Problem(NamedTuple):
    """The extents of one product: (M, K) times (K, N)."""

    M: int
    N: int
    K: int


def reference_problems(scale: int = 1) -> list[Problem]:
    """The four square problems of 1024, 512, 256 and 128, in this order, that the Triton tutorial groups.

    Args:
        scale: divides every extent, and 128; 8 gives 128, 64, 32 and 16, which the interpreter computes quickly.
    """
    if scale < 1 or 128 % scale:
        raise ValueError(f"scale must be a divisor of 128, got {scale}")
    return [Problem(n // scale, n // scale, n // scale) for n in (1024, 512, 256, 128)]


def ragged_problems() -> list[Problem]:
    """Problems whose extents are no multiple of any tile, all different, from one row or column upwards."""
    return [
        Problem(1, 1, 1),
        Problem(17, 31, 5),
        Problem(64, 48, 33),  # M fills whole tiles, N and K do not
        Problem(65, 1, 64),
        Problem(1, 130, 16),
        Problem(33, 70, 129),  # one past a whole number of K blocks
    ]


def empty_problems() -> list[Problem]:
    """Problems with an extent of 0, alone and between others; K = 0 has a result, and it is zero."""
    return [
        Problem(0, 16, 16),
        Problem(16, 8, 24),
        Problem(16, 0, 16),
        Problem(9, 7, 0),
        Problem(0, 0, 0),
        Problem(5, 33, 17),
        Problem(0, 16, 0),
    ]


ROUTERS = ("uniform", "zipf", "one_hot")


def route(router: str, tokens: int, experts: int = 8, *, s: float = 1.0, hot: int = 0, seed: int = 0) -> Tensor:
    """Send each token to one expert, as the course's example router does.

    Args:
        router: "uniform" (each expert equally likely), "zipf" (expert g with weight (g + 1) ** -s, as in imbalanced
            routers) or "one_hot" (all to expert `hot`).
        s: Zipf's exponent; 0 is uniform.
        hot: the expert that "one_hot" chooses.
        seed: chooses the draw; the same on every machine and version of torch.

    Returns:
        (tokens,) int64 expert of each token, on the CPU, in the order of the tokens (not sorted).

    Raises:
        ValueError: an unknown router, a negative count, no expert at all, or `hot` is no expert.
    """
    if router not in ROUTERS:
        raise ValueError(f"router must be one of {', '.join(ROUTERS)}, got {router!r}")
    if tokens < 0:
        raise ValueError(f"tokens must not be negative, got {tokens}")
    if experts < 1:
        raise ValueError(f"experts must be at least 1, got {experts}")
    if not 0 <= hot < experts:
        raise ValueError(f"hot must be from 0 to {experts - 1}, got {hot}")
    if router == "one_hot":
        return torch.full((tokens,), hot, dtype=torch.int64, device="cpu")
    exponent = s if router == "zipf" else 0.0
    weights = [(g + 1) ** -exponent for g in range(experts)]
    # Python's generator, since torch does not promise the same draws from version to version.
    draws = random.Random(seed).choices(range(experts), weights, k=tokens)
    return torch.tensor(draws, dtype=torch.int64, device="cpu")


def routed_sizes(
    router: str, tokens: int, experts: int = 8, *, s: float = 1.0, hot: int = 0, seed: int = 0
) -> list[int]:
    """How many tokens each expert gets from `route` with these arguments: `experts` integers that sum to `tokens`."""
    ids = route(router, tokens, experts, s=s, hot=hot, seed=seed)
    return torch.bincount(ids, minlength=experts).tolist()


# ---- data


def integers(
    shape: Sequence[int],
    dtype: torch.dtype = torch.float16,
    generator: torch.Generator | int = 0,
    low: int = -2,
    high: int = 2,
    *,
    device: torch.device | str = "cpu",
) -> Tensor:
    """Small whole numbers, whose products and sums are exact in every precision that a kernel may use.

    Args:
        dtype: must hold every whole number from `low` to `high`.
        generator: a CPU generator, advanced by the call, or a seed for a fresh one.
        low, high: smallest and largest value.

    Returns:
        A contiguous tensor; the same values on every device.

    Raises:
        ValueError: `low` is above `high`, or `dtype` cannot hold one of the numbers.
    """
    if low > high:
        raise ValueError(f"low must not be above high, got {low} and {high}")
    span = torch.arange(low, high + 1, dtype=torch.float32, device="cpu")
    if not torch.equal(span.to(dtype).to(torch.float32), span):
        raise ValueError(f"{dtype} cannot hold every whole number from {low} to {high}")
    if isinstance(generator, int):
        generator = torch.Generator().manual_seed(generator)
    values = torch.randint(low, high + 1, tuple(shape), generator=generator, dtype=torch.int64, device="cpu")
    return values.to(torch.float32).to(dtype).to(device)


def make_operands(
    problems: Sequence[Problem],
    dtype: torch.dtype = torch.float16,
    generator: torch.Generator | int = 0,
    *,
    strides: str = "row",
    device: torch.device | str = "cpu",
) -> tuple[list[Tensor], list[Tensor]]:
    """Integer-valued operands for a list of problems.

    Args:
        problems: the extents, as `Problem` or (M, N, K).
        generator: a CPU generator, advanced by the call, or a seed for a fresh one.
        strides: memory layout of all operands, one of `STRIDES`.

    Returns:
        group_A with matrices (M, K) and group_B with matrices (K, N).

    Raises:
        ValueError: as `integers` and `strided_like`.
    """
    if isinstance(generator, int):
        generator = torch.Generator().manual_seed(generator)
    group_A, group_B = [], []
    for M, N, K in problems:
        group_A.append(strided_like(integers((M, K), dtype, generator, device=device), strides))
        group_B.append(strided_like(integers((K, N), dtype, generator, device=device), strides))
    return group_A, group_B
