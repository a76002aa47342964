"""Checks of the arguments of ``grouped_mm`` and ``scaled_grouped_mm``; errors name argument, value, valid values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias, get_args

import torch
from torch import Tensor

from course_kernels import runtime
from course_kernels.config import GemmConfig
from course_kernels.contexts import unwrapped
from course_kernels.dtypes import MODE_OF_RANKS, OUT_DTYPES, SCALED_DTYPES, default_out_dtype
from course_kernels.engine.options import Options
from course_kernels.engine.product import EACH, Ends, Problem, Product, in_words_of
from course_kernels.engine.product_checks import (
    check_backend,
    check_device,
    check_num_sms,
    check_offs,
    check_out_form,
    differ,
)
from course_kernels.engine.scaling import (
    ROW,
    UNSCALED,
    check_block_scales,
    check_row_scales,
    check_scaling,
    check_whole_blocks,
)
from course_kernels.layout import GroupLayout
from course_kernels.memory_overlap import check_has_memory, check_written
from course_kernels.type_checks import check_dense, check_extents, check_flags, transposed_hint

Tail: TypeAlias = Literal["zero", "keep"]
TAILS: tuple[Tail, ...] = get_args(Tail)
NAMES = {"a": "mat_a", "b": "mat_b", "offs": "offs", "bias": "bias", "scale_a": "scale_a", "scale_b": "scale_b"}
# Which dimension of which operand the groups share out, and what its extent is called.
_RAGGED = {"m": ("mat_a", 0, "rows"), "n": ("mat_b", 1, "columns"), "k": ("mat_a", 1, "columns")}


def problem_of(product: Product, options: Options) -> Problem:
    """Check the form of a product and return its problem. Reads no values, so tensors may be fake, meta or symbolic.

    Raises:
        TypeError, ValueError: naming the argument, what it got and what it wants.
    """
    mat_a, mat_b, offs, bias = product.a, product.b, product.offs, product.epilogue.bias
    scaled, out_dtype = product.scaling is not UNSCALED, options.out_dtype
    check_backend(options.backend)
    for name, matrix in (("mat_a", mat_a), ("mat_b", mat_b)):
        check_dense(name, matrix)
        if matrix.dim() not in (2, 3):
            raise ValueError(f"{name} must be 2-D or 3-D, got shape {tuple(matrix.shape)}")
    check_dtypes(mat_a, mat_b, out_dtype, scaled)
    if mat_b.device != mat_a.device:
        raise ValueError(f"mat_b must be on the device of mat_a, {mat_a.device}, got {mat_b.device}")
    mode = MODE_OF_RANKS[mat_a.dim(), mat_b.dim()]
    if scaled:
        check_scaling(product.scaling.name, mode)
    groups = check_groups(mode, mat_a, mat_b, offs)
    rows, depth, columns = mat_a.shape[-2], mat_a.shape[-1], mat_b.shape[-1]
    if differ(depth, mat_b.shape[-2], "mat_a must have as many columns as mat_b has rows"):
        raise ValueError(
            f"mat_a has K = {depth} columns and mat_b has {mat_b.shape[-2]} rows; they must be equal (shapes "
            f"{tuple(mat_a.shape)} and {tuple(mat_b.shape)})" + transposed_hint("mat_b", mat_b, depth)
        )
    out_shape = (rows, columns) if mode in ("m", "n") else (groups, rows, columns)
    for name, extents in (("mat_a", mat_a.shape), ("mat_b", mat_b.shape), ("the result", out_shape)):
        check_extents(name, extents)
    if out_dtype is None:
        out_dtype = default_out_dtype(mat_a.dtype)
    if bias is not None:
        bias_dtypes = {out_dtype if scaled else mat_a.dtype, torch.float32}
        check_bias(mode, bias, (groups, columns), bias_dtypes, mat_a.device)
    accumulate = product.epilogue.accumulates
    if accumulate and mode != "k":
        raise ValueError(
            'accumulate must be False but in mode "k" (mat_a and mat_b both 2-D, the result 3-D), got True in mode '
            f"{mode!r}: add the result with torch there"
        )
    check_device("mat_a", mat_a, options.backend)
    precision = "tf32" if mat_a.dtype == torch.float32 and runtime.allows_tf32() else "ieee"
    return Problem(
        mode, groups, rows, columns, depth, out_shape, out_dtype, precision, options, product.scaling.name,
        product.epilogue.keep_tail, accumulate,
    )  # fmt: skip


def readable(problem: Problem, product: Product) -> Product:
    """Convert the operands to what kernels read: no lazily negated views, ends and row scales without gaps.

    Raises:
        TypeError, ValueError: a scale is wrong.
    """
    a, b, rows, scaling, epilogue, _ = product
    if rows is not EACH and not rows.offs.is_contiguous():
        rows = Ends(rows.offs.contiguous())
    if epilogue.bias is not None:
        epilogue = epilogue._replace(bias=epilogue.bias.resolve_neg())
    M, N, K, G = problem.M, problem.N, problem.K, problem.G
    if problem.block_lines is not None:
        checked = check_block_scales(problem.mode, (M, N, K, G), scaling.name, scaling.a, scaling.b, a.device)
        scaling = scaling._replace(a=checked[0], b=checked[1])
    elif scaling is not UNSCALED:
        scaling = type(scaling)(*check_row_scales(problem.mode, (M, N, G), scaling.a, scaling.b, a.device))
    return Product(a.resolve_neg(), b.resolve_neg(), rows, scaling, epilogue)


def check_call(product: Product, options: Options, out: Tensor | None) -> tuple[Problem, Product]:
    """Make all checks of a call in memory; nothing is written.

    Returns:
        The problem, and the product as kernels read it.

    Raises:
        TypeError, ValueError: naming the argument, what it got and what it wants.
    """
    product = without_wrappers(product)  # the function of ``torch.func.vjp`` runs after its transform has ended
    problem = problem_of(product, options)
    named = in_words_of(NAMES, product)
    check_has_memory(named)
    if out is None and problem.accumulate:
        raise ValueError("accumulate must be False where out is not given, got True: there is nothing to add to")
    product = readable(problem, product)
    if out is not None:
        check_out_form("out", out, problem.out_shape, problem.out_dtype, "mat_a", product.a.device)
        check_written("out", out, named)
        check_has_memory({"out": out})
    if options.check:
        check_ends(product.offs, problem.mode, problem.ragged)
        if problem.mode == "k" and problem.block_lines is not None:
            check_whole_blocks(product.offs, product.scaling.a, problem.K)
    return problem, product


def without_wrappers(product: Product) -> Product:
    """Remove from a product's tensors the wrappers of ``torch.func`` transforms that have ended."""
    tensors = {name: unwrapped(tensor) for name, tensor in in_words_of(NAMES, product).items()}
    epilogue = dict(keep_tail=product.epilogue.keep_tail, accumulate=product.epilogue.accumulates)
    return Product.packed(**tensors, **epilogue, scaling=product.scaling.name or ROW)


