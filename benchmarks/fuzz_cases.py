"""Random calls of the functions beside the plain product of ``grouped_mm``: a name for each, and a draw by number.

As in ``fuzz.py``, a hundred consecutive numbers are alike in what a kernel is compiled for, and differ in extents,
groups and values.
"""

from __future__ import annotations

import contextlib
import dataclasses
import random
import unittest.mock
from collections.abc import Callable, Iterator

import torch

from calls import Call
from course_kernels import GemmConfig
from course_kernels.dtypes import FP8, OUT_DTYPES
from course_kernels.engine.scaling import BLOCK_SCALINGS
from layer_calls import Accumulate, Gmm, Sums, Tgmm
from scaled_calls import BlockScaled, DeepGemm, Quantize

ALIKE = 100
HALVES = (torch.float16, torch.bfloat16)
LAYOUTS = ("row", "row", "col", "pitched", "unaligned", "every_other")
OUT_LAYOUTS = (None, "row", "pitched", "unaligned", "every_other")
# Small tiles, so that every walk has several of them; as for a GPU with chiplets; one that descriptors store in parts.
CONFIGS = (
    None,
    None,
    GemmConfig(16, 32, 32, group_m=2, num_stages=2),
    GemmConfig(32, 64, 32, num_xcds=8, programs=24, num_stages=2),
    GemmConfig(64, 64, 64, group_m=2, store_parts=2),
)


