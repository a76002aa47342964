"""Drop-ins for AITER's ``gmm``, ``ptgmm`` and ``nptgmm``: its names and arguments, computed by ``packed``."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TypeAlias

import torch
from torch import Tensor

from course_kernels.config import GemmConfig
from course_kernels.contexts import (
    REVERSE,
    autocast_dtype,
    cast,
    in_memory,
    is_compiling,
    refuse_tangents,
    wants_grad,
)
from course_kernels.engine.options import Options
from course_kernels.engine.product import Product
from course_kernels.engine.product_checks import Backend, check_out_form
from course_kernels.gmm import checks
from course_kernels.gmm.configs import launch_of
from course_kernels.gmm.ends import group_ends
from course_kernels.memory_overlap import check_written, share_memory
from course_kernels.packed.group_sums import sum_into
from course_kernels.packed.torch_ops import multiply, multiply_into

Config: TypeAlias = Mapping[str, object] | GemmConfig | str | os.PathLike[str] | None


def gmm(
    lhs: Tensor,
    rhs: Tensor,
    group_sizes: Tensor,
    bias: Tensor | None = None,
    preferred_element_type: torch.dtype = torch.bfloat16,
    existing_out: Tensor | None = None,
    work_stealing: bool = False,
    config: Config = None,
    grid_dim: int | None = None,
    *,
    rhs_layout: checks.RhsLayout = "auto",
    check: bool = False,
    backend: Backend = "auto",
) -> Tensor:
    """Multiply the rows of each group with the group's matrix: ``out[rows of g] = lhs[rows of g] @ rhs[g] + bias[g]``.

    >>> gmm(torch.ones(3, 4), torch.ones(2, 4, 1), torch.tensor([1, 2])).flatten()
    tensor([4., 4., 4.], dtype=torch.bfloat16)

    Args:
        lhs: (M, K), the rows of all groups, one group after the other; float16, bfloat16 or float32. Any strides.
        rhs: (G, K, N) or (G, N, K), of the dtype and on the device of lhs. Any strides: (G, K, N) may be row-major or
            column-major.
        group_sizes: (G,) int32 or int64 on the same device, the rows of each group; 0 is allowed. Never read on the
            host unless ``check`` is set.
        bias: (G, N) of the operands' dtype or float32, added in float32 to every row of its group.
        preferred_element_type: of the result: float16, bfloat16 or float32. Sums are float32 and rounded once.
        existing_out: (M, N) of that dtype, to write to and return; any strides, no memory in common with the operands;
            not with gradients.
        work_stealing: programs take the next tile from a counter in memory, instead of every n-th tile.
        config: a dict with AITER's keys (BLOCK_SIZE_M, BLOCK_SIZE_K, BLOCK_SIZE_N, GROUP_SIZE; GRID_DIM, num_warps,
            num_stages may be left out; see ``get_config``), or a GemmConfig; or AITER's own tuning file, such as
            ``gfx942-GMM.json``: its path, or its content. Its keys for AMD's compiler (waves_per_eu,
            matrix_instr_nonkdim, kpack) are passed on there; elsewhere a warning names them.
        grid_dim: number of programs, at most one for each tile. Fewer programs than SMs leave SMs free for other
            kernels. Replaces GRID_DIM in ``config``.
        rhs_layout: "gkn" or "gnk" says which shape rhs has. "auto" finds out; where K equals N it takes (G, K, N). That
            depends on the weights alone, and so is the same for every batch.
        check: validate the values of ``group_sizes``, which waits for the device.
        backend: as for ``grouped_mm``. ``work_stealing``, ``config`` and ``grid_dim`` are for the Triton kernels,
            which "auto" then chooses on a GPU.

    Returns:
        (M, N), row-major and contiguous, or ``existing_out``. Where the sizes sum to less than M, the rows after the
        last group are zero. Negative sizes, and such as sum to more, give an unspecified result without ``check``, and
        never an access outside of the tensors.

    Raises:
        TypeError, ValueError: naming the argument, what it got and what it wants, before anything is written. With
            ``check``, sizes that are negative or do not sum to M. A graph of ``torch.compile`` compares memory when it
            runs, each written tensor before it is written to, if the backend does not make copies of them ("aot_eager"
            does); its errors have the operators' names.
        RuntimeError: on dual tensors of forward-mode differentiation, on ``existing_out`` under ``torch.func``, or the
            process cannot run kernels.

    Notes:
        Names and order of the arguments: AITER's ``aiter.ops.triton.gmm.gmm``. What that one accepts, this one does,
        with the same result; so do float32 operands, any strides, float32 biases, K equal to N and no groups.
        AITER leaves rows after the last group as they are, and warns where ``grid_dim`` overrides a configuration.
        Differentiable in lhs, rhs and bias, under autocast and under ``torch.compile`` as ``grouped_mm``. The group
        ends are a cumulative sum on the device. Deterministic bit for bit, with work stealing, too.
    """
    lhs, rhs, bias = _autocast(existing_out, lhs, rhs, bias)
    checks.check_operands(lhs, rhs, group_sizes, 3)
    matrices = checks.as_gkn(lhs, rhs, rhs_layout)
    checks.check_number_of_groups(group_sizes, rhs.shape[0])
    checks.check_options(preferred_element_type, backend, work_stealing=work_stealing, check=check)
    M, N = lhs.shape[0], matrices.shape[2]
    if bias is not None:
        checks.check_bias(bias, (rhs.shape[0], N), lhs)
    if existing_out is not None:
        _check_existing_out(existing_out, (M, N), preferred_element_type, group_sizes, lhs, rhs, bias)
    launch = launch_of("gmm", config, grid_dim, work_stealing)
    refuse_tangents("gmm", lhs, rhs, bias, instead=REVERSE)
    ends = group_ends(group_sizes, M, "the rows of lhs", check)
    options = Options(preferred_element_type, backend=backend, config=launch)
    return _multiply(existing_out, Product.packed(lhs, matrices, ends, bias), options)


def ptgmm(
    lhs: Tensor,
    rhs: Tensor,
    group_sizes: Tensor,
    bias_grad: Tensor | None = None,
    preferred_element_type: torch.dtype = torch.bfloat16,
    existing_out: Tensor | None = None,
    accumulate: bool = False,
    config: Config = None,
    grid_dim: int | None = None,
    *,
    lhs_layout: checks.LhsLayout = "auto",
    check: bool = False,
    backend: Backend = "auto",
) -> Tensor:
    """Multiply the columns of each group with the rows of the group: ``out[g] = lhs[:, g] @ rhs[g, :]``, the gradient
    of a layer's weights.

    >>> lhs, rhs = torch.ones(2, 3), torch.ones(3, 1)  # (K, M), (M, N)
    >>> ptgmm(lhs, rhs, torch.tensor([1, 2])).flatten(1)
    tensor([[1., 1.],
            [2., 2.]], dtype=torch.bfloat16)

    Args:
        lhs: (K, M), row-major or column-major, or (M, K): its M are the rows of all groups, one group after the other;
            float16, bfloat16 or float32. Any strides.
        rhs: (M, N), of the dtype and on the device of lhs. Any strides.
        group_sizes: (G,) int32 or int64 on the same device, what each group has of M; 0 is allowed. Never read on the
            host unless ``check`` is set.
        bias_grad: (G, K) float32, to write to: the sum of each group's part of lhs over M, which is the gradient of
            the bias where lhs is the gradient of a layer's result. With ``accumulate`` the sums are added to it.
        preferred_element_type: of the result: float16, bfloat16 or float32. Sums are float32 and rounded once.
        existing_out: (G, K, N) of that dtype, to write to and return; any strides, no memory in common with the
            operands; not with gradients.
        accumulate: add to what ``existing_out`` (and ``bias_grad``) holds: in float32, rounded once.
        config: as for ``gmm``; BLOCK_SIZE_K and BLOCK_SIZE_N are the tile of the result, BLOCK_SIZE_M its depth.
        grid_dim: number of programs, at most one for each tile. Replaces GRID_DIM in ``config``.
        lhs_layout: "km" or "mk" says which shape lhs has. "auto" finds out, and raises where K equals M: name it where
            batches may have as many rows as the layer has features.
        check: validate the values of ``group_sizes``, which waits for the device.
        backend: as for ``grouped_mm``. ``config`` and ``grid_dim`` are for the Triton kernels, which "auto" then
            chooses on a GPU.

    Returns:
        (G, K, N), row-major and contiguous, or ``existing_out``. An empty group's matrix is zero; with ``accumulate``
        it stays as it is. What lies in M after the last group is not read. Negative sizes, and such as sum to more than
        M, give an unspecified result without ``check``, and never an access outside of the tensors.

    Raises:
        TypeError, ValueError: naming the argument, what it got and what it wants, before anything is written. With
            ``check``, sizes that are negative or do not sum to M. A graph of ``torch.compile`` compares memory when it
            runs, each written tensor before it is written to, if the backend does not make copies of them ("aot_eager"
            does); its errors have the operators' names.
        RuntimeError: on dual tensors of forward-mode differentiation, on ``existing_out`` or ``bias_grad`` under
            ``torch.func``, or the process cannot run kernels.

    Notes:
        Names and order of the arguments: AITER's ``aiter.ops.triton.gmm.ptgmm``. Where the two differ:

        ==========================  ==================================  ============================================
        what                        AITER                               here
        ==========================  ==================================  ============================================
        ``accumulate``              the product is rounded, then added  added in float32, rounded once
        ``bias_grad``               zeroed, ``accumulate`` or not       zeroed, or added to with ``accumulate``
        sums of ``bias_grad``       atomic, in any order                in one order: the same bits every time
        empty groups, ``nptgmm``    uninitialised                       zero
        K equal to M                refused                             refused, unless ``lhs_layout`` is named
        float32, other strides      refused                             accepted
        ==========================  ==================================  ============================================

        Differentiable in lhs and rhs without ``existing_out``, under autocast and ``torch.compile`` as ``grouped_mm``;
        ``bias_grad`` is written outside of autograd. Deterministic bit for bit.
    """
    asked = (config, grid_dim)
    written = (bias_grad, existing_out, accumulate)
    return _tgmm("ptgmm", lhs, rhs, group_sizes, preferred_element_type, written, asked, lhs_layout, check, backend)


def nptgmm(
    lhs: Tensor,
    rhs: Tensor,
    group_sizes: Tensor,
    bias_grad: Tensor | None = None,
    preferred_element_type: torch.dtype = torch.bfloat16,
    existing_out: Tensor | None = None,
    accumulate: bool = False,
    config: Config = None,
    *,
    lhs_layout: checks.LhsLayout = "auto",
    check: bool = False,
    backend: Backend = "auto",
) -> Tensor:
    """As ``ptgmm``, with a program for each tile of the result instead of programs that stay.

    >>> nptgmm(torch.ones(2, 3), torch.ones(3, 1), torch.tensor([1, 2])).flatten(1)
    tensor([[1., 1.],
            [2., 2.]], dtype=torch.bfloat16)

    Args, Returns, Raises: as for ``ptgmm``, without GRID_DIM in ``config``. On a GPU "auto" is the Triton kernel.

    Notes:
        The values are those of ``ptgmm`` with the same configuration, bit for bit. The GPU hands out tiles as programs
        finish, which evens out groups of unequal size; a program that stays has its next tile's blocks on their way
        earlier.
    """
    asked = (config, None)
    written = (bias_grad, existing_out, accumulate)
    return _tgmm("nptgmm", lhs, rhs, group_sizes, preferred_element_type, written, asked, lhs_layout, check, backend)


def _tgmm(name, lhs, rhs, group_sizes, preferred_element_type, written, asked, lhs_layout, check, backend) -> Tensor:
    """The two transposed functions."""
    bias_grad, existing_out, accumulate = written
    lhs, rhs, _ = _autocast(existing_out, lhs, rhs, None)
    checks.check_operands(lhs, rhs, group_sizes, 2)
    columns = checks.as_km(lhs, rhs, lhs_layout)
    checks.check_options(preferred_element_type, backend, accumulate=accumulate, check=check)
    (K, M), N, G = columns.shape, rhs.shape[1], group_sizes.shape[0]
    if accumulate and existing_out is None:
        raise ValueError("existing_out must be given with accumulate=True, got None: there is nothing to add to")
    if existing_out is not None:
        _check_existing_out(existing_out, (G, K, N), preferred_element_type, group_sizes, lhs, rhs)
    if bias_grad is not None:  # the product is written first, so all is checked here
        check_out_form("bias_grad", bias_grad, (G, K), torch.float32, "lhs", lhs.device)
        if in_memory(lhs, rhs, group_sizes, bias_grad, existing_out):
            others = dict(lhs=lhs, rhs=rhs, group_sizes=group_sizes, existing_out=existing_out)
            check_written("bias_grad", bias_grad, others)
    launch = launch_of(name, *asked)
    refuse_tangents(name, lhs, rhs, instead=REVERSE)
    ends = group_ends(group_sizes, M, "the M of lhs and rhs", check)
    options = Options(preferred_element_type, backend=backend, config=launch)
    product = _multiply(existing_out, Product.packed(columns, rhs, ends, accumulate=accumulate), options)
    if bias_grad is not None:
        sums = bias_grad, columns.detach().mT, ends, accumulate, backend, existing_out
        _in_our_names("bias_grad", sum_into, *sums)
    return product


def _autocast(existing_out, lhs, rhs, bias) -> tuple:
    """The operands in autocast's dtype, as those of ``grouped_mm``."""
    if existing_out is None and isinstance(lhs, Tensor) and (dtype := autocast_dtype(lhs.device.type)):
        lhs, rhs = (cast(each, dtype) if isinstance(each, Tensor) else each for each in (lhs, rhs))
        if isinstance(bias, Tensor) and bias.dtype != torch.float32:  # which is added in float32 in any case
            bias = cast(bias, dtype)
    return lhs, rhs, bias


