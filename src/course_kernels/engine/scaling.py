"""The factors of a product of float8: one for each row and column, or one for each block of 128 along K.

A scaling has a name: "row", or the blocks of both operands, A's first, as in "1x128 128x128". A block of 1x128 is 128
elements along K of one row of A, or of one column of B; one of 128x128 is of 128 such lines.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from course_kernels.engine.scale_blocks import BLOCK, blocks_restart, padded_columns

ROW = "row"
LINE, SQUARE = f"1x{BLOCK}", f"{BLOCK}x{BLOCK}"
# Lines of the ragged extent are scaled one by one, because a group begins anywhere.
BLOCK_SCALINGS = {
    "m": (f"{LINE} {SQUARE}", f"{LINE} {LINE}"),
    "n": (f"{SQUARE} {LINE}", f"{LINE} {LINE}"),
    "k": (f"{LINE} {LINE}",),
    "batch": (f"{LINE} {SQUARE}", f"{SQUARE} {LINE}", f"{LINE} {LINE}"),
}
BLOCKS, LINES = f"{LINE} {SQUARE}", f"{LINE} {LINE}"  # for a layer's products, and for the gradients of its weights


class Unscaled(NamedTuple):
    """No factors."""

    a = None
    b = None
    name = None

    def key(self, mode: str, total: int | None, groups: int) -> tuple:
        """The factors' part of a plan's key, without the ragged ``total``; None if kernels cannot read them so."""
        return ()


class Lines(NamedTuple):
    """Float32 factors of A's rows and of B's columns: (total,) along the ragged extent, else (G, M) and (G, N). Those
    of counted rows may have any strides."""

    a: Tensor
    b: Tensor

    name = ROW

    def key(self, mode: str, total: int | None, groups: int) -> tuple | None:
        """The same as ``Unscaled.key``."""
        found = []
        for scale, ragged in ((self.a, mode == "m"), (self.b, mode == "n")):
            shape = scale.shape
            if mode == "masked":
                if scale.is_neg():
                    return None
                found.append(scale.stride())
            elif not scale.is_contiguous() or (shape != (total,) if ragged else len(shape) != 2):
                return None
            at = scale.data_ptr()
            found += [None if ragged else shape, scale.dtype, scale.device, at & 15 if at else None]
        return tuple(found)


class Blocks(NamedTuple):
    """Float32 factors of blocks; shapes as in ``scaled_grouped_mm``, any strides.

    Attributes:
        a, b: the factors.
        name: the blocks of both operands, of ``BLOCK_SCALINGS``.
    """

    a: Tensor
    b: Tensor
    name: str

    def key(self, mode: str, total: int | None, groups: int) -> tuple | None:
        """The same as ``Unscaled.key``; also None if the ragged extent of a factor is wrong."""
        found = [self.name]
        ragged = {"m": (0, None), "n": (None, 0), "k": (1, 1)}.get(mode, (None, None))
        for scale, dim in zip((self.a, self.b), ragged):
            if scale.is_neg():
                return None
            shape, strides = tuple(scale.shape), scale.stride()
            if dim == 0:
                if shape[0] != total:
                    return None
                shape, strides = shape[1:], "outer" if is_outer(scale) else strides
            elif dim == 1:
                forms = {_blocks(total): "whole", padded_columns(total, groups): "restarting"}
                if shape[1] not in forms:
                    return None
                shape = (shape[0], forms[shape[1]])
            at = scale.data_ptr()
            found += [shape, strides, scale.dtype, scale.device, at & 15 if at else None]
        return tuple(found)


UNSCALED = Unscaled()
Scaling: TypeAlias = Unscaled | Lines | Blocks


def block_lines(scaling: str | None) -> tuple[int, int] | None:
    """Lines of A's and of B's blocks, 1 or 128 each; None without factors of blocks."""
    if scaling is None or scaling == ROW:
        return None
    return tuple(BLOCK if side == SQUARE else 1 for side in scaling.split())


def check_scaling(scaling: str, mode: str) -> None:
    """Raise ValueError unless the mode supports the scaling."""
    if scaling != ROW and scaling not in BLOCK_SCALINGS[mode]:
        supported = ["RowWise with RowWise"]
        for each in BLOCK_SCALINGS[mode]:
            supported.append(" with ".join(f"BlockWise{side}" for side in each.split()))
        got = " with ".join(f"BlockWise{side}" for side in scaling.split())
        raise ValueError(
            f"scale_recipe_a and scale_recipe_b must be one of these pairs in mode {mode!r}: {', '.join(supported)}; "
            f"got {got}"
        )


def check_factors(name: str, scale, like: str, device: torch.device) -> None:
    """Raise unless a scale is a float32 tensor on the device of the tensor ``like``."""
    if not isinstance(scale, Tensor):
        raise TypeError(f"{name} must be a torch.Tensor, got {type(scale).__name__}")
    if scale.dtype != torch.float32:
        raise TypeError(f"{name} must be torch.float32, got {scale.dtype}")
    if scale.device != device:
        raise ValueError(f"{name} must be on the device of {like}, {device}, got {scale.device}")


def _blocks(extent: int) -> int:
    return -(-extent // BLOCK)


def block_scale_shapes(mode: str, extents: tuple[int, int, int, int], scaling: str) -> tuple[list, list]:
    """The valid shapes of scale_a and of scale_b. Mode "k" has two each: for blocks that restart at every group, and
    for blocks that do not. Other modes have one. Arguments as for ``check_block_scales``."""
    M, N, K, G = extents
    lines_a, lines_b = block_lines(scaling)
    batch_a, batch_b = ((G,) if mode in wanted else () for wanted in (("n", "batch"), ("m", "batch")))
    depths = [_blocks(K)] if mode != "k" else [padded_columns(K, G), _blocks(K)]
    rows, cols = (extent if lines == 1 else _blocks(extent) for extent, lines in ((M, lines_a), (N, lines_b)))
    of_b = [(*batch_b, cols, depth) if lines_b == 1 else (*batch_b, depth, cols) for depth in depths]
    return [(*batch_a, rows, depth) for depth in depths], of_b


def check_row_scales(mode: str, extents: tuple[int, int, int], scale_a, scale_b, device: torch.device) -> list[Tensor]:
    """Check row-wise scales; return them as kernels read them: (total,) or (G, extent), contiguous.

    Args:
        mode: of the product.
        extents: M, N and G.
        scale_a, scale_b: as given.
        device: of mat_a.

    Raises:
        TypeError, ValueError: naming the argument, what it got and what it wants.
    """
    M, N, G = extents
    found = []
    for name, scale, extent, ragged_mode, line in (
        ("scale_a", scale_a, M, "m", "row of mat_a"),
        ("scale_b", scale_b, N, "n", "column of mat_b"),
    ):
        check_factors(name, scale, "mat_a", device)
        shape = (extent,) if mode == ragged_mode else (G, extent)
        flat = (G * extent,)
        if mode == "k" and tuple(scale.shape) == flat:
            scale = scale.reshape(shape)
        if tuple(scale.shape) != shape:
            either = f"{flat} or {shape}" if mode == "k" else f"{shape}"
            of = line if shape == (extent,) else f"{line} and group"
            raise ValueError(f"{name} must have shape {either}, one factor for each {of}, got {tuple(scale.shape)}")
        found.append(scale.contiguous())
    return found


def check_block_scales(
    mode: str, extents: tuple[int, int, int, int], scaling: str, scale_a, scale_b, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Check scales of blocks; return them as kernels read them, any strides.

    Args:
        mode: of the product.
        extents: M, N, K and G.
        scaling: one of ``BLOCK_SCALINGS``.
        scale_a, scale_b: as given.
        device: of mat_a.

    Raises:
        TypeError, ValueError: naming the argument, what it got and what it wants.
    """
    shapes = block_scale_shapes(mode, extents, scaling)
    found = []
    for name, scale, lines, wanted in zip(("scale_a", "scale_b"), (scale_a, scale_b), block_lines(scaling), shapes):
        check_factors(name, scale, "mat_a", device)
        if tuple(scale.shape) not in wanted:
            either = " or ".join(map(str, dict.fromkeys(wanted)))
            raise ValueError(
                f"{name} must have shape {either}, one factor for each block of {LINE if lines == 1 else SQUARE} "
                f"of mat_{name[-1]}, got {tuple(scale.shape)}"
            )
        found.append(scale.resolve_neg())
    if mode == "k" and scale_a.shape[1] != scale_b.shape[1]:
        raise ValueError(
            f"scale_b must have as many columns as scale_a, {scale_a.shape[1]}, got {scale_b.shape[1]}: blocks restart "
            "at every group in both or in none"
        )
    return tuple(found)


