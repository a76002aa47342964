"""The cases of DeepGEMM's own tests (github.com/deepseek-ai/DeepGEMM: ``tests/generators.py``, ``test_bf16.py`` and
``test_fp8_fp4.py``, and ``test_core.py`` of its first year), rebuilt from their description: rows of groups one after
another, masked groups, and groups along K, in bfloat16 and in float8 with a factor for each block.

Its measure is how far a result is from the product of the operands before they were rounded to float8. Here it holds
for every group, and every element is also within a bound of the product of the operands as they were rounded. The real
shapes are for GPUs; small ones of the same structure run everywhere.
"""

from __future__ import annotations

import itertools
import random
from typing import NamedTuple

import pytest
import torch
from torch import Tensor
from torch.nn.functional import ScalingType

from course_kernels import deepgemm, grouped_mm, quantize_1x128, quantize_128x128, runtime, scaled_grouped_mm
from course_kernels.layout import GroupLayout
from course_kernels.testing import poisoned
from course_kernels.testing.canaries import CANARY, canaries

DEVICE = runtime.device()
ON_GPU = runtime.mode() == "gpu"
small = pytest.mark.gpu if ON_GPU else lambda test: test
BACKENDS = ("torch", "triton")
LARGE = 2**22  # elements
LINE, SQUARE = ScalingType.BlockWise1x128, ScalingType.BlockWise128x128
KINDS = ("bfloat16", "float8", "float8 of powers of two")  # the last as DeepGEMM has it on Blackwell
LIMITS = {"bfloat16": 1e-5, "float8": 1e-3, "float8 of powers of two": 1e-3}  # of DeepGEMM's measure
FEWEST_ROWS = 8  # to be measured so: the errors of a single row may be twice those of an average one
ALIGNMENT = 128  # of the first row of a group, or of the first element along K
# Errors of sums relative to the sums of magnitudes. Hopper keeps 13 bits after the largest addend of 8-bit products.
RELATIVE = {True: 2.0**-9, False: 2.0**-17} if ON_GPU else {True: 2.0**-18, False: 2.0**-18}


# ---- values, and how results are judged


def counts_around(expected: int, groups: int, seed: int) -> list[int]:
    """A random number of rows for each group, between 0.7 and 1.3 times the expected number."""
    draw = random.Random(seed)
    return [int(expected * draw.uniform(0.7, 1.3)) for _ in range(groups)]


def up_to(multiple: int, value):
    """Round a number, or each number of a tensor, up to a multiple."""
    return (value + multiple - 1) // multiple * multiple


def normal(*shape: int, seed: int, dtype=torch.bfloat16) -> Tensor:
    """Normal numbers. A small tensor has the same values on every device; a large one is drawn on the device itself."""
    device = "cpu" if torch.Size(shape).numel() <= LARGE else DEVICE
    generator = torch.Generator(device).manual_seed(seed)
    return torch.randn(shape, generator=generator, device=device, dtype=dtype).to(DEVICE)


def integers_of(values: list[int]) -> Tensor:
    return torch.tensor(values, dtype=torch.int32, device=DEVICE)


def blank(shape: tuple[int, ...], dtype: torch.dtype):
    """A result filled with canaries (NaN), and a check that no memory around it was written. The check does nothing for
    a large result."""
    if torch.Size(shape).numel() > LARGE:
        return canaries(torch.Size(shape).numel(), dtype, DEVICE).view(shape), lambda: None
    return poisoned(shape, dtype, device=DEVICE)


def repeated(out: Tensor, compute, backend: str) -> Tensor:
    """Compute again, and return the second result. It gets the strides of the first, because other strides may give
    other bits. In the interpreter a second run of a kernel would take too long, so ``out`` itself is returned."""
    if backend != "torch" and not ON_GPU:
        return out
    again, _ = blank(out.shape, out.dtype)
    assert again.stride() == out.stride()
    compute(again)
    return again


def untouched(values: Tensor) -> bool:
    """Whether every element is still the canary, bit by bit."""
    bits, pattern = CANARY[values.dtype]
    return bool((values.contiguous().view(bits) == pattern).all())


