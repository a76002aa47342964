"""``grouped_mm`` as torch sees it: operators with fake kernels, gradients, a batching rule and FLOP counts.

An eager call goes to the kernels past torch's dispatcher, which would cost it several microseconds, and three times as
many with gradients. Whatever needs the dispatcher (``torch.compile``, modes, tensor subclasses, tensors without memory)
goes through ``torch.ops.course_kernels``, and comes back here from there.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from course_kernels import flops, operators, runtime
from course_kernels.contexts import (
    functorch_level,
    in_memory,
    is_batched_by_autograd,
    is_compiling,
    is_plain,
    is_profiling,
    refuse_beside_dtensors,
    wants_grad,
)
from course_kernels.dtypes import MODE_OF_RANKS
from course_kernels.engine.gradient_layout import is_column_major
from course_kernels.engine.options import Options, decode_launch, encode_launch
from course_kernels.engine.plans import execute
from course_kernels.engine.product import Problem, Product, in_words_of
from course_kernels.engine.product_checks import check_out_form
from course_kernels.engine.scaling import ROW
from course_kernels.packed import sharding
from course_kernels.packed.checks import NAMES, check_call, check_main_grad, problem_of, readable
from course_kernels.packed.group_sums import group_sums


def multiply(product: Product, options: Options) -> Tensor:
    """A grouped product, scaled or not, in any of torch's contexts but autocast; differentiable without scales."""
    a, b, _, scaling, epilogue, _ = product
    if is_plain(a, b, product.offs, *scaling[:2], epilogue.bias) and not is_profiling():
        if not scaling and wants_grad(a, b, epilogue.bias):
            return _Differentiable.apply(a, b, product.offs, epilogue.bias, options)
        return execute(product, options, None, check_call)
    if not is_compiling():
        problem_of(product, options)  # raises our error, before the dispatcher raises its own
        _tell_torch()
    return _dispatched(product, options)


def _tell_torch() -> None:
    """Make the operators known to those parts of torch that have been imported by now."""
    flops.register()
    sharding.register()


def _dispatched(product: Product, options: Options) -> Tensor:
    """The operator."""
    a, b, offs, bias, scale_a, scale_b = product.tensors().values()
    tail = (options.out_dtype, options.check, options.backend, encode_launch(options))
    if scale_a is None:
        return torch.ops.course_kernels.grouped_mm(a, b, offs, bias, *tail)
    scaling = product.scaling.name
    return torch.ops.course_kernels.scaled_grouped_mm(a, b, scale_a, scale_b, offs, bias, *tail, scaling)


def multiply_into(out: Tensor, product: Product, options: Options) -> Tensor:
    """A grouped product, scaled or not, written to a given tensor; no gradients."""
    tensors = product.tensors().values()
    plain = is_plain(out, *tensors)
    if not plain and not is_compiling() and functorch_level() is not None:
        raise RuntimeError("out must be None under torch.func, which does not notice writes to it")
    if wants_grad(product.a, product.b, product.epilogue.bias):
        raise ValueError("out cannot be given when an operand requires a gradient: detach the operands, or omit out")
    if plain and not is_profiling():
        execute(product, options, out, check_call)
        torch.autograd.graph.increment_version(out)  # a kernel's writes are not seen by autograd
        return out
    if not is_compiling():
        refuse_beside_dtensors("out", out, *tensors)
        problem = problem_of(product, options)
        check_out_form("out", out, problem.out_shape, problem.out_dtype, "mat_a", product.a.device)
        _tell_torch()
    torch.ops.course_kernels.grouped_mm_out(
        *tensors, options.out_dtype, out, product.epilogue.keep_tail, options.check, options.backend,
        encode_launch(options), product.epilogue.accumulates, product.scaling.name or ROW,
    )  # fmt: skip
    return out


