"""``grouped_mm`` as torch sees it: operators with fake kernels, gradients, a batching rule and FLOP counts.

An eager call goes to the kernels past torch's dispatcher, which would cost it several microseconds, and three times as
many with gradients. Whatever needs the dispatcher (``torch.compile``, modes, tensor subclasses, tensors without memory)
goes through ``torch.ops.course_kernels``, and comes back here from there.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch
from torch import Tensor

from course_kernels import runtime
from course_kernels.config import GemmConfig
from course_kernels.packed import flops as grouped_flops
from course_kernels.packed import problem as checks
from course_kernels.packed.backends import cute as grouped_cute
from course_kernels.packed.backends import torch_loop as grouped_loop

_PLAIN_TYPES = frozenset({Tensor, torch.nn.Parameter})
_launch = None  # course_kernels.packed.backends.triton_launch, once a kernel has been needed


class _Known(NamedTuple):
    """A call that has passed all checks once: its result's form, and its launch. A result fresh from torch's allocator
    is aligned as the one was that the launch was prepared for."""

    out_shape: tuple[int, ...]
    out_dtype: torch.dtype
    plan: object

    def run(self, mat_a, mat_b, offs, bias) -> Tensor:
        """The product of operands like those."""
        out = torch.empty(self.out_shape, dtype=self.out_dtype, device=mat_a.device)
        self.plan.run((mat_a, mat_b, offs, out, bias, None, None))
        return out


class _Unknown(NamedTuple):
    """A call that has passed all checks, and shall be known by a key from now on."""

    key: tuple | None
    found: checks.Problem
    backend: str
    config: GemmConfig | None

    def run(self, mat_a, mat_b, offs, bias) -> Tensor:
        """The product of the operands."""
        out = torch.empty(self.found.out_shape, dtype=self.found.out_dtype, device=mat_a.device)
        plan = compute(mat_a, mat_b, offs, out, bias=bias, backend=self.backend, config=self.config)
        if plan is not None and self.key is not None and out.is_cuda:
            if len(_known) >= _MOST_KNOWN:
                del _known[next(iter(_known))]  # the oldest
            _known[self.key] = _Known(self.found.out_shape, self.found.out_dtype, plan)
        return out


_known: dict[tuple, _Known] = {}
_MOST_KNOWN = 4096  # a new total_m in every batch must not grow the memory for ever


def _metadata(mat_a, mat_b, offs, bias, out_dtype, backend, config) -> tuple | None:
    """All that checks and launch look at, which is everything but values and addresses. None where something is no
    tensor, none with strides, a lazily negated view, or ends with gaps between them."""
    try:
        if mat_a.is_neg() or mat_b.is_neg() or (bias is not None and bias.is_neg()):
            return None
        if offs is not None and not offs.is_contiguous():  # kernels read it from end to end
            return None
        if type(backend) is not str or not isinstance(config, (GemmConfig, type(None))):  # perhaps not hashable
            return None
        if not isinstance(out_dtype, (torch.dtype, type(None))):
            return None
        return (
            mat_a.shape, mat_a.stride(), mat_a.dtype, mat_a.device, mat_a.data_ptr() & 15,
            mat_b.shape, mat_b.stride(), mat_b.dtype, mat_b.device, mat_b.data_ptr() & 15,
            None if offs is None else (offs.shape, offs.dtype, offs.device, offs.data_ptr() & 15),
            None if bias is None else (bias.shape, bias.stride(), bias.dtype, bias.device, bias.data_ptr() & 15),
            out_dtype, backend, config,
            mat_a.dtype == torch.float32 and runtime.allows_tf32(),
        )  # fmt: skip
    except (AttributeError, RuntimeError):
        return None


def multiply(mat_a, mat_b, offs, bias, out_dtype, check=False, backend="auto", config=None) -> Tensor:
    """A grouped product in any of torch's contexts but autocast, differentiable.

    Args:
        mat_a, mat_b, offs, bias, out_dtype, check, backend, config: as for ``grouped_mm``.
    """
    if is_plain(mat_a, mat_b, offs, bias):
        key = _metadata(mat_a, mat_b, offs, bias, out_dtype, backend, config)
        product = None if check else _known.get(key)
        if product is None or not product.plan.here():
            found = checks.check(mat_a, mat_b, offs, bias, out_dtype, backend)
            if check:
                checks.validate_offs(found, offs)
            product = _Unknown(key, found, backend, config)
        if wants_grad(mat_a, mat_b, bias):
            return _Differentiable.apply(mat_a, mat_b, offs, bias, product, backend)
        return product.run(mat_a, mat_b, offs, bias)
    if not torch.compiler.is_compiling():  # before the dispatcher says in its own words what is no tensor
        checks.problem(mat_a, mat_b, offs, bias, out_dtype, backend)
        if torch._C._functorch.peek_interpreter_stack() is not None:
            return _Functional.apply(mat_a, mat_b, offs, bias, out_dtype, check, backend, config)
    return torch.ops.course_kernels.grouped_mm(
        mat_a, mat_b, offs, bias, out_dtype, bool(check), backend, encode_config(config)
    )


def multiply_scaled(mat_a, mat_b, scale_a, scale_b, offs, bias, output_dtype, check, backend, config) -> Tensor:
    """A grouped product of float8_e4m3fn operands with row-wise scales, in any of torch's contexts.

    Args: as for ``scaled_grouped_mm``.
    """
    arguments = (mat_a, mat_b, scale_a, scale_b, offs, bias, output_dtype)
    if is_plain(mat_a, mat_b, scale_a, scale_b, offs, bias):
        return _scaled_grouped_mm(*arguments, check, backend, config)
    if not torch.compiler.is_compiling():
        _checked(*arguments, backend, fake=True)
    return torch.ops.course_kernels.scaled_grouped_mm(*arguments, bool(check), backend, encode_config(config))


def multiply_into(
    out, mat_a, mat_b, scale_a, scale_b, offs, bias, out_dtype, keep_tail, check, backend, config
) -> Tensor:
    """A grouped product, scaled or not, written to a given tensor; no gradients.

    Args: as for ``grouped_mm`` and ``scaled_grouped_mm``.
    """
    if wants_grad(mat_a, mat_b, bias):
        raise ValueError("out cannot be given when an operand requires a gradient: detach the operands, or omit out")
    if is_plain(out, mat_a, mat_b, offs, bias, scale_a, scale_b):
        _grouped_mm_out(
            mat_a, mat_b, offs, bias, scale_a, scale_b, out_dtype, out, keep_tail, check, backend, config
        )  # fmt: skip
        return out
    if not torch.compiler.is_compiling():
        found, *_ = _checked(mat_a, mat_b, scale_a, scale_b, offs, bias, out_dtype, backend, fake=True)
        checks.check_out_form(out, found, mat_a.device)
    arguments = (mat_a, mat_b, offs, bias, scale_a, scale_b, out_dtype, out, keep_tail)
    torch.ops.course_kernels.grouped_mm_out(*arguments, bool(check), backend, encode_config(config))
    return out


def is_plain(*tensors) -> bool:
    """Whether these are ordinary tensors in memory, and nothing of torch's wants to see what is done to them."""
    if (
        torch.compiler.is_compiling()
        or torch._C._len_torch_dispatch_stack()
        or torch._C._functorch.peek_interpreter_stack() is not None
        or torch._C._get_tracing_state() is not None
    ):
        return False
    for tensor in tensors:
        if tensor is not None and (type(tensor) not in _PLAIN_TYPES or tensor.is_meta):
            # What is no tensor at all is told so by the checks, which the plain way makes.
            return not isinstance(tensor, Tensor)
    return True