# ---- form: ranks, shapes, dtypes, devices; reads no values


def _shape(tensor: Tensor) -> tuple[int, ...]:
    return tuple(tensor.shape)


def check_dtypes(mat_a: Tensor, mat_b: Tensor, out_dtype, scaled: bool) -> None:
    """Raise unless both operands and the result have dtypes that the function multiplies."""
    allowed = SCALED_DTYPES if scaled else OUT_DTYPES
    for name, matrix in (("mat_a", mat_a), ("mat_b", mat_b))[: 2 if scaled else 1]:
        if matrix.dtype not in allowed:
            hint = "; scaled_grouped_mm multiplies float8" if not scaled and matrix.dtype in SCALED_DTYPES else ""
            raise TypeError(f"{name} must have a dtype of {allowed}, got {matrix.dtype}{hint}")
    if not scaled and mat_b.dtype != mat_a.dtype:
        hint = "; scaled_grouped_mm multiplies two operands of float8" if mat_b.dtype in SCALED_DTYPES else ""
        raise TypeError(f"mat_b must have the dtype of mat_a, {mat_a.dtype}, got {mat_b.dtype}{hint}")
    if out_dtype is not None and out_dtype not in OUT_DTYPES:
        raise TypeError(f"{'output_dtype' if scaled else 'out_dtype'} must be one of {OUT_DTYPES}, got {out_dtype!r}")