@runtime.outside_graphs("grouped_mm with main_grad, which graphs do not see written to, runs between two graphs")
def multiply_collecting(product: Product, options: Options, main_grad: Tensor) -> Tensor:
    """A grouped product of mode "m" whose backward adds mat_b's gradient to ``main_grad``, in float32."""
    if functorch_level() is not None:
        raise RuntimeError("main_grad must be None under torch.func, which does not see it written to")
    if torch.compiler.is_exporting():
        raise RuntimeError("main_grad must be None under torch.export, whose graphs have no backward that adds to it")
    tensors = in_words_of(NAMES, product)
    mat_a, mat_b, bias = product.a, product.b, product.epilogue.bias
    refuse_beside_dtensors("main_grad", main_grad, *tensors.values())
    check_main_grad(main_grad, mat_a, mat_b, tensors if in_memory(main_grad, *tensors.values()) else None)
    if not wants_grad(mat_a, mat_b, bias):
        return multiply(product, options)
    if not mat_b.requires_grad:
        raise ValueError("main_grad must be None where mat_b requires no gradient: there is none to add")
    return _Collecting.apply(mat_a, mat_b, product.offs, bias, options, main_grad)


# ---- operators

_library = torch.library.Library("course_kernels", "FRAGMENT")
# No defaults: the dispatcher drops arguments that equal them, and then gradients are counted by what is left.
_library.define(
    "grouped_mm(Tensor mat_a, Tensor mat_b, Tensor? offs, Tensor? bias, ScalarType? out_dtype, bool check, "
    "str backend, str config) -> Tensor",
    tags=(torch.Tag.pt2_compliant_tag,),
)
_library.define(
    "scaled_grouped_mm(Tensor mat_a, Tensor mat_b, Tensor scale_a, Tensor scale_b, Tensor? offs, Tensor? bias, "
    "ScalarType? output_dtype, bool check, str backend, str config, str scaling) -> Tensor",
    tags=(torch.Tag.pt2_compliant_tag,),
)
_library.define(
    "grouped_mm_out(Tensor mat_a, Tensor mat_b, Tensor? offs, Tensor? bias, Tensor? scale_a, Tensor? scale_b, "
    "ScalarType? out_dtype, Tensor(a!) out, bool keep_tail, bool check, str backend, str config, "
    'bool accumulate=False, str scaling="row") -> ()',  # no gradients: defaults may stay, for older exports
    tags=(torch.Tag.pt2_compliant_tag,),
)


def _grouped_mm(mat_a, mat_b, offs, bias, out_dtype, check, backend, config, fake=False):
    return _scaled_grouped_mm(mat_a, mat_b, None, None, offs, bias, out_dtype, check, backend, config, ROW, fake)


def _decoded(out_dtype, check, backend, launch) -> Options:
    """Decode the options from an operator's last arguments."""
    return Options(out_dtype, check, backend, *decode_launch(launch))


def _scaled_grouped_mm(
    mat_a, mat_b, scale_a, scale_b, offs, bias, out_dtype, check, backend, config, scaling, fake=False
):  # fmt: skip
    product = Product.packed(mat_a, mat_b, offs, bias, scale_a, scale_b, scaling=scaling)
    options = _decoded(out_dtype, check, backend, config)
    if not fake:
        return execute(product, options, None, check_call)
    problem = _check_fake(product, options)
    return mat_a.new_empty(problem.out_shape, dtype=problem.out_dtype)


def _grouped_mm_out(
    mat_a, mat_b, offs, bias, scale_a, scale_b, out_dtype, out, keep_tail, check, backend, config, accumulate=False,
    scaling=ROW, fake=False,
):  # fmt: skip
    """The others into a given tensor."""
    tensors, epilogue = (mat_a, mat_b, offs, bias, scale_a, scale_b), dict(keep_tail=keep_tail, accumulate=accumulate)
    product = Product.packed(*tensors, **epilogue, scaling=scaling)
    options = _decoded(out_dtype, check, backend, config)
    if not fake:
        execute(product, options, out, check_call)
        torch.autograd.graph.increment_version(out)
        return
    problem = _check_fake(product, options)
    check_out_form("out", out, problem.out_shape, problem.out_dtype, "mat_a", mat_a.device)


