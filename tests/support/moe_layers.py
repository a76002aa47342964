"""Layers of experts for tests: operands, and the layer and its gradients in float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from course_kernels import moe_feed_forward, runtime
from course_kernels.moe import ACTIVATIONS, Function, Lora

DEVICE = runtime.device()
NAMES = "x", "gate_up", "down", "weights", "gate_up_bias", "down_bias"
ADAPTERS = "gate_up_a", "gate_up_b", "down_a", "down_b"
EPSILON = {torch.float32: 2e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


@dataclass
class Layer:
    """The arguments of a call.

    Attributes:
        tensors: by ``NAMES``; without the biases if there are none.
        ids: (T, k).
        options: the other keywords of ``moe_feed_forward``, and ``scale``, of adapters.
    """

    tensors: dict[str, Tensor]
    ids: Tensor
    options: dict[str, Any] = field(default_factory=dict)

    def __call__(self, **others: Any) -> Tensor:
        """Call the layer."""
        given = dict(self.tensors)
        operands = [given.pop(name) for name in NAMES[:3]]
        weights = given.pop("weights")
        factors = {name: given.pop(name) for name in ADAPTERS if name in given}
        options = self.options | others
        scale = options.pop("scale", 1.0)
        if factors:
            options["lora"] = Lora(**factors, scale=scale)
        return moe_feed_forward(*operands, self.ids, weights, **given, **options)

    def leaves(self, *names: str) -> Layer:
        """The layer with leaves in place of the tensors; of the names given, or of all, gradients are asked."""
        made = {name: each.detach().requires_grad_(not names or name in names) for name, each in self.tensors.items()}
        return Layer(made, self.ids, self.options)

    def crossed(self) -> Layer:
        """The layer with its tensors stored column after column; weights of choices are made contiguous anyway."""
        made = {n: t if n == "weights" else t.mT.contiguous().mT for n, t in self.tensors.items()}
        return Layer(made, self.ids, self.options)

    def gradients(self) -> dict[str, Tensor | None]:
        """The gradients of the leaves."""
        return {name: each.grad for name, each in self.tensors.items()}

    def exact(self) -> Layer:
        """The layer in float64, of leaves."""
        return Layer({n: t.detach().double().requires_grad_() for n, t in self.tensors.items()}, self.ids, self.options)


def make(
    tokens: int = 7, hidden: int = 24, inner: int = 40, experts: int = 5, top_k: int = 3,
    dtype: torch.dtype = torch.float32, bias: bool = False, seed: int = 0, device: Any = DEVICE, **options: Any,
) -> Layer:  # fmt: skip
    """A layer of random operands, some of whose ids are of other ranks, with one token that chose an expert twice, and
    one whose experts are all elsewhere."""
    made = torch.Generator(device="cpu").manual_seed(seed)
    name = options.get("activation", "swiglu")
    width = inner * (1 + (ACTIVATIONS[name] if isinstance(name, str) else name).gated)

    def some(*shape: int, scale: float = 1.0) -> Tensor:
        return (torch.randn(shape, generator=made, dtype=torch.float64) * scale).to(dtype).to(device)

    tensors = dict(
        x=some(tokens, hidden), gate_up=some(experts, width, hidden, scale=2 * hidden**-0.5),
        down=some(experts, hidden, inner, scale=2 * inner**-0.5),
        weights=torch.rand(tokens, top_k, generator=made, dtype=torch.float64).float().to(device),
    )  # fmt: skip
    if bias:
        tensors |= dict(gate_up_bias=some(experts, width), down_bias=some(experts, hidden))
    ids = torch.randint(-1, experts + 1, (tokens, top_k), generator=made)
    if tokens > 1:
        ids[0], ids[1] = experts // 2, experts + 90
    return Layer(tensors, ids.to(device), options)


def activated(pre: Tensor, name: str, interleaved: bool) -> Tensor:
    """The activation, from its definition."""
    kind = ACTIVATIONS[name] if isinstance(name, str) else name
    gate, up = pre, None
    if kind.gated:
        gate, up = (pre[:, ::2], pre[:, 1::2]) if interleaved else pre.chunk(2, dim=1)
    if kind.limit is not None:
        gate = gate.clamp(max=kind.limit)
    value = {
        Function.SILU: lambda g: g / (1 + torch.exp(-kind.alpha * g)),
        Function.GELU: functional.gelu,
        Function.GELU_TANH: lambda g: functional.gelu(g, approximate="tanh"),
        Function.RELU: functional.relu,
        Function.RELU2: lambda g: functional.relu(g) ** 2,
    }[kind.function](gate)
    if up is None:
        return value
    return value * ((up if kind.limit is None else up.clamp(-kind.limit, kind.limit)) + kind.shift)


def oracle(layer: Layer) -> Tensor:
    """The result of a layer of float64 tensors, expert after expert, by torch's own operations."""
    x, gate_up, down, weights = (layer.tensors[name] for name in NAMES[:4])
    biases = [layer.tensors.get(name) for name in NAMES[4:]]
    options, out = layer.options, torch.zeros_like(x)
    on_input = options.get("weights_on") == "input"
    scale = options.get("scale", 1.0)
    scales = scale if isinstance(scale, tuple) else (scale, scale)
    if "gate_up_a" in layer.tensors:
        gate_up = gate_up + scales[0] * layer.tensors["gate_up_b"] @ layer.tensors["gate_up_a"]
    if "down_a" in layer.tensors:
        down = down + scales[1] * layer.tensors["down_b"] @ layer.tensors["down_a"]
    for e in range(gate_up.shape[0]):
        token, choice = (layer.ids == e).nonzero(as_tuple=True)
        scale = weights[token, choice][:, None]
        pre = (x[token] * scale if on_input else x[token]) @ gate_up[e].mT
        pre = pre if biases[0] is None else pre + biases[0][e]
        hidden = activated(pre, options.get("activation", "swiglu"), not options.get("concatenated", True))
        result = hidden @ down[e].mT
        result = result if biases[1] is None else result + biases[1][e]
        out = out.index_add(0, token, result if on_input else result * scale)
    return out