def _check_existing_out(existing_out, shape, dtype, group_sizes, lhs, *others) -> None:
    """Raise unless the result can be written to a given tensor. ``packed`` compares its memory with the operands',
    which the sizes are none of."""
    check_out_form("existing_out", existing_out, shape, dtype, "lhs", lhs.device)
    if wants_grad(lhs, *others):
        raise ValueError(
            "existing_out must be None where an operand requires a gradient: detach the operands, or leave it out"
        )
    if in_memory(existing_out, group_sizes) and share_memory(existing_out, group_sizes):
        raise ValueError("existing_out shares memory with group_sizes; they must not overlap")


def _multiply(out: Tensor | None, product: Product, options: Options) -> Tensor:
    """Compute a product."""
    if out is None:
        return _in_our_names("existing_out", multiply, product, options)
    return _in_our_names("existing_out", multiply_into, out, product, options)


def _in_our_names(written: str, function: Callable[..., Tensor], *arguments) -> Tensor:
    """A call of ``packed``, with errors in the names of this room's arguments; ``written`` is what is written to."""
    if is_compiling():
        return function(*arguments)
    try:
        return function(*arguments)
    except (TypeError, ValueError, RuntimeError) as error:
        message = checks.in_our_names(str(error), written)
        if type(error) not in (TypeError, ValueError, RuntimeError) or message == str(error):
            raise
        raise type(error)(message) from None
