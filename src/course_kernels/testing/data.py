"""Cases, inputs and traps for tests, checks and notebooks; the choice of problems is apart from their data.

Everything is seeded, so a failure can be had again, and made on the CPU first, so that a CPU and a GPU see
the same numbers. How close an answer must be is in `course_kernels.testing.tolerance`, whose assertions are
re-exported here.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from course_kernels.testing.grouped_tolerance import assert_grouped_close, assert_grouped_exact, grouped_error_bound
from course_kernels.testing.tolerance import (
    TOLERANCES,
    assert_close_to_oracle,
    assert_exact,
    assert_group_close,
    error_bound,
)

__all__ = [
    "ROUTERS",
    "STRIDES",
    "TOLERANCES",
    "Problem",
    "assert_close_to_oracle",
    "assert_exact",
    "assert_group_close",
    "assert_grouped_close",
    "assert_grouped_exact",
    "empty_problems",
    "error_bound",
    "grouped_error_bound",
    "integers",
    "make_operands",
    "poisoned",
    "ragged_problems",
    "reference_problems",
    "route",
    "routed_sizes",
    "strided_like",
]


# ---- cases


class Problem(NamedTuple):
    """The extents of one product: (M, K) times (K, N)."""

    M: int
    N: int
    K: int


def reference_problems(scale: int = 1) -> list[Problem]:
    """The four square problems of 1024, 512, 256 and 128 that the Triton tutorial groups.

    Args:
        scale: divides every extent; 8 gives 128, 64, 32 and 16, which the interpreter manages in a moment.

    Returns:
        Four problems, the largest first.

    Raises:
        ValueError: `scale` does not divide 128.
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
    """Send each token to one expert, as the running example's router does.

    Args:
        router: "uniform" (each expert equally likely), "zipf" (expert g with weight (g + 1) ** -s, as the
            loads that imbalanced routers show) or "one_hot" (all to expert `hot`).
        tokens: number of tokens.
        experts: number of experts.
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
        return torch.full((tokens,), hot, dtype=torch.int64)
    exponent = s if router == "zipf" else 0.0
    weights = [(g + 1) ** -exponent for g in range(experts)]
    # Python's generator, since torch does not promise the same draws from version to version.
    draws = random.Random(seed).choices(range(experts), weights, k=tokens)
    return torch.tensor(draws, dtype=torch.int64)


def routed_sizes(
    router: str, tokens: int, experts: int = 8, *, s: float = 1.0, hot: int = 0, seed: int = 0
) -> list[int]:
    """How many tokens each expert gets from `route` with the same arguments.

    Args:
        router: "uniform", "zipf" or "one_hot".
        tokens: number of tokens, which the sizes sum to.
        experts: number of experts.
        s: Zipf's exponent.
        hot: the expert that "one_hot" chooses.
        seed: chooses the draw.

    Returns:
        `experts` integers.

    Raises:
        ValueError: as `route`.
    """
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
        shape: of the result.
        dtype: of the result; must hold every whole number from `low` to `high`.
        generator: a CPU generator, advanced by the call, or a seed for a fresh one.
        low: smallest value.
        high: largest value, included.
        device: of the result.

    Returns:
        A contiguous tensor; the same values on every device.

    Raises:
        ValueError: `low` is above `high`, or `dtype` cannot hold one of the numbers.
    """
    if low > high:
        raise ValueError(f"low must not be above high, got {low} and {high}")
    span = torch.arange(low, high + 1, dtype=torch.float32)
    if not torch.equal(span.to(dtype).to(torch.float32), span):
        raise ValueError(f"{dtype} cannot hold every whole number from {low} to {high}")
    if isinstance(generator, int):
        generator = torch.Generator().manual_seed(generator)
    values = torch.randint(low, high + 1, tuple(shape), generator=generator)
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
        dtype: of all operands.
        generator: a CPU generator, advanced by the call, or a seed for a fresh one.
        strides: how all operands lie in memory, one of `STRIDES`.
        device: of the operands.

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


# ---- memory

# A NaN that arithmetic does not produce: hardware's own have other low bits, so "still the canary" can be
# told from "a NaN was computed". The 8-bit floats have one or two NaNs only.
CANARY = {
    torch.float16: (torch.int16, 0x7E5A),
    torch.bfloat16: (torch.int16, 0x7FDA),
    torch.float32: (torch.int32, 0x7FC05A5A),
    torch.float64: (torch.int64, 0x7FF85A5A5A5A5A5A),
    torch.float8_e4m3fn: (torch.uint8, 0x7F),
    torch.float8_e5m2: (torch.uint8, 0x7E),
    torch.int8: (torch.int8, 0x5A),
    torch.uint8: (torch.uint8, 0x5A),
    torch.int16: (torch.int16, 0x5A5A),
    torch.int32: (torch.int32, 0x5A5A5A5A),
    torch.int64: (torch.int64, 0x5A5A5A5A5A5A5A5A),
}


