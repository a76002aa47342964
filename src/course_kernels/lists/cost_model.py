"""Which kernel and configuration ``group_gemm`` uses for a list of problems.

For each candidate, ``choose`` estimates the time of the whole launch from three measured numbers: the cost of a block
of K on an H200, the further cost of a tile, and the cost of the step to another problem. It takes the least.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

from course_kernels import runtime
from course_kernels.config import GemmConfig

# µs on an H200 from the end of one problem's last tile to the start of the next problem's first, in the descriptor
# kernel: three descriptors are written and fenced. Read off recorded SM timelines of 4 x 2048³.
SWITCH_US = 2.3


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A configuration with its cost on one SM of an H200, `programs_per_sm` programs running: µs per block of K, and
    µs per tile besides (prologue, epilogue). Fitted to the rows of `benchmarks/shapes.py`, so they rank these
    configurations against each other; they are not a model of the GPU."""

    config: GemmConfig
    block_us: float
    tile_us: float


def _candidates(*rows) -> tuple[Candidate, ...]:
    return tuple(Candidate(GemmConfig(*row[2:]), *row[:2]) for row in rows)


# µs/block, µs/tile, then GemmConfig: block_m, n, k, warps, stages, group_m, programs/SM, parts, schedule
_DESCRIPTOR_16 = _candidates(
    (0.60, 4.5, 128, 256, 64, 8, 3, 16, 1, 1),
    (0.60, 5.0, 128, 256, 64, 8, 4, 16, 1, 2, "chunks"),
    (0.64, 4.6, 128, 128, 64, 4, 3, 8, 2, 2),
    (0.87, 1.7, 64, 128, 128, 4, 3, 8, 1, 1),
)


_POINTER_16 = _candidates(
    (0.90, 5.0, 128, 128, 64, 4, 3, 8, 2),
    (0.55, 2.5, 64, 64, 64, 4, 3, 8, 2),
    (0.70, 2.5, 32, 32, 128, 4, 3, 1, 2),
    (0.80, 2.3, 16, 32, 128, 4, 2, 1, 1),
)


_FP8_DESCRIPTOR = _candidates(
    (0.63, 7.6, 128, 256, 128, 8, 3, 8, 1),
    (0.35, 8.4, 128, 128, 64, 4, 4, 8, 2, 2),
    (0.60, 2.1, 64, 128, 128, 4, 4, 8, 1),
    (0.50, 2.5, 64, 64, 128, 4, 3, 8, 2),
)


# Without descriptors a larger fp8 tile gains nothing: at 2048³ 128×256×128 took 229 µs where this one took 151.
_FP8_POINTER = _candidates((0.42, 11.6, 128, 128, 128, 8, 3, 8, 1), (1.77, 1.0, 64, 64, 128, 4, 3, 8, 2))


_TF32_DESCRIPTOR = _candidates(
    (0.60, 10.0, 128, 256, 32, 8, 3, 8, 1, 2),
    (0.68, 2.5, 64, 128, 64, 4, 3, 8, 1),
    (0.62, 2.5, 64, 64, 32, 4, 3, 8, 2),
)


_TF32_POINTER = _candidates(
    (0.73, 13.8, 128, 256, 32, 8, 3, 8, 1),
    (0.98, 2.6, 64, 128, 64, 4, 3, 8, 1),
    (0.69, 0.4, 64, 64, 32, 4, 3, 8, 2),
)


_IEEE_POINTER = _candidates(
    (3.80, 9.0, 128, 128, 16, 8, 2, 8, 1),
    (5.00, 6.0, 64, 64, 32, 4, 3, 8, 2),
    (2.60, 1.5, 32, 32, 32, 4, 3, 8, 2),
)


# Without tensor cores a thread holds its share of both blocks as scalars, and a block that came through a descriptor is
# copied to it whole: the larger blocks of the pointer kernel would spill.
_IEEE_DESCRIPTOR = _candidates((2.50, 10.0, 128, 64, 16, 8, 3, 8, 1), (2.60, 1.5, 32, 32, 32, 8, 3, 8, 2))


_BY_KIND = {  # candidates of the descriptor kernel, and of the pointer kernels
    "16-bit": (_DESCRIPTOR_16, _POINTER_16),
    "fp8": (_FP8_DESCRIPTOR, _FP8_POINTER),
    "tf32": (_TF32_DESCRIPTOR, _TF32_POINTER),
    "ieee": (_IEEE_DESCRIPTOR, _IEEE_POINTER),
}


# For operands that are not aligned, where each element is a load of its own with a 64-bit address, and for GPUs on
# which tl.dot becomes scalar arithmetic: every candidate above spills registers there, some of them kilobytes.
_NARROW = _candidates((1.00, 2.5, 64, 64, 32, 8, 2, 8, 2))


