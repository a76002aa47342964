"""Measurements of ``moe_feed_forward``: layers of published models against their own products and against peers.

"products" are the layer's own grouped products alone, two forward and six in a step, on rows that lie in order: what a
layer would take if everything around them were free. "transformers" does what transformers' ``grouped_mm`` experts do,
operation by operation; "batched" what they do with one token: the chosen experts' weights are copied, and multiplied as
a batch. "liger" is Liger's fused layer, tuned by its own autotuner.

Ours is timed as a CUDA graph, too, its products as one only; peers as called, since a host read keeps Liger's out of a
graph. Where few experts are chosen, "reading" is the time of ``torch.amax`` over as many bytes as their weights, in a
graph.
"""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import torch
from torch import Tensor
from torch.nn import functional

from course_kernels import grouped_mm, moe_feed_forward
from course_kernels.bench import timing, zoo
from course_kernels.bench.interface import WrongResult, is_out_of_memory, one_line
from course_kernels.moe import Routing

REPEATS = 60  # 15, of forwards and steps mixed, left ratios with 32,768 tokens uncertain by 3 %
# One model at all sizes, two at two. All peers, and their steps, where a layer trains; for fewer tokens forwards alone.
TOKENS = (1, 64, 256, 1024, 4096, 32768)
SWEPT, OTHERS = "qwen3-30b-a3b", ("mixtral-8x7b", "deepseek-v3")
TRAINED = 4096  # tokens, from which on
SAMPLE = 24  # tokens and experts whose results are compared with float64


@dataclass(frozen=True)
class Case:
    """One layer.

    Attributes:
        model: its name in ``bench.zoo``.
        tokens: T.
        routing: "uniform", or "zipf": experts are loaded by rank ** -0.8.
    """

    model: str
    tokens: int
    routing: str


