"""Sums over the rows of each group of a packed matrix: the gradient of a bias, and of whatever a group's rows share."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import torch
from torch import Tensor

from course_kernels import operators, runtime
from course_kernels.contexts import (
    functorch_level,
    is_batched_by_autograd,
    is_batched_or_functional,
    is_compiling,
    is_plain,
    is_profiling,
    refuse_beside_dtensors,
    refuse_tangents,
    unwrapped,
    wants_grad,
)
from course_kernels.dtypes import OUT_DTYPES
from course_kernels.engine.product_checks import Backend, check_backend, check_offs, check_out_form
from course_kernels.kernels.codes import compared_groups
from course_kernels.layout import GroupLayout
from course_kernels.memory_overlap import check_has_memory, check_written
from course_kernels.packed import sharding
from course_kernels.packed.checks import ends_of
from course_kernels.type_checks import check_dense, check_extents, check_flags

CHUNK = 256  # rows that one program sums; fixed, so that sums do not depend on the GPU
_ELEMENTS = 4096  # of the block that a program of four warps holds


def group_sums(
    matrix: Tensor,
    offs: Tensor | None = None,
    *,
    out: Tensor | None = None,
    accumulate: bool = False,
    backend: Backend = "auto",
    sizes: Tensor | None = None,
) -> Tensor:
    """Sum the rows of each group in float32.

    >>> group_sums(torch.ones(5, 2), sizes=torch.tensor([2, 0, 3]))
    tensor([[2., 2.],
            [0., 0.],
            [3., 3.]])

    Args:
        matrix: (total, N) float16, bfloat16 or float32; any strides, any base address.
        offs: int32 or int64 (G,), the exclusive end of each group; not decreasing, the last at most total. Rows after
            it are not read. On the device of matrix, and never read on the host where kernels run.
        out: float32 (G, N) to write to; any strides, no memory in common with the others; not with gradients.
        accumulate: add to what ``out`` holds. The row of a group without rows keeps its bits.
        backend: "triton" runs the kernels (in Triton's interpreter on CPU tensors), as does "cute", which has none of
            its own; "torch" sums group after group, and reads ``offs`` on the host. "auto" is "torch" on CPU tensors,
            and "triton" elsewhere.
        sizes: (G,) int32 or int64, the rows of each group, in place of ``offs``, which are their running sums.

    Returns:
        float32 (G, N), contiguous; ``out`` itself if it was given. Zeros where a group has no rows.

    Raises:
        TypeError: an argument is no tensor, or of an unsupported dtype.
        ValueError: shapes or devices do not fit, there is nothing to accumulate to, or ``out`` overlaps another tensor.
        RuntimeError: ``out`` is given under ``torch.func``, or with a dual tensor of forward-mode differentiation; or
            the process cannot run kernels.

    Notes:
        Differentiable in matrix, in both modes, to any order, under ``torch.func``, too; the tail's gradient is zero.
        One operator, ``torch.ops.course_kernels.group_sums``, under ``torch.compile``, with a sharding strategy for
        DTensors. Deterministic bit for bit, on any GPU. Wrong ends give an unspecified result, and never an access
        outside of the tensors.
    """
    if sizes is not None:
        offs = ends_of(sizes, offs, matrix=matrix)
    _check(matrix, offs, backend)
    check_flags(accumulate=accumulate)
    if out is None:
        if accumulate:
            raise ValueError("accumulate must be False where out is not given, got True: there is nothing to add to")
        if is_plain(matrix, offs) and not is_profiling() and not is_batched_by_autograd(matrix):
            return _Sums.apply(matrix, offs, backend) if wants_grad(matrix) else _sums(matrix, offs, backend)
        if not is_compiling():
            sharding.register()
        return torch.ops.course_kernels.group_sums(matrix, offs, backend)
    return sum_into(out, matrix, offs, accumulate, backend)


def sum_into(
    out: Tensor, matrix: Tensor, offs: Tensor, accumulate: bool, backend: Backend, product: Tensor | None = None
) -> Tensor:
    """``group_sums`` into a given tensor, which has no memory in common with ``product``, if that is given."""
    refuse_tangents("group_sums with out", matrix, instead="call it without out")
    if not is_compiling() and functorch_level() is not None and (wants_grad(matrix) or is_batched_or_functional()):
        raise RuntimeError("out must be None under torch.func, which does not notice writes to it")
    if wants_grad(matrix):
        raise ValueError("out cannot be given when matrix requires a gradient: detach matrix, or omit out")
    if is_plain(matrix, offs, out, product) and not is_profiling():
        _sums_into(matrix, offs, out, accumulate, backend, product)
    else:
        if not is_compiling():
            refuse_beside_dtensors("out", out, matrix, offs)
        check_out_form("out", out, (offs.shape[0], matrix.shape[1]), torch.float32, "matrix", matrix.device)
        torch.ops.course_kernels.group_sums_out(matrix, offs, out, accumulate, backend, product)
    return out


def _check(matrix, offs, backend) -> None:
    """The form of the arguments; reads no values."""
    check_dense("matrix", matrix)
    if matrix.dtype not in OUT_DTYPES:
        raise TypeError(f"matrix must have a dtype of {OUT_DTYPES}, got {matrix.dtype}")
    if matrix.dim() != 2:
        raise ValueError(f"matrix must be 2-D, got shape {tuple(matrix.shape)}")
    check_extents("matrix", matrix.shape)
    check_offs(offs, "matrix", matrix.device)
    check_backend(backend)
    if backend != "torch" and matrix.device.type not in ("cpu", "cuda", "meta"):
        raise ValueError(
            f"matrix must be on a CPU or a GPU of type cuda, got {matrix.device}; backend='torch' takes tensors of any "
            "device"
        )


# ---- the sums


def _sums(matrix: Tensor, offs: Tensor, backend: str) -> Tensor:
    out = torch.empty(offs.shape[0], matrix.shape[1], dtype=torch.float32, device=matrix.device)
    _execute(matrix, offs, out, False, backend)
    return out


def _sums_into(
    matrix: Tensor, offs: Tensor, out: Tensor, accumulate: bool, backend: str, product: Tensor | None = None
) -> None:
    check_out_form("out", out, (offs.shape[0], matrix.shape[1]), torch.float32, "matrix", matrix.device)
    check_written("out", out, {"matrix": matrix, "offs": offs, "product": product})
    _execute(matrix, offs, out, accumulate, backend)
    torch.autograd.graph.increment_version(out)  # a kernel's writes are not seen by autograd


@torch.no_grad()
def _execute(matrix: Tensor, offs: Tensor, out: Tensor, accumulate: bool, backend: str) -> None:
    if not out.numel():
        return
    # Unwrapped, because the function that vjp returns runs after its transform has ended.
    matrix, offs = unwrapped(matrix).resolve_neg(), unwrapped(offs).contiguous()
    device = matrix.device
    if backend == "torch" or (backend == "auto" and device.type == "cpu"):
        _loop(matrix, offs, out, accumulate)
        return
    runtime.check_can_launch(device)
    check_has_memory({"matrix": matrix, "offs": offs, "out": out})
    from course_kernels.kernels import group_sums as kernels  # imports Triton, which takes a second

    with torch.cuda.device(device) if device.type == "cuda" else runtime.interpreting():
        for launch in prepare(matrix, offs, out, accumulate):
            getattr(kernels, launch.kernel)[(launch.programs,)](**launch.arguments)


def _loop(matrix: Tensor, offs: Tensor, out: Tensor, accumulate: bool) -> None:
    start, total = 0, matrix.shape[0]
    for g, end in enumerate(offs.tolist()):
        end = max(start, min(end, total))  # wrong ends must not lead out of the matrix
        if end > start or not accumulate:
            found = matrix[start:end].sum(0, dtype=torch.float32)
            out[g] = out[g] + found if accumulate else found
        start = end


class Launch(NamedTuple):
    """One launch: a kernel of ``kernels.group_sums`` by name, its number of programs, its arguments by name."""

    kernel: str
    programs: int
    arguments: dict[str, Any]


def prepare(matrix: Tensor, offs: Tensor, out: Tensor, accumulate: bool) -> list[Launch]:
    """The launches that write the sums of a matrix with rows and columns; one where the rows are at most a chunk."""
    (total, N), G = matrix.shape, offs.shape[0]
    chunks = -(-total // CHUNK)
    one_chunk = chunks <= 1
    items = max(chunks, 1) + G - 1
    # A warp reads along the contiguous dimension.
    wide = 32 if matrix.stride(0) == 1 and matrix.stride(1) != 1 else 128
    block_n = min(wide, max(16, 1 << (N - 1).bit_length()))
    tiles_n = -(-N // block_n)
    sums = out if one_chunk else torch.empty(items, N, dtype=torch.float32, device=out.device)
    of_items = dict(
        matrix_ptr=matrix, offs_ptr=offs, sums_ptr=sums, total=total, N=N, G=G,
        stride_m=matrix.stride(0), stride_n=matrix.stride(1), stride_sg=sums.stride(0), stride_sn=sums.stride(1),
        CHUNK=CHUNK, ONE_CHUNK=one_chunk, ACCUMULATE=accumulate and one_chunk,
        BLOCK_M=min(CHUNK, _ELEMENTS // block_n), BLOCK_N=block_n,
        BLOCK_G=min(1024, max(16, compared_groups(G))) if compared_groups(G) else 0,
    )  # fmt: skip
    launches = [Launch("sum_items_kernel", items * tiles_n, of_items)]
    if not one_chunk:
        of_groups = dict(
            items_ptr=sums, offs_ptr=offs, out_ptr=out, total=total, N=N,
            stride_og=out.stride(0), stride_on=out.stride(1),
            CHUNK=CHUNK, ACCUMULATE=accumulate, BLOCK_I=16, BLOCK_N=block_n,
        )  # fmt: skip
        launches.append(Launch("add_items_kernel", G * tiles_n, of_groups))
    return launches


# ---- operators


_library = torch.library.Library("course_kernels", "FRAGMENT")
_TAGS = (torch.Tag.pt2_compliant_tag,)
_library.define("group_sums(Tensor matrix, Tensor offs, str backend) -> Tensor", tags=_TAGS)
_library.define(
    "group_sums_out(Tensor matrix, Tensor offs, Tensor(a!) out, bool accumulate, str backend, Tensor? product=None) "
    "-> ()",
    tags=_TAGS,
)


def _operator(matrix, offs, backend, fake=False):
    _check(matrix, offs, backend)
    if fake:
        sharding.register()
        return matrix.new_empty((offs.shape[0], matrix.shape[1]), dtype=torch.float32)
    return _sums(matrix, offs, backend)


def _operator_out(matrix, offs, out, accumulate, backend, product=None, fake=False):
    _check(matrix, offs, backend)
    if fake:
        check_out_form("out", out, (offs.shape[0], matrix.shape[1]), torch.float32, "matrix", matrix.device)
    else:
        _sums_into(matrix, offs, out, accumulate, backend, product)


for _name, _function in (("group_sums", _operator), ("group_sums_out", _operator_out)):
    _library.impl(_name, _function, "CompositeExplicitAutograd")
    torch.library.register_fake(f"course_kernels::{_name}", functools.partial(_function, fake=True), lib=_library)


# ---- gradients


def _setup(ctx, inputs, output) -> None:
    matrix, offs, ctx.backend = inputs
    ctx.total, ctx.dtype = matrix.shape[0], matrix.dtype
    ctx.save_for_backward(offs)


def _gradients(ctx, grad) -> tuple:
    """Every row gets its group's gradient, and the tail zeros. In torch's own operations, which have gradients."""
    (offs,) = ctx.saved_tensors
    layout = GroupLayout.from_ends(offs)
    rows = torch.cat([grad, grad.new_zeros(1, grad.shape[1])])
    groups = layout.row_groups(ctx.total).long() if layout.G else offs.new_zeros(ctx.total, dtype=torch.int64)
    return rows[torch.where(groups < 0, layout.G, groups)].to(ctx.dtype), None, None


def _tangent(inputs, tangents, _) -> Tensor:
    """Forward mode: the sums of the tangent's rows."""
    _, offs, backend = inputs
    return torch.ops.course_kernels.group_sums(tangents[0], offs, backend)


def _batched(info, in_dims, matrix, offs, backend):
    """vmap: one sum for each element of the batch."""

    def element(i):
        each = (t if d is None else t.select(d, i) for t, d in zip((matrix, offs), in_dims))
        return torch.ops.course_kernels.group_sums(*each, backend)

    return torch.stack([element(i) for i in range(info.batch_size)]), 0


class _Sums(torch.autograd.Function):
    """The plain way with gradients: the same as the operator's, for less host time."""

    @staticmethod
    def forward(matrix, offs, backend):
        return _sums(matrix, offs, backend)

    setup_context = staticmethod(_setup)
    backward = staticmethod(_gradients)


operators.register(_library, "group_sums", _setup, _gradients, _tangent)
torch.library.register_vmap("course_kernels::group_sums", _batched, lib=_library)