def check_groups(mode: str, mat_a: Tensor, mat_b: Tensor, offs) -> int:
    """The number of groups, on which ``offs`` and the 3-D operands must agree."""
    shapes = f"(shapes {_shape(mat_a)} and {_shape(mat_b)})"
    if mode == "batch":
        if offs is not None:
            got = f"shape {_shape(offs)}" if isinstance(offs, Tensor) else type(offs).__name__
            raise ValueError(f"offs must be None where mat_a and mat_b are both 3-D, got {got} {shapes}")
        if differ(mat_a.shape[0], mat_b.shape[0], "mat_a and mat_b must hold as many matrices"):
            raise ValueError(
                f"mat_a holds {mat_a.shape[0]} matrices and mat_b holds {mat_b.shape[0]}; they must be equal {shapes}"
            )
        return mat_a.shape[0]
    name, _, what = _RAGGED[mode]
    if offs is None:
        raise ValueError(f"offs must give the ends of the groups in the {what} of {name}, got None {shapes}")
    check_offs(offs, "mat_a", mat_a.device)
    if mode == "k":
        return offs.shape[0]
    holder, groups = ("mat_b", mat_b.shape[0]) if mode == "m" else ("mat_a", mat_a.shape[0])
    if differ(offs.shape[0], groups, f"offs must have one end for each group of {holder}"):
        hint = ": it wants the exclusive ends alone, without a leading 0" if offs.shape[0] == groups + 1 else ""
        raise ValueError(
            f"offs must have one end for each of the {groups} groups of {holder}, got {offs.shape[0]}{hint}"
        )
    return groups


def check_bias(mode: str, bias, shape: tuple[int, int], dtypes: set[torch.dtype], device: torch.device) -> None:
    """Raise unless a bias (G, N) fits the product."""
    check_dense("bias", bias)
    if mode == "n":
        raise ValueError(
            f"bias must be None where mat_b is 2-D and mat_a 3-D, got shape {_shape(bias)}: each group has columns of "
            "its own there, and no bias (G, N) describes them"
        )
    if bias.dim() != 2 or any(differ(*each, "bias must have shape (G, N)") for each in zip(bias.shape, shape)):
        raise ValueError(f"bias must have shape (G, N) = {shape}, got {_shape(bias)}")
    if bias.dtype not in dtypes:
        wanted = " or ".join(sorted(map(str, dtypes)))
        raise TypeError(f"bias must have dtype {wanted}, got {bias.dtype}")
    if bias.device != device:
        raise ValueError(f"bias must be on the device of mat_a, {device}, got {bias.device}")


def check_options(tail, config, has_out: bool, num_sms: int | None, *, accumulate: bool = False, **flags) -> None:
    """Raise unless ``tail``, ``config``, ``num_sms``, ``accumulate`` and other flags are what ``grouped_mm`` takes."""
    check_flags(accumulate=accumulate, **flags)
    if tail not in TAILS:
        raise ValueError(f"tail must be one of {TAILS}, got {tail!r}")
    if tail == "keep" and not has_out:
        raise ValueError("tail must be 'zero' where out is not given, got 'keep': there is nothing to keep")
    if config is not None and not isinstance(config, GemmConfig):
        raise TypeError(f"config must be a GemmConfig, got {type(config).__name__}")
    if accumulate and not has_out:
        raise ValueError("accumulate must be False where out is not given, got True: there is nothing to add to")
    check_num_sms(num_sms)


