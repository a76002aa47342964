"""transformers' mixture-of-experts models on this library's experts.

>>> from course_kernels.integrations.transformers import register  # doctest: +SKIP
>>> register()  # doctest: +SKIP
>>> model.set_experts_implementation("course_kernels")  # doctest: +SKIP

Experts whose gate is known here run as one layer, ``moe_feed_forward``. All others, those with a norm after each expert
or with a gate of their own, run on grouped products, with the module's own gate and norm between them. PEFT's adapters
of experts (``target_parameters``) are adapters of the layer: no sum of weight and adapter is made for it.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import ScalingType

from course_kernels.contexts import refuse_transforms
from course_kernels.fp8.quantize import quantize_1x128
from course_kernels.fp8.scaled import scaled_grouped_mm
from course_kernels.integrations import check_transformers
from course_kernels.kernels.codes import Activation, Function
from course_kernels.moe.api import moe_feed_forward
from course_kernels.moe.lora import Lora
from course_kernels.moe.routing import Routing
from course_kernels.packed.api import grouped_mm

check_transformers()

from transformers import activations  # noqa: E402 (after the check)
from transformers.integrations import finegrained_fp8, moe  # noqa: E402

NAME = "course_kernels"
_BLOCK = 128

# What ``act_fn`` computes, by its class.
_FUNCTIONS = {
    activations.SiLUActivation: (Function.SILU, 1.0),
    nn.SiLU: (Function.SILU, 1.0),
    activations.QuickGELUActivation: (Function.SILU, 1.702),
    activations.GELUActivation: (Function.GELU, 1.0),
    activations.GELUTanh: (Function.GELU_TANH, 1.0),
    activations.NewGELUActivation: (Function.GELU_TANH, 1.0),
    nn.ReLU: (Function.RELU, 1.0),
    activations.ReLUSquaredActivation: (Function.RELU2, 1.0),
}

# Gates of a model's own: silu(gate) * up with both limited, and gpt-oss's, by the attributes that hold alpha (None for
# 1) and the limit, and what is added to up.
_GATES = {
    "transformers.models.deepseek_v4.modeling_deepseek_v4 DeepseekV4Experts": (None, "limit", 0.0),
    "transformers.models.gpt_oss.modeling_gpt_oss GptOssExperts": ("alpha", "limit", 1.0),
    "transformers.models.minimax_m3_vl.modeling_minimax_m3_vl MiniMaxM3VLExperts": (
        "swiglu_alpha", "swiglu_limit", 1.0
    ),
    "transformers.models.openai_privacy_filter.modeling_openai_privacy_filter OpenAIPrivacyFilterExperts": (
        "alpha", "limit", 1.0
    ),
}  # fmt: skip


def register(name: str = NAME) -> None:
    """Make the experts known to transformers, for models with float8 experts, too.

    Args:
        name: for ``experts_implementation=`` and ``model.set_experts_implementation``.
    """
    moe.ExpertsInterface.register(name, experts_forward)
    finegrained_fp8.FP8ExpertsInterface.register(name, fp8_experts_forward)


def experts_forward(
    self: nn.Module, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor
) -> Tensor:  # fmt: skip
    """Compute the experts of a module that ``use_experts_implementation`` has decorated.

    Args:
        self: the module, with its parameters of float16, bfloat16 or float32.
        hidden_states: (T, H) of any of these dtypes.
        top_k_index: (T, k). Ids from the module's number of experts on are those of other ranks.
        top_k_weights: (T, k).

    Returns:
        (T, H) of the dtype of ``hidden_states``.

    Raises:
        TypeError, ValueError: as ``moe_feed_forward``, whose names of arguments the messages use.
    """
    activation = None if self.has_post_expert_norm else activation_of(self)
    names = "gate_up_proj" if self.has_gate else "up_proj", "down_proj"
    adapters = [None if activation is None else adapter_of(self, name) for name in names]
    first, last = (
        getattr(self, name) if adapter is None else self.parametrizations[name].original
        for name, adapter in zip(names, adapters)
    )
    biases: tuple[Tensor | None, Tensor | None] = (None, None)
    if self.has_bias:
        biases = (self.gate_up_proj_bias if self.has_gate else self.up_proj_bias), self.down_proj_bias
    if self.is_transposed:
        first, last = first.mT, last.mT
        adapters = [each and (each[1].mT, each[0].mT, each[2]) for each in adapters]
    x = hidden_states
    if x.dtype != first.dtype and not torch.is_autocast_enabled(x.device.type):
        x = x.to(first.dtype)
    if activation is not None:
        (up_b, up_a, up_scale), (down_b, down_a, down_scale) = (each or (None, None, 1.0) for each in adapters)
        lora = Lora(up_a, up_b, down_a, down_b, (up_scale, down_scale)) if any(adapters) else None
        out = moe_feed_forward(
            x, first, last, top_k_index, top_k_weights, activation=activation, gate_up_bias=biases[0],
            down_bias=biases[1], concatenated=self.is_concatenated, lora=lora,
        )  # fmt: skip
        return out.to(hidden_states.dtype)

    def product(rows: Tensor, ends: Tensor, second: bool) -> Tensor:
        return grouped_mm(rows, (last if second else first).mT, offs=ends, bias=biases[int(second)])

    return _on_products(self, x, top_k_index, top_k_weights, product).to(hidden_states.dtype)


def adapter_of(experts: nn.Module, name: str) -> tuple[Tensor, Tensor, float] | None:
    """PEFT's adapter of a parameter, where it is the only one and adds ``scale * left @ right`` of (E, rows, r) and
    (E, r, columns): these and the scale. The parameter's own value would have the sum of all experts, and a gradient of
    its size. None without one, or with others."""
    parametrizations = getattr(experts, "parametrizations", {})
    if name not in parametrizations or len(parametrizations[name]) != 1:
        return None
    (proxy,) = parametrizations[name]
    if type(proxy).__name__ != "_LoraFactorsProxy":
        return None
    return proxy.lhs, proxy.rhs, float(proxy.scaling)


def fp8_experts_forward(
    self: nn.Module, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor
) -> Tensor:  # fmt: skip
    """Compute transformers' ``FP8Experts`` in float8: rows get a factor for each 1 × 128 elements, as its weights have
    one for each 128 × 128. Arguments as for ``experts_forward``; rows have gradients, weights none.

    Raises:
        NotImplementedError: float4 weights, static factors of activations, or other blocks.
    """
    first = self.gate_up_proj if self.has_gate else self.up_proj
    if first.element_size() > 1:
        return experts_forward(self, hidden_states, top_k_index, top_k_weights)
    scales = (self.gate_up_proj_scale_inv if self.has_gate else self.up_proj_scale_inv), self.down_proj_scale_inv
    weights = first, self.down_proj
    if self.activation_scheme != "dynamic" or first.dtype != torch.float8_e4m3fn or self.has_bias:
        raise NotImplementedError(
            "course_kernels runs experts of float8_e4m3fn without biases and with activation_scheme='dynamic', got "
            f"{first.dtype} and {self.activation_scheme!r}: use experts_implementation='eager'"
        )
    for weight, scale in zip(weights, scales):
        rows, columns = (-(-extent // _BLOCK) for extent in weight.shape[1:])
        if tuple(self.block_size or ()) != (_BLOCK, _BLOCK) or tuple(scale.shape[1:]) != (rows, columns):
            raise NotImplementedError(
                f"course_kernels runs float8 experts with a factor for each 128 × 128 weights, got block_size="
                f"{self.block_size} and factors of shape {tuple(scale.shape)} for weights of {tuple(weight.shape)}: "
                "use experts_implementation='eager'"
            )

    activation = None if getattr(self, "has_post_expert_norm", False) else activation_of(self)
    if activation is not None:
        return moe_feed_forward(
            hidden_states, first.detach(), self.down_proj.detach(), top_k_index, top_k_weights, activation=activation,
            concatenated=self.is_concatenated, gate_up_scale=scales[0].detach().float(),
            down_scale=scales[1].detach().float(),
        )  # fmt: skip

    def product(rows: Tensor, ends: Tensor, second: bool) -> Tensor:
        refuse_transforms("grouped experts in float8", "use backward()")
        return _Float8Product.apply(rows, weights[int(second)], scales[int(second)].float(), ends)

    return _on_products(self, hidden_states, top_k_index, top_k_weights, product)


def activation_of(experts: nn.Module) -> Activation | None:
    """Return the activation of a module's experts; None if this library does not know it."""
    if experts.has_gate:
        # None of an instance's own. torch.compile finds no function of a bound method to be the same as another.
        gate = None if "_apply_gate" in experts.__dict__ else type(experts)._apply_gate
        if gate is not moe._default_apply_gate:
            return _known_gate(experts, gate)
    function, alpha = _FUNCTIONS.get(type(experts.act_fn), (None, 1.0))
    if function is None:
        return None
    if experts.has_gate and not experts.is_concatenated:
        return None  # transformers' own gate splits in the middle, whatever the weights' layout is said to be
    return Activation(function, experts.has_gate, alpha)