def wants_grad(*tensors) -> bool:
    """Whether a gradient may be asked of a product of these."""
    return torch.is_grad_enabled() and any(isinstance(t, Tensor) and t.requires_grad for t in tensors)


def compute(
    mat_a, mat_b, offs, out, *, bias=None, scale_a=None, scale_b=None, keep_tail=False, backend="auto", config=None
):
    """Write the product of checked operands to ``out``, by the backend's means. Returns ``grouped_launch``'s plan."""
    global _launch
    if mat_a.is_neg():
        mat_a = mat_a.resolve_neg()
    if mat_b.is_neg():
        mat_b = mat_b.resolve_neg()
    if bias is not None and bias.is_neg():
        bias = bias.resolve_neg()
    if offs is not None and not offs.is_contiguous():  # kernels read it from end to end
        offs = offs.contiguous()
    if backend == "torch" or (backend == "auto" and mat_a.is_cpu):
        grouped_loop.multiply(mat_a, mat_b, offs, out, bias, scale_a, scale_b, keep_tail)
        return None
    if config is None and (backend == "cute" or (backend == "auto" and grouped_cute.preferred(mat_a, offs))):
        form = grouped_cute.form_of(mat_a, mat_b, offs, out, bias, scale_a, scale_b, keep_tail)
        if form is not None:
            return grouped_cute.multiply(mat_a, mat_b, offs, out, form, scale_a=scale_a, scale_b=scale_b)
    if _launch is None:
        from course_kernels.packed.backends import triton_launch as grouped_launch

        _launch = grouped_launch
    return _launch.multiply(
        mat_a, mat_b, offs, out, bias=bias, scale_a=scale_a, scale_b=scale_b, keep_tail=keep_tail, config=config
    )


