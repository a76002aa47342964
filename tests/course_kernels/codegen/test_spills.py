"""On every target, only the builds on a list spill registers to local memory, among all on record in ``compiled``.

A test makes sure that every kernel is on record for sm_80, sm_90, sm_100, gfx942 and gfx950.
"""

from __future__ import annotations

import re

import pytest

import compiled
from course_kernels.codegen import TARGETS

CUDA_8_BIT = r"(contiguous|transposed) \w float8_e4m3fn .* 128×256×64 8w 4s"
UNALIGNED = "operands that are not aligned are loaded element by element, each through a 64-bit address of its own"
NO_DESCRIPTOR = "where no descriptor describes C, the tile is stored through 64-bit addresses, each held by the thread"
HALF = "128 accumulators a thread, which has 256 registers where a program has 8 wavefronts"
NO_LAUNCH = "none of what ``shipped`` has for the target: compiled to test an estimate of shared memory"
TOO_LARGE = f"{NO_LAUNCH}, of which the target has less, so it cannot be launched"
STEP = "a value or two wait in local memory, though registers are left: what ptxas makes of a 64-bit step"

# Builds that may keep registers in local memory: (targets, pattern of the build's name, bytes per thread, reason). A
# test fails for a build that spills more or is not listed, for an entry that nothing needs on one of its targets, and
# for more bytes than an entry's builds need. With another Triton than the record's, there is a warning instead.
KNOWN_SPILLS = [
    # Lists of matrices.
    ("sm_90", r"^tma .* unaligned", 768, NO_DESCRIPTOR),
    ("sm_100", r"^tma .* unaligned", 104, NO_DESCRIPTOR),
    ("sm_80 sm_89 sm_120 sm_121", r"^(naive|round_robin) \w+ (row|col)/(row|col) 128×128×(64|128)$", 80,
     "64 or 128 accumulators a thread; a few values of the walk wait in local memory while K is summed"),
    ("sm_120 sm_121", r"^naive float32 row/row 64×64×32$", 16, STEP),
    ("sm_90", r"^tma float8_e4m3fn row/row 128×(128×64|256×128)$", 40,
     "a row-major B is transposed through registers; the choice was measured on an H200, spills included"),
    ("sm_100 sm_103", r"^round_robin float32 tf32 row/row 128×256×32$", 304,
     "256 accumulators a thread and 64-bit addresses"),
    ("sm_75", r"^naive float32 row/row 64×64×32$", 8, STEP),
    ("sm_120", r"^tma float16 row/row 128×128×64$", 56, NO_LAUNCH),
    ("sm_120", r"^tma float16 row/row (128×256×64( chunks)?|64×128×128)$", 32, TOO_LARGE),
    # Packed groups on NVIDIA's.
    ("sm_80", r"^(contiguous|transposed) \w float32 tf32 \w+/\w+ 128×128×32 8w 3s unaligned pointers$", 56, UNALIGNED),
    ("sm_90", r"^contiguous m float32 tf32 row/(row|col) 128×128×32 8w 3s unaligned pointers$", 8, UNALIGNED),
    ("sm_100 sm_103", r"^contiguous m float32 tf32 row/(row|col) 128×128×32 8w 2s unaligned pointers$", 56, UNALIGNED),
    ("sm_80", r"^contiguous m bfloat16 row/col 128×128×64 8w 3s unaligned pointers$", 8, UNALIGNED),
    ("sm_120", r"^contiguous m float8_e4m3fn row/col 32×128×128 4w 4s 1x128 128x128$", 8, STEP),
    ("sm_90", r"^contiguous [mn] float8_e4m3fn .* 128×128×64 8w 3s 1\S+ 1\S+ unaligned pointers$", 8, UNALIGNED),
    ("sm_80 sm_89", r"^transposed k bfloat16 col/row 32×64×64 4w 3s pointers$", 8,
     "one value waits in local memory, though registers are left"),
    ("sm_90", r"^(contiguous|transposed) \w float8_e4m3fn \w+/row 128×128×128 4w 3s$", 32,
     "row-wise scales beside 128 accumulators a thread"),
    ("sm_100", r"^contiguous m float8_e4m3fn row/col 64×128×128 4w 4s$", 48, "as on sm_90"),
    ("sm_90", rf"^{CUDA_8_BIT}$", 240, NO_LAUNCH),
    ("sm_90", rf"^{CUDA_8_BIT} 1\S+ 1\S+$", 592, NO_LAUNCH),
    ("sm_100", rf"^{CUDA_8_BIT}$", 128, NO_LAUNCH),
    ("sm_100", rf"^{CUDA_8_BIT} 1\S+ 1\S+$", 1200, NO_LAUNCH),
    ("sm_100", r"^contiguous n float16 row/row 128×(128×32 8w 2s|256×64 8w 4s) pointers$", 8, NO_LAUNCH),
    ("sm_100", r"^contiguous m float16 row/col 128×256×64 8w 4s bias$", 40, TOO_LARGE),
    ("sm_80", r"^contiguous n float16 row/row 128×256×64 8w 4s pointers$", 8, NO_LAUNCH),
    ("sm_80", r"^transposed k bfloat16 col/row 128×256×64 8w 4s accumulate pointers$", 176, NO_LAUNCH),
    ("sm_80", r"^transposed k float16 col/row 128×256×64 8w 4s accumulate pointers$", 432, NO_LAUNCH),
    ("sm_80", r"^contiguous m float16 row/row 128×256×64 8w 4s bias pointers$", 3984,
     f"{NO_LAUNCH}; ptxas leaves it 32 registers"),
    ("sm_120", r"^(contiguous|transposed) .* 128×256×64 8w 4s", 344, TOO_LARGE),
    # Packed groups on AMD's.
    ("gfx942", r"^contiguous m bfloat16 row/col 256×256×32 8w 2s unaligned pointers$", 88, f"{HALF}; {UNALIGNED}"),
    ("gfx950", r"^(contiguous m bfloat16 row/col|transposed k bfloat16 col/row) 128×256×64 8w 2s unaligned pointers$",
     328, UNALIGNED),
    *((target, rf"^\w+ {form} pointers$", size, reason)
      for form, target, size, reason in (
          (r"n bfloat16 col/row 256×256×32 8w 2s", "gfx942", 496, HALF),
          (r"n float16 row/row 256×256×32 8w 2s", "gfx942", 332, HALF),
          (r"n float16 row/row 256×256×32 8w 2s", "gfx950", 456, HALF),
          (r"n float16 row/row 256×256×64 8w 1s", "gfx942", 92, HALF),
          (r"n float16 row/row 256×256×64 8w 1s", "gfx950", 340, HALF),
          (r"n float16 row/row 128×256×64 8w 2s", "gfx942", 128, NO_LAUNCH),
          (r"n float16 row/row 128×256×64 8w 2s", "gfx950", 80, NO_LAUNCH),
          (r"m float16 row/col 256×256×32 8w 2s", "gfx950", 24, HALF),
          (r"k float16 col/row 256×256×32 8w 2s", "gfx942", 436, HALF),
          (r"k float16 col/row 256×256×32 8w 2s", "gfx950", 52, HALF),
          (r"k float16 col/row 256×256×32 8w 2s accumulate", "gfx942", 912, TOO_LARGE),
          (r"k float16 col/row 256×256×32 8w 2s accumulate", "gfx950", 388, HALF),
          (r"k float16 col/row 256×256×64 8w 1s", "gfx942", 12, HALF),
          (r"k float16 col/row 256×256×64 8w 1s accumulate", "gfx942", 32, HALF),
          (r"k float16 col/row 256×256×64 8w 1s accumulate", "gfx950", 124, HALF),
          (r"k float16 col/row 128×256×64 8w 2s", "gfx942", 28, NO_LAUNCH),
          (r"k float16 col/row 128×256×64 8w 2s accumulate", "gfx942", 88, TOO_LARGE),
          (r"\w+ (b?float16|float32 tf32) \w+/\w+ 128×256×64 8w 4s( bias| accumulate)?", "gfx942", 856, TOO_LARGE),
      )),
    # Masked groups.
    ("sm_90", r"^masked float8_e4m3fn (group|channel) row 128×128×64 8w 3s unaligned pointers$", 24, UNALIGNED),
    ("gfx942", r"^masked bfloat16 shuffled 256×256×32 8w 2s unaligned pointers$", 344, f"{HALF}; {UNALIGNED}"),
    ("gfx950", r"^masked bfloat16 shuffled 128×256×64 8w 2s unaligned pointers$", 108, UNALIGNED),
]  # fmt: skip

