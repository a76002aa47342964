"""Calls of what a layer in 16 or 32 bits needs: ``gmm``, ``ptgmm``, ``nptgmm``, added gradients, sums of rows."""

from __future__ import annotations

from dataclasses import dataclass

import torch

import course_kernels as ck
from calls import Call, Memory, ends_of, judge_added, judge_product, judge_sums
from course_kernels import GemmConfig
from course_kernels.packed.group_sums import group_sums


@dataclass(frozen=True)
class Gmm(Call):
    """``gmm``. layout_rhs: of (G, K, N), or "transposed", which is (G, N, K)."""

    api = "gmm"
    N: int = 24
    K: int = 40
    tail: int = 3
    out_dtype: torch.dtype = torch.bfloat16
    bias: torch.dtype | None = None
    layout_lhs: str = "row"
    layout_rhs: str = "row"
    layout_out: str | None = "pitched"
    index: torch.dtype = torch.int32
    work_stealing: bool = False
    grid_dim: int | None = None
    config: GemmConfig | None = None

    def _run(self, memory: Memory, backend: str) -> None:
        groups, total = len(self.sizes), sum(self.sizes) + self.tail
        values = memory.numbers((total, self.K), self.dtype)
        values[sum(self.sizes) :] = torch.nan
        lhs = memory.give("lhs", values, self.layout_lhs)
        weights, swapped = memory.numbers((groups, self.K, self.N), self.dtype), self.layout_rhs == "transposed"
        rhs = memory.give("rhs", weights.mT if swapped else weights, "row" if swapped else self.layout_rhs)
        sizes = memory.ends("group_sizes", self.sizes, self.index)
        bias = None if self.bias is None else memory.give("bias", memory.numbers((groups, self.N), self.bias))
        out = None
        if self.layout_out is not None:
            out = memory.result("existing_out", (total, self.N), self.out_dtype, self.layout_out)
        found = ck.gmm(
            lhs, rhs, sizes, bias, self.out_dtype, out, self.work_stealing, self.config, self.grid_dim,
            rhs_layout="gnk" if swapped else "gkn", backend=backend,
        )  # fmt: skip
        if out is not None and found is not out:
            raise AssertionError("the result is not existing_out")
        ends = torch.tensor(ends_of(self.sizes), dtype=torch.int64, device=memory.device)
        judge_product(memory, found, lhs, rhs.mT if swapped else rhs, ends, bias=bias)


@dataclass(frozen=True)
class Tgmm(Call):
    """``ptgmm`` and ``nptgmm``. layout_lhs: of (K, M), or "transposed", which is (M, K)."""

    api = "tgmm"
    function: str = "ptgmm"
    N: int = 24
    K: int = 40
    tail: int = 3
    out_dtype: torch.dtype = torch.bfloat16
    bias_grad: bool = True
    accumulate: bool = False
    layout_lhs: str = "row"
    layout_rhs: str = "row"
    layout_out: str | None = "pitched"
    index: torch.dtype = torch.int32
    config: GemmConfig | None = None

    def _run(self, memory: Memory, backend: str) -> None:
        groups, last, total = len(self.sizes), sum(self.sizes), sum(self.sizes) + self.tail
        left, right = memory.numbers((self.K, total), self.dtype), memory.numbers((total, self.N), self.dtype)
        left[:, last:], right[last:] = torch.nan, torch.nan
        swapped = self.layout_lhs == "transposed"
        lhs = memory.give("lhs", left.mT if swapped else left, "row" if swapped else self.layout_lhs)
        rhs = memory.give("rhs", right, self.layout_rhs)
        sizes = memory.ends("group_sizes", self.sizes, self.index)
        out, sums = None, None
        if self.accumulate:
            layout = self.layout_out or "row"
            out = memory.held("existing_out", self.sizes, (self.K, self.N), self.out_dtype, layout)
        elif self.layout_out is not None:
            out = memory.result("existing_out", (groups, self.K, self.N), self.out_dtype, self.layout_out)
        if self.bias_grad and self.accumulate:
            sums = memory.held("bias_grad", self.sizes, (self.K,), torch.float32, "pitched")
        elif self.bias_grad:
            sums = memory.result("bias_grad", (groups, self.K), torch.float32, "pitched")
        held = [t.clone() if self.accumulate and t is not None else None for t in (out, sums)]
        found = getattr(ck, self.function)(
            lhs, rhs, sizes, sums, self.out_dtype, out, self.accumulate, self.config,
            lhs_layout="mk" if swapped else "km", backend=backend,
        )  # fmt: skip
        if out is not None and found is not out:
            raise AssertionError("the result is not existing_out")
        columns = lhs.mT if swapped else lhs
        ends = torch.tensor(ends_of(self.sizes), dtype=torch.int64, device=memory.device)
        if self.accumulate:
            judge_added(memory, found, held[0], columns, rhs, ends)
        else:
            judge_product(memory, found, columns, rhs, ends)
        if self.bias_grad:
            judge_sums(memory, sums, held[1], columns.mT, ends)