# ---- configurations as strings, which operators can take

_FIELDS = tuple(GemmConfig.__dataclass_fields__)


def encode_config(config: GemmConfig | None) -> str:
    """A configuration as an operator's argument; "" for none."""
    return "" if config is None else " ".join([str(getattr(config, name)) for name in _FIELDS])


@functools.lru_cache(maxsize=1024)
def decode_config(text: str | GemmConfig | None) -> GemmConfig | None:
    """The configuration that ``encode_config`` wrote; one that was never written comes back as it is."""
    if not text:
        return None
    if isinstance(text, GemmConfig):
        return text
    words = text.split()
    if len(words) != len(_FIELDS):
        raise ValueError(f"config must name the {len(_FIELDS)} values {' '.join(_FIELDS)}, got {text!r}")
    return GemmConfig(**{name: int(word) if word.isdigit() else word for name, word in zip(_FIELDS, words)})


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
    "ScalarType? output_dtype, bool check, str backend, str config) -> Tensor",
    tags=(torch.Tag.pt2_compliant_tag,),
)
_library.define(
    "grouped_mm_out(Tensor mat_a, Tensor mat_b, Tensor? offs, Tensor? bias, Tensor? scale_a, Tensor? scale_b, "
    "ScalarType? out_dtype, Tensor(a!) out, bool keep_tail, bool check, str backend, str config) -> ()",
    tags=(torch.Tag.pt2_compliant_tag,),
)


def _grouped_mm(mat_a, mat_b, offs, bias, out_dtype, check, backend, config, fake=False):
    return _scaled_grouped_mm(mat_a, mat_b, None, None, offs, bias, out_dtype, check, backend, config, fake)


def _scaled_grouped_mm(
    mat_a, mat_b, scale_a, scale_b, offs, bias, output_dtype, check, backend, config, fake=False
):  # fmt: skip
    found, scale_a, scale_b = _checked(mat_a, mat_b, scale_a, scale_b, offs, bias, output_dtype, backend, fake)
    config = decode_config(config)
    out = mat_a.new_empty(found.out_shape, dtype=found.out_dtype)
    if not fake:
        if check:
            checks.validate_offs(found, offs)
        options = dict(scale_a=scale_a, scale_b=scale_b, backend=backend, config=config)
        compute(mat_a, mat_b, offs, out, bias=bias, **options)
    return out


def _grouped_mm_out(
    mat_a, mat_b, offs, bias, scale_a, scale_b, out_dtype, out, keep_tail, check, backend, config, fake=False
):  # fmt: skip
    """The others into a given tensor."""
    found, lines_a, lines_b = _checked(mat_a, mat_b, scale_a, scale_b, offs, bias, out_dtype, backend, fake)
    config = decode_config(config)
    if fake:
        checks.check_out_form(out, found, mat_a.device)
        return
    operands = {"mat_a": mat_a, "mat_b": mat_b, "offs": offs, "bias": bias, "scale_a": scale_a, "scale_b": scale_b}
    checks.check_out(out, found, operands)
    if check:
        checks.validate_offs(found, offs)
    options = dict(scale_a=lines_a, scale_b=lines_b, keep_tail=keep_tail, backend=backend, config=config)
    compute(mat_a, mat_b, offs, out, bias=bias, **options)
    torch.autograd.graph.increment_version(out)  # a kernel's writes are not seen by autograd


