"""The experts as a module with parameters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from course_kernels.dtypes import OUT_DTYPES
from course_kernels.engine.product_checks import Backend
from course_kernels.fp8.training import Recipe
from course_kernels.kernels.codes import Activation
from course_kernels.moe.activations import activation_of, describe
from course_kernels.moe.api import moe_feed_forward
from course_kernels.moe.checks import check_names
from course_kernels.moe.fp8_checks import check_recipe
from course_kernels.moe.lora import Lora
from course_kernels.moe.parallel import Parallel, check_parallel
from course_kernels.moe.routing import Routing
from course_kernels.type_checks import check_flags

_DEFAULTS = dict(concatenated=True, weights_on="output", fp8_recipe=None, backend="auto", ep=None)


class Experts(nn.Module):
    """The experts of a layer, with the parameters' names and shapes of transformers' experts. Routed ids and weights
    come in; a router is not part of it.

    Args:
        num_experts: E.
        hidden_size: H.
        intermediate_size: I.
        activation: as for ``moe_feed_forward``.
        bias: whether both products have biases.
        concatenated, weights_on, fp8_recipe, backend: as for ``moe_feed_forward``.
        ep: a ``course_kernels.distributed.ExpertParallel`` of ``num_experts`` experts; this rank then allocates and
            draws its E / ranks experts alone, and the parameters are DTensors with ``Shard(0)``, on the group's kind of
            device. ``ep.shard`` spreads a module that has all experts.
        device, dtype: of the parameters; float16, bfloat16 or float32.

    Raises:
        TypeError, ValueError: as ``moe_feed_forward`` would, without its tensors.

    Attributes:
        gate_up_proj: (E, 2 * I, H); (E, I, H) without a gate.
        down_proj: (E, H, I).
        gate_up_proj_bias, down_proj_bias: (E, 2 * I) and (E, H), or None.
    """

    def __init__(
        self,
        num_experts: int,
        hidden_size: int,
        intermediate_size: int,
        *,
        activation: str | Activation = "swiglu",
        bias: bool = False,
        concatenated: bool = True,
        weights_on: str = "output",
        fp8_recipe: Recipe | None = None,
        backend: Backend = "auto",
        ep: Parallel | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__()
        for name, value in dict(
            num_experts=num_experts, hidden_size=hidden_size, intermediate_size=intermediate_size
        ).items():
            if not isinstance(value, int) or isinstance(value, bool):
                raise TypeError(f"{name} must be an int, got {type(value).__name__}")
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        check_names(backend, weights_on, concatenated, None)
        check_flags(bias=bias)
        check_recipe(fp8_recipe)
        check_parallel(ep)
        if dtype is not None and dtype not in OUT_DTYPES:
            raise TypeError(f"dtype must be one of {OUT_DTYPES}, got {dtype!r}")
        self.num_experts, self.hidden_size, self.intermediate_size = num_experts, hidden_size, intermediate_size
        self.activation = activation_of(activation)
        self.concatenated, self.weights_on, self.backend, self.ep = concatenated, weights_on, backend, ep
        self.fp8_recipe = fp8_recipe
        if ep is not None and ep.num_experts != num_experts:
            raise ValueError(f"ep must be of num_experts = {num_experts} experts, got one of {ep.num_experts}")
        held = num_experts if ep is None else ep.num_local_experts
        width = intermediate_size * (1 + self.activation.gated)

        def parameter(*shape: int) -> nn.Parameter:
            own = torch.empty(shape, device=device, dtype=dtype)
            return nn.Parameter(own if ep is None else ep.of_all(own))

        self.gate_up_proj = parameter(held, width, hidden_size)
        self.down_proj = parameter(held, hidden_size, intermediate_size)
        self.gate_up_proj_bias = parameter(held, width) if bias else None
        self.down_proj_bias = parameter(held, hidden_size) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw each expert's weights and biases as ``nn.Linear`` does: uniform, within 1 / sqrt(inputs).

        Each expert has a seed, drawn from torch's default generator of the CPU. So the same seed of all ranks gives the
        experts that one process would have, on any number of ranks. Parameters on "meta", and those that more than
        ``ep`` has spread, such as FSDP2's, are drawn as a whole by torch.
        """
        seeds = torch.randint(2**62, (self.num_experts,), dtype=torch.int64, device="cpu").tolist()
        first = 0 if self.ep is None else self.ep.rank * self.ep.num_local_experts
        pairs = (self.gate_up_proj, self.gate_up_proj_bias), (self.down_proj, self.down_proj_bias)
        with torch.no_grad():
            drawn = [(self._own(each), pair[0].shape[2] ** -0.5) for pair in pairs for each in pair if each is not None]
            if any(type(each.detach()) is not Tensor or each.is_meta for each, _ in drawn):
                for each, bound in drawn:
                    nn.init.uniform_(each, -bound, bound)
                return
            for i in range(drawn[0][0].shape[0]):
                generator = torch.Generator(drawn[0][0].device).manual_seed(seeds[first + i])
                for each, bound in drawn:
                    each[i].uniform_(-bound, bound, generator=generator)

    def _own(self, parameter: Tensor) -> Tensor:
        """This rank's part of a parameter that ``ep`` alone has spread; any other as it is."""
        spread = self.ep is not None and len(getattr(parameter, "placements", ())) == 1
        return self.ep.local(parameter=parameter)[0] if spread else parameter

    def forward(
        self, x: Tensor, top_k_index: Tensor | None, top_k_weights: Tensor, *, routing: Routing | Any = None,
        lora: Lora | None = None, main_grads: Sequence[Tensor | None] | None = None, num_sms: int | None = None,
    ) -> Tensor:  # fmt: skip
        """Call ``moe_feed_forward`` with the parameters; ``lora`` adapts them (freeze these with
        ``requires_grad_(False)``). ``main_grads``, of ``gate_up_proj`` and ``down_proj``, and ``num_sms``: as there.

        Raises:
            ValueError: x has another width than the module.
        """
        if isinstance(x, Tensor) and x.dim() == 2 and x.shape[1] != self.hidden_size:
            raise ValueError(f"x must have shape (T, H) with H = {self.hidden_size}, got {tuple(x.shape)}")
        return moe_feed_forward(
            x, self.gate_up_proj, self.down_proj, top_k_index, top_k_weights, activation=self.activation,
            gate_up_bias=self.gate_up_proj_bias, down_bias=self.down_proj_bias, concatenated=self.concatenated,
            weights_on=self.weights_on, lora=lora, fp8_recipe=self.fp8_recipe, routing=routing, ep=self.ep,
            backend=self.backend, main_grads=main_grads, num_sms=num_sms,
        )  # fmt: skip

    def extra_repr(self) -> str:
        """The sizes and the activation, and the options that are not the defaults."""
        chosen = {name: getattr(self, name) for name in _DEFAULTS if getattr(self, name) != _DEFAULTS[name]}
        return (
            f"num_experts={self.num_experts}, hidden_size={self.hidden_size}, "
            f"intermediate_size={self.intermediate_size}, activation={describe(self.activation)}, "
            f"bias={self.down_proj_bias is not None}" + "".join(f", {name}={each!r}" for name, each in chosen.items())
        )
