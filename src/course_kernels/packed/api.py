"""Grouped GEMM over packed tensors: one matrix holds the rows, or columns, of all groups, and offsets divide it."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.overrides import handle_torch_function

from course_kernels.config import GemmConfig
from course_kernels.contexts import autocast_dtype, cast, has_overrides, is_compiling, refuse_tangents
from course_kernels.engine.options import Options
from course_kernels.engine.product import Product
from course_kernels.engine.product_checks import Backend
from course_kernels.packed.checks import Tail, check_options, ends_of
from course_kernels.packed.torch_ops import multiply, multiply_collecting, multiply_into


def grouped_mm(
    mat_a: Tensor,
    mat_b: Tensor,
    *,
    offs: Tensor | None = None,
    bias: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    out: Tensor | None = None,
    tail: Tail = "zero",
    check: bool = False,
    backend: Backend = "auto",
    config: GemmConfig | None = None,
    accumulate: bool = False,
    main_grad: Tensor | None = None,
    num_sms: int | None = None,
    sizes: Tensor | None = None,
) -> Tensor:
    """Multiply the matrices of each group; the ranks of the operands say which extent the groups share out.

    >>> rows, weights = torch.ones(3, 4), torch.ones(2, 4, 5)
    >>> grouped_mm(rows, weights, offs=torch.tensor([1, 3])).shape
    torch.Size([3, 5])

    =========  ==================  ==================  ===============  ==================================
    mode       mat_a               mat_b               result           group g is
    =========  ==================  ==================  ===============  ==================================
    "m"        (total_m, K)        (G, K, N)           (total_m, N)     rows of mat_a and of the result
    "n"        (G, M, K)           (K, total_n)        (M, total_n)     columns of mat_b and of the result
    "k"        (M, total_k)        (total_k, N)        (G, M, N)        columns of mat_a, rows of mat_b
    "batch"    (G, M, K)           (G, K, N)           (G, M, N)        a matrix of each
    =========  ==================  ==================  ===============  ==================================

    Args:
        mat_a: float16, bfloat16 or float32, as in the table. Any strides, any base address; any extent may be 0.
        mat_b: likewise, of the dtype and on the device of mat_a. In mode "k" the operands may differ in total_k: what
            lies past the shorter one's end, and past the last group, is not read.
        offs: int32 or int64 (G,), the exclusive end of each group; not decreasing, the last at most the ragged extent.
            Rows after the last group are the tail. On the device of the operands, and never read on the host
            unless ``check`` is set. int32 spares the kernel of backend "cute" a conversion. Not in mode "batch".
        bias: (G, N) of the operands' dtype or float32, added in float32 to every row of its group. Not in mode "n",
            whose groups have columns of their own.
        out_dtype: float16, bfloat16 or float32. Default: the operands' dtype. Sums are float32 and rounded once.
        out: tensor of the result's shape and of out_dtype to write to; any strides, no memory in common with the
            operands; not with gradients.
        tail: what becomes of the result's rows (columns in mode "n") in the tail: "zero", or "keep", which leaves those
            of ``out`` as they are.
        check: validate the values of ``offs``, which waits for the device. Without it, wrong ends give an unspecified
            result, and never a write outside of it.
        backend: "triton" runs the kernels (in Triton's interpreter on CPU tensors), "torch" multiplies group after
            group in float32, which reads ``offs`` on the host. "cute" is the kernel in CuTe DSL for what it takes
            (on Hopper with the extra ``cutlass``; see ``engine.hopper.cute.match_form``), and "triton" for the
            rest. "auto" is "torch" on CPU tensors; on a GPU it is "cute" where that can be had and is expected to be
            faster (``engine.tuning.time_model``), and "triton" elsewhere.
        config: block sizes and launch parameters of this product instead of the chosen ones, for the Triton kernels;
            gradients choose theirs, and backend "torch" has none.
        accumulate: add the product to what ``out`` holds: in float32, rounded once. In mode "k" alone, and not with
            bias. Of an empty group, ``out`` keeps its bits. To a float32 ``out`` Hopper and later GPUs may add in
            their memory system, which takes subnormal numbers for zero.
        main_grad: float32 tensor of mat_b's shape, any strides, to which the backward adds mat_b's gradient: in
            float32, rounded once, without a gradient in mat_b's dtype. mat_b itself gets none (its ``.grad`` stays
            None, or becomes zeros under torch's DDP, and hooks on it are called with None). In mode "m" alone; not
            with ``out``, ``torch.func`` or ``torch.export``, nor for gradients of gradients. It runs between two graphs
            of ``torch.compile``, so not with ``fullgraph=True``. Its version is not checked: as with ``.grad``, a
            second backward through the same graph adds again.
        num_sms: SMs that the product and its gradients may use, at least 1. The others stay free, for communication for
            example. A kernel whose clusters have two SMs takes at least two. The sum for the gradient of ``bias``, and
            copies of 8-bit operands, are launches of their own without this limit. All numbers below that of the
            GPU share one compiled kernel. Default: all.
        sizes: (G,) int32 or int64, the extent of each group, in place of ``offs``, which are their running sums.

    Returns:
        The result, row-major and contiguous; ``out`` itself if it was given. An empty group of mode "k" gives zeros (or
        its bias).

    Raises:
        TypeError: an argument is no tensor, or of an unsupported or mixed dtype.
        ValueError: ranks, shapes, devices or the number of groups do not fit, a name is unknown, ``out`` or
            ``main_grad`` overlaps an operand, or ``check`` finds a wrong end (with its index and value).
        RuntimeError: ``out`` or ``main_grad`` is given under ``torch.func``, or with dual tensors of forward-mode
            differentiation; or the process cannot run kernels.

    Notes:
        Differentiable in mat_a, mat_b and bias, in both modes, to any order, under ``torch.func``, too. Gradients are
        grouped products of the other modes, of the operands' dtype; those of the tail and of empty groups are zero.
        The gradient of an operand whose columns are contiguous, such as ``weight.mT``, is stored like the operand.
        ``torch.compile`` and ``torch.export`` see one operator, ``torch.ops.course_kernels.grouped_mm``. It accepts any
        group ends, and sizes that are known only at run time. Profiles show each call under this name. Lists of
        operators for selective activation checkpointing name ``torch.ops.course_kernels.grouped_mm.default``. A process
        that loads a saved export, or a package of AOTInductor, imports ``course_kernels`` first.
        DTensors have the shardings of torch's own function: any extent but the ragged one. Sharding K gives partial
        sums, also of a bias. Weights sharded by expert are gathered, except in mode "batch". ``offs`` is a DTensor, as
        the operands are.
        float32 operands multiply in full float32, or in TF32 where torch's settings allow it.
        Deterministic bit for bit. With the kernels and without ``check`` a call never waits, allocates its result
        (and the Triton kernels a counter, where ``config`` has the dynamic schedule), and can be captured in a CUDA
        graph. Only autocast, and ``offs`` with gaps or to convert, are copied.

        Names and order of the arguments: ``torch.nn.functional.grouped_mm``. What that one accepts, this one does, with
        the same result, but for autocast. Where the two differ:

        ====================================  ===============================  ======================================
        what                                  torch 2.13 (on a GPU: 2.11)      here
        ====================================  ===============================  ======================================
        tail of the result                    uninitialised                    zero, or kept
        tail of the gradients                 uninitialised                    zero
        no groups at all (modes "m", "n")     all uninitialised                all zero
        int64 ``offs``                        RuntimeError                     accepted
        values of ``offs``                    never validated                  validated with ``check``
        strides                               one of the last two 1, the       any
                                              other a multiple of 16 bytes
        gradient of ``sum()``, or expanded    RuntimeError (its strides)       accepted
        ``bias``                              RuntimeError                     added before the rounding
        ``out_dtype`` not the operands'       RuntimeError                     accepted
        ``out``, ``tail``                     no such arguments                accepted
        meta and fake tensors                 bfloat16 only (2.15: every one)  every dtype
        ``FlopCounterMode``                   counts nothing                   counts all, the tail included
        forward mode, ``torch.func.hessian``  NotImplementedError              accepted
        ``out`` of DTensors, or in            no such argument                 ValueError, RuntimeError
        ``torch.func``
        ``torch.autocast``                    operands stay as they are        cast as those of ``torch.matmul``
        other bad arguments                   RuntimeError                     TypeError or ValueError
        operator                              aten._grouped_mm                 course_kernels.grouped_mm
        rows of the result, on a GPU          padded to 16 bytes               contiguous
        groups start, on a GPU                at multiples of 16 bytes where   anywhere
                                              the ragged extent is innermost
        strided ``offs``, on a GPU            taken to be contiguous           accepted
                                              (2.15: RuntimeError, on a CPU)
        ====================================  ===============================  ======================================
    """
    if has_overrides(mat_a, mat_b, offs, bias, out, sizes) and not is_compiling():
        return handle_torch_function(
            grouped_mm, (mat_a, mat_b, offs, bias, out, sizes), mat_a, mat_b, offs=offs, bias=bias, out_dtype=out_dtype,
            out=out, tail=tail, check=check, backend=backend, config=config, accumulate=accumulate,
            main_grad=main_grad, num_sms=num_sms, sizes=sizes,
        )  # fmt: skip
    if sizes is not None:
        offs = ends_of(sizes, offs, mat_a=mat_a, mat_b=mat_b)
    if (
        tail != "zero" or config is not None or num_sms is not None
        or accumulate is not False or check is not False
    ):  # fmt: skip
        check_options(tail, config, out is not None, num_sms, accumulate=accumulate, check=check)
    if isinstance(mat_a, Tensor) and isinstance(mat_b, Tensor):
        if out is None and (dtype := autocast_dtype(mat_a.device.type)):
            mat_a, mat_b = cast(mat_a, dtype), cast(mat_b, dtype)
            if isinstance(bias, Tensor) and bias.dtype != torch.float32:  # which is added in float32 in any case
                bias = cast(bias, dtype)
        if mat_b.dim() == 2:
            mat_a, mat_b = cut_to_shared_k(mat_a, mat_b)
    product = Product.packed(mat_a, mat_b, offs, bias, keep_tail=tail == "keep", accumulate=accumulate)
    options = Options(out_dtype, check, backend, config, num_sms)
    if out is not None or main_grad is not None:
        refuse_tangents("grouped_mm with out or main_grad", mat_a, mat_b, bias, instead="call it without these")
    if main_grad is not None:
        if out is not None:
            raise ValueError("main_grad must be None where out is given, which has no gradients")
        return multiply_collecting(product, options, main_grad)
    return multiply(product, options) if out is None else multiply_into(out, product, options)


def cut_to_shared_k(mat_a, mat_b):
    """The operands of mode "k" without what only the longer one has; any others as they are."""
    if not (isinstance(mat_a, Tensor) and isinstance(mat_b, Tensor) and mat_a.dim() == 2 and mat_b.dim() == 2):
        return mat_a, mat_b
    if is_compiling():
        from torch.fx.experimental.symbolic_shapes import guard_or_false  # imports sympy; the tracer has, too

        if not guard_or_false(mat_a.shape[1] != mat_b.shape[0]):
            return mat_a, mat_b
    elif mat_a.shape[1] == mat_b.shape[0]:
        return mat_a, mat_b
    shared = min(mat_a.shape[1], mat_b.shape[0])
    return mat_a[:, :shared], mat_b[:shared]