def check_main_grad(main_grad, mat_a, mat_b, others: Mapping[str, Tensor | None] | None = None) -> None:
    """Raise unless the gradient of mat_b can be added to ``main_grad``.

    Args:
        main_grad: as given.
        mat_a, mat_b: of the product.
        others: the product's tensors by name, whose memory is compared; None where they have none.
    """
    given = {name: tensor for name, tensor in (others or {}).items() if tensor is not None}
    for name, tensor in (given | dict(mat_a=mat_a, mat_b=mat_b, main_grad=main_grad)).items():
        check_dense(name, tensor)
    mode = MODE_OF_RANKS.get((mat_a.dim(), mat_b.dim()))
    if mode != "m":
        raise ValueError(
            f'main_grad must be None but in mode "m" (mat_a 2-D, mat_b 3-D), got it for mat_a of shape '
            f"{_shape(mat_a)} and mat_b of shape {_shape(mat_b)}"
        )
    if main_grad.dtype != torch.float32:
        raise TypeError(f"main_grad must be torch.float32, got {main_grad.dtype}")
    if main_grad.shape != mat_b.shape:
        raise ValueError(f"main_grad must have the shape of mat_b, {_shape(mat_b)}, got {_shape(main_grad)}")
    if main_grad.device != mat_b.device:
        raise ValueError(f"main_grad must be on the device of mat_b, {mat_b.device}, got {main_grad.device}")
    if main_grad.requires_grad:
        raise ValueError("main_grad requires a gradient, which a write into it would lose: pass main_grad.detach()")
    check_written("main_grad", main_grad, others)


# ---- values


def check_ends(offs: Tensor | None, mode: str, total: int | None) -> None:
    """Check the values of the group ends against the ragged extent's total; waits for the device.

    Raises:
        ValueError: with the index and the value.
    """
    if offs is None:
        return
    try:
        GroupLayout.from_ends(offs).validate()
    except ValueError as error:
        raise ValueError(str(error).replace("ends[", "offs[")) from None
    groups = offs.shape[0]
    last = int(offs[-1]) if groups else 0
    if last > total:
        raise ValueError(f"offs[{groups - 1}] = {last} is past the end of the operands, total_{mode} = {total}")


def ends_of(sizes: Tensor, offs, **operands) -> Tensor:
    """The ends of groups that were given by their sizes.

    Args:
        sizes, offs: as given; sizes are not None.
        operands: by name. Sizes are on the device of the first. A 3-D operand has a matrix for each group. Operands of
            wrong types and ranks are left to later checks.

    Raises:
        TypeError, ValueError: naming ``sizes``, or ``offs`` where both are given.
    """
    if offs is not None:
        raise ValueError("offs must be None where sizes is given: both say where groups end")
    check_dense("sizes", sizes)
    if sizes.dtype not in (torch.int32, torch.int64):
        raise TypeError(f"sizes must be torch.int32 or torch.int64, got {sizes.dtype}")
    if sizes.dim() != 1:
        raise ValueError(f"sizes must be 1-D, one for each group, got shape {_shape(sizes)}")
    given = {name: operand for name, operand in operands.items() if isinstance(operand, Tensor)}
    first = next(iter(given), None)
    if first and sizes.device != given[first].device:
        raise ValueError(f"sizes must be on the device of {first}, {given[first].device}, got {sizes.device}")
    holders = [name for name, operand in given.items() if operand.dim() == 3]
    if len(holders) == 2:
        raise ValueError(f"sizes must be None where mat_a and mat_b are both 3-D, got shape {_shape(sizes)}")
    for name in holders:
        groups = given[name].shape[0]
        if differ(sizes.shape[0], groups, f"sizes must have one entry for each group of {name}"):
            raise ValueError(
                f"sizes must have one entry for each of the {groups} groups of {name}, got {sizes.shape[0]}"
            )
    return GroupLayout.from_sizes(sizes).ends
