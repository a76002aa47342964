"""Checks of arguments beyond a problem's form: scales, options, the values of ``offs``, and ``out``."""

from __future__ import annotations

import torch
from torch import Tensor

from course_kernels.config import GemmConfig
from course_kernels.layout import GroupLayout
from course_kernels.memory import overlaps_itself, share_memory
from course_kernels.packed.problem import TAILS, Operands, Problem, check_dense


def readable(problem: Problem, operands: Operands) -> Operands:
    """The operands as kernels read them: no lazily negated views, ends without gaps, scales (total,) or (G, extent).

    Raises:
        TypeError, ValueError: a scale is wrong.
    """
    mat_a, mat_b, offs, bias, scale_a, scale_b = operands
    if offs is not None and not offs.is_contiguous():
        offs = offs.contiguous()
    bias = None if bias is None else bias.resolve_neg()
    if scale_a is not None:
        scale_a, scale_b = _check_scales(problem, scale_a, scale_b, mat_a.device)
    return Operands(mat_a.resolve_neg(), mat_b.resolve_neg(), offs, bias, scale_a, scale_b)


def _check_scales(problem: Problem, scale_a, scale_b, device: torch.device) -> list[Tensor]:
    found = []
    sides = (
        ("scale_a", scale_a, problem.M, "m", "row of mat_a"),
        ("scale_b", scale_b, problem.N, "n", "column of mat_b"),
    )
    for name, scale, extent, ragged_mode, line in sides:
        if not isinstance(scale, Tensor):
            raise TypeError(f"{name} must be a torch.Tensor, got {type(scale).__name__}")
        if scale.dtype != torch.float32:
            raise TypeError(f"{name} must be torch.float32, got {scale.dtype}")
        if scale.device != device:
            raise ValueError(f"{name} must be on the device of mat_a, {device}, got {scale.device}")
        shape = (extent,) if problem.mode == ragged_mode else (problem.G, extent)
        flat = (problem.G * extent,)
        if problem.mode == "k" and tuple(scale.shape) == flat:
            scale = scale.reshape(shape)
        if tuple(scale.shape) != shape:
            either = f"{flat} or {shape}" if problem.mode == "k" else f"{shape}"
            of = line if shape == (extent,) else f"{line} and group"
            raise ValueError(f"{name} must have shape {either}, one factor for each {of}, got {tuple(scale.shape)}")
        found.append(scale.contiguous())
    return found


def check_options(tail, config, has_out: bool) -> None:
    """Raise unless ``tail`` and ``config`` are what ``grouped_mm`` takes."""
    if tail not in TAILS:
        raise ValueError(f"tail must be one of {TAILS}, got {tail!r}")
    if tail == "keep" and not has_out:
        raise ValueError("tail must be 'zero' where out is not given, got 'keep': there is nothing to keep")
    if config is not None and not isinstance(config, GemmConfig):
        raise TypeError(f"config must be a GemmConfig, got {type(config).__name__}")


def check_ends(problem: Problem, offs: Tensor | None) -> None:
    """Check the values of the group ends; waits for the device.

    Raises:
        ValueError: with the index and the value.
    """
    if offs is None:
        return
    try:
        GroupLayout.from_ends(offs).validate()
    except ValueError as error:
        raise ValueError(str(error).replace("ends[", "offs[")) from None
    last = int(offs[-1]) if problem.G else 0
    if last > problem.ragged:
        extent = f"total_{problem.mode} = {problem.ragged}"
        raise ValueError(f"offs[{problem.G - 1}] = {last} is past the end of the operands, {extent}")


def check_out(out, shape: tuple[int, ...], dtype: torch.dtype, operands: Operands) -> None:
    """Check a result tensor that the caller gave. Nothing is written.

    Raises:
        TypeError, ValueError: naming the argument, what it got and what it wants.
    """
    check_out_form(out, shape, dtype, operands.mat_a.device)
    if out.is_neg():  # its memory would hold the result with the other sign
        raise ValueError("out is a lazily negated view, which kernels cannot write: pass another tensor")
    if not out.is_contiguous() and overlaps_itself(out):
        raise ValueError(f"out has elements that share memory (strides {out.stride()}); pass a clone of it")
    for name, operand in operands._asdict().items():
        if operand is not None and share_memory(out, operand):
            raise ValueError(f"out shares memory with {name}; they must not overlap")


def check_out_form(out, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> None:
    """The part of ``check_out`` that fake tensors have: shape, dtype, device."""
    check_dense("out", out)
    if tuple(out.shape) != tuple(shape):
        raise ValueError(f"out must have shape {tuple(shape)}, got {tuple(out.shape)}")
    if out.dtype != dtype:
        raise TypeError(f"out must have dtype {dtype}, got {out.dtype}")
    if out.device != device:
        raise ValueError(f"out must be on the device of mat_a, {device}, got {out.device}")
    if out.requires_grad:
        raise ValueError("out requires a gradient, which a write into it would lose: pass out.detach()")