# How the names of a kernel's builds begin. sm_80 has no 8-bit floats, so the kernels that quantise are not for it.
KERNELS = (
    "naive", "round_robin", "contiguous m", "contiguous n", "contiguous batch", "transposed", "masked",
    "jagged simple", "jagged persistent", "sum_items_kernel", "add_items_kernel", "pack_lines_kernel",
)  # fmt: skip
QUANTIZERS = ("quantize_lines_kernel", "quantize_squares_kernel")
ALL_ON = {
    "sm_80": KERNELS,
    "sm_90": (*KERNELS, *QUANTIZERS, "tma"),
    "sm_100": (*KERNELS, *QUANTIZERS, "tma"),
    "gfx942": (*KERNELS, *QUANTIZERS),
    "gfx950": (*KERNELS, *QUANTIZERS),
}


def builds_for(target: str) -> list[tuple[str, int]]:
    """Names of what is on record for a target, and what each spills; 0 where the compiler refuses it."""
    pairs = [pair for pair in compiled.every_pair().values() if pair[1] == target]
    return [(str(spec), found.spilled or 0) for (spec, _), found in zip(pairs, compiled.facts(pairs), strict=True)]


def entries_for(target: str) -> list[tuple[str, int]]:
    """Patterns and bytes."""
    return [(pattern, size) for targets, pattern, size, _ in KNOWN_SPILLS if target in targets.split()]


@pytest.mark.parametrize("target", TARGETS)
def test_nothing_spills_that_is_not_listed(target):
    beyond = []
    for name, spilled in builds_for(target):
        allowed = max((size for pattern, size in entries_for(target) if re.search(pattern, name)), default=0)
        if spilled > allowed:
            beyond.append(f"{name} for {target}: {spilled} bytes spilled, allowed {allowed} bytes")
    compiled.check_limits(beyond)


def test_the_list_allows_no_more_than_is_needed():
    builds = {target: builds_for(target) for target in TARGETS}
    needless = []
    for targets, pattern, size, _ in KNOWN_SPILLS:
        most = [
            max((spilled for name, spilled in builds[target] if re.search(pattern, name)), default=0)
            for target in targets.split()
        ]
        if min(most) == 0 or max(most) != size:
            needless.append(f"{pattern} for {targets}: {size} bytes allowed, needed are {most}")
    compiled.check_limits(needless)


@pytest.mark.parametrize("target", ALL_ON)
def test_every_kernel_is_on_record(target):
    names = [name for name, _ in builds_for(target)]
    assert [each for each in ALL_ON[target] if not any(re.match(rf"{each}\b", name) for name in names)] == []
    assert [name for name in names if not name.startswith(ALL_ON[target])] == []
