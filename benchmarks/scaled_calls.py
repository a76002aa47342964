"""Calls with operands in 8 bits: ``deepgemm`` (also of 16), scales of blocks, and what makes or packs both."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import ScalingType

import course_kernels as ck
from calls import Call, Memory, bits, ends_of, judge
from course_kernels import GemmConfig
from course_kernels.dtypes import FP8
from course_kernels.engine.scaling import BLOCK, SQUARE
from course_kernels.engine.whole_blocks import pack, pack_by_torch
from course_kernels.masked.shuffle import plain
from course_kernels.testing import grouped_error_bound, reference
from course_kernels.testing.grouped_tolerance import block_scaled_error_bound
from course_kernels.testing.tolerance import compare_exact

RECIPES = {"1x128": ScalingType.BlockWise1x128, "128x128": ScalingType.BlockWise128x128}


@dataclass(frozen=True)
class DeepGemm(Call):
    """``deepgemm``; sizes may leave [0, max_m]. scales: of float8 operands, "group", "channel" or "block"."""

    api = "deepgemm"
    max_m: int = 20
    N: int = 48
    K: int = 64
    scales: str = "group"
    shuffled: bool = False
    out_dtype: torch.dtype = torch.bfloat16
    layout_x: str = "row"
    layout_w: str = "row"
    layout_out: str = "pitched"
    index: torch.dtype = torch.int32
    expected_m: int | None = None
    config: GemmConfig | None = None

    def _run(self, memory: Memory, backend: str) -> None:
        groups, device = len(self.sizes), memory.device
        rows = torch.tensor(self.sizes, device=device).clamp(0, self.max_m)
        counts = torch.arange(self.max_m, device=device) < rows[:, None]
        x = memory.numbers((groups, self.max_m, self.K), self.dtype)
        w = memory.numbers((groups, self.N, self.K), self.dtype)
        x_scale, w_scale = self._scales(memory) if self.dtype.itemsize == 1 else (None, None)
        wanted = self._expected(x, w, x_scale, w_scale)
        x = x.float().masked_fill(~counts[:, :, None], torch.nan).to(self.dtype)
        if x_scale is not None:
            x_scale[~counts] = torch.nan
            x_scale, w_scale = memory.give("x_scale", x_scale), memory.give("w_scale", w_scale)
        given = plain(ck.shuffle_weight(w)) if self.shuffled else w
        y = memory.result("Y", (groups, self.max_m, self.N), self.out_dtype, self.layout_out)
        before = bits(y).clone()
        ck.deepgemm(
            memory.give("XQ", x, self.layout_x), memory.give("WQ", given, None if self.shuffled else self.layout_w), y,
            memory.ends("group_layout", self.sizes, self.index), x_scale, w_scale, shuffled=self.shuffled,
            backend=backend, config=self.config, expected_m=self.expected_m,
        )  # fmt: skip
        if not torch.equal(bits(y)[~counts], before[~counts]):
            raise AssertionError("rows that do not count were written to")
        judge(y[counts], *(each[counts] for each in wanted), memory.whole, "the rows that count")

    def _scales(self, memory: Memory) -> tuple[Tensor, Tensor]:
        groups, deep, wide = len(self.sizes), -(-self.K // BLOCK), -(-self.N // BLOCK)
        of_w = {"group": (groups,), "channel": (groups, self.N), "block": (groups, wide, deep)}[self.scales]
        columns = deep if self.scales == "block" else 1
        return memory.factors((groups, self.max_m, columns)), memory.factors(of_w)

    def _expected(self, x, w, x_scale, w_scale) -> tuple[Tensor, Tensor]:
        """All rows and their error bounds, in float64."""
        if x_scale is None:
            return grouped_error_bound(x, w.mT, None, self.out_dtype)
        if self.scales == "block":
            left, right = reference.dequantize(x, x_scale), reference.dequantize(w, w_scale, BLOCK)
            return block_scaled_error_bound(left, right.mT, None, self.out_dtype)
        lines = w_scale if self.scales == "channel" else w_scale[:, None].expand(-1, self.N)
        return grouped_error_bound(x, w.mT, None, self.out_dtype, scale_a=x_scale[..., 0], scale_b=lines)


@dataclass(frozen=True)
class Quantize(Call):
    """``quantize_1x128`` and ``quantize_128x128``, bit for bit. sizes: along the depth, where blocks restart."""

    api = "quantize"
    values: str = "normal"
    lines: int = 1
    shape: tuple[int, ...] = (20, 300)
    restart: bool = False
    power_of_two: bool = False
    layout: str = "row"
    index: torch.dtype = torch.int32

    def _run(self, memory: Memory, backend: str) -> None:
        x = memory.give("x", memory.numbers(self.shape, self.dtype), self.layout)
        offs = memory.ends("offs", ends_of(self.sizes), self.index) if self.restart else None
        options = dict(power_of_two=self.power_of_two, backend=backend)
        if self.lines == 1:
            found = ck.quantize_1x128(x, offs=offs, **options)
        else:
            found = ck.quantize_128x128(x, **options)
        wanted = reference.quantize(x, self.lines, offs, power_of_two=self.power_of_two)
        for what, each, right in zip(("value", "factor"), found, wanted, strict=True):
            compare_exact(each, right, f"the {what}s of blocks")


@dataclass(frozen=True)
class Pack(Call):
    """``whole_blocks.pack``, bit for bit. sizes: along the depth; if blocks do not restart, multiples of 128."""

    api = "whole_blocks"
    dtype: torch.dtype = FP8
    lines: int = 70
    tail: int = 3
    scaled: bool = True
    restart: bool = True
    layout: str = "row"
    index: torch.dtype = torch.int32

    def _run(self, memory: Memory, backend: str) -> None:
        groups, last = len(self.sizes), sum(self.sizes)
        values = memory.numbers((self.lines, last + self.tail), FP8)
        values[:, last:] = torch.full((), torch.nan, device=memory.device).to(FP8)
        scale = memory.factors((self.lines, (last + self.tail) // BLOCK + groups))
        offs, factors = memory.ends("offs", ends_of(self.sizes), self.index), None
        wanted = pack_by_torch(values, offs, scale)
        if self.scaled:
            starts = zip(range(groups), [0, *ends_of(self.sizes)], self.sizes)
            columns = [start // BLOCK + g + j for g, start, size in starts for j in range(-(-size // BLOCK))]
            factors = memory.give("scale", scale if self.restart else scale[:, columns], self.layout)
        found = pack(memory.give("values", values, self.layout), offs, factors, self.restart)
        used = int(wanted.ends[-1])
        compare_exact(found.ends, wanted.ends, "the ends of whole blocks")
        compare_exact(found.values[:, :used], wanted.values[:, :used], "the values of whole blocks")
        if self.scaled:
            blocks = used // BLOCK
            compare_exact(found.scale[:, :blocks], wanted.scale[:, :blocks], "the factors of whole blocks")


@dataclass(frozen=True)
class BlockScaled(Call):
    """``scaled_grouped_mm`` with scales of blocks. layouts: of the operands with their depth last."""

    api = "scaled_blocks"
    dtype: torch.dtype = FP8
    mode: str = "m"
    scaling: str = "1x128 128x128"
    M: int = 40
    N: int = 48
    K: int = 144
    tail: int = 3
    out_dtype: torch.dtype = torch.bfloat16
    layout_a: str = "row"
    layout_b: str = "row"
    layout_out: str | None = "pitched"
    index: torch.dtype = torch.int32
    config: GemmConfig | None = None

    def _run(self, memory: Memory, backend: str) -> None:
        groups, last = len(self.sizes), sum(self.sizes)
        total = last + self.tail
        M, N, K = (total if self.mode == name else extent for name, extent in zip("mnk", (self.M, self.N, self.K)))
        ends = None if self.mode == "batch" else memory.ends("offs", ends_of(self.sizes), self.index)
        restart = ends if self.mode == "k" else None
        columns = -(-K // BLOCK) if restart is None else K // BLOCK + groups
        used = self._used_columns(columns) if self.mode == "k" else torch.ones(columns, dtype=torch.bool)
        sides, wide = [], []
        for name, side, extent, ragged, how in zip(
            "ab", self.scaling.split(), (M, N), "mn", (self.layout_a, self.layout_b)
        ):
            lines = BLOCK if side == SQUARE else 1
            batch = (groups,) if self.mode in ("batch", "n" if name == "a" else "m") else ()
            values = memory.numbers((*batch, extent, K), FP8)
            scale = memory.factors((*batch, -(-extent // lines), columns))
            past = (slice(last, None),) if self.mode == ragged else (..., slice(last if restart is not None else K, K))
            wide.append(reference.dequantize(values, scale, lines, restart))
            values[past] = torch.full((), torch.nan, device=memory.device).to(FP8)
            scale[..., ~used.to(memory.device)] = torch.nan
            if self.mode == ragged:
                scale[last:], wide[-1][last:] = torch.nan, 0
            sides.append((memory.give(f"mat_{name}", values, how), memory.give(f"scale_{name}", scale), RECIPES[side]))
        (a, scale_a, recipe_a), (b, scale_b, recipe_b) = sides
        exact, bound = block_scaled_error_bound(wide[0], wide[1].mT, ends, self.out_dtype)
        out = memory.result("out", exact.shape, self.out_dtype, self.layout_out) if self.layout_out else None
        found = ck.scaled_grouped_mm(
            a, b.mT, scale_a, recipe_a, scale_b if recipe_b == RECIPES["1x128"] else scale_b.mT, recipe_b, offs=ends,
            output_dtype=self.out_dtype, out=out, backend=backend, config=self.config,
        )  # fmt: skip
        judge(found, exact, bound, memory.whole, "the grouped product")

    def _used_columns(self, columns: int) -> Tensor:
        """Which columns of mode "k" a block of some group has."""
        used = torch.zeros(columns, dtype=torch.bool)
        for g, (start, end) in enumerate(itertools.pairwise([0, *ends_of(self.sizes)])):
            first = start // BLOCK + g
            used[first : first + -(-(end - start) // BLOCK)] = True
        return used