# For GPUs whose shared memory holds none of the others (sm_120 has 99 KB).
_SMALL = _candidates((0.60, 4.5, 64, 64, 64, 4, 3, 8, 1))


_INTERPRETER = GemmConfig(64, 64, 64)


# More tiles than these per program are left to round-robin, whose programs keep to one neighbourhood of a problem at a
# time: 16 problems of 2048³, 16 tiles each, took 608 µs in chunks where cuBLAS took 447.
_MOST_CHUNKED_TILES = 4


def candidates(
    kernel: str,
    itemsize: int,
    precision: str,
    *,
    out_itemsize: int | None = None,
    shared_limit: int | None = None,
    aligned: bool = True,
    capability: tuple[int, int] | None = None,
) -> tuple[Candidate, ...]:
    """All configurations that ``choose`` can return for a kernel and an operand type.

    Args:
        kernel: "naive", "round_robin" or "tma".
        itemsize: bytes of one operand element.
        precision: "ieee" or "tf32", for 4-byte operands.
        out_itemsize: bytes of one output element. Default: as ``itemsize``, and 2 for 1-byte operands.
        shared_limit: bytes of shared memory that a program can have; only configurations that fit are returned.
            Default: no limit.
        aligned: the operands satisfy the 16-byte rule (those of "tma" always do).
        capability: the GPU's compute capability; None where there is none.
    """
    tensor_cores = capability is None or capability >= runtime.TENSOR_CORE_CAPABILITY
    if not tensor_cores or (not aligned and kernel != "tma"):
        found = _NARROW
    else:
        kind = {1: "fp8", 4: precision}.get(itemsize, "16-bit")
        found = _BY_KIND[kind][kernel != "tma"]
    if shared_limit is None:
        return found
    out_itemsize = out_itemsize or max(2, itemsize)

    # For TF32 on sm_100 the compiler keeps a second, transposed copy of B's stages.
    copies_b = kernel == "tma" and precision == "tf32" and itemsize == 4 and capability == (10, 0)

    def fits(candidate):
        config = candidate.config
        extra = config.num_stages * config.block_k * config.block_n * itemsize if copies_b else 0
        limits = dict(capability=capability, shared_limit=shared_limit - extra)
        return config.valid_for(kernel, itemsize, out_itemsize, **limits) is None

    return tuple(filter(fits, found)) or tuple(filter(fits, _SMALL))


@functools.lru_cache(maxsize=4096)
def choose(
    problems: Sequence[tuple[int, int, int]],
    *,
    kernels: tuple[str, ...],
    itemsize: int,
    precision: str,
    num_sms: int | None,
    out_itemsize: int | None = None,
    shared_limit: int | None = None,
    aligned: bool = True,
    capability: tuple[int, int] | None = None,
) -> tuple[str, GemmConfig]:
    """The kernel and configuration with the least estimated time for these problems in one launch.

    Args:
        problems: tuple of (M, N, K).
        kernels: names of the kernels that can compute them, the preferred one first.
        itemsize, precision, out_itemsize, shared_limit, aligned, capability: as for ``candidates``.
        num_sms: SMs of the GPU; None in the interpreter, where one configuration of the preferred kernel serves all.

    Raises:
        ValueError: no candidate fits into the shared memory.
    """
    if num_sms is None:
        return kernels[0], _INTERPRETER
    fitting = [
        (kernel, candidate)
        for kernel in kernels
        for candidate in candidates(
            kernel,
            itemsize,
            precision,
            out_itemsize=out_itemsize,
            shared_limit=shared_limit,
            aligned=aligned,
            capability=capability,
        )
    ]
    if not fitting:
        raise ValueError(
            f"no configuration of {kernels} for operands of {itemsize} bytes fits into {shared_limit} bytes of "
            "shared memory: pass a smaller config"
        )
    kernel, best = min(fitting, key=lambda pair: estimate_us(problems, *pair, num_sms))
    return kernel, best.config


def estimate_us(problems: Sequence[tuple[int, int, int]], kernel: str, candidate: Candidate, num_sms: int) -> float:
    """Estimated µs of one grouped launch, or infinity for a schedule that the problems do not suit.

    Rounds of tiles of mean cost (the longest tile if that is more), and for descriptors the steps between problems: a
    round-robin program visits a new problem with almost every tile until it has seen them all, a chunk few.
    """
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
    share = -(-tiles // (num_sms * config.programs_per_sm))
    visits = min(len(problems), share)
    if config.schedule == "chunks":
        # Equal counts of tiles are equal work only where all tiles cost the same.
        if len({k for _, _, k in problems}) > 1 or share > _MOST_CHUNKED_TILES:
            return float("inf")
        visits = min(visits, 1 + share * len(problems) // tiles)
    return max(longest, share * work / tiles) + (visits * SWITCH_US if kernel == "tma" else 0.0)
