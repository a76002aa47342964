"""Do strided matrices share memory? Exact where strides agree, careful where they do not."""

from __future__ import annotations

import math

import torch


def overlaps_itself(matrix: torch.Tensor) -> bool:
    """Whether two elements of a matrix share an address: the larger stride must step over the smaller's whole span."""
    spans = sorted((stride, size) for stride, size in zip(matrix.stride(), matrix.shape) if size > 1)
    if matrix.numel() <= 1 or not spans:
        return False
    if len(spans) == 1:
        return spans[0][0] == 0
    (small, size), (large, _) = spans
    return small == 0 or large <= small * (size - 1)


def byte_range(matrix: torch.Tensor) -> tuple[int, int]:
    """(first, one past the last) address of a matrix; both the same for an empty one."""
    start = matrix.data_ptr()
    if not matrix.numel():
        return start, start
    last = sum(stride * (size - 1) for stride, size in zip(matrix.stride(), matrix.shape))
    return start, start + (last + 1) * matrix.element_size()


def share_memory(x: torch.Tensor, y: torch.Tensor) -> bool:
    """Whether two matrices have an address in common.

    Exact where both have the same strides and element size, as interlocking slices of one buffer do (even rows and odd
    rows, left columns and right columns). Of other matrices whose address ranges meet, it says that they do.

    Args:
        x, y: matrices neither of which ``overlaps_itself``.
    """
    (x_start, x_end), (y_start, y_end) = byte_range(x), byte_range(y)
    if x_end <= y_start or y_end <= x_start:
        return False
    size = x.element_size()
    if x.stride() != y.stride() or size != y.element_size() or (x_start - y_start) % size:
        return True
    # An address in common: i * large + j * small = distance, with i and j differences of indices in range. A stride
    # that no matrix takes a step along counts as 1.
    distance = (x_start - y_start) // size
    (small, x_n, y_n), (large, x_m, y_m) = sorted(
        (max(stride, 1), max(m, 1), max(n, 1)) for stride, m, n in zip(x.stride(), x.shape, y.shape)
    )
    least = max(1 - x_m, -((small * (y_n - 1) - distance) // large))
    most = min(y_m - 1, (small * (x_n - 1) + distance) // large)
    shared = math.gcd(small, large)
    if distance % shared:
        return False
    # i * large = distance modulo small has one solution in every `step` numbers.
    step = small // shared
    first = distance // shared * pow(large // shared, -1, step) % step
    return least + (first - least) % step <= most


def check_apart(operands: dict[str, tuple[torch.Tensor, ...]], out: list[torch.Tensor]) -> None:
    """Refuse outputs that share memory with an operand or with each other.

    Raises:
        ValueError: naming both matrices.
    """
    named = [
        (*byte_range(t), name, i, t) for name, group in {**operands, "out": out}.items() for i, t in enumerate(group)
    ]
    reaching: list[tuple] = []  # matrices whose addresses reach past the start of the present one
    for entry in sorted(named, key=lambda entry: entry[:2]):
        start, end, name, i, matrix = entry
        reaching = [other for other in reaching if other[1] > start]
        for _, _, other_name, other_i, other in reaching:
            if "out" in (name, other_name) and share_memory(matrix, other):
                first, second = sorted(((name, i), (other_name, other_i)), key=lambda pair: pair[0] != "out")
                raise ValueError(
                    f"{first[0]}[{first[1]}] shares memory with {second[0]}[{second[1]}]; they must not overlap"
                )
        if end > start:
            reaching.append(entry)
