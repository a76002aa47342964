"""Cases for grouped_mm: one call as a value, its operands in guarded memory, and the check of its result.

A case can be printed, drawn at random, shrunk and repeated. `check` makes its operands, calls the function, and checks
the result and every byte of memory that the call may or may not have written.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from course_kernels.dtypes import IN_DTYPES, MODE_OF_RANKS, MODES, OUT_DTYPES, default_out_dtype
from course_kernels.testing.canaries import CANARY, canaries, guarded, laid_out, layouts
from course_kernels.testing.grouped_tolerance import assert_grouped_close, assert_grouped_exact

__all__ = ["MODES", "GroupedCase", "Operands", "build", "check", "random_case"]

# The value of a tail that a call must keep. A number, because a NaN may be copied with other low bits.
_KEPT = 77.0


@dataclass(frozen=True)
class GroupedCase:
    """One call of grouped_mm.

    Attributes:
        mode: "m", "n", "k" or "batch".
        sizes: each group's part of the shared extent; in mode "batch" only their number counts.
        M, N, K: extents; the one that the groups share is ignored.
        dtype: of both operands; float8_e4m3fn comes with row-wise scales.
        out_dtype: of the result; None is the function's default.
        layout_a, layout_b: memory layouts of the operands, each one of `layouts(ndim)`.
        layout_out: memory layout of a given `out`; None lets the function allocate the result.
        tail_size: extent past the last group, filled with NaN in the operands.
        tail: "zero", or "keep", which needs a given `out`.
        offs_dtype, offs_stride: of the ends.
        bias, layout_bias: dtype of the bias, or None; its memory layout.
        values: "integers", whose products are compared exactly, or "normal".
        seed: of the values.
    """

    mode: str
    sizes: tuple[int, ...]
    M: int = 16
    N: int = 16
    K: int = 16
    dtype: torch.dtype = torch.float16
    out_dtype: torch.dtype | None = None
    layout_a: str = "row"
    layout_b: str = "row"
    layout_out: str | None = None
    tail_size: int = 0
    tail: str = "zero"
    offs_dtype: torch.dtype = torch.int32
    offs_stride: int = 1
    bias: torch.dtype | None = None
    layout_bias: str = "row"
    values: str = "integers"
    seed: int = 0

    @property
    def scaled(self) -> bool:
        """Whether the operands come with scales."""
        return self.dtype.itemsize == 1

    @property
    def shapes(self) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """Of mat_a, mat_b and the result."""
        groups, total = len(self.sizes), sum(self.sizes) + self.tail_size
        M, N, K = self.M, self.N, self.K
        return {
            "m": ((total, K), (groups, K, N), (total, N)),
            "n": ((groups, M, K), (K, total), (M, total)),
            "k": ((M, total), (total, N), (groups, M, N)),
            "batch": ((groups, M, K), (groups, K, N), (groups, M, N)),
        }[self.mode]

    @property
    def tails(self) -> tuple[tuple, tuple, tuple]:
        """Indices of the tail in mat_a, mat_b and the result."""
        nothing, past = (slice(0, 0),), slice(sum(self.sizes), None)
        rows, columns = (past,), (slice(None), past)
        return {
            "m": (rows, nothing, rows),
            "n": (nothing, columns, columns),
            "k": (columns, rows, nothing),
            "batch": (nothing, nothing, nothing),
        }[self.mode]


@dataclass
class Operands:
    """The arguments of one call, each in its own guarded buffer.

    Attributes:
        arguments: the other arguments by name, without those that keep their default.
    """

    mat_a: Tensor
    mat_b: Tensor
    arguments: dict
    _inputs: list[tuple[str, Tensor, Tensor]] = field(default_factory=list)
    _out_is_untouched: Callable[[tuple | None], None] | None = None

    def verify_memory(self, kept: tuple | None = None) -> None:
        """Raise AssertionError, naming it, if an operand, `out[kept]` or memory around `out` has changed."""
        for name, buffer, copy in self._inputs:
            if not torch.equal(buffer, copy):
                raise AssertionError(f"{name}, or memory around it, was written to")
        if self._out_is_untouched is not None:
            self._out_is_untouched(kept)


def build(case: GroupedCase, device: torch.device | str = "cpu") -> Operands:
    """The operands of a case; the same on every call on one kind of device."""
    generator = torch.Generator(device).manual_seed(case.seed)
    inputs: list[tuple[str, Tensor, Tensor]] = []

    def draw(shape, dtype: torch.dtype) -> Tensor:
        if case.values == "integers":
            numbers = torch.randint(-2, 3, shape, generator=generator, device=device, dtype=torch.int8)
            return numbers.to(torch.float32).to(dtype)
        return torch.randn(shape, generator=generator, dtype=torch.float32, device=device).to(dtype)

    def keep(name: str, value: Tensor, how: str | None = None) -> Tensor:
        view, buffer = guarded(laid_out(value, how) if how else value)
        inputs.append((name, buffer, buffer.clone()))
        return view

    shape_a, shape_b, shape_out = case.shapes
    matrices = []
    for name, shape, tail, how in (
        ("mat_a", shape_a, case.tails[0], case.layout_a),
        ("mat_b", shape_b, case.tails[1], case.layout_b),
    ):
        values = draw(shape, case.dtype)
        if values[tail].numel():
            values[tail] = torch.full((), torch.nan, dtype=torch.float32, device=device).to(case.dtype)
        matrices.append(keep(name, values, how))

    arguments: dict = {}
    if case.mode != "batch":
        ends = torch.tensor(case.sizes, dtype=torch.int64, device="cpu").cumsum(0)
        # Between the ends are values far out of range, so that a wrong read is noticed.
        length = ends.shape[0] * case.offs_stride + 2
        spread = torch.full((length,), -(2**30), dtype=case.offs_dtype, device="cpu")
        spread[1:-1].view(-1, case.offs_stride)[:, 0] = ends
        spread = spread.to(device)
        inputs.append(("offs", spread, spread.clone()))
        arguments["offs"] = spread[1:-1].view(-1, case.offs_stride)[:, 0]
    if case.bias is not None:
        arguments["bias"] = keep("bias", draw((len(case.sizes), shape_b[-1]), case.bias), case.layout_bias)
    if case.scaled:
        rows, columns = (len(case.sizes), case.M), (len(case.sizes), case.N)
        for name, shape in (
            ("scale_a", shape_a[:1] if case.mode == "m" else rows),
            ("scale_b", shape_b[1:] if case.mode == "n" else columns),
        ):
            exponents = torch.randint(-3, 4, shape, generator=generator, dtype=torch.int64, device=device)
            arguments[name] = keep(name, exponents.to(torch.float32).exp2())
    if case.out_dtype is not None:
        arguments["out_dtype"] = case.out_dtype
    if case.tail != "zero":
        arguments["tail"] = case.tail

    untouched = None
    if case.layout_out is not None:
        dtype = case.out_dtype or default_out_dtype(case.dtype)
        blank = canaries(torch.Size(shape_out).numel(), dtype, device).view(shape_out)
        out, buffer = guarded(laid_out(blank, case.layout_out))
        canary = CANARY[dtype][1]
        arguments["out"] = out
        if case.tail == "keep":
            out[case.tails[2]] = _KEPT

        def untouched(kept: tuple | None) -> None:
            changed = buffer != canary
            inside = torch.zeros_like(changed)
            inside.as_strided(out.shape, out.stride(), out.storage_offset()).fill_(True)
            if (changed & ~inside).any():
                at = int((changed & ~inside).int().argmax()) - out.storage_offset()
                raise AssertionError(f"memory that is no part of out was written, {at} elements from out's first")
            if kept is not None and not (out[kept] == _KEPT).all():
                raise AssertionError("out was written where tail='keep' leaves it as it was")

    return Operands(*matrices, arguments, inputs, untouched)


def check(
    case: GroupedCase,
    function: Callable[..., Tensor],
    *,
    device: torch.device | str = "cpu",
    accumulation: str | None = None,
) -> Tensor:
    """Make a case's operands, call the function, check the result and the memory around it, and return the result.

    Args:
        function: called with mat_a, mat_b, and the case's other arguments by name: offs, bias, scale_a, scale_b,
            out_dtype, out, tail.
        device: of all tensors.
        accumulation: as in `tolerance.error_bound`.

    Raises:
        AssertionError: the result's form or values are wrong, or other memory was written; the message begins with
            the case.
    """
    operands = build(case, device)
    result = function(operands.mat_a, operands.mat_b, **operands.arguments)
    try:
        _check_result(case, operands, result, accumulation)
    except AssertionError as error:
        raise AssertionError(f"{case}: {error}") from None
    return result


def _check_result(case: GroupedCase, operands: Operands, result: Tensor, accumulation: str | None) -> None:
    out = operands.arguments.get("out")
    if out is not None and result is not out:
        raise AssertionError("the result is not the given out")
    dtype = case.out_dtype or default_out_dtype(case.dtype)
    if result.dtype != dtype:
        raise AssertionError(f"the result is {result.dtype}, wants {dtype}")
    if out is None and not result.is_contiguous():
        raise AssertionError(f"the result has strides {result.stride()}, wants a contiguous one")
    operands.verify_memory(case.tails[2] if case.tail == "keep" else None)
    given = {name: operands.arguments.get(name) for name in ("offs", "bias", "scale_a", "scale_b")}
    tail = "any" if case.tail == "keep" else "zero"
    if case.values == "integers":
        assert_grouped_exact(result, operands.mat_a, operands.mat_b, **given, tail=tail)
    else:
        assert_grouped_close(result, operands.mat_a, operands.mat_b, **given, tail=tail, accumulation=accumulation)


# ---- random cases

_OUT_LAYOUTS = tuple(how for how in layouts(2) if how != "expanded")


def random_case(seed: int, largest: int = 256, most_groups: int = 64, *, scaled: bool = True) -> GroupedCase:
    """A case drawn from everything that grouped_mm takes; extents near powers of two and of 0 and 1 come often.

    Args:
        seed: chooses the case and its values, the same on every machine.
        largest: bound of every extent, and of the sum of the sizes times four.
        most_groups: bound of the number of groups.
        scaled: draw float8_e4m3fn operands with scales, too.
    """
    draw = random.Random(seed)

    def extent(limit: int = largest) -> int:
        near = 2 ** draw.randint(0, max(limit, 1).bit_length()) + draw.randint(-1, 1)
        return min(limit, draw.choice([near, near, draw.randint(1, max(limit, 1)), draw.choice([0, 1, 8, 16])]))

    mode = draw.choice(MODES)
    groups = draw.choice([0, 1, 2, 3, 4, 8, draw.randint(1, most_groups)])
    groups = min(groups, most_groups)
    left, sizes = 4 * largest, []
    for _ in range(groups):
        sizes.append(0 if draw.random() < 0.2 else min(left, extent()))
        left -= sizes[-1]
    draw.shuffle(sizes)
    dtype = draw.choice(IN_DTYPES if scaled else OUT_DTYPES)
    is_scaled = dtype.itemsize == 1
    out_dtype = draw.choice([None, None, *OUT_DTYPES])
    out = None if draw.random() < 0.6 else draw.choice(_OUT_LAYOUTS)
    packed = mode in ("m", "n")
    ndim_a, ndim_b = next(ranks for ranks, name in MODE_OF_RANKS.items() if name == mode)
    with_bias = mode != "n" and not is_scaled and draw.random() < 0.3
    return GroupedCase(
        mode,
        tuple(sizes),
        extent(),
        extent(),
        extent(),
        dtype,
        out_dtype,
        layout_a=draw.choice(layouts(ndim_a)),
        layout_b=draw.choice(layouts(ndim_b)),
        layout_out=out,
        tail_size=draw.choice([0, 0, 1, extent()]) if mode != "batch" else 0,
        tail="keep" if packed and out and draw.random() < 0.3 else "zero",
        offs_dtype=draw.choice([torch.int32, torch.int64]),
        offs_stride=draw.choice([1, 1, 2]),
        bias=draw.choice([dtype, torch.float32]) if with_bias else None,
        layout_bias=draw.choice(["row", "col", "every_other"]),
        values=draw.choice(["integers", "normal"]),
        seed=seed,
    )