def difference(found: Tensor, wanted: Tensor) -> float:
    """DeepGEMM's measure: 1 - 2 <x, y> / (<x, x> + <y, y>). It is 0 if all elements are 0, and NaN if one is NaN."""
    found, wanted = found.double(), wanted.double()
    both = (found * found + wanted * wanted).sum().item()
    return 1 - 2 * (found * wanted).sum().item() / both if both != 0 else 0.0


def judge(kind: str, found: Tensor, a: Tensor, b: Tensor, rounded=None, held: Tensor | None = None) -> None:
    """Check one group twice: by DeepGEMM's measure against ``a @ b``, and element by element against the product of
    ``rounded``.

    Args:
        found: (M, N).
        a, b: (M, K) and (K, N) as they were before rounding to float8.
        rounded: both in float64 as the kernel has them, factors included; None where nothing was rounded.
        held: what the product was added to.
    """
    assert found.shape == (a.shape[0], b.shape[1])
    base = 0.0 if held is None else held.double()
    wanted = a.double() @ b.double() + base
    if len(found) >= FEWEST_ROWS:
        assert difference(found, wanted) < LIMITS[kind]
    a, b = rounded or (a.double(), b.double())
    exact = a @ b + base if rounded else wanted
    allowed = RELATIVE[rounded is not None] * (a.abs() @ b.abs()) + exact.abs() * torch.finfo(found.dtype).eps
    assert ((found.double() - exact).abs() <= allowed).all()  # NaN is not
    assert difference(found, exact) < 1e-5


class Rounded(NamedTuple):
    """float8 values with their factors, or bfloat16 values without factors."""

    values: Tensor
    factors: Tensor | None = None


def lines(kind: str, x: Tensor, **options) -> Rounded:
    """Quantise x (..., K) with a factor for each block of 1 × 128. Kind "bfloat16" leaves it as it is."""
    return Rounded(x) if kind == "bfloat16" else Rounded(*quantize_1x128(x, power_of_two=kind != "float8", **options))


def squares(kind: str, w: Tensor) -> Rounded:
    """Quantise w (..., N, K) with a factor for each block of 128 × 128. Kind "bfloat16" leaves it as it is."""
    return Rounded(w) if kind == "bfloat16" else Rounded(*quantize_128x128(w, power_of_two=kind != "float8"))


def wide(values: Tensor, factors: Tensor, height: int = 1) -> Tensor:
    """The float8 values (L, K) times their factors, in float64. A factor is for ``height`` rows and 128 columns."""
    factors = factors.double().repeat_interleave(height, 0)[: values.shape[0]]
    return values.double() * factors.repeat_interleave(128, 1)[:, : values.shape[1]]


# ---- groups of rows, one after another


def multiply_rows(x: Rounded, w: Rounded, offs: Tensor, major: str, out: Tensor, backend: str) -> None:
    """Multiply rows by weights (G, N, K). ``major`` says which dimension of the weights is contiguous, "k" or "n"."""
    weights = w.values.mT if major == "k" else w.values.mT.contiguous()
    if x.factors is None:
        grouped_mm(x.values, weights, offs=offs, out=out, backend=backend)
    else:
        factors = x.factors, LINE, w.factors.mT, SQUARE
        scaled_grouped_mm(x.values, weights, *factors, offs=offs, out=out, backend=backend)