class Draw:
    """Two generators, ``kind`` for what is the same for a hundred numbers, and ``own``; and what most calls need."""

    def __init__(self, api: str, number: int, largest: int, most_groups: int, cute: bool):
        self.kind, self.own = random.Random(f"{api} {number // ALIKE}"), random.Random(f"{api} {number}")
        self.largest, self.most_groups, self.cute = largest, most_groups, cute
        self.units = (8, 16) if cute else (1, 8, 16)

    def extent(self, *, unit: int | None = None) -> int:
        """A multiple of 1, 8 or 16, as the kind has it, and of no higher power of two; or of ``unit``."""
        unit = self.kind.choice(self.units) if unit is None else unit
        if not self.cute and self.kind.random() < 0.03:
            return 0
        steps = self.own.randint(1, max(1, self.largest // unit))
        return unit * (steps if unit >= 16 else steps | 1)

    def depth(self, **options) -> int:
        """An extent that often has more than one block of 128."""
        return self.extent(**options) + 128 * self.own.choice([0, 0, 1, 2])

    def sizes(self) -> tuple[int, ...]:
        """Rows of groups; many are empty."""
        count = min(self.most_groups, self.own.choice([0, 1, 2, 3, 4, self.own.randint(1, self.most_groups)]))
        left, sizes = 4 * self.largest, []
        for _ in range(count):
            size = self.own.choice([0, 1, 16, self.own.randint(0, self.largest), self.own.randint(0, self.largest)])
            sizes.append(min(size, left))
            left -= sizes[-1]
        if self.cute and not sum(sizes):
            sizes.append(1)
        return tuple(sizes)

    def tail(self) -> int:
        """Rows that belong to no group."""
        return self.own.choice([0, 0, 1, 37])

    def common(self, number: int) -> dict:
        """Fields that most calls have."""
        return dict(
            sizes=self.sizes(), seed=number, values=self.kind.choice(["integers", "normal"]),
            index=self.kind.choice([torch.int32, torch.int64]),
        )  # fmt: skip

    def layout(self) -> str:
        """Of an operand of 2 or 3 dimensions."""
        return self.kind.choice(("row", "pitched") if self.cute else LAYOUTS)


def draw_gmm(draw: Draw, number: int) -> Gmm:
    """``gmm``."""
    dtype, config = draw.kind.choice(OUT_DTYPES), draw.kind.choice(CONFIGS)
    walks_by_counter = (config is None or config.num_xcds == 1) and draw.kind.random() < 0.25
    return Gmm(
        N=draw.extent(), K=draw.extent(), tail=draw.tail(), dtype=dtype, out_dtype=draw.kind.choice(OUT_DTYPES),
        bias=draw.kind.choice([None, dtype, torch.float32]), layout_lhs=draw.layout(),
        layout_rhs=draw.kind.choice([*LAYOUTS, "transposed", "transposed"]), layout_out=draw.kind.choice(OUT_LAYOUTS),
        work_stealing=walks_by_counter, grid_dim=draw.own.choice([None, None, 1, 7]), config=config,
        **draw.common(number),
    )  # fmt: skip


def draw_tgmm(draw: Draw, number: int) -> Tgmm:
    """``ptgmm`` and ``nptgmm``."""
    config = draw.kind.choice(CONFIGS)
    function = draw.kind.choice(["ptgmm", "nptgmm"])
    if function == "nptgmm" and config is not None:
        config = dataclasses.replace(config, programs=None)  # which has one for each tile
    return Tgmm(
        function=function, N=draw.extent(), K=draw.extent(), tail=draw.tail(), dtype=draw.kind.choice(OUT_DTYPES),
        out_dtype=draw.kind.choice(OUT_DTYPES), bias_grad=draw.kind.random() < 0.6,
        accumulate=draw.kind.random() < 0.5, layout_lhs=draw.kind.choice([*LAYOUTS, "transposed", "transposed"]),
        layout_rhs=draw.layout(), layout_out=draw.kind.choice(OUT_LAYOUTS), config=config, **draw.common(number),
    )  # fmt: skip


def draw_accumulate(draw: Draw, number: int) -> Accumulate:
    """``accumulate`` and ``main_grad`` of ``grouped_mm``."""
    main_grad = not draw.cute and draw.kind.random() < 0.3
    return Accumulate(
        M=draw.extent(), N=draw.extent(), tail=draw.tail(), main_grad=main_grad,
        dtype=draw.kind.choice(HALVES if draw.cute else OUT_DTYPES),
        out_dtype=torch.float32 if draw.cute else draw.kind.choice(OUT_DTYPES),
        layout_a="col" if draw.cute else draw.layout(), layout_b=draw.layout(),
        layout_out=draw.kind.choice(["row", "pitched"] if draw.cute else OUT_LAYOUTS[1:]),
        config=None if main_grad or draw.cute else draw.kind.choice(CONFIGS), **draw.common(number),
    )  # fmt: skip


def draw_sums(draw: Draw, number: int) -> Sums:
    """``group_sums``."""
    return Sums(
        N=draw.extent(), tail=draw.tail() + 256 * draw.own.choice([0, 0, 1]), dtype=draw.kind.choice(OUT_DTYPES),
        accumulate=draw.kind.random() < 0.5, layout=draw.layout(), layout_out=draw.kind.choice(OUT_LAYOUTS[1:]),
        **draw.common(number),
    )  # fmt: skip


def draw_deepgemm(draw: Draw, number: int) -> DeepGemm:
    """``deepgemm``."""
    dtype, shuffled = draw.kind.choice([*HALVES, FP8, FP8, FP8]), not draw.cute and draw.kind.random() < 0.3
    scales = draw.kind.choice(["group", "channel", "block"])
    unit = 16 if draw.cute and dtype == FP8 else None
    fields = draw.common(number)
    most = max(fields["sizes"], default=1)
    max_m = max(1, draw.own.choice([most, most + 1, most + draw.own.randint(1, 40), draw.own.randint(1, draw.largest)]))
    spread = [draw.own.choice([size, size, size, -3, size + 2 * max_m]) for size in fields.pop("sizes")]
    config = None
    if not draw.cute and draw.kind.random() < 0.5:
        config = GemmConfig(16, draw.kind.choice([64, 128]), draw.kind.choice([32, 64, 128]), 4, 2)
    return DeepGemm(
        sizes=tuple(spread), max_m=max_m, N=draw.extent(unit=16 if shuffled else unit),
        K=draw.depth(unit=32 if shuffled else unit), dtype=dtype, scales=scales, shuffled=shuffled,
        out_dtype=draw.kind.choice(OUT_DTYPES), layout_x=draw.layout(),
        layout_w="row" if draw.cute else draw.layout(),
        layout_out=draw.kind.choice(["row", "pitched"] if draw.cute else OUT_LAYOUTS[1:]),
        expected_m=draw.kind.choice([None, 0, 20, 500]), config=config, **fields,
    )  # fmt: skip


def draw_quantize(draw: Draw, number: int) -> Quantize:
    """``quantize_1x128`` and ``quantize_128x128``."""
    draw.largest = max(1, draw.largest // 4)  # the oracle goes from block to block
    fields = draw.common(number) | dict(values="normal")
    lines, restart = draw.kind.choice([1, 1, 128]), draw.kind.random() < 0.5
    batch = () if restart else draw.kind.choice([(), (3,), (2, 2)])
    depth = sum(fields["sizes"]) + draw.tail() if lines == 1 and restart else draw.depth()
    return Quantize(
        lines=lines, shape=(*batch, draw.extent(), depth), restart=lines == 1 and restart,
        dtype=draw.kind.choice(OUT_DTYPES), power_of_two=draw.kind.random() < 0.5, layout=draw.layout(), **fields,
    )  # fmt: skip


def draw_scaled_blocks(draw: Draw, number: int) -> BlockScaled:
    """``scaled_grouped_mm`` with scales of blocks."""
    mode = "m" if draw.cute else draw.kind.choice(list(BLOCK_SCALINGS))
    scaling = BLOCK_SCALINGS["m"][0] if draw.cute else draw.kind.choice(BLOCK_SCALINGS[mode])
    unit = 16 if draw.cute else None
    return BlockScaled(
        mode=mode, scaling=scaling, M=draw.extent(unit=unit), N=draw.extent(unit=unit), K=draw.depth(unit=unit),
        tail=draw.tail(), out_dtype=draw.kind.choice(OUT_DTYPES), layout_a=draw.layout(), layout_b=draw.layout(),
        layout_out=draw.kind.choice(["row", "pitched"] if draw.cute else OUT_LAYOUTS),
        config=None if draw.cute else draw.kind.choice(CONFIGS), **draw.common(number),
    )  # fmt: skip


APIS: dict[str, Callable[[Draw, int], Call]] = {
    "gmm": draw_gmm,
    "tgmm": draw_tgmm,
    "accumulate": draw_accumulate,
    "group_sums": draw_sums,
    "deepgemm": draw_deepgemm,
    "quantize": draw_quantize,
    "scaled_blocks": draw_scaled_blocks,
}
CUTE_APIS = ("accumulate", "deepgemm", "scaled_blocks")  # what the kernel in CuTe DSL computes, too


def case_of(api: str, number: int, largest: int, most_groups: int, backend: str = "triton") -> Call:
    """The call with this number; with backend "cute" one that its kernel takes."""
    return APIS[api](Draw(api, number, largest, most_groups, backend == "cute"), number)


@contextlib.contextmanager
def without_triton() -> Iterator[None]:
    """An error where a Triton kernel is asked for a product."""
    from course_kernels.engine import triton_launch

    def refuse(*arguments):
        raise RuntimeError("the kernel in CuTe DSL does not take this case")

    with unittest.mock.patch.object(triton_launch, "plan", refuse):
        yield