def _check_fake(product: Product, options: Options) -> Problem:
    _tell_torch()
    problem = problem_of(product, options)
    readable(problem, product)
    return problem


for _name, _function in (
    ("grouped_mm", _grouped_mm),
    ("scaled_grouped_mm", _scaled_grouped_mm),
    ("grouped_mm_out", _grouped_mm_out),
):
    _library.impl(_name, _function, "CompositeExplicitAutograd")
    torch.library.register_fake(f"course_kernels::{_name}", functools.partial(_function, fake=True), lib=_library)


# ---- gradients


def _keep(ctx, mat_a, mat_b, offs, bias, options: Options) -> None:
    """What the gradients need of a product. Each operand is kept for the other one's gradient only."""
    needs_a, needs_b = ctx.needs_input_grad[:2]
    # The configuration is for the forward's extents. Gradients choose their own.
    ctx.options = Options(backend=options.backend, num_sms=options.num_sms)
    ctx.mode, ctx.dtype = MODE_OF_RANKS[mat_a.dim(), mat_b.dim()], mat_a.dtype
    ctx.bias_dtype = None if bias is None else bias.dtype
    ctx.across = is_column_major(mat_a), is_column_major(mat_b)
    ctx.save_for_backward(mat_a if needs_b else None, mat_b if needs_a else None, offs)


def _gradients(ctx, grad, needs, main_grad=None, compute=multiply) -> tuple:
    """Compute the gradients of mat_a, mat_b, offs and bias that ``needs`` selects: products of the other modes. mat_b's
    is added to ``main_grad`` instead, if that is given."""
    mat_a, mat_b, offs = ctx.saved_tensors
    needs_a, needs_b, _, needs_bias, *_ = needs
    if is_batched_by_autograd(grad):  # by is_grads_batched: only the dispatcher handles it
        compute = _dispatched
    if 0 in grad.stride():  # sum() hands back one element, expanded: no descriptor reads strides of 0
        grad = grad.contiguous()
    options = ctx.options
    narrow = grad.to(ctx.dtype)
    grad_a = _product(compute, ctx.across[0], narrow, mat_b.mT, offs, options) if needs_a else None
    grad_b = grad_bias = None
    if needs_b and main_grad is None:
        grad_b = _product(compute, ctx.across[1], mat_a.mT, narrow, offs, options)
    elif needs_b:
        _product(compute, is_column_major(main_grad), mat_a.mT, narrow, offs, options, main_grad)
    if needs_bias:
        # Rounded once: the sums are float32.
        if ctx.mode != "m":
            sums = grad.sum(1, dtype=torch.float32)
        elif compute is multiply:
            sums = group_sums(grad, offs, backend=options.backend)
        else:
            sums = torch.ops.course_kernels.group_sums(grad, offs, options.backend)
        grad_bias = sums.to(ctx.bias_dtype)
    return grad_a, grad_b, None, grad_bias


def _product(
    compute, across: bool, left: Tensor, right: Tensor, offs, options: Options, added_to: Tensor | None = None
):
    """A gradient, stored as the operand is, column-major or not: autograd would transpose any other one in memory.
    With ``added_to``, the gradient is added to it in float32, in its own layout. ``compute`` multiplies."""
    if across:  # the transposed product, which kernels write row by row
        left, right = right.mT, left.mT
    if added_to is not None:
        product = Product.packed(left, right, offs, accumulate=True)
        options = options._replace(out_dtype=torch.float32)
        return multiply_into(added_to.mT if across else added_to, product, options)
    result = compute(Product.packed(left, right, offs), options)
    return result.mT if across else result


