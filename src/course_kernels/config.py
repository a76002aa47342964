"""Launch configurations: block sizes, warps, stages, and which of them to use for a list of problems.

``choose_config`` looks at the shapes. For each candidate it estimates the time of the whole launch from two measured
numbers per candidate (what a block of K costs on an H200, and what a tile costs besides) and takes the least.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence


@dataclasses.dataclass(frozen=True)
class GemmConfig:
    """How a kernel is compiled and launched.

    Args:
        block_m, block_n, block_k: tile extents in elements, powers of two of at least 16.
        num_warps: warps per program: 1, 2, 4 or 8.
        num_stages: blocks of K in flight at a time.
        group_m: tile rows per strip of the L2 swizzle; 1 is row-major order.
        programs_per_sm: programs launched per SM.
        store_parts: 1 or 2; the descriptor kernel stores a tile in that many parts.
    """

    block_m: int = 64
    block_n: int = 64
    block_k: int = 64
    num_warps: int = 4
    num_stages: int = 3
    group_m: int = 8
    programs_per_sm: int = 1
    store_parts: int = 1

    def __post_init__(self):
        for name in ("block_m", "block_n", "block_k"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 16 or value & (value - 1):
                raise ValueError(f"{name} must be a power of two of at least 16, got {value!r}")
        for name, allowed in (("num_warps", (1, 2, 4, 8)), ("store_parts", (1, 2))):
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} must be one of {allowed}, got {getattr(self, name)!r}")
        for name in ("num_stages", "group_m", "programs_per_sm"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} must be a positive integer, got {value!r}")

    @property
    def block(self) -> tuple[int, int, int]:
        return self.block_m, self.block_n, self.block_k

    def shared_memory(self, kernel: str, itemsize: int, out_itemsize: int) -> int:
        """Bytes of shared memory that a program takes, at most (barriers of pointer kernels aside: 16 on sm_100).

        The compiler may take less: an older GPU keeps fewer stages there. That it never takes more is tested by
        compiling every candidate for every target.
        """
        stages = self.num_stages * self.block_k * (self.block_m + self.block_n) * itemsize
        output = self.block_m * self.block_n * out_itemsize
        if kernel == "tma":  # the tile leaves through shared memory while the next one's blocks arrive
            return stages + output // self.store_parts + 64
        return max(stages, output)

    def tiles(self, m: int, n: int) -> int:
        return -(-m // self.block_m) * -(-n // self.block_n)


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A configuration with its measured cost on one SM of an H200, `programs_per_sm` programs running: µs per block
    of K and µs per tile besides (descriptors, prologue, epilogue)."""

    config: GemmConfig
    block_us: float
    tile_us: float


def _candidates(*rows) -> tuple[Candidate, ...]:
    return tuple(Candidate(GemmConfig(*row[:-2]), *row[-2:]) for row in rows)


#                block_m, n, k, warps, stages, group_m, programs/SM, parts, µs/block, µs/tile
_DESCRIPTOR_16 = _candidates(
    (128, 256, 64, 8, 3, 8, 1, 1, 0.76, 3.0),
    (128, 128, 64, 4, 3, 8, 2, 2, 0.85, 3.0),
    (64, 128, 64, 4, 4, 8, 2, 1, 0.60, 2.5),
    (64, 64, 64, 4, 4, 8, 2, 1, 0.45, 2.5),
)
_POINTER_16 = _candidates(
    (128, 128, 64, 8, 3, 8, 1, 1, 0.60, 2.0),
    (128, 128, 32, 4, 4, 8, 2, 1, 0.60, 2.0),
    (64, 64, 64, 4, 4, 8, 2, 1, 0.40, 1.2),
    (32, 32, 64, 4, 4, 8, 2, 1, 0.30, 1.0),
)
_FP8 = _candidates((128, 128, 128, 8, 3, 8, 1, 1, 0.60, 3.0), (64, 64, 128, 4, 3, 8, 2, 1, 0.45, 2.5))
_TF32 = _candidates((128, 128, 32, 8, 3, 8, 1, 1, 0.60, 3.0), (64, 64, 32, 4, 3, 8, 2, 1, 0.45, 2.5))
_IEEE = _candidates((64, 64, 32, 4, 3, 8, 2, 1, 3.0, 3.0), (32, 32, 32, 4, 3, 8, 2, 1, 1.0, 2.5))
_INTERPRETER = GemmConfig(64, 64, 64)
_NARROW = GemmConfig(64, 64, 32, 4, 2)


def candidates(
    kernel: str, itemsize: int, precision: str, out_itemsize: int | None = None, shared_limit: int | None = None
) -> tuple[Candidate, ...]:
    """All configurations that ``choose_config`` can return for a kernel and an operand type.

    Args:
        kernel: "naive", "round_robin" or "tma".
        itemsize: bytes of one operand element.
        precision: "ieee" or "tf32", for 4-byte operands.
        out_itemsize: bytes of one output element. Default: as ``itemsize``, and 2 for 1-byte operands.
        shared_limit: bytes of shared memory that a program can have; only configurations that fit are returned.
            Default: no limit.
    """
    if itemsize == 1:
        found = _FP8
    elif itemsize == 4:
        found = _TF32 if precision == "tf32" else _IEEE
    else:
        found = _DESCRIPTOR_16 if kernel == "tma" else _POINTER_16
    if shared_limit is None:
        return found
    out_itemsize = out_itemsize or max(2, itemsize)
    return tuple(c for c in found if c.config.shared_memory(kernel, itemsize, out_itemsize) <= shared_limit)


@functools.lru_cache(maxsize=4096)
def choose_config(
    problems: Sequence[tuple[int, int, int]],
    *,
    kernel: str,
    itemsize: int,
    precision: str,
    num_sms: int | None,
    out_itemsize: int | None = None,
    shared_limit: int | None = None,
) -> GemmConfig:
    """The configuration with the least estimated time for these problems in one launch.

    Args:
        problems: tuple of (M, N, K).
        kernel, itemsize, precision, out_itemsize, shared_limit: as for ``candidates``.
        num_sms: SMs of the GPU; None in the interpreter, where one configuration serves all.

    Raises:
        ValueError: no candidate fits into the shared memory.
    """
    if num_sms is None:
        return _INTERPRETER
    fitting = candidates(kernel, itemsize, precision, out_itemsize, shared_limit)
    if not fitting:
        raise ValueError(
            f"no configuration of {kernel!r} for operands of {itemsize} bytes fits into {shared_limit} bytes of "
            "shared memory: pass a smaller config"
        )
    return min(fitting, key=lambda candidate: estimate_us(problems, candidate, num_sms)).config


def estimate_us(problems: Sequence[tuple[int, int, int]], candidate: Candidate, num_sms: int) -> float:
    """Estimated µs of one grouped launch: rounds of tiles of mean cost, or the longest tile if that is more."""
    config = candidate.config
    tiles, work, longest = 0, 0.0, 0.0
    for m, n, k in problems:
        count = config.tiles(m, n)
        cost = candidate.tile_us + -(-k // config.block_k) * candidate.block_us
        tiles += count
        work += count * cost
        longest = max(longest, cost if count else 0.0)
    if not tiles:
        return 0.0
    programs = num_sms * config.programs_per_sm
    return max(longest, -(-tiles // programs) * work / tiles)
