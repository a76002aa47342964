"""Memory for tests: tensors in any layout, with canaries around them and in their gaps."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

# Dtype → integer type and pattern. For floats, a NaN that arithmetic does not produce: the hardware's own NaNs have
# other low bits, so that a canary differs from a computed NaN. The 8-bit floats have only one or two NaNs.
CANARY = {
    torch.float16: (torch.int16, 0x7E5A),
    torch.bfloat16: (torch.int16, 0x7FDA),
    torch.float32: (torch.int32, 0x7FC05A5A),
    torch.float64: (torch.int64, 0x7FF85A5A5A5A5A5A),
    torch.float8_e4m3fn: (torch.uint8, 0x7F),
    torch.float8_e5m2: (torch.uint8, 0x7E),
    torch.int8: (torch.int8, 0x5A),
    torch.uint8: (torch.uint8, 0x5A),
    torch.int16: (torch.int16, 0x5A5A),
    torch.int32: (torch.int32, 0x5A5A5A5A),
    torch.int64: (torch.int64, 0x5A5A5A5A5A5A5A5A),
}


def canaries(count: int, dtype: torch.dtype, device: torch.device | str) -> Tensor:
    """(count,) canaries of a dtype."""
    if dtype not in CANARY:
        raise ValueError(f"dtype must be one of {', '.join(map(str, CANARY))}, got {dtype}")
    bits, pattern = CANARY[dtype]
    return torch.full((count,), pattern, dtype=bits, device=device).view(dtype)


def poisoned(
    shape: Sequence[int],
    dtype: torch.dtype = torch.float16,
    margin: int = 16,
    *,
    device: torch.device | str = "cpu",
) -> tuple[Tensor, Callable[..., None]]:
    """A tensor inside a larger buffer, all of it filled with canaries (NaN where the dtype has one).

    As an input (`view.copy_(data)`), it turns a read past the edge into NaN in the result. As an output, it shows a
    write past the edge and an element that was never written.

    Args:
        shape: of the view, at least 1-D. The last two dimensions get the margin, so every matrix of a batch has one.
        margin: elements on each side; 16 keeps the alignment that TMA wants, an odd number breaks it.

    Returns:
        The view, full of canaries, and `verify(all_written=False)`. It raises AssertionError with the first changed
        place outside the view, by its index relative to the view (-1 is one before it), and with `all_written=True`
        also with the first element of the view that holds the canary. (A computed 8-bit NaN looks like a canary.)

    Raises:
        ValueError: `shape` is empty, `margin` is less than 1, or there is no canary for `dtype`.
    """
    shape = tuple(shape)
    if not shape:
        raise ValueError("shape must have at least one dimension, got ()")
    if margin < 1:
        raise ValueError(f"margin must be at least 1, got {margin}")
    batch, inner = shape[:-2], shape[-2:]
    outer = (*batch, *(n + 2 * margin for n in inner))
    buffer = canaries(math.prod(outer), dtype, device).view(outer)
    inside = (..., *(slice(margin, margin + n) for n in inner))
    view = buffer[inside]
    bits, pattern = CANARY[dtype]

    def verify(all_written: bool = False) -> None:
        changed = buffer.view(bits) != pattern
        written = changed[inside].clone()
        changed[inside] = False
        if changed.any():
            where = changed.nonzero()[0].tolist()
            index = [*where[: len(batch)], *(i - margin for i in where[len(batch) :])]
            raise AssertionError(
                f"{int(changed.sum())} element(s) outside the {list(shape)} view were written, the first at "
                f"{index} relative to the view"
            )
        if all_written and not written.all():
            missing = ~written
            raise AssertionError(
                f"{int(missing.sum())} element(s) of the {list(shape)} view were never written, the first at "
                f"{missing.nonzero()[0].tolist()}"
            )

    return view, verify


# Elements in front of and after a guarded view. A multiple of 16 bytes for every dtype, so that alignment is kept.
GUARD = 64

STRIDES = ("row", "col", "transposed", "padded", "unaligned", "every_other", "expanded")
BATCH_LAYOUTS = ("shared", "permuted")


def strided_like(tensor: Tensor, how: str) -> Tensor:
    """The values of a matrix, or a batch of them, in another memory layout, with canaries in the gaps.

    Args:
        tensor: (..., M, N), any strides.
        how: "row", row-major without gaps; "col", column-major without gaps; "transposed", a transposed view of a
            row-major matrix with a longer leading dimension; "padded", row-major with a longer leading dimension that
            keeps 16-byte alignment; "unaligned", row-major with an odd leading dimension and an odd start;
            "every_other", every other column of a wider matrix, so that neither stride is 1; "expanded", the first row
            under every index (stride 0), the one layout whose values differ from the tensor's.

    Returns:
        A view of a new buffer with the shape, dtype and device of `tensor`.

    Raises:
        ValueError: `how` is not one of `STRIDES`, `tensor` has fewer than two dimensions, or an unknown dtype.
    """
    if how not in STRIDES:
        raise ValueError(f"how must be one of {', '.join(STRIDES)}, got {how!r}")
    if tensor.ndim < 2:
        raise ValueError(f"tensor must have at least 2 dimensions, got shape {tuple(tensor.shape)}")
    *batch, m, n = tensor.shape
    if how == "expanded":
        first = tensor[..., :1, :].clone(memory_format=torch.contiguous_format)
        return first.expand(tensor.shape) if m else first
    if how in ("col", "transposed"):
        rows, width, start, step = n, m if how == "col" else m + 16, 0, 1
    elif how == "every_other":
        rows, width, start, step = m, 2 * n, 0, 2
    else:
        rows, start, step = m, int(how == "unaligned"), 1
        width = {"row": n, "padded": n + 16, "unaligned": n + 1 + n % 2}[how]
    # The start is in front of the buffer, so that it moves the base address and nothing else.
    count = math.prod((*batch, rows, width))
    buffer = canaries(count + start, tensor.dtype, tensor.device)[start:].view(*batch, rows, width)
    used = m if how in ("col", "transposed") else n
    view = buffer[..., : used * step : step]
    if how in ("col", "transposed"):
        view = view.mT
    view.copy_(tensor)
    return view


def layouts(ndim: int) -> tuple[str, ...]:
    """The names that `laid_out` takes for an operand of 2 or 3 dimensions."""
    return (*STRIDES, "pitched") if ndim == 2 else (*STRIDES, "pitched", *BATCH_LAYOUTS)


def laid_out(tensor: Tensor, how: str) -> Tensor:
    """A tensor in one of `layouts`: those of `strided_like`, and three more.

    "pitched" starts each row, of any length, at a multiple of 16 elements, with canaries between rows. For batches,
    "shared" has the first matrix under every index, and "permuted" has row m of every matrix, then row m + 1.

    Raises:
        ValueError: as `strided_like`, or a layout of batches for a matrix.
    """
    if how == "pitched":
        # A descriptor takes these strides, and hardware may write whole 16 bytes where a row's end cuts through them.
        *lead, n = tensor.shape
        pitch = n // 16 * 16 + 16
        view = canaries(torch.Size(lead).numel() * pitch, tensor.dtype, tensor.device).view(*lead, pitch)[..., :n]
        return view.copy_(tensor)
    if how not in BATCH_LAYOUTS:
        return strided_like(tensor, how)
    if tensor.ndim != 3:
        raise ValueError(f"how = {how!r} is for batches, got shape {tuple(tensor.shape)}")
    if how == "shared":
        return tensor[:1].contiguous().expand_as(tensor)
    return tensor.transpose(0, 1).contiguous().transpose(0, 1)


def guarded(view: Tensor) -> tuple[Tensor, Tensor]:
    """A copy of the whole memory of a view of any strides, gaps included, with canaries in front of it and after it.

    Returns:
        The view's twin in a new buffer, equally aligned, and that buffer as integers of the element's size.
    """
    bits, _ = CANARY[view.dtype]
    memory = torch.empty(0, dtype=view.dtype, device=view.device).set_(view.untyped_storage())
    edge = canaries(GUARD, view.dtype, view.device).view(bits)
    buffer = torch.cat([edge, memory.view(bits), edge])
    twin = buffer.view(view.dtype).as_strided(view.shape, view.stride(), view.storage_offset() + GUARD)
    return twin, buffer