def _known_gate(experts: nn.Module, gate: object) -> Activation | None:
    """The activation of a gate in ``_GATES``, or of the one that all float8 experts have."""
    if gate is finegrained_fp8.FP8Experts._apply_gate:
        return _float8_gate(experts)
    for kind in type(experts).__mro__:
        known = _GATES.get(f"{kind.__module__} {kind.__name__}")
        if known is not None and gate is kind._apply_gate:
            of_alpha, of_limit, shift = known
            silu = of_alpha is not None or _FUNCTIONS.get(type(experts.act_fn)) == (Function.SILU, 1.0)
            alpha = 1.0 if of_alpha is None else getattr(experts, of_alpha)
            limit = getattr(experts, of_limit)
            return Activation(Function.SILU, True, alpha, limit, shift) if silu and limit is not None else None
    return None


def _float8_gate(experts: nn.Module) -> Activation | None:
    """The activation of ``FP8Experts``; None for limits by tanh."""
    if experts.gate_softcap is not None:
        return None
    if experts.swiglu_alpha is not None:
        alpha, limit = experts.swiglu_alpha, experts.swiglu_limit
        return None if limit is None else Activation(Function.SILU, True, alpha, limit, 1.0)
    function, alpha = _FUNCTIONS.get(type(experts.act_fn), (None, 1.0))
    return None if function is None else Activation(function, True, alpha, experts.limit)