def _canaries(count: int, dtype: torch.dtype, device: torch.device | str) -> Tensor:
    if dtype not in CANARY:
        raise ValueError(f"dtype must be one of {', '.join(map(str, CANARY))}, got {dtype}")
    bits, pattern = CANARY[dtype]
    return torch.full((count,), pattern, dtype=bits, device=device).view(dtype)


def poisoned(
    shape: Sequence[int],
    dtype: torch.dtype = torch.float16,
    margin: int = 16,
    *,
    device: torch.device | str = "cpu",
) -> tuple[Tensor, Callable[..., None]]:
    """A tensor inside a larger buffer, all of it filled with canaries (NaN where the dtype has one).

    As an input (`view.copy_(data)`), it turns a read past the edge into NaN in the result; as an output, it
    shows a write past the edge and an element that was never written.

    Args:
        shape: of the view, at least 1-D. The last two dimensions get the margin, so every matrix of a batch
            has one.
        dtype: of the view.
        margin: elements on each side; 16 keeps the alignment that TMA wants, an odd number breaks it.
        device: of the buffer.

    Returns:
        The view, full of canaries, and `verify(all_written=False)`, which raises AssertionError naming the
        first place outside the view that changed, by its index relative to the view (-1 is one before it),
        and with `all_written=True` also the first element of the view that still holds the canary. (An 8-bit
        NaN that was computed looks like a canary.)

    Raises:
        ValueError: `shape` is empty, `margin` is less than 1, or there is no canary for `dtype`.
    """
    shape = tuple(shape)
    if not shape:
        raise ValueError("shape must have at least one dimension, got ()")
    if margin < 1:
        raise ValueError(f"margin must be at least 1, got {margin}")
    batch, inner = shape[:-2], shape[-2:]
    outer = (*batch, *(n + 2 * margin for n in inner))
    numel = 1
    for n in outer:
        numel *= n
    buffer = _canaries(numel, dtype, device).view(outer)
    inside = (..., *(slice(margin, margin + n) for n in inner))
    view = buffer[inside]
    bits, pattern = CANARY[dtype]

    def verify(all_written: bool = False) -> None:
        changed = buffer.view(bits) != pattern
        written = changed[inside].clone()
        changed[inside] = False
        if changed.any():
            where = changed.nonzero()[0].tolist()
            index = [*where[: len(batch)], *(i - margin for i in where[len(batch) :])]
            raise AssertionError(
                f"{int(changed.sum())} element(s) outside the {list(shape)} view were written, the first at "
                f"{index} relative to the view"
            )
        if all_written and not written.all():
            missing = ~written
            raise AssertionError(
                f"{int(missing.sum())} element(s) of the {list(shape)} view were never written, the first at "
                f"{missing.nonzero()[0].tolist()}"
            )

    return view, verify


STRIDES = ("row", "col", "transposed", "padded", "unaligned", "every_other", "expanded")


def strided_like(tensor: Tensor, how: str) -> Tensor:
    """The values of a matrix, or a batch of them, laid out in memory another way, with canaries in the gaps.

    Args:
        tensor: (..., M, N), any strides.
        how: "row", row-major without gaps; "col", column-major without gaps; "transposed", a transposed view
            of a row-major matrix with a longer leading dimension; "padded", row-major with a longer leading
            dimension that keeps 16-byte alignment; "unaligned", row-major with an odd leading dimension and
            an odd start; "every_other", every other column of a wider matrix, so that neither stride is 1;
            "expanded", the first row under every index (stride 0), the one layout whose values differ from
            the tensor's.

    Returns:
        A view of a new buffer with the shape, dtype and device of `tensor`.

    Raises:
        ValueError: `how` is not one of `STRIDES`, `tensor` has fewer than two dimensions, or an unknown
            dtype.
    """
    if how not in STRIDES:
        raise ValueError(f"how must be one of {', '.join(STRIDES)}, got {how!r}")
    if tensor.ndim < 2:
        raise ValueError(f"tensor must have at least 2 dimensions, got shape {tuple(tensor.shape)}")
    *batch, m, n = tensor.shape
    if how == "expanded":
        first = tensor[..., :1, :].clone(memory_format=torch.contiguous_format)
        return first.expand(tensor.shape) if m else first
    if how in ("col", "transposed"):
        rows, width, start, step = n, m if how == "col" else m + 16, 0, 1
    elif how == "every_other":
        rows, width, start, step = m, 2 * n, 0, 2
    else:
        rows, start, step = m, int(how == "unaligned"), 1
        width = {"row": n, "padded": n + 16, "unaligned": n + 1 + n % 2}[how]
    # The start lies in front of the buffer, so that it moves the base address and nothing else.
    count = rows * width
    for extent in batch:
        count *= extent
    buffer = _canaries(count + start, tensor.dtype, tensor.device)[start:].view(*batch, rows, width)
    used = m if how in ("col", "transposed") else n
    view = buffer[..., : used * step : step]
    if how in ("col", "transposed"):
        view = view.mT
    view.copy_(tensor)
    return view
