"""Operands of gmm, ptgmm and nptgmm in every layout, and their results by a loop in float64."""

from __future__ import annotations

import torch
from torch import Tensor

import course_kernels
from course_kernels import GemmConfig, runtime

# Blocks so small that a tiny problem has boundary tiles on every side, and tiles for several programs.
SMALL = GemmConfig(16, 16, 16, group_m=2)
RAGGED = (17, 0, 16, 5)
RHS_LAYOUTS = ("row", "column", "transposed")  # (G, K, N) with either order in memory, and (G, N, K)
LHS_LAYOUTS = ("row", "column", "transposed")  # (K, M) with either order in memory, and (M, K)
TRANSPOSED = {"ptgmm": course_kernels.ptgmm, "nptgmm": course_kernels.nptgmm}


def integers(*shape, dtype=torch.bfloat16, seed=0, device=None) -> Tensor:
    """Numbers from -2 to 2, whose products are exact in every dtype."""
    device = device or runtime.device()
    generator = torch.Generator(device).manual_seed(seed)
    return torch.randint(-2, 3, shape, generator=generator, device=device, dtype=torch.int8).to(dtype)


def sizes_of(*sizes, dtype=torch.int32) -> Tensor:
    """Sizes on the device of kernels."""
    return torch.tensor(sizes, dtype=dtype, device=runtime.device())


def weights(groups, K, N, layout="row", **options) -> tuple[Tensor, Tensor]:
    """rhs of gmm in a layout, and as (G, K, N)."""
    plain = integers(groups, K, N, seed=1, **options)
    if layout == "row":
        return plain, plain
    swapped = plain.mT.contiguous()
    return (swapped.mT if layout == "column" else swapped), plain


def columns(K, M, layout="row", **options) -> tuple[Tensor, Tensor]:
    """lhs of the transposed functions in a layout, and as (K, M)."""
    plain = integers(K, M, seed=2, **options)
    if layout == "row":
        return plain, plain
    swapped = plain.mT.contiguous()
    return (swapped.mT if layout == "column" else swapped), plain


def random_sizes(M, G, seed, *, total=None) -> tuple[int, ...]:
    """Sizes of G groups that sum to ``total`` (M if None), as M draws of a group; seed 0: as equal as can be."""
    total = M if total is None else total
    if not seed:
        return tuple(total // G + (g < total % G) for g in range(G))
    generator = torch.Generator().manual_seed(seed)
    shares = torch.rand(G, generator=generator).square()
    ends = (shares.cumsum(0) / shares.sum() * total).long()
    ends[-1] = total
    return tuple(torch.diff(ends, prepend=ends.new_zeros(1)).tolist())


def poisoned(*shape, dtype=torch.bfloat16) -> Tensor:
    """A result in which everything has yet to be written."""
    return torch.full(shape, torch.nan, dtype=dtype, device=runtime.device())


def exact_gmm(lhs, rhs, sizes, bias=None) -> Tensor:
    """(M, N) float64, zero after the last group. rhs: (G, K, N)."""
    out = lhs.new_zeros(lhs.shape[0], rhs.shape[2], dtype=torch.float64)
    start = 0
    for g, size in enumerate(sizes):
        part = slice(start, start + size)
        out[part] = lhs[part].double() @ rhs[g].double()
        if bias is not None:
            out[part] += bias[g].double()
        start += size
    return out


def exact_tgmm(lhs, rhs, sizes) -> tuple[Tensor, Tensor]:
    """(G, K, N) and the sums (G, K), float64. lhs: (K, M)."""
    parts = [slice(sum(sizes[:g]), sum(sizes[: g + 1])) for g in range(len(sizes))]
    K, N = lhs.shape[0], rhs.shape[1]
    out, sums = lhs.new_zeros(len(sizes), K, N, dtype=torch.float64), lhs.new_zeros(len(sizes), K, dtype=torch.float64)
    for g, part in enumerate(parts):
        out[g], sums[g] = lhs[:, part].double() @ rhs[part].double(), lhs[:, part].double().sum(1)
    return out, sums


def assert_same(found: Tensor, exact: Tensor) -> None:
    """Equal to the exact result, rounded once."""
    assert found.shape == exact.shape
    assert torch.equal(found, exact.to(found.dtype)), (found.double() - exact).abs().max()
