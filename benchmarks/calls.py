"""Test calls of public functions as dataclasses. This module has their shared parts: memory, comparison, message.

``layer_calls``, ``moe_calls`` and ``scaled_calls`` define a class per function. ``fuzz_cases`` draws calls at random,
and ``tools/sanitize.py`` runs a fixed list. Each operand has its own memory between canaries and must not change.
Elements that nothing may read are NaN. Results are between canaries, too, which must keep every bit. "integers" are
whole numbers with factors that are powers of two: their results must be exact. Results of "normal" values must keep the
error bounds of ``course_kernels.testing``.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from course_kernels.testing import assert_grouped_close, assert_grouped_exact
from course_kernels.testing.canaries import CANARY, canaries, guarded, laid_out
from course_kernels.testing.grouped_tolerance import accumulated_error_bound, sums_error_bound
from course_kernels.testing.tolerance import compare, compare_exact


class Memory:
    """The tensors of one call, each in its own memory: between canaries, or, if ``guards`` is False, in an allocation
    that ends with the tensor, for tools that detect accesses past its end."""

    def __init__(self, device, seed: int, values: str, guards: bool = True):
        self.device, self.whole, self._guards = device, values == "integers", guards
        self._generator = torch.Generator(device).manual_seed(seed)
        self._kept: list[tuple[str, Tensor, Tensor, Tensor | None]] = []

    def numbers(self, shape, dtype: torch.dtype) -> Tensor:
        """Draw integers from -2 to 2, or normal values."""
        if self.whole:
            drawn = torch.randint(-2, 3, shape, generator=self._generator, device=self.device, dtype=torch.int8)
            return drawn.float().to(dtype)
        return torch.randn(shape, generator=self._generator, device=self.device).to(dtype)

    def factors(self, shape) -> Tensor:
        """Draw powers of two, or any factors from 0.5 to 1.5."""
        if self.whole:
            return torch.randint(-2, 3, shape, generator=self._generator, device=self.device).float().exp2()
        return torch.rand(shape, generator=self._generator, device=self.device) + 0.5

    def give(self, name: str, tensor: Tensor, how: str | None = None) -> Tensor:
        """Store an operand, in the layout ``how`` of ``laid_out``. It must not change."""
        view, buffer = self._placed(laid_out(tensor, how) if how else tensor)
        self._kept.append((name, buffer, buffer.clone(), None))
        return view

    def ends(self, name: str, values, dtype: torch.dtype) -> Tensor:
        """Store integers as an operand on the device."""
        return self.give(name, torch.tensor(values, dtype=dtype, device=self.device))

    def result(self, name: str, held, dtype: torch.dtype, how: str = "row") -> Tensor:
        """Make a tensor to write to. ``held`` is a shape, which is filled with canaries, or the earlier content."""
        if not isinstance(held, Tensor):
            held = canaries(torch.Size(held).numel(), dtype, self.device).view(held)
        view, buffer = self._placed(laid_out(held, how))
        self._kept.append((name, buffer, buffer.clone(), view))
        return view

    def held(self, name: str, sizes, shape, dtype: torch.dtype, how: str = "row") -> Tensor:
        """A tensor to add to: numbers for groups with rows, and for others what changes where zeros are added: -0.0,
        and canaries, whose bits a GPU does not keep."""
        out = self.result(name, (len(sizes), *shape), dtype, how)
        out[..., ::2] = -0.0
        filled = torch.tensor(sizes, dtype=torch.int64, device=self.device) > 0
        out[filled] = self.numbers((int(filled.sum()), *shape), dtype)
        return out

    def _placed(self, view: Tensor) -> tuple[Tensor, Tensor]:
        """As ``guarded``."""
        if self._guards:
            return guarded(view)
        memory = torch.empty(0, dtype=view.dtype, device=view.device).set_(view.untyped_storage())
        buffer = memory.view(CANARY[view.dtype][0]).clone()
        return buffer.view(view.dtype).as_strided(view.shape, view.stride(), view.storage_offset()), buffer

    def verify(self) -> None:
        """Raise AssertionError, with a tensor's name, if memory has changed that nothing may write to."""
        for name, buffer, before, view in self._kept:
            changed = buffer != before
            if view is not None:
                changed.as_strided(view.shape, view.stride(), view.storage_offset()).fill_(False)
            if changed.any():
                what = name if view is None else f"memory around {name}"
                raise AssertionError(f"{what} was written to, {int(changed.int().argmax())} elements from its start")


def bits(tensor: Tensor) -> Tensor:
    """The elements as integers, without gaps."""
    return tensor.contiguous().view(CANARY[tensor.dtype][0])


def ends_of(sizes) -> list[int]:
    """The exclusive end of each group."""
    return list(itertools.accumulate(sizes))


def judge(out: Tensor, exact: Tensor, bound: Tensor, whole: bool, what: str) -> None:
    """Compare elements: of whole numbers exactly."""
    if whole:
        compare_exact(out, exact.to(out.dtype), what)
    else:
        compare(out, exact, bound, what)


def judge_product(memory: Memory, result: Tensor, a: Tensor, b: Tensor, offs: Tensor, **extras) -> None:
    """Compare a grouped product, by the assertion that suits its values."""
    (assert_grouped_exact if memory.whole else assert_grouped_close)(result, a, b, offs, **extras)


def judge_added(memory: Memory, result: Tensor, held: Tensor, a: Tensor, b: Tensor, offs: Tensor) -> None:
    """Compare a product of mode "k" that was added to what a result held. Empty groups keep their bits."""
    empty = torch.diff(offs, prepend=offs.new_zeros(1)) == 0
    if not torch.equal(bits(result[empty]), bits(held[empty])):
        raise AssertionError("the part of a group without rows was written to")
    exact, bound = accumulated_error_bound(a, b, offs, torch.where(empty[:, None, None], 0, held))
    judge(result[~empty], exact[~empty], bound[~empty], memory.whole, "the sum")


def judge_sums(memory: Memory, sums: Tensor, held: Tensor | None, matrix: Tensor, offs: Tensor) -> None:
    """Compare sums of rows. A group without rows must keep the earlier content bit by bit."""
    empty = torch.diff(offs, prepend=offs.new_zeros(1)) == 0
    if held is not None:
        if not torch.equal(bits(sums[empty]), bits(held[empty])):
            raise AssertionError("the sums of a group without rows were written to")
        held, sums = torch.where(empty[:, None], 0, held), torch.where(empty[:, None], 0, sums)
    exact, bound = sums_error_bound(matrix, offs, held)
    judge(sums, exact, bound, memory.whole, "the sums of rows")


@dataclass(frozen=True)
class Call:
    """A call of a public function, with the seed and the kind of its values ("integers" or "normal")."""

    api: ClassVar[str]
    sizes: tuple[int, ...] = (5, 0, 17, 1)
    dtype: torch.dtype = torch.float16
    values: str = "integers"
    seed: int = 0

    def check(self, device, backend: str, guards: bool = True) -> None:
        """Call the function and compare. If anything is wrong, raise an AssertionError that begins with the call.
        ``guards`` is that of ``Memory``."""
        memory = Memory(device, self.seed, self.values, guards)
        try:
            self._run(memory, backend)
            memory.verify()
        except AssertionError as error:
            raise AssertionError(f"{self}: {error}") from None

    def _run(self, memory: Memory, backend: str) -> None:
        raise NotImplementedError