def is_outer(scale: Tensor) -> bool:
    """Whether (total, blocks) scales are stored block by block without gaps, so that a stride is the total."""
    return scale.dim() == 2 and scale.stride() == (1, scale.shape[0])


def check_whole_blocks(offs: Tensor, scale_a: Tensor, total: int) -> None:
    """Check that groups end at multiples of 128, if the scales of mode "k" need it; waits for the device.

    Raises:
        ValueError: a group ends elsewhere; the message has the index and the value.
    """
    if blocks_restart(scale_a, total, offs.shape[0]):
        return
    for g, end in enumerate(offs.tolist()):
        if end % BLOCK:
            raise ValueError(
                f"offs[{g}] = {end} must be a multiple of {BLOCK} where scale_a has {scale_a.shape[1]} columns: "
                f"{padded_columns(total, offs.shape[0])} columns are for groups that end anywhere"
            )


def dequantized(matrix: Tensor, scale: Tensor, lines: int) -> Tensor:
    """Multiply a matrix (lines, K) by its factors (lines or blocks of lines, blocks of K), in float32. ``lines``: lines
    per block."""
    rows, depth = matrix.shape
    factors = scale.repeat_interleave(BLOCK, 1)[:, :depth]
    if lines > 1:
        factors = factors.repeat_interleave(lines, 0)[:rows]
    return matrix.float() * factors