def check_contiguous(kind, backend, sizes, N, K, major="k", padding="zeros", form="indices", alignment=ALIGNMENT):
    """Multiply groups that begin at multiples of the alignment. The padding rows between them belong to no group.

    ``form`` says how the groups are described:

    - "indices": the group of each row, and -1 for padding. The product takes each padding row as one of the group
      before it.
    - "ends": the end of each group, as ``offs``. The product takes each padding row as one of the group after it.
    - "sorted": as "indices", but the rows are sorted first. Padding comes last then, and nothing reads it.
    """
    starts = list(itertools.accumulate((up_to(alignment, size) for size in sizes), initial=0))
    total, groups = starts.pop(), len(sizes)
    x, w = normal(total, K, seed=1), normal(groups, N, K, seed=2)
    ids = torch.full((total,), -1, dtype=torch.int32, device=DEVICE)
    for g, (start, size) in enumerate(zip(starts, sizes)):
        ids[start : start + size] = g
    nobodys = ids < 0
    x[nobodys] = 0.0 if padding == "zeros" else torch.nan

    order = torch.arange(total, device=DEVICE)
    if form == "sorted":
        order = GroupLayout.sort_order(ids)
        offs = GroupLayout.from_row_groups(ids[order], groups).validate(total).offs
    elif form == "indices":
        layout = GroupLayout.from_row_groups(ids, groups)
        offs = GroupLayout.from_sizes(up_to(alignment, layout.sizes)).offs
    else:
        offs = integers_of([start + size for start, size in zip(starts, sizes)])
    rows, weights = lines(kind, x if form != "sorted" else x[order]), squares(kind, w)
    out, verify = blank((total, N), torch.bfloat16)
    multiply_rows(rows, weights, offs, major, out, backend)
    verify()
    again = repeated(out, lambda again: multiply_rows(rows, weights, offs, major, again, backend), backend)
    place = torch.empty_like(order).scatter_(0, order, torch.arange(total, device=DEVICE))
    for g, (start, size) in enumerate(zip(starts, sizes)):
        at = place[start : start + size]
        rounded = None
        if kind != "bfloat16":
            rounded = wide(rows.values[at], rows.factors[at]), wide(weights.values[g], weights.factors[g], 128).mT
        judge(kind, out[at], x[start : start + size], w[g].mT, rounded)
        assert torch.equal(out[at], again[at])
    assert not out[offs[-1] :].any()
    if padding == "zeros":
        assert not out[place[nobodys]].any()


@small
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("major", ["k", "n"])
@pytest.mark.parametrize("form", ["indices", "ends", "sorted"])
def test_contiguous(form, major, kind):
    """Every way to describe groups with padding rows between them, which hold zeros or NaN. torch computes."""
    for seed, (groups, expected, N, K) in enumerate([(4, 96, 72, 192), (3, 150, 136, 320), (2, 128, 128, 128)]):
        sizes = counts_around(expected, groups, seed)
        for padding in ("zeros", "NaN"):
            check_contiguous(kind, "torch", sizes, N, K, major, padding, form)


@small
@pytest.mark.parametrize(
    ("kind", "form", "major", "padding"),
    [("bfloat16", "indices", "n", "NaN"), ("float8", "ends", "k", "NaN"), ("float8", "sorted", "k", "NaN"),
     ("float8 of powers of two", "indices", "n", "zeros")],
)  # fmt: skip
def test_contiguous_in_kernels(kind, form, major, padding):
    check_contiguous(kind, "triton", counts_around(40, 3, 5), 136, 192, major, padding, form, alignment=64)


@small
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("alignment", [1, 16, 128])
@pytest.mark.parametrize("sizes", [(0, 20, 0), (0, 0), (17, 0, 0, 1)], ids=str)
def test_contiguous_groups_without_rows(sizes, alignment, backend):
    """Empty groups at the beginning, at the end and in between, with and without padding rows."""
    check_contiguous("float8", backend, list(sizes), 40, 160, alignment=alignment)
    check_contiguous("bfloat16", backend, list(sizes), 40, 160, alignment=alignment, padding="NaN", form="sorted")


@small
def test_indices_with_minus_one_between_groups():
    """``sizes`` counts no -1, ``validate`` refuses -1 between groups, and ``sort_order`` puts it last."""
    ids = integers_of([0] * 5 + [-1] * 3 + [2] * 8 + [3] * 1 + [-1] * 7)
    layout = GroupLayout.from_row_groups(ids, 4)
    assert layout.sizes.tolist() == [5, 0, 8, 1]
    with pytest.raises(ValueError, match=r"row_groups\[8\] = 2 follows row_groups\[7\] = -1"):
        layout.validate()
    order = GroupLayout.sort_order(ids)
    packed = GroupLayout.from_row_groups(ids[order], 4).validate(24)
    assert packed.offs.tolist() == [5, 5, 13, 14]
    assert order.tolist() == [*range(5), *range(8, 17), 5, 6, 7, *range(17, 24)]