def assert_near(
    found: Tensor, wanted: Tensor, dtype: torch.dtype, what: str = "", factor: float = 1.0, by_norm: bool = False
) -> None:
    """Raise unless no entry is further off than a few roundings of the largest; with ``by_norm``, unless the norm of
    the difference is as small beside the norm."""
    assert found.shape == wanted.shape, what
    assert not found.isnan().any(), f"{what} has NaN"
    if wanted.numel() and by_norm:
        error = ((found.double() - wanted).norm() / wanted.norm().clamp(min=1e-3)).item()
        assert error <= factor * EPSILON[dtype], f"{what}: off by {error:.2e} of the norm"
    elif wanted.numel():
        error = (found.double() - wanted).abs().max().item()
        scale = max(1e-3, wanted.abs().max().item())
        assert error <= factor * EPSILON[dtype] * scale, f"{what}: off by {error / scale:.2e} of the largest"


def check(layer: Layer, *names: str, grad: Tensor | None = None, factor: float = 1.0, by_norm: bool = False) -> None:
    """Compare a layer and the gradients of the named tensors, or all, with those in float64.

    Where an activation has a limit, a gradient jumps there. Of many sums in 16 bits, some are rounded to the other side
    of it: their gradients are right for what is stored, and wrong by themselves for float64. ``by_norm`` compares what
    is left of that in all."""
    mine, exact = layer.leaves(*names), layer.exact()
    out, wanted = mine(), oracle(exact)
    dtype = layer.tensors["x"].dtype
    assert (out.dtype, out.is_contiguous()) == (dtype, True)
    assert_near(out, wanted.detach(), dtype, "result", factor, by_norm)
    if grad is None:
        made = torch.Generator().manual_seed(5)
        grad = torch.randn(out.shape, generator=made).to(dtype).to(out.device)
    out.backward(grad)
    wanted.backward(grad.double())
    for name, found in mine.gradients().items():
        if names and name not in names:
            assert found is None, f"nobody asked for the gradient of {name}"
        else:
            assert found.dtype == layer.tensors[name].dtype
            there = exact.tensors[name].grad
            there = torch.zeros_like(exact.tensors[name]) if there is None else there
            assert_near(found, there, dtype, f"gradient of {name}", 2 * factor, by_norm)


def step(function: Callable[..., Tensor], layer: Layer) -> list[Tensor]:
    """The result of a function of a layer's ids and tensors, and the tensors' gradients."""
    mine = layer.leaves()
    out = function(mine.ids, **mine.tensors)
    out.square().sum().backward()
    return [out.detach(), *mine.gradients().values()]


def kept_bytes(layer: Layer) -> int:
    """Bytes that a call of a layer of leaves keeps for the backward, beside the layer's own tensors."""
    given = {each.untyped_storage().data_ptr() for each in layer.tensors.values()}
    kept = {}

    def keep(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in given:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        layer()
    return sum(kept.values())


def routing_bytes(layer: Layer) -> int:
    """Bytes of a layer's routing: four parts, each a multiple of 16 bytes."""
    rows, experts = layer.ids.numel(), layer.tensors["gate_up"].shape[0]
    return 16 * (3 * -(-rows // 4) + -(-experts // 4))


def adapted(layer: Layer, rank: int = 8, which: tuple[str, ...] = ADAPTERS, dtype: torch.dtype | None = None) -> Layer:
    """The layer with the adapters that are named."""
    gate_up, down = layer.tensors["gate_up"], layer.tensors["down"]
    (experts, width, hidden), inner = gate_up.shape, down.shape[2]
    shapes = dict(
        gate_up_a=(experts, rank, hidden), gate_up_b=(experts, width, rank), down_a=(experts, rank, inner),
        down_b=(experts, hidden, rank),
    )  # fmt: skip
    made = torch.Generator().manual_seed(11)
    tensors = {
        name: (
            torch.randn(shape, generator=made, dtype=torch.float64) * (shape[1] if name[-1] == "a" else rank) ** -0.5
        )
        .to(dtype or gate_up.dtype)
        .to(gate_up.device)
        for name, shape in shapes.items()
        if name in which
    }
    return Layer(layer.tensors | tensors, layer.ids, layer.options)