def _checked(mat_a, mat_b, scale_a, scale_b, offs, bias, out_dtype, backend, fake):
    """The problem, and the scales in the shapes that kernels read."""
    scaled = scale_a is not None
    # Fake extents may be symbols, which no table remembers.
    found = (checks.problem if fake else checks.check)(mat_a, mat_b, offs, bias, out_dtype, backend, scaled)
    return (found, *(checks.check_scales(found, scale_a, scale_b, mat_a.device) if scaled else (None, None)))


for _name, _function in (
    ("grouped_mm", _grouped_mm),
    ("scaled_grouped_mm", _scaled_grouped_mm),
    ("grouped_mm_out", _grouped_mm_out),
):
    _library.impl(_name, _function, "CompositeExplicitAutograd")
    torch.library.register_fake(f"course_kernels::{_name}", functools.partial(_function, fake=True), lib=_library)


# ---- gradients


def _setup_context(ctx, inputs, output) -> None:
    mat_a, mat_b, offs, bias, _, _, backend, _ = inputs
    _keep(ctx, mat_a, mat_b, offs, bias, backend)


def _keep(ctx, mat_a, mat_b, offs, bias, backend) -> None:
    """What the gradients need of a product."""
    ctx.backend = backend
    needs_a, needs_b = ctx.needs_input_grad[:2]
    ctx.mode, ctx.dtype = checks.MODES[mat_a.dim(), mat_b.dim()], mat_a.dtype
    ctx.bias_dtype = None if bias is None else bias.dtype
    # Each operand is kept for the other one's gradient only.
    ctx.save_for_backward(mat_a if needs_b else None, mat_b if needs_a else None, offs)


def _backward(ctx, grad):
    """Products of the other modes. Configurations are chosen anew, since a given one was meant for other extents."""
    mat_a, mat_b, offs = ctx.saved_tensors
    needs_a, needs_b, _, needs_bias, *_ = ctx.needs_input_grad
    if 0 in grad.stride():  # what sum() hands back is one element, expanded: no descriptor reads strides of 0
        grad = grad.contiguous()
    grad_a = grad_b = grad_bias = None
    narrow = grad.to(ctx.dtype)
    if needs_a:
        grad_a = multiply(narrow, mat_b.mT, offs, None, None, backend=ctx.backend)
    if needs_b:
        grad_b = multiply(mat_a.mT, narrow, offs, None, None, backend=ctx.backend)
    if needs_bias:
        grad_bias = _column_sums(grad, ctx.mode, offs, ctx.bias_dtype, ctx.backend)
    return grad_a, grad_b, None, grad_bias, None, None, None, None


def _column_sums(grad, mode, offs, dtype, backend):
    """(G, N) sums over each group's rows, in float32, rounded once."""
    if mode != "m":
        return grad.sum(1, dtype=torch.float32).to(dtype)
    ones = grad.new_ones(1, 1).expand(1, grad.shape[0])
    return multiply(ones, grad, offs, None, dtype, backend=backend).squeeze(1)


class _Differentiable(torch.autograd.Function):
    """The plain way with gradients: the same as the operator's, for a third of its host time."""

    @staticmethod
    def forward(ctx, mat_a, mat_b, offs, bias, product, backend):
        _keep(ctx, mat_a, mat_b, offs, bias, backend)
        return product.run(mat_a, mat_b, offs, bias)

    @staticmethod
    def backward(ctx, grad):
        return _backward(ctx, grad)[:6]


torch.library.register_autograd("course_kernels::grouped_mm", _backward, setup_context=_setup_context, lib=_library)


def _batched(info, in_dims, *arguments):
    """vmap: one product for each element of the batch."""

    def element(i):
        *others, config = [v if d is None else v.select(d, i) for v, d in zip(arguments, in_dims)]
        return multiply(*others, decode_config(config))

    return torch.stack([element(i) for i in range(info.batch_size)]), 0


class _Functional(torch.autograd.Function):
    """The operator under ``torch.func``, which does not look into an operator's own gradient."""

    @staticmethod
    def forward(*arguments):
        return multiply(*arguments)

    setup_context = staticmethod(_setup_context)
    backward = staticmethod(_backward)
    vmap = staticmethod(_batched)


torch.library.register_vmap("course_kernels::grouped_mm", _batched, lib=_library)


grouped_flops.register()
