"""Checks of a description of groups: of its form always, of its values on request."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from course_kernels.contexts import in_memory, refuse_dtensors, refuse_jit_trace, unwrapped
from course_kernels.memory_overlap import check_has_memory
from course_kernels.type_checks import check_dense

# ---- form: rank, dtype, device; nothing here reads a value, so nothing waits for a device


def description(name: str, value: Tensor) -> None:
    """Check the form of the description `name`: 1-D, int32 or int64."""
    check_dense(name, value)
    if value.dtype not in (torch.int32, torch.int64):
        raise TypeError(f"{name} must be torch.int32 or torch.int64, got {value.dtype}")
    if value.ndim != 1:
        raise ValueError(f"{name} must be 1-D, got shape {tuple(value.shape)}")
    _has_memory(name, value)
    if name == "offsets" and value.shape[0] == 0:
        raise ValueError("offsets must have G + 1 entries, at least one, got none")


def extent(name: str, value: int) -> None:
    """Check that `value` is a count on the host."""
    if isinstance(value, Tensor):
        refuse_jit_trace("GroupLayout")
    if not isinstance(value, (int, torch.SymInt)) or isinstance(value, bool):
        raise TypeError(f"{name} must be an int on the host, got {type(value).__name__}")
    if value < 0:
        raise ValueError(f"{name} must not be negative, got {value}")


def rows(name: str, value: Tensor, ndim: int, device: torch.device) -> None:
    """Check that `value` is a tensor of rows on `device`."""
    check_dense(name, value)
    refuse_dtensors("GroupLayout", **{name: value})
    if value.ndim < ndim:
        raise ValueError(f"{name} must have at least {ndim} dimension(s), got shape {tuple(value.shape)}")
    if value.device != device:
        raise ValueError(f"{name} is on {value.device}, the layout is on {device}: they must share a device")
    _has_memory(name, value)


def fill(value, dtype: torch.dtype) -> None:
    """Check that `value` is a number that can fill rows of a dtype."""
    integral, real, wanted = (int, torch.SymInt), (int, float, torch.SymInt, torch.SymFloat), "a number"
    if dtype.is_complex:
        real = (*real, complex)
    elif not dtype.is_floating_point:
        real, wanted = integral, "an int"
    if not isinstance(value, real):
        raise TypeError(f"fill must be {wanted} for rows of {dtype}, got {value!r}")


def _has_memory(name: str, value: Tensor) -> None:
    value = unwrapped(value)  # torch.func.vjp's function runs after its transform has ended, as a backward does
    if in_memory(value):
        check_has_memory({name: value})


# ---- values: of int64 copies on the host


def sizes_of(kind: str, values: Tensor, G: int) -> Tensor:
    """Check the values of a description; return the sizes (G,)."""
    if kind == "row_groups":
        return _sizes_of_row_groups(values, G)
    if kind in ("ends", "offsets"):
        return _sizes_of_bounds(kind, values)
    _reject(values < 0, lambda i: f"{kind}[{i}] = {values[i]}: a group cannot have fewer than 0 rows")
    return values


def fits(kind: str, sizes: Tensor, dtype: torch.dtype, total_m: int | None, max_m: int | None) -> None:
    """Check that the groups fit into their slots, their dtype and the packed tensor."""
    if max_m is not None:
        _reject(sizes > max_m, lambda i: f"group {i} has {sizes[i]} rows, more than its max_m = {max_m} slots")
    used = int(sizes.sum())
    if used > torch.iinfo(dtype).max:
        raise ValueError(f"{kind} describes {used} rows, more than {dtype} can count: use torch.int64")
    if total_m is not None and used > total_m:
        raise ValueError(f"{kind} describes {used} rows, more than total_m = {total_m}")


def _sizes_of_bounds(kind: str, bounds: Tensor) -> Tensor:
    if kind == "offsets" and bounds[0] != 0:
        raise ValueError(f"offsets[0] = {bounds[0]}: the first group starts at row 0")
    if kind == "ends":
        _reject(bounds[:1] < 0, lambda i: f"ends[0] = {bounds[0]}: a group cannot end before row 0")
    steps = torch.diff(bounds)
    _reject(
        steps < 0,
        lambda i: f"{kind}[{i + 1}] = {bounds[i + 1]} is less than {kind}[{i}] = {bounds[i]}: must not decrease",
    )
    return steps if kind == "offsets" else torch.cat([bounds[:1], steps])


def _sizes_of_row_groups(ids: Tensor, G: int) -> Tensor:
    _reject(
        (ids < -1) | (ids >= G),
        lambda i: f"row_groups[{i}] = {ids[i]}: wants a group from 0 to G - 1 = {G - 1}, or -1 for padding",
    )
    keys = torch.where(ids < 0, G, ids)  # padding sorts after every group
    _reject(
        torch.diff(keys) < 0,
        lambda i: (
            f"row_groups[{i + 1}] = {ids[i + 1]} follows row_groups[{i}] = {ids[i]}: rows must be sorted by "
            "group, with padding last (GroupLayout.sort_order gives the permutation)"
        ),
    )
    return torch.bincount(keys, minlength=G + 1)[:G]


def _reject(wrong: Tensor, message: Callable[[int], str]) -> None:
    """Raise the message for the first index at which `wrong` holds."""
    if wrong.any():
        raise ValueError(message(int(wrong.int().argmax())))