# ---- masked groups


def check_masked(kind, backend, counts, max_m, N, K, expected=None, seed=0, out_dtype=torch.bfloat16, packed=False):
    """Check that the first ``counts[g]`` rows of each group are right and the others, which are NaN in the operand, are
    not written. With ``packed``, the product of contiguous groups has to be right for the same rows, too.
    """
    groups, masked_m = len(counts), integers_of(counts)
    layout = GroupLayout.from_masked(masked_m, max_m).validate()
    rows, w = normal(sum(counts), K, seed=seed), normal(groups, N, K, seed=seed + 100)
    x, weights = lines(kind, rows), squares(kind, w)
    operands = layout.pad(x.values, fill=torch.nan), weights.values
    factors = () if x.factors is None else (layout.pad(x.factors, fill=torch.nan), weights.factors)
    y, verify = blank((groups, max_m, N), out_dtype)
    deepgemm(*operands, y, masked_m, *factors, expected_m=expected, backend=backend)
    verify()
    again = repeated(
        y, lambda again: deepgemm(*operands, again, masked_m, *factors, expected_m=expected, backend=backend), backend
    )
    results = [(y[g, :count], again[g, :count]) for g, count in enumerate(counts)]
    assert all(untouched(y[g, count:]) for g, count in enumerate(counts))
    if packed:
        out, verify = blank((sum(counts), N), out_dtype)
        multiply_rows(x, weights, layout.offs, "k", out, backend)
        verify()
        results += [(part, part) for part in out.split(counts)]
    ends = list(itertools.accumulate(counts))
    for (found, same), g in zip(results, itertools.cycle(range(groups))):
        part, rounded = slice(ends[g] - counts[g], ends[g]), None
        if kind != "bfloat16":
            rounded = wide(x.values[part], x.factors[part]), wide(weights.values[g], weights.factors[g], 128).mT
        judge(kind, found, rows[part], w[g].mT, rounded)
        assert torch.equal(found, same)


@small
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("groups", "expected"), [(1, 64), (2, 32), (6, 64), (8, 20), (6, 20)], ids=str)
def test_masked(groups, expected, kind):
    """Random numbers of rows near the expected one, and the same with one empty group. torch computes."""
    for seed, (N, K) in enumerate([(72, 192), (136, 320), (40, 640)]):
        counts = counts_around(expected, groups, seed)
        check_masked(kind, "torch", counts, 96, N, K, expected, seed, packed=True)
        counts[seed % groups] = 0
        check_masked(kind, "torch", counts, 96, N, K, expected, seed)


@small
@pytest.mark.parametrize(
    ("kind", "groups", "expected", "N", "K"),
    [("bfloat16", 3, 24, 72, 192), ("float8", 1, 64, 136, 192), ("float8", 4, 20, 72, 320),
     ("float8 of powers of two", 3, 24, 40, 160)],
)  # fmt: skip
def test_masked_in_kernels(kind, groups, expected, N, K):
    counts = counts_around(expected, groups, 7)
    check_masked(kind, "triton", [*counts, 0], 96, N, K, expected, packed=groups == 4)


@small
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("counts", [(0,), (0, 0, 0), (40, 0), (0, 40, 1)], ids=str)
def test_masked_groups_that_are_empty_and_full(counts, backend):
    check_masked("float8", backend, list(counts), 40, 72, 160, expected=20)
    check_masked("bfloat16", backend, list(counts), 40, 72, 160, expected=20, out_dtype=torch.float32)


# ---- groups along K