def _on_products(
    experts: nn.Module, x: Tensor, top_k_index: Tensor, top_k_weights: Tensor,
    product: Callable[[Tensor, Tensor, bool], Tensor],
) -> Tensor:  # fmt: skip
    """The experts with the module's own gate, activation and norm. ``product`` computes the first or the second
    product of rows of experts with these ends."""
    routing = Routing.of(top_k_index, experts.down_proj.shape[0])
    rows = x[routing.tokens.long()]
    hidden = product(rows, routing.ends, False)
    hidden = experts._apply_gate(hidden) if experts.has_gate else experts.act_fn(hidden)
    result = product(hidden.to(x.dtype), routing.ends, True)
    if getattr(experts, "has_post_expert_norm", False):
        result = experts.post_expert_norm(result)
    # Choices of other ranks have no row. Their weights may be NaN, and get no gradient.
    elsewhere = routing.rows < 0
    weights = torch.where(elsewhere, 0.0, top_k_weights.float())
    places = result[routing.rows.clamp(min=0).long()].float()
    places = torch.where(elsewhere[..., None], 0.0, places)
    return (places * weights[..., None]).sum(1).to(x.dtype)


class _Float8Product(torch.autograd.Function):
    """Rows, rounded to float8, times float8 weights (E, N, K). Weights are frozen; the gradient of the rows goes
    through the weights as they are in the rows' dtype."""

    @staticmethod
    def forward(ctx, rows, weight, scale, ends):
        ctx.save_for_backward(weight, scale, ends)
        values, factors = quantize_1x128(rows)
        return scaled_grouped_mm(
            values, weight.mT, factors, ScalingType.BlockWise1x128, scale.mT, ScalingType.BlockWise128x128, offs=ends,
            output_dtype=rows.dtype,
        )  # fmt: skip

    @staticmethod
    def backward(ctx, grad):
        weight, scale, ends = ctx.saved_tensors
        down, across = weight.shape[1:]
        factors = scale.repeat_interleave(_BLOCK, 1)[:, :down].repeat_interleave(_BLOCK, 2)[:, :, :across]
        with torch.autocast(grad.device.type, enabled=False):  # a compiled backward has its forward's autocast
            return grouped_mm(grad, (weight.float() * factors).to(grad.dtype), offs=ends), None, None, None
