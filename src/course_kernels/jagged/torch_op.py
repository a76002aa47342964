"""The named implementations of the jagged product as torch sees them: one operator with gradients and batching rule.

As in ``packed.torch_ops``, an eager call goes past torch's dispatcher; ``torch.compile``, modes, transforms and tensors
without memory go through ``torch.ops.course_kernels.grouped_gemm_jagged``. Derivatives are products of ``grouped_mm``
in float32, converted to their operand's dtype.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor

from course_kernels import flops, operators, runtime
from course_kernels.contexts import is_batched_by_autograd, is_compiling, is_plain, is_profiling, wants_grad
from course_kernels.engine.gradient_layout import is_column_major
from course_kernels.jagged.checks import check_form
from course_kernels.packed.api import grouped_mm

_library = torch.library.Library("course_kernels", "FRAGMENT")
_library.define(
    "grouped_gemm_jagged(Tensor A_packed, Tensor B, Tensor group_offsets, str kernel, str implementation) -> Tensor",
    tags=(torch.Tag.pt2_compliant_tag,),
)


def multiply(A_packed: Tensor, B: Tensor, group_offsets: Tensor, kernel: str, implementation: str) -> Tensor:
    """The product of checked operands in any of torch's contexts but autocast; differentiable.

    Args:
        kernel: "simple" or "persistent".
        implementation: "triton" or "helion".
    """
    arguments = A_packed, B, group_offsets, kernel, implementation
    if is_plain(*arguments[:3]) and not is_profiling():
        return _Jagged.apply(*arguments) if wants_grad(A_packed, B) else launch(*arguments)
    if not is_compiling():
        flops.register()
    return torch.ops.course_kernels.grouped_gemm_jagged(*arguments)


def launch(A_packed: Tensor, B: Tensor, group_offsets: Tensor, kernel: str, implementation: str) -> Tensor:
    """Run the kernel.

    Raises:
        ImportError: implementation "helion" without its package.
        RuntimeError: the process cannot run kernels.
    """
    runtime.check_can_launch(A_packed.device)
    if A_packed.is_cuda:
        runtime.check_dtype("A_packed", A_packed.dtype, A_packed.device, "Convert the operands to float16.")
        runtime.check_dtype("B", B.dtype, A_packed.device, "Convert the operands to float16.")
    (total_m, K), N, G = A_packed.shape, B.shape[1], group_offsets.shape[0] - 1
    dtype = torch.promote_types(A_packed.dtype, B.dtype)
    if implementation == "helion":
        from course_kernels.jagged import helion_kernels as kernels  # raises without Helion, empty products or not
    else:
        from course_kernels.jagged import triton_kernels as kernels
    if not (total_m and N and K and G):
        return A_packed.new_zeros((total_m, N), dtype=dtype)
    operands = A_packed.resolve_neg(), B.resolve_neg(), group_offsets.contiguous()
    if A_packed.is_cuda:
        with torch.cuda.device(A_packed.device):
            return kernels.multiply(kernel, *operands)
    with runtime.interpreting():
        return kernels.multiply(kernel, *operands)


def _operator(A_packed, B, group_offsets, kernel, implementation, fake=False):
    check_form(A_packed, B, group_offsets, implementation)
    if not fake:
        return launch(A_packed, B, group_offsets, kernel, implementation)
    flops.register()
    dtype = torch.promote_types(A_packed.dtype, B.dtype)
    return A_packed.new_empty((A_packed.shape[0], B.shape[1]), dtype=dtype)


_library.impl("grouped_gemm_jagged", _operator, "CompositeExplicitAutograd")
torch.library.register_fake(
    "course_kernels::grouped_gemm_jagged", functools.partial(_operator, fake=True), lib=_library
)


# ---- derivatives


def _setup(ctx, inputs, _) -> None:
    ctx.save_for_backward(*inputs[:3])


def _gradients(ctx, grad, product: Callable[..., Tensor] = grouped_mm) -> tuple:
    """dA = dC @ Bᵀ and dB = Aᵀ @ dC, over the rows up to the last offset."""
    A_packed, B, group_offsets = ctx.saved_tensors
    if is_batched_by_autograd(grad):  # by is_grads_batched: only the dispatcher handles it
        product = _dispatched
    grad_a = grad_b = None
    ends, dtype = group_offsets[-1:], torch.promote_types(A_packed.dtype, B.dtype)
    if ctx.needs_input_grad[0]:
        grad_a = product(grad, B.to(dtype).mT.unsqueeze(0), offs=ends).to(A_packed.dtype)
    if ctx.needs_input_grad[1]:
        rows = A_packed.to(dtype)
        # In B's own layout: accumulating into another one is a transposing copy.
        if is_column_major(B):
            grad_b = product(grad.mT, rows, offs=ends)[0].mT
        else:
            grad_b = product(rows.mT, grad, offs=ends)[0]
        grad_b = grad_b.to(B.dtype)
    return grad_a, grad_b, None, None, None


def _dispatched(mat_a: Tensor, mat_b: Tensor, *, offs: Tensor, out_dtype: torch.dtype | None = None) -> Tensor:
    """``grouped_mm`` as the operator: inside of the dispatcher ``torch.func`` accepts nothing else."""
    return torch.ops.course_kernels.grouped_mm(mat_a, mat_b, offs, None, out_dtype, False, "auto", "")


def _tangent(inputs, tangents, result) -> Tensor:
    """Forward mode: each operand's tangent times the other operand, summed in float32 and rounded once."""
    A_packed, B, group_offsets, *_ = inputs
    pairs = ((tangents[0], B), (A_packed, tangents[1]))
    terms = [
        _dispatched(
            a.to(result.dtype), b.to(result.dtype).unsqueeze(0), offs=group_offsets[-1:], out_dtype=torch.float32
        )
        for a, b in pairs
        if a is not None and b is not None
    ]
    return sum(terms).to(result.dtype)


def _batched(info, in_dims, *arguments):
    """vmap: one product for each element of the batch."""

    def element(i):
        each = (t if d is None else t.select(d, i) for t, d in zip(arguments, in_dims))
        return torch.ops.course_kernels.grouped_gemm_jagged(*each)

    return torch.stack([element(i) for i in range(info.batch_size)]), 0


class _Jagged(torch.autograd.Function):
    """The plain way with gradients: the same as the operator's, for less host time."""

    @staticmethod
    def forward(A_packed, B, group_offsets, kernel, implementation):
        return launch(A_packed, B, group_offsets, kernel, implementation)

    setup_context = staticmethod(_setup)
    backward = staticmethod(_gradients)


operators.register(
    _library, "grouped_gemm_jagged", _setup, functools.partial(_gradients, product=_dispatched), _tangent
)
torch.library.register_vmap("course_kernels::grouped_gemm_jagged", _batched, lib=_library)
