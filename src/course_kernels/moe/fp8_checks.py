"""Checks of a layer's arguments in float8. They read no values, so tensors may be fake, meta or symbolic."""

from __future__ import annotations

import torch
from torch import Tensor

from course_kernels.dtypes import FP8
from course_kernels.engine.product_checks import differ
from course_kernels.engine.scaling import BLOCK
from course_kernels.fp8.training import RECIPES
from course_kernels.moe.checks import check_operands
from course_kernels.moe.form import Form, Operands
from course_kernels.moe.fp8_layer import Float8
from course_kernels.type_checks import check_dense

_PAIR = "gate_up_scale and down_scale must both be given, with weights of torch.float8_e4m3fn, or neither"


def check_recipe(recipe) -> None:
    """Raise unless this is a recipe's name, or None."""
    if recipe is not None and recipe not in RECIPES:
        raise ValueError(f"fp8_recipe must be one of {RECIPES} or None, got {recipe!r}")


def check_float8(operands: Operands, gate_up_scale, down_scale, recipe) -> Float8 | None:
    """Raise unless the layer's float8 arguments fit each other; the shapes of the other operands come after.

    Returns:
        How to compute the layer in float8; None where that is not asked for.

    Raises:
        TypeError, ValueError: naming the argument, what it got and what it wants.
    """
    scales = {"gate_up_scale": gate_up_scale, "down_scale": down_scale}
    weights = {"gate_up_scale": operands.gate_up, "down_scale": operands.down}
    if gate_up_scale is None and down_scale is None:
        for name, weight in (("gate_up", operands.gate_up), ("down", operands.down)):
            if isinstance(weight, Tensor) and weight.dtype == FP8:
                raise TypeError(f"{name} is {FP8} without factors: pass gate_up_scale and down_scale")
        if recipe is None:
            return None
        check_recipe(recipe)
        return Float8(recipe)
    if recipe is not None:
        raise ValueError(
            f"fp8_recipe must be None where gate_up_scale and down_scale are given, got {recipe!r}: their shapes say it"
        )
    for name, scale in scales.items():
        if scale is None:
            raise ValueError(f"{_PAIR}, got None for {name}")
        check_dense(name, scale)
        if scale.dtype != torch.float32:
            raise TypeError(f"{name} must be torch.float32, got {scale.dtype}")
    for name, weight in weights.items():
        check_dense(name.removesuffix("_scale"), weight)
        if weight.dtype != FP8:
            raise TypeError(f"{name.removesuffix('_scale')} must be {FP8} where {name} is given, got {weight.dtype}")
        if weight.dim() != 3:
            continue  # check_operands raises
        experts, lines, depth = weight.shape
        blocks = experts, -(-lines // BLOCK), -(-depth // BLOCK)
        shape = scales[name].shape
        if len(shape) not in (2, 3) or any(
            differ(*each, f"{name} must have factors of rows or of blocks")
            for each in zip(shape, (experts, lines) if len(shape) == 2 else blocks)
        ):
            raise ValueError(
                f"{name} must have shape {(experts, lines)}, one factor for each row, or {blocks}, one for each "
                f"{BLOCK} × {BLOCK}, for weights {tuple(weight.shape)}, got {tuple(shape)}"
            )
        if scales[name].device != operands.x.device:
            raise ValueError(f"{name} must be on the device of x, {operands.x.device}, got {scales[name].device}")
    if gate_up_scale.dim() != down_scale.dim():
        raise ValueError(
            f"down_scale must be of {'rows' if gate_up_scale.dim() == 2 else 'blocks'}, as gate_up_scale is, got shape "
            f"{tuple(down_scale.shape)} beside {tuple(gate_up_scale.shape)}"
        )
    for name, tensor in (scales | {"gate_up": operands.gate_up, "down": operands.down}).items():
        if tensor.requires_grad:
            raise TypeError(f"{name} requires a gradient, and float8 weights have none: detach it")
    return Float8("rowwise" if gate_up_scale.dim() == 2 else "blockwise", gate_up_scale, down_scale)


def check_operands_of(operands: Operands, float8: Float8, form: Form) -> None:
    """``checks.check_operands`` of a layer in float8, whose weights may be float8."""
    check_operands(operands, form, None if float8.gate_up_scale is None else FP8)