def ks_variants(ks: list[int], seed: int) -> list[list[int]]:
    """Three lists: the depths as given; with 0 for the first and for some others; with 0 for all but the middle one."""
    draw = random.Random(seed)
    some = [0 if draw.random() < 0.25 else k for k in ks[1:-1]]
    return [ks, [0, *some, ks[-1]], [k if g == len(ks) // 2 else 0 for g, k in enumerate(ks)]]


def stepped_ks(base: int, groups: int, seed: int) -> list[int]:
    """Depths that are multiples of 128 near ``base``, and ``base`` on average."""
    draw = random.Random(seed)
    ks = [base + 128 * draw.randint(-1, 1) for _ in range(groups - 1)]
    return [*ks, base * groups - sum(ks)]


class AlongK:
    """Operands of a product whose groups divide K, as in the gradient of weights.

    With form "whole", each group begins at a multiple of 128, and zeros fill the rest of its last block. So no block
    of factors belongs to two groups. With form "restart", there are no gaps, a new block begins at each group, and NaN
    follows the last group.
    """

    def __init__(self, kind, ks, M, N, form="whole", majors="kk"):
        self.kind, self.ks, self.form = kind, ks, form
        held = [up_to(ALIGNMENT, k) if form == "whole" else k for k in ks]
        ends = list(itertools.accumulate(held))
        self.starts = [end - k for end, k in zip(ends, held)]
        self.offs = integers_of(ends)
        total = ends[-1] + 9 * (form == "restart")
        a, b = normal(total, M, seed=3), normal(total, N, seed=4)
        inside = torch.zeros(total, dtype=torch.bool, device=DEVICE)
        for start, k in zip(self.starts, ks):
            inside[start : start + k] = True
        a[~inside] = b[~inside] = 0.0 if form == "whole" else torch.nan
        # Lines of A and of B, with K contiguous or across.
        self.unrounded = [x.mT.contiguous() if major == "k" else x.mT for x, major in zip((a, b), majors)]
        options = dict(offs=self.offs) if form == "restart" else {}
        self.left, self.right = (lines(kind, x, **options) for x in self.unrounded)
        self.shape = (len(ks), M, N)

    def multiply(self, out: Tensor, backend: str) -> None:
        a, b = self.left, self.right
        if a.factors is None:
            grouped_mm(a.values, b.values.mT, offs=self.offs, out=out, out_dtype=out.dtype, backend=backend)
        else:
            scaled_grouped_mm(
                a.values, b.values.mT, a.factors, LINE, b.factors, LINE, offs=self.offs, out=out,
                output_dtype=out.dtype, backend=backend,
            )  # fmt: skip

    def add(self, out: Tensor, backend: str) -> None:
        """Add the product to float32 numbers. ``scaled_grouped_mm`` cannot do this; its operator can."""
        a, b = self.left, self.right
        if a.factors is None:
            grouped_mm(
                a.values, b.values.mT, offs=self.offs, out=out, out_dtype=out.dtype, accumulate=True, backend=backend
            )
        else:
            torch.ops.course_kernels.grouped_mm_out(
                a.values, b.values.mT, self.offs, None, a.factors, b.factors, out.dtype, out, False, False, backend,
                "", True, "1x128 1x128",
            )  # fmt: skip

    def check(self, found: Tensor, held: Tensor | None = None) -> None:
        """Check every group. An empty one is zero, or has the bits of ``held`` if the product was added to that."""
        for g, (start, k) in enumerate(zip(self.starts, self.ks)):
            before = None if held is None else held[g]
            if not k:
                wanted = torch.zeros_like(found[g]) if held is None else before
                assert torch.equal(found[g].contiguous().view(torch.uint8), wanted.view(torch.uint8))
                continue
            part, rounded = slice(start, start + k), None
            if self.kind != "bfloat16":
                first = start // 128 + (g if self.form == "restart" else 0)
                blocks = slice(first, first + up_to(128, k) // 128)
                rounded = [wide(x.values[:, part], x.factors[:, blocks]) for x in (self.left, self.right)]
                rounded[1] = rounded[1].mT
            judge(self.kind, found[g], self.unrounded[0][:, part], self.unrounded[1][:, part].mT, rounded, before)


def check_along_k(backend, case, out_dtype=torch.float32):
    """Check a product that is written over NaN. A second run has to give the same bits."""
    out, verify = blank(case.shape, out_dtype)
    case.multiply(out, backend)
    verify()
    case.check(out)
    assert torch.equal(out, repeated(out, lambda again: case.multiply(again, backend), backend))


def check_added_along_k(backend, case):
    """Check a product that is added to float32 numbers of about its own size."""
    out, verify = blank(case.shape, torch.float32)
    held = normal(*case.shape, seed=9, dtype=torch.float32) * 32
    held[:, 0, 0] = -0.0
    out.copy_(held)
    case.add(out, backend)
    verify()
    case.check(out, held)


@small
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", ["whole", "restart"])
@pytest.mark.parametrize("majors", ["kk", "mm", "mk"])
def test_along_k(majors, form, kind):
    """Groups of any depth, with some empty or all but one empty, in both layouts. torch computes."""
    for seed, (groups, M, N, expected) in enumerate([(8, 24, 72, 64), (4, 136, 40, 200), (3, 40, 136, 300)]):
        ks = [max(1, k) for k in counts_around(expected, groups, seed)]
        for variant in (*ks_variants(ks, seed), stepped_ks(256, groups, seed)):
            case = AlongK(kind, variant, M, N, form, majors)
            check_along_k("torch", case, torch.bfloat16 if seed == 1 else torch.float32)
            check_added_along_k("torch", case)


@small
@pytest.mark.parametrize(
    ("kind", "form", "majors"),
    [("bfloat16", "restart", "mm"), ("float8", "whole", "kk"), ("float8", "restart", "mk"),
     ("float8 of powers of two", "restart", "kk")],
)  # fmt: skip
def test_along_k_in_kernels(kind, form, majors):
    case = AlongK(kind, [0, 90, 130, 0, 1], 24, 72, form, majors)
    check_along_k("triton", case)
    check_added_along_k("triton", case)


# ---- factors


@small
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("power_of_two", [False, True])
def test_factors_bring_the_largest_of_a_block_to_the_largest_of_the_type(power_of_two, backend):
    """As in DeepGEMM, a factor is the largest magnitude of a block divided by 448, or the next power of two above that.
    Extents need not be multiples of 128. Factors of neighbouring lines are neighbours in memory."""
    for shape in ((2, 130, 160), (1, 40, 256), (3, 5, 72)):
        x = normal(*shape, seed=6).float()
        for quantize, height in ((quantize_1x128, 1), (quantize_128x128, 128)):
            q, factors = quantize(x, power_of_two=power_of_two, backend=backend)
            groups, L, K = shape
            padded = torch.zeros(groups, up_to(height, L), up_to(128, K), device=DEVICE)
            padded[:, :L, :K] = x
            largest = padded.abs().unflatten(1, (-1, height)).unflatten(3, (-1, 128)).amax((2, 4))
            wanted = (largest.double() / 448.0).float()  # on a GPU, torch multiplies float32 by a rounded 1 / 448
            if power_of_two:
                wanted = torch.exp2(torch.ceil(torch.log2(wanted.double()))).float()
            assert torch.equal(factors, wanted)
            assert factors.stride(1) == 1 or height == 128
            # At most the error of rounding to 4 significant bits, or half a step of subnormal numbers.
            for g in range(groups):
                error = (wide(q[g], factors[g], height) - x[g].double()).abs()
                steps = wide(torch.ones_like(q[g], dtype=torch.float32), factors[g], height) * 2.0**-10
                assert (error <= torch.maximum(x[g].double().abs() * 2.0**-4, steps) * (1 + 2.0**-16)).all()


# ---- DeepGEMM's shapes, as far as they fit into 10 GB

NK = [(4096, 7168), (7168, 2048), (6144, 7168), (7168, 3072), (4096, 4096), (4096, 2048)]
FIRST_NK, LATER_NK = NK[:2], NK[2:]  # of its first year and of later
GPU_BACKENDS = ("auto", "triton")
GPU_KINDS = KINDS[:2]
MAJORS_IN_FULL = {"bfloat16": "mm", "float8": "kk"}  # as DeepGEMM has them on Hopper
MASKED = [
    *((groups, rows, N, K) for groups, rows in [(1, 1024), (2, 512), (4, 256)] for N, K in FIRST_NK),
    *((groups, rows, N, K) for groups, rows in [(6, 1024), (6, 20)] for N, K in LATER_NK),
    *((groups, rows, N, K) for groups, rows in [(32, 192), (32, 20)] for N, K in LATER_NK[1:]),
]
ALONG_K = [
    (8, 768, 2048, 128), (4, 4096, 7168, 8192), (4, 7168, 2048, 8192), (8, 4096, 7168, 4096), (8, 7168, 2048, 4096),
    (16, 4096, 7168, 2048), (16, 7168, 2048, 2048),
]  # fmt: skip
ALSO_ADDED = ALONG_K[0], ALONG_K[4]


@pytest.mark.gpu
@pytest.mark.parametrize("backend", GPU_BACKENDS)
@pytest.mark.parametrize("kind", GPU_KINDS)
@pytest.mark.parametrize(("N", "K"), NK)
@pytest.mark.parametrize(("groups", "expected"), [(4, 8192), (8, 4096)])
def test_contiguous_in_full(groups, expected, N, K, kind, backend):
    check_contiguous(kind, backend, counts_around(expected, groups, groups + K), N, K, form="ends")


@pytest.mark.gpu
@pytest.mark.parametrize("backend", GPU_BACKENDS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", ["indices", "sorted"])
@pytest.mark.parametrize("major", ["k", "n"])
def test_contiguous_in_full_in_every_form(major, form, kind, backend):
    """One group is empty, and padding rows are NaN."""
    check_contiguous(kind, backend, [*counts_around(1024, 7, 1), 0], 4096, 2048, major, "NaN", form)


@pytest.mark.gpu
@pytest.mark.parametrize("backend", GPU_BACKENDS)
@pytest.mark.parametrize("kind", GPU_KINDS)
@pytest.mark.parametrize(("groups", "expected", "N", "K"), MASKED)
def test_masked_in_full(groups, expected, N, K, kind, backend):
    """Each group has memory for 4096 rows."""
    counts = counts_around(expected, groups, groups + N)
    check_masked(kind, backend, counts, 4096, N, K, expected, packed=K == 2048)


@pytest.mark.gpu
@pytest.mark.parametrize("backend", GPU_BACKENDS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("groups", "expected"), [(6, 20), (32, 192)])
def test_masked_in_full_drawn_anew(groups, expected, kind, backend):
    """Three times other numbers of rows, with one empty group each time."""
    for seed in range(3):
        counts = counts_around(expected, groups, seed)
        counts[seed * 2] = 0
        check_masked(kind, backend, counts, 512, 4096, 2048, expected, seed)


@pytest.mark.gpu
@pytest.mark.parametrize("backend", GPU_BACKENDS)
@pytest.mark.parametrize("kind", GPU_KINDS)
@pytest.mark.parametrize("variant", [0, 1, 2], ids=["all", "some empty", "one alone"])
@pytest.mark.parametrize(("groups", "M", "N", "expected"), ALONG_K)
def test_along_k_in_full(groups, M, N, expected, variant, kind, backend):
    ks = ks_variants(counts_around(expected, groups, groups + M), groups)[variant]
    case = AlongK(kind, ks, M, N, majors=MAJORS_IN_FULL[kind])
    check_along_k(backend, case)
    if (groups, M, N, expected) in ALSO_ADDED:
        check_added_along_k(backend, case)


@pytest.mark.gpu
@pytest.mark.parametrize("backend", GPU_BACKENDS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", ["whole", "restart"])
@pytest.mark.parametrize("majors", ["kk", "mm", "km", "mk"])
def test_along_k_in_full_in_every_form(majors, form, kind, backend):
    """Depths that are multiples of 128, and others; results in bfloat16 and in float32."""
    for ks in (counts_around(500, 6, 1), stepped_ks(1024, 4, 1)):
        case = AlongK(kind, ks, 768, 2048, form, majors)
        check_along_k(backend, case, torch.bfloat16 if len(ks) == 4 else torch.float32)
        check_added_along_k(backend, case)