class _Differentiable(torch.autograd.Function):
    """The plain way with gradients: the same as the operator's, for a third of its host time."""

    @staticmethod
    def forward(ctx, mat_a, mat_b, offs, bias, options):
        result = execute(Product.packed(mat_a, mat_b, offs, bias), options, None, check_call)
        _keep(ctx, mat_a, mat_b, offs, bias, options)
        return result

    @staticmethod
    def backward(ctx, grad):
        return *_gradients(ctx, grad, ctx.needs_input_grad), None


class _Collecting(torch.autograd.Function):
    """A product that adds mat_b's gradient to ``main_grad``."""

    @staticmethod
    def forward(ctx, mat_a, mat_b, offs, bias, options, main_grad):
        result = multiply(Product.packed(mat_a, mat_b, offs, bias), options)
        _keep(ctx, mat_a, mat_b, offs, bias, options)
        ctx.main_grad = main_grad  # not saved: other products may add to it before this one's backward
        return result

    @staticmethod
    def backward(ctx, grad):
        if torch.is_grad_enabled():
            raise RuntimeError(
                "main_grad must be None for gradients of gradients (create_graph=True): what is added to it has none"
            )
        needs_a, _, *others = ctx.needs_input_grad
        needs = needs_a, _is_asked_for_b(ctx), *others
        return *_gradients(ctx, grad, needs, ctx.main_grad), None, None


def _is_asked_for_b(ctx) -> bool:
    """Whether this backward computes mat_b's gradient: those for other inputs alone, as pipelines that split backward
    ask for, must not add it. ``needs_input_grad`` does not know."""
    try:
        return torch._C._will_engine_execute_node(ctx.next_functions[1][0])
    except RuntimeError:  # autograd.grad for mat_b itself
        raise RuntimeError(
            "main_grad must be None where torch.autograd.grad asks for mat_b's gradient, which is added to it instead"
        ) from None


def _setup_operator(ctx, inputs, _) -> None:
    mat_a, mat_b, offs, bias, *options = inputs
    _keep(ctx, mat_a, mat_b, offs, bias, _decoded(*options))


def _operator_gradients(ctx, grad) -> tuple:
    return *_gradients(ctx, grad, ctx.needs_input_grad, compute=_dispatched), None, None, None, None


def _tangent(inputs, tangents, product) -> Tensor:
    """Forward mode: each operand's tangent times the other operand, summed in float32 and rounded once."""
    mat_a, mat_b, offs, _, *options = inputs
    tangent_a, tangent_b, _, tangent_bias, *_ = tangents
    options, terms = _decoded(*options)._replace(out_dtype=torch.float32, check=False, config=None), []
    if tangent_a is not None:
        terms.append(_dispatched(Product.packed(tangent_a, mat_b, offs), options))
    if tangent_b is not None:
        terms.append(_dispatched(Product.packed(mat_a, tangent_b, offs), options))
    if tangent_bias is not None and MODE_OF_RANKS[mat_a.dim(), mat_b.dim()] == "m":
        only_bias = Product.packed(mat_a[:, :0], mat_b[:, :0], offs, tangent_bias)  # K = 0
        terms.append(_dispatched(only_bias, options))
    elif tangent_bias is not None:
        terms.append(tangent_bias[:, None, :].expand(product.shape).float())
    return sum(terms).to(product.dtype)


operators.register(_library, "grouped_mm", _setup_operator, _operator_gradients, _tangent)


def _batched(operator, info, in_dims, *arguments):
    """vmap: one product for each element of the batch."""

    def element(i):
        return operator(*(each if d is None else each.select(d, i) for each, d in zip(arguments, in_dims)))

    return torch.stack([element(i) for i in range(info.batch_size)]), 0


for _name in ("grouped_mm", "scaled_grouped_mm"):
    _operator = functools.partial(_batched, getattr(torch.ops.course_kernels, _name))
    torch.library.register_vmap(f"course_kernels::{_name}", _operator, lib=_library)
flops.register()
