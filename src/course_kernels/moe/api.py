"""The feed-forward layer of a mixture of experts, from routed tokens to their results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor
from torch.overrides import handle_torch_function

from course_kernels import runtime
from course_kernels.contexts import (
    autocast_dtype,
    cast,
    has_overrides,
    is_compiling,
    refuse_dtensors,
    refuse_jit_trace,
    refuse_tangents,
    refuse_transforms,
    wants_grad,
)
from course_kernels.dtypes import FP8
from course_kernels.engine.product_checks import Backend
from course_kernels.fp8.training import Recipe
from course_kernels.kernels.codes import Activation
from course_kernels.moe import checks, few_tokens, fp8_ops
from course_kernels.moe.activations import activation_of
from course_kernels.moe.form import Form, Operands
from course_kernels.moe.fp8_checks import check_float8
from course_kernels.moe.layer_plan import key_of, plans, remember
from course_kernels.moe.lora import Lora, cast_adapters, check_lora, factors_of, local, named
from course_kernels.moe.lora_ops import feed_forward_adapted
from course_kernels.moe.parallel import Kernels, Parallel, check_parallel, on_this_rank
from course_kernels.moe.routing import Routing, route
from course_kernels.moe.torch_ops import (
    feed_forward,
    feed_forward_collecting,
    feed_forward_few,
    feed_forward_planned,
    is_by_kernels,
)


def moe_feed_forward(
    x: Tensor,
    gate_up: Tensor,
    down: Tensor,
    top_k_index: Tensor | None,
    top_k_weights: Tensor,
    *,
    activation: str | Activation = "swiglu",
    gate_up_bias: Tensor | None = None,
    down_bias: Tensor | None = None,
    concatenated: bool = True,
    weights_on: Literal["output", "input"] = "output",
    main_grads: Sequence[Tensor | None] | None = None,
    lora: Lora | None = None,
    gate_up_scale: Tensor | None = None,
    down_scale: Tensor | None = None,
    fp8_recipe: Recipe | None = None,
    routing: Routing | Any = None,
    ep: Parallel | None = None,
    backend: Backend = "auto",
    num_sms: int | None = None,
) -> Tensor:
    """Compute the experts' part of a mixture of experts: for each token the weighted sum, over the k experts that it
    chose, of ``down[e] @ activation(gate_up[e] @ x)``.

    >>> x, gate_up, down = torch.ones(1, 4), torch.ones(3, 2 * 8, 4), torch.ones(3, 4, 8)  # 3 experts
    >>> index, weights = torch.tensor([[0, 2]]), torch.tensor([[0.75, 0.25]])  # the token's experts
    >>> moe_feed_forward(x, gate_up, down, index, weights, activation="reglu")  # 8 times relu(4) * 4
    tensor([[128., 128., 128., 128.]])

    Args:
        x: (T, H) float16, bfloat16 or float32, any strides; T may be 0.
        gate_up: (E, 2 * I, H) of x's dtype, any strides; (E, I, H) where the activation has no gate. Rows of the gate
            come first, then those of up, as transformers stores them; see ``concatenated``. Weights that are stored
            transposed are passed as ``gate_up.mT``, a slice of a larger parameter as it is; neither is copied.
        down: (E, H, I) likewise.
        top_k_index: int32 or int64 (T, k), the experts of each token, any strides. Ids outside of [0, E) are experts of
            other ranks: such choices count nothing, nothing of theirs is read, and their weights' gradient is 0. A
            token may choose an expert twice. Not read where ``routing`` is given; it may be None then.
        top_k_weights: (T, k) of any floating dtype, used in float32.
        activation: a name of ``course_kernels.moe.ACTIVATIONS``, or an ``Activation``. With a gate: "swiglu", "geglu",
            "geglu_tanh", "reglu", and gpt-oss's "swiglu_oai"; without: "silu", "gelu", "gelu_tanh", "relu", "relu2".
        gate_up_bias, down_bias: (E, 2 * I) (or (E, I)) and (E, H) of x's dtype or float32, added in float32; or None.
        concatenated: False where rows of gate and up take turns in ``gate_up``, the gate's first, as in gpt-oss.
            Without a gate it means nothing.
        weights_on: "output" weights an expert's result, "input" its row of x, which is rounded then (Llama 4).
        main_grads: float32 tensors of the shapes of gate_up and of down, any strides, or None for either: the backward
            adds the weight's gradient to it, rounded once, and the weight itself gets none. Not with
            ``torch.compile(fullgraph=True)``. Not with ``lora``.
        lora: a ``course_kernels.moe.Lora``: adapters of low rank beside gate_up, down or both. Where these require no
            gradient, none is computed.
        gate_up_scale, down_scale: float32 factors of gate_up and down, any strides. Both weights are float8_e4m3fn
            then, and have no gradients. One factor for each row, (E, 2 * I) and (E, H); or one for each 128 × 128,
            (E, ceil(2 * I / 128), ceil(H / 128)) and (E, ceil(H / 128), ceil(I / 128)), as DeepSeek-V3's
            ``weight_scale_inv``. x and the activation are rounded to float8, with a factor for each row, or for each
            1 × 128.
        fp8_recipe: "rowwise" or "blockwise" computes the products in float8, forward and backward, as
            ``to_fp8_then_scaled_grouped_mm`` does: operands of x's dtype are rounded on the way. None: they are not.
        routing: of ``Routing.of(top_k_index, E)``, if it is made once for several calls: a recomputation in activation
            checkpointing, for example, that must not route tokens anew. With ``ep``, of ``ep.plan(top_k_index)``.
        ep: a ``course_kernels.distributed.ExpertParallel`` where the experts are spread over ranks. ``top_k_index``
            then has ids of all ranks' experts, and the weights are those of this rank, or DTensors with ``Shard(0)``
            over the group. Every rank of the group has to make the call, and its backward.
        backend: "triton" runs the kernels (in Triton's interpreter on CPU tensors), "cute" the products' kernel in CuTe
            DSL where it can, "torch" computes expert after expert, which reads the routing on the host. "auto" is
            "torch" on CPU tensors, and the expected fastest kernels on a GPU.
        num_sms: SMs that the products may use; see ``grouped_mm``.

    Returns:
        (T, H) of x's dtype, contiguous. A token without an expert here gets zeros.

    Raises:
        TypeError: an argument is no tensor, or of an unsupported or mixed dtype.
        ValueError: shapes or devices do not fit, or a name is unknown.
        RuntimeError: gradients of gradients, forward-mode differentiation, ``torch.func`` or ``torch.jit.trace``; or
            the process cannot run kernels.

    Notes:
        Differentiable once, in x, gate_up, down, top_k_weights, the biases and the adapters. The backward keeps x, the
        activation's argument (T * k, 2 * I), the rows of adapters (T * k, r), and the routing; gathered rows and the
        activation are computed again. A weight's gradient is stored like the weight.
        Products sum in float32. Rounded are the activation's argument, the activation, an expert's result, and the sum
        over experts, which is in float32 in the order of the choices. Deterministic bit for bit.
        Adapters add in float32, before a result is rounded. Their own rows (T * k, r) are rounded, too.
        Products with adapters are the Triton kernel's on Hopper, too, whatever the backend: the kernel in CuTe DSL adds
        none. It computes the weights' gradients.
        With kernels the host reads nothing, so a CUDA graph of one call serves every routing of the shape.
        A layer of one token, or of so few that at most an eighth of the experts is chosen, without gradients, is two
        kernels that multiply vectors and sort nothing; not where ``num_sms``, ``routing``, ``lora`` or ``fp8_recipe``
        is given. Of float8 weights they read float8, and round neither x nor the activation to it.
        ``torch.compile`` and ``torch.export`` see the operators ``torch.ops.course_kernels.moe_routing`` and
        ``moe_feed_forward`` (``moe_feed_forward_lora`` with adapters, ``moe_feed_forward_fp8`` in float8), or for few
        tokens ``moe_feed_forward_few`` alone. Selective checkpointing may keep the latter ones. ``FlopCounterMode``
        counts the products of all T * k choices.
        In float8 each token is rounded once for all of its experts, and the activation once, to float8. With
        ``weights_on="input"`` a choice's weight multiplies its factors. NaN and infinities become NaN.
        The backward in float8 keeps what it keeps without, and no float8 copy: it rounds its operands anew, along what
        each product sums over. With float8 weights its products are in x's dtype: it makes a copy of
        ``weight * factor``.
        The plan, gathering rows once per use and keeping the activation's argument alone, is SonicMoE's (arXiv
        2512.14080); the kernels are this library's.

    Examples:
        >>> import torch
        >>> from course_kernels import moe_feed_forward
        >>> x, gate_up, down = torch.ones(3, 4), torch.ones(2, 16, 4), torch.ones(2, 4, 8)
        >>> index, weights = torch.tensor([[0], [1], [7]]), torch.ones(3, 1)
        >>> moe_feed_forward(x, gate_up, down, index, weights).shape
        torch.Size([3, 4])
    """
    if main_grads is not None and torch.compiler.is_dynamo_compiling():
        return _between_graphs(
            x, gate_up, down, top_k_index, top_k_weights, activation=activation, gate_up_bias=gate_up_bias,
            down_bias=down_bias, concatenated=concatenated, weights_on=weights_on, main_grads=main_grads, lora=lora,
            gate_up_scale=gate_up_scale, down_scale=down_scale, fp8_recipe=fp8_recipe, routing=routing, ep=ep,
            backend=backend, num_sms=num_sms,
        )  # fmt: skip
    key, known = None, plans
    scales = gate_up_scale, down_scale
    if not is_compiling() and main_grads is lora is fp8_recipe is routing is None:
        given = Operands(x, gate_up, down, top_k_weights, gate_up_bias, down_bias)
        if ep is not None:
            given, known = on_this_rank(given, ep)
        if known is not None:
            key = key_of(given, top_k_index, scales, activation, concatenated, weights_on, backend, num_sms)
        plan = key and known.get(key)
        if plan is not None:
            return feed_forward_planned(given, top_k_index, plan, scales)
    factors = factors_of(lora)
    tensors = (x, gate_up, down, top_k_weights, gate_up_bias, down_bias, gate_up_scale, down_scale, *factors)
    if has_overrides(*tensors, top_k_index) and not is_compiling():
        return handle_torch_function(
            moe_feed_forward, (*tensors, top_k_index), x, gate_up, down, top_k_index, top_k_weights,
            activation=activation, gate_up_bias=gate_up_bias, down_bias=down_bias, concatenated=concatenated,
            weights_on=weights_on, main_grads=main_grads, lora=lora, gate_up_scale=gate_up_scale,
            down_scale=down_scale, fp8_recipe=fp8_recipe, routing=routing, ep=ep, backend=backend, num_sms=num_sms,
        )  # fmt: skip
    refuse_jit_trace("moe_feed_forward")
    if ep is not None:
        check_parallel(ep)
        refuse_transforms("expert parallelism", "use backward()")  # before ranks wait for each other
        gate_up, down, gate_up_bias, down_bias, gate_up_scale, down_scale = ep.local(
            gate_up=gate_up, down=down, gate_up_bias=gate_up_bias, down_bias=down_bias, gate_up_scale=gate_up_scale,
            down_scale=down_scale,
        )  # fmt: skip
        lora = None if lora is None else local(lora, ep)
    checks.check_names(backend, weights_on, concatenated, num_sms)
    refuse_dtensors("moe_feed_forward", x=x, top_k_weights=top_k_weights)
    weights = dict(gate_up=gate_up, down=down, gate_up_bias=gate_up_bias, down_bias=down_bias)
    checks.refuse_spread(**weights, **named(factors_of(lora)))
    activation = activation_of(activation)
    form = Form(activation, activation.gated and not concatenated, weights_on == "input", backend, num_sms)
    if isinstance(x, Tensor) and (dtype := autocast_dtype(x.device.type)):
        x, gate_up, down = (
            cast(each, dtype) if isinstance(each, Tensor) and each.dtype != FP8 else each for each in (x, gate_up, down)
        )
        if gate_up_bias is not None and gate_up_bias.dtype != torch.float32:
            gate_up_bias = cast(gate_up_bias, dtype)
        if down_bias is not None and down_bias.dtype != torch.float32:
            down_bias = cast(down_bias, dtype)
        lora = None if lora is None else cast_adapters(lora, dtype)
    given = Operands(x, gate_up, down, top_k_weights, gate_up_bias, down_bias)
    float8 = check_float8(given, gate_up_scale, down_scale, fp8_recipe)
    checks.check_operands(given, form, None if gate_up_scale is None else FP8)
    if lora is not None:
        if float8 is not None:
            raise ValueError("lora must be None where the layer computes in float8 (fp8_recipe, gate_up_scale)")
        check_lora(lora, given, main_grads)
    refuse_tangents(
        "moe_feed_forward", *tensors, instead="use backward(), or compute the layer from grouped_mm, which has one"
    )
    if ep is not None:
        num_sms = ep.products_sms(x.device, num_sms)
        # All checks come before the first collective: a rank that raises alone leaves the others waiting.
        if routing is None:
            checks.check_choices(top_k_index, top_k_weights, ep.num_experts)
        if main_grads is not None:
            checks.check_main_grads(main_grads, given)

        def here(rows: Tensor, weights: Tensor, routing: Routing) -> Tensor:
            return moe_feed_forward(
                rows, gate_up, down, None, weights, activation=form.activation, gate_up_bias=gate_up_bias,
                down_bias=down_bias, concatenated=concatenated, weights_on=weights_on, main_grads=main_grads,
                lora=lora, gate_up_scale=gate_up_scale, down_scale=down_scale, fp8_recipe=fp8_recipe, routing=routing,
                backend=backend, num_sms=num_sms,
            )  # fmt: skip

        whole = lora is None and (float8 is None or not wants_grad(*given)) and is_by_kernels(given, form)
        kernels = Kernels(given, form, float8, main_grads) if whole else None
        out = ep.feed_forward(here, x, top_k_index, top_k_weights, plan=routing, kernels=kernels)
        if key is not None and kernels is not None:
            plan = ep.plan_calls(kernels)
            if plan is not None:
                known.put(key, plan)
        return out
    experts = gate_up.shape[0]
    if routing is None:
        checks.check_choices(top_k_index, top_k_weights, experts)
    else:
        checks.check_routing(routing, top_k_weights, experts)
    if not is_compiling() and any(each is not None and each.is_neg() for each in given):
        given = Operands(*(None if each is None else each.resolve_neg() for each in given))
    if routing is main_grads is lora is fp8_recipe is None and few_tokens.fits(given, top_k_index, form):
        out = feed_forward_few(given, top_k_index, form, scales)
        if key is not None:
            remember(key, given, top_k_index, form, scales)
        return out
    routing = route(top_k_index, experts, backend) if routing is None else routing
    operands = given._replace(weights=given.weights.float().contiguous())
    if lora is not None:
        return feed_forward_adapted(operands, lora, routing, form)
    if float8 is not None:
        if main_grads is None:
            return fp8_ops.feed_forward(operands, float8, routing, form)
        return fp8_ops.feed_forward_collecting(operands, float8, routing, form, main_grads)
    if main_grads is None:
        out = feed_forward(operands, routing, form)
        if key is not None:
            remember(key, given, top_k_index, form)
        return out
    return feed_forward_collecting(operands, routing, form, main_grads)


# Here, not around what adds to them: torch 2.11 cannot leave a graph with objects that were made inside it.
_between_graphs = runtime.outside_graphs(
    "moe_feed_forward with main_grads, which graphs do not see written to, runs between two graphs"
)(moe_feed_forward)