@dataclass(frozen=True)
class Accumulate(Call):
    """A weight's gradient that is added: ``grouped_mm`` with ``accumulate``, or the backward with ``main_grad``."""

    api = "accumulate"
    M: int = 40
    N: int = 24
    tail: int = 3
    main_grad: bool = False
    out_dtype: torch.dtype = torch.float32  # of main_grad always
    layout_a: str = "col"
    layout_b: str = "row"
    layout_out: str = "pitched"
    index: torch.dtype = torch.int32
    config: GemmConfig | None = None

    def _run(self, memory: Memory, backend: str) -> None:
        last, total = sum(self.sizes), sum(self.sizes) + self.tail
        left, right = memory.numbers((self.M, total), self.dtype), memory.numbers((total, self.N), self.dtype)
        left[:, last:], right[last:] = torch.nan, torch.nan
        a, b = memory.give("mat_a", left, self.layout_a), memory.give("mat_b", right, self.layout_b)
        offs = memory.ends("offs", ends_of(self.sizes), self.index)
        dtype = torch.float32 if self.main_grad else self.out_dtype
        out = memory.held("out", self.sizes, (self.M, self.N), dtype, self.layout_out)
        held = out.clone()
        options = dict(offs=offs, backend=backend)
        if self.main_grad:
            weight = memory.numbers(out.shape, self.dtype).requires_grad_()
            ck.grouped_mm(a.mT, weight, main_grad=out, **options).backward(b)
            if weight.grad is not None:
                raise AssertionError("the weight got a gradient beside main_grad")
        else:
            ck.grouped_mm(a, b, out=out, out_dtype=dtype, accumulate=True, config=self.config, **options)
        judge_added(memory, out, held, a, b, offs.long())


@dataclass(frozen=True)
class Sums(Call):
    """``group_sums``, the gradient of a bias."""

    api = "group_sums"
    N: int = 24
    tail: int = 3
    accumulate: bool = False
    layout: str = "row"
    layout_out: str = "pitched"
    index: torch.dtype = torch.int32

    def _run(self, memory: Memory, backend: str) -> None:
        last, groups = sum(self.sizes), len(self.sizes)
        values = memory.numbers((last + self.tail, self.N), self.dtype)
        values[last:] = torch.nan
        matrix, offs = memory.give("matrix", values, self.layout), memory.ends("offs", ends_of(self.sizes), self.index)
        if self.accumulate:
            out = memory.held("out", self.sizes, (self.N,), torch.float32, self.layout_out)
        else:
            out = memory.result("out", (groups, self.N), torch.float32, self.layout_out)
        held = out.clone() if self.accumulate else None
        group_sums(matrix, offs, out=out, accumulate=self.accumulate, backend=backend)
        judge_sums(memory, out, held, matrix, offs.long())