class Layer:
    """The tensors of a case: random weights, tokens and routing, and a gradient of the result."""

    def __init__(self, case: Case, device: torch.device | str = "cuda", dtype: torch.dtype = torch.bfloat16):
        (model,) = zoo.select_models([case.model])
        self.E, self.k, self.H, self.I = model.experts, model.top_k, model.hidden, model.intermediate
        generator = torch.Generator(device).manual_seed(case.tokens)

        def draw(*shape: int, scale: float = 1.0) -> Tensor:
            made = torch.randn(shape, generator=generator, dtype=torch.float32, device=device)
            return made.mul_(scale).to(dtype).requires_grad_()  # in place: DeepSeek-V3's are 30 GB in float32

        load = torch.arange(1, self.E + 1, dtype=torch.float64, device=device) ** (-0.8 * (case.routing == "zipf"))
        load = load[torch.randperm(self.E, generator=generator, device=device)].float()
        self.x = draw(case.tokens, self.H)
        self.gate_up = draw(self.E, 2 * self.I, self.H, scale=self.H**-0.5)
        self.down = draw(self.E, self.H, self.I, scale=self.I**-0.5)
        self.index = torch.multinomial(load.expand(case.tokens, -1), self.k, generator=generator)
        weights = torch.rand(case.tokens, self.k, generator=generator, dtype=torch.float32, device=device)
        self.weights = (weights / weights.sum(1, keepdim=True)).requires_grad_()
        self.grad = draw(case.tokens, self.H).detach()

    @property
    def leaves(self) -> list[Tensor]:
        """The tensors whose gradients a step computes."""
        return [self.x, self.gate_up, self.down, self.weights]

    @property
    def operands(self) -> tuple[Tensor, ...]:
        """The arguments of a layer."""
        return self.x, self.gate_up, self.down, self.index, self.weights

    def flop(self, step: bool) -> int:
        """FLOP of the products of the forward, or of a step."""
        return 6 * self.x.shape[0] * self.k * self.H * self.I * (3 if step else 1)

    @property
    def sample(self) -> Tensor:
        """Numbers of the tokens whose results are compared."""
        return torch.arange(0, self.x.shape[0], max(1, self.x.shape[0] // SAMPLE), device=self.x.device)

    @torch.enable_grad()
    def verify_forward(self, result: Tensor) -> None:
        """Compare the results of some tokens with float64.

        Raises:
            WrongResult: they differ.
        """
        self._compare("result", result[self.sample], self._exact(self.sample)[0])

    def verify(self, forward: Callable[[], Tensor]) -> None:
        """Compare the results of some tokens, and the gradients of these tokens and of one expert, with float64.

        Raises:
            WrongResult: naming what is wrong.
        """
        result = forward()
        with torch.no_grad():
            alone = forward()  # other kernels may compute it
        found = torch.autograd.grad(result, self.leaves, self.grad)
        tokens, expert = self.sample, int(self.index[0, 0])
        rows, choices = (self.index == expert).nonzero(as_tuple=True)
        exact = self._exact(tokens)
        self._compare("result", result[tokens], exact[0])
        self._compare("result without gradients", alone[tokens], exact[0])
        self._compare("the tokens' gradient", found[0][tokens], exact[1])
        self._compare("the weights' gradient", found[3][tokens], exact[2])
        gate_up, down = self._exact_expert(expert, rows, choices)
        self._compare("gate_up's gradient", found[1][expert], gate_up)
        self._compare("down's gradient", found[2][expert], down)

    @staticmethod
    def _compare(what: str, found: Tensor, exact: Tensor) -> None:
        error = float((found.detach().double() - exact).norm() / exact.norm().clamp(min=1e-30))
        if not error < 0.02:  # of 3 roundings to bfloat16, each at most 2**-9, in sums of random numbers: 0.004
            raise WrongResult(f"{what} differs from float64 by {error:.4f} of its norm")

    def _exact(self, tokens: Tensor) -> tuple[Tensor, ...]:
        x = self.x.detach()[tokens].double().requires_grad_()
        weights = self.weights.detach()[tokens].double().requires_grad_()
        out = torch.zeros_like(x)
        for e in self.index[tokens].unique().tolist():
            rows, choices = (self.index[tokens] == e).nonzero(as_tuple=True)
            gate, up = (x[rows] @ self.gate_up.detach()[e].double().mT).chunk(2, 1)
            result = (functional.silu(gate) * up) @ self.down.detach()[e].double().mT
            out = out.index_add(0, rows, result * weights[rows, choices][:, None])
        out.backward(self.grad[tokens].double())
        return out.detach(), x.grad, weights.grad

    def _exact_expert(self, expert: int, rows: Tensor, choices: Tensor) -> tuple[Tensor, Tensor]:
        gate_up, down = (each.detach()[expert].double().requires_grad_() for each in (self.gate_up, self.down))
        gate, up = (self.x.detach()[rows].double() @ gate_up.mT).chunk(2, 1)
        result = (functional.silu(gate) * up) @ down.mT * self.weights.detach()[rows, choices][:, None].double()
        return torch.autograd.grad(result, [gate_up, down], self.grad[rows].double())


# ---- ways to compute a layer


def ours(layer: Layer) -> Callable[[], Tensor]:
    """Call this library."""
    return lambda: moe_feed_forward(*layer.operands)


def transformers(layer: Layer) -> Callable[[], Tensor]:
    """Do what transformers does with torch's ``grouped_mm``: sort, gather, multiply, activate, multiply, weight, put
    back in order, sum."""
    x, gate_up, down, index, weights = layer.operands
    product = functional.grouped_mm

    def forward() -> Tensor:
        tokens, top_k = index.shape
        order = torch.argsort(index.reshape(-1))
        counts = torch.histc(index.reshape(-1).float(), bins=layer.E, min=0, max=layer.E - 1)
        offs = torch.cumsum(counts, dim=0, dtype=torch.int32)
        rows = x[order // top_k]
        gate, up = product(rows, gate_up.mT, offs=offs).chunk(2, dim=-1)
        result = product(functional.silu(gate) * up, down.mT, offs=offs)
        result = result * weights.reshape(-1)[order][:, None]
        back = torch.empty_like(order)
        back[order] = torch.arange(order.shape[0], device=order.device)
        return result[back].view(tokens, top_k, -1).sum(1).to(x.dtype)

    return forward


def liger(layer: Layer) -> Callable[[], Tensor]:
    """Call Liger's fused layer.

    Raises:
        ImportError: it is not installed.
    """
    from liger_kernel.ops.fused_moe import LigerFusedMoEFunction

    x, gate_up, down, index, weights = layer.operands
    narrow = index.int()
    return lambda: LigerFusedMoEFunction.apply(x, gate_up, down, narrow, weights)


def batched(layer: Layer) -> Callable[[], Tensor]:
    """Do what transformers does with torch's ``bmm``, for few tokens: copy each choice's weights, and multiply."""
    x, gate_up, down, index, weights = layer.operands
    tokens, top_k = index.shape

    def forward() -> Tensor:
        of_choices = index.reshape(-1)
        rows = x.repeat_interleave(top_k, dim=0)[:, :, None]
        gate, up = torch.bmm(gate_up[of_choices], rows)[:, :, 0].chunk(2, dim=-1)
        result = torch.bmm(down[of_choices], (functional.silu(gate) * up)[:, :, None])[:, :, 0]
        result = result * weights.reshape(-1)[:, None]
        return result.view(tokens, top_k, -1).sum(1).to(x.dtype)

    return forward


PEERS = {"transformers": transformers, "batched": batched, "liger": liger}


def products(layer: Layer, step: bool) -> Callable[[], None]:
    """Make the layer's products alone."""
    ends = Routing.of(layer.index, layer.E).ends
    count, options = layer.index.numel(), dict(dtype=layer.x.dtype, device=layer.x.device)
    rows, hidden, pre = (torch.randn(count, n, **options) for n in (layer.H, layer.I, 2 * layer.I))
    gate_up, down = layer.gate_up.detach(), layer.down.detach()

    def run() -> None:
        grouped_mm(rows, gate_up.mT, offs=ends)
        grouped_mm(hidden, down.mT, offs=ends)
        if step:
            grouped_mm(rows, down, offs=ends)
            grouped_mm(pre, gate_up, offs=ends)
            grouped_mm(rows.mT, hidden, offs=ends)
            grouped_mm(pre.mT, rows, offs=ends)

    return run


def reading(layer: Layer) -> Callable[[], Tensor] | None:
    """Read as many bytes as the weights of the chosen experts have; None if a whole ``gate_up`` has fewer."""
    count = int(layer.index.unique().numel()) * 3 * layer.H * layer.I * layer.x.element_size() // 4
    whole = layer.gate_up.detach().view(-1).view(torch.int32)
    return None if count > whole.numel() else lambda: torch.amax(whole[:count])


# ---- the record


def _passes(forward: Callable[[], Tensor], layer: Layer) -> dict[str, Callable[[], object]]:
    def alone() -> Tensor:
        with torch.no_grad():
            return forward()

    def step() -> tuple[Tensor, ...]:
        return torch.autograd.grad(forward(), layer.leaves, layer.grad)

    return {"forward": alone, "step": step}


def peers_of(case: Case) -> tuple[str, ...]:
    """The peers that a case is measured with."""
    return ("transformers", *(["batched"] if case.tokens == 1 else []), *(["liger"] if case.tokens >= TRAINED else []))


def measure(case: Case) -> dict:
    """Measure a case: µs of each way and pass, bytes kept for the backward, peaks, or the reason why not."""
    layer = Layer(case)
    ways: dict[str, Callable[[], Tensor]] = {"ours": ours(layer)}
    failed: dict[str, str] = {}
    for name in peers_of(case):
        try:
            ways[name] = PEERS[name](layer)
        except ImportError as error:
            failed[name] = one_line(error)
    timed: dict[str, Callable[[], object]] = {}
    pool = torch.cuda.graph_pool_handle()  # nobody reads what a graph leaves, and 80 GB do not hold it twice
    alone = {step: products(layer, step) for step in (False, True)}  # kept: the graphs read their operands
    for step, call in alone.items():
        timed[f"products {'step' if step else 'forward'}"] = timing.capture(call, pool=pool).replay
    if read := reading(layer):
        timed["reading"] = timing.capture(read, pool=pool).replay
    memory = {}
    for name, forward in ways.items():
        try:
            layer.verify(forward)
            memory[name] = _memory(forward, layer)
            for pass_name, call in _passes(forward, layer).items():
                if pass_name == "step" and name != "ours" and case.tokens < TRAINED:
                    continue
                timed[f"{name} {pass_name}"] = call
                if name == "ours":
                    timed[f"graph {pass_name}"] = timing.capture(call, pool=pool).replay
        except Exception as error:
            if not is_out_of_memory(error) and not isinstance(error, WrongResult):
                raise
            failed[name] = one_line(error)
    times = medians(timed)
    ideal = case.tokens * (2 * layer.H + 4 * layer.k * layer.I)
    sizes = dict(E=layer.E, k=layer.k, H=layer.H, I=layer.I, kept_ideal=ideal)
    return asdict(case) | sizes | dict(us=times, memory=memory, failed=failed)


def medians(timed: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Time all forwards in turn, then all steps: a call takes longer after some calls than after others."""
    times: dict[str, list[float]] = {}
    for steps in (False, True):
        those = {name: call for name, call in timed.items() if name.endswith("step") == steps}
        times |= timing.interleaved_us(those, repeats=REPEATS)
    return {name: statistics.median(each) for name, each in times.items()}


def _memory(forward: Callable[[], Tensor], layer: Layer) -> dict[str, int]:
    """Bytes that a forward keeps for the backward, beside the result and counting x; and the peak of a step, above what
    is there before, gradients included."""
    gc.collect()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    result = forward()
    tokens = layer.x.numel() * layer.x.element_size()
    kept = torch.cuda.memory_allocated() - before - result.numel() * result.element_size() + tokens
    torch.autograd.grad(result, layer.leaves, layer.grad)
    torch.cuda.synchronize()
    return dict(kept=kept, peak=torch.cuda.max_memory_allocated() - before)


def cases() -> list[Case]:
    """The cases of the record."""
    found = [Case(SWEPT, tokens, "uniform") for tokens in TOKENS]
    found += [Case(SWEPT, tokens, "zipf") for tokens in TOKENS if tokens >= TRAINED]
    return found + [Case(model, tokens, "uniform") for model in OTHERS for tokens in (1, TRAINED)]


class Rows(list):
    """Rows so far."""

    def as_json(self) -> dict:
        """The record's content."""
        return {"rows": [*self]}


def rows(keep: Callable[[Rows], None] = lambda found: None) -> dict:
    """Measure every case; ``keep`` gets the rows so far after each."""
    return measured(cases(), measure, line, keep)


def measured(
    each_of: Sequence[Case], measure: Callable[[Case], dict], line: Callable[[dict], str], keep: Callable[[Rows], None]
) -> dict:
    """Measure cases, and print a line about each; ``keep`` gets the rows so far."""
    found = Rows()
    for case in each_of:
        found.append(measure(case))
        print(line(found[-1]), flush=True)
        keep(found)
        torch.cuda.empty_cache()
    return found.as_json()


def line(row: dict) -> str:
    """One line about a row: TFLOP/s of each way, and ours over the products'."""
    flop = 6 * row["tokens"] * row["k"] * row["H"] * row["I"]
    parts = [f"{row['model']} {row['tokens']} {row['routing']}:"]
    for name, us in row["us"].items():
        parts.append(f"{name} {us:.0f} µs {flop * (3 if 'step' in name else 1) / us / 1e6:.0f}")
    for each in ("forward", "step"):
        parts.append(f"{each} {row['us'][f'products {each}'] / row['us'][f'graph {each}']:.2f} of products")
    return "; ".join(parts)
