"""Measurements of ``gmm``, ``ptgmm`` and ``nptgmm``: layers of published models with biases, forward and gradients.

The peers do what a user of torch does about a bias: after ``grouped_mm`` the bias of each row's group is added, and its
gradient is an ``index_add_``; the cuBLAS loop takes it into each product. A row's group is known from the routing, so
the indices are made beforehand. Ours gets the sizes and computes the ends, every time.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from course_kernels import gmm, nptgmm, ptgmm
from course_kernels.bench import timing
from course_kernels.bench.gpu_timer import GpuTimer
from course_kernels.bench.interface import WrongResult, one_line
from course_kernels.bench.operands import Operands as Matrices
from course_kernels.bench.operands import make_operands
from course_kernels.bench.rows import Row, describe, equal, zipf
from course_kernels.bench.verification import count_wrong

REPEATS = 40
# float32 sums of up to 16,384 rows in another order; a row that is left out is off by a hundred times as much.
SUM_UNIT = 2.0**-14
# Name, model, rows over groups, N and K of the first product of an expert (gate and up together).
MODELS = (
    ("mixtral", "Mixtral 8x7B", 16384, 8, 28672, 4096),
    ("qwen3", "Qwen3-30B-A3B", 32768, 128, 1536, 2048),
    ("deepseek", "DeepSeek-V3, few tokens", 4096, 256, 4096, 7168),
    ("gpt-oss", "gpt-oss-120b", 32768, 128, 5760, 2880),
)

Call = Callable[[], tuple[Tensor, ...]]


def models() -> list[Row]:
    """Each model with rows shared out evenly, and by Zipf's law."""
    found = []
    for name, title, total, groups, N, K in MODELS:
        for how, sizes in (("equal", equal(groups, total)), ("zipf", zipf(groups, total, 7))):
            words = f"{title}: {describe(sizes, N, K, 'equal' if how == 'equal' else 'Zipf')}"
            found.append(Row(f"{name}-{how}", words, sizes, N, K, "compute" if total > 100 * groups else "memory"))
    return found


@dataclasses.dataclass(frozen=True)
class Layer:
    """A layer of experts with biases, and memory for what is computed of it.

    Attributes:
        matrices: operands and memory for results; the weights are (G, N, K).
        group_sizes: (G,) int32.
        groups: (total_m,) int64, the group of each row.
        bias: (G, N) of the operands' dtype.
        bias_grad: (G, N) float32.
    """

    matrices: Matrices
    group_sizes: Tensor
    groups: Tensor
    bias: Tensor
    bias_grad: Tensor

    @classmethod
    def of(cls, row: Row, device: torch.device | str) -> Layer:
        """Random operands of a row."""
        matrices = make_operands(row, device)
        sizes = torch.tensor(row.sizes, dtype=torch.int32)
        groups = torch.repeat_interleave(torch.arange(row.groups), sizes)
        generator = torch.Generator(device).manual_seed(1)
        bias = torch.randn(row.groups, row.N, generator=generator, device=device).to(matrices.a.dtype)
        bias_grad = torch.full((row.groups, row.N), torch.nan, device=device)
        return cls(matrices, sizes.to(device), groups.to(device), bias, bias_grad)


# ---- what is measured: name → a call that returns the result, or the weights' and the bias's gradients


def forward_calls(layer: Layer) -> dict[str, Call]:
    """The product with the bias."""
    o = layer.matrices
    weight_t, parts = [w.mT for w in o.weight.unbind()], list(zip(o.a.split(o.sizes), o.out.split(o.sizes)))

    def ours() -> tuple[Tensor, ...]:
        return (gmm(o.a, o.weight, layer.group_sizes, layer.bias, existing_out=o.out, rhs_layout="gnk"),)

    def torch_grouped() -> tuple[Tensor, ...]:
        product = torch.nn.functional.grouped_mm(o.a, o.weight.mT, offs=o.offs)
        return (product.add_(layer.bias[layer.groups]),)

    def loop() -> tuple[Tensor, ...]:
        for g, (a, out) in enumerate(parts):
            torch.addmm(layer.bias[g], a, weight_t[g], out=out)
        return (o.out,)

    return {"gmm": ours, "torch grouped_mm": torch_grouped, "cuBLAS loop": loop}


def gradient_calls(layer: Layer) -> dict[str, Call]:
    """The gradients of the weights and of the bias."""
    o = layer.matrices
    parts = list(zip(o.d_out.split(o.sizes), o.a.split(o.sizes)))

    def ours(function: Callable) -> Call:
        def run() -> tuple[Tensor, ...]:
            function(o.d_out, o.a, layer.group_sizes, layer.bias_grad, existing_out=o.d_weight, lhs_layout="mk")
            return o.d_weight, layer.bias_grad

        return run

    def torch_grouped() -> tuple[Tensor, ...]:
        product = torch.nn.functional.grouped_mm(o.d_out.mT, o.a, offs=o.offs)
        return product, layer.bias_grad.zero_().index_add_(0, layer.groups, o.d_out.float())

    def loop() -> tuple[Tensor, ...]:
        for g, (d_out, a) in enumerate(parts):
            torch.mm(d_out.mT, a, out=o.d_weight[g])
            torch.sum(d_out, 0, dtype=torch.float32, out=layer.bias_grad[g])
        return o.d_weight, layer.bias_grad

    return {"ptgmm": ours(ptgmm), "nptgmm": ours(nptgmm), "torch grouped_mm": torch_grouped, "cuBLAS loop": loop}


CALLS = {"forward": forward_calls, "gradients": gradient_calls}
OURS = ("gmm", "ptgmm", "nptgmm")


# ---- verification


def _exact_forward(layer: Layer) -> Iterator[Tensor]:
    o = layer.matrices
    for g, a in enumerate(o.a.split(o.sizes)):
        yield a.double() @ o.weight[g].double().mT + layer.bias[g].double()


def _exact_gradients(layer: Layer) -> Iterator[Tensor]:
    o = layer.matrices
    for d_out, a in zip(o.d_out.split(o.sizes), o.a.split(o.sizes)):
        yield d_out.double().mT @ a.double()


def verify(found: Sequence[Tensor], layer: Layer, pass_name: str, roundings: int = 1) -> None:
    """Compare results with float64 products, group by group. torch's product and its sum with the bias are two
    ``roundings``.

    Raises:
        WrongResult: naming the first group that is wrong.
    """
    o, unit = layer.matrices, roundings * torch.finfo(layer.bias.dtype).eps
    if pass_name == "forward":
        checks = [("rows", found[0].split(o.sizes), _exact_forward(layer), unit)]
    else:
        sums = (d_out.double().sum(0) for d_out in o.d_out.split(o.sizes))
        checks = [
            ("the weights' gradient", found[0].unbind(), _exact_gradients(layer), unit),
            ("the bias's gradient", found[1].unbind(), sums, SUM_UNIT),
        ]
    for what, groups, exact, bound in checks:
        for g, count in enumerate(count_wrong(groups, exact, bound)):
            if count:
                raise WrongResult(f"{count} elements of {what} of group {g} are wrong ({o.sizes[g]} rows)")


def _ready(call: Call, layer: Layer, pass_name: str, timer, roundings: int) -> Call:
    """The call's graph, after its results over poisoned memory were verified."""
    graph = timer.graph(call)
    for tensor in graph():
        tensor.fill_(torch.nan)
    verify(graph(), layer, pass_name, roundings)
    return graph


# ---- the record


def measure(
    table: Sequence[Row], *, repeats: int = REPEATS, device: torch.device | str = "cuda", timer=None, tell=print
) -> dict:
    """µs of every call on every row, in CUDA graphs that take turns, with a flushed L2 cache.

    Args:
        table: rows; their memory is freed between them.
        repeats: timed calls of each.
        timer: the clock; None is ``GpuTimer``.
        tell: called with a line for each row and pass.

    Returns:
        "dtype", "repeats", "copy_tb_s" and "rows": name → title, sizes, N, K, flops, and by pass "us" (median and
        quartiles), "rate" (TFLOP/s or TB/s) and "failed", why a peer was not measured.

    Raises:
        AssertionError: a result of ours is wrong, or failed.
    """
    timer = GpuTimer() if timer is None else timer
    results = {"dtype": "bfloat16", "repeats": repeats, "copy_tb_s": round(timer.copy_tb_s(), 3), "rows": {}}
    for row in table:
        timer.free()
        results["rows"][row.name] = _measure_row(row, repeats, device, timer, tell)
    timer.free()
    return results


def _measure_row(row: Row, repeats: int, device, timer, tell) -> dict:
    layer = Layer.of(row, device)
    entry = {
        "title": row.title, "sizes": list(row.sizes), "N": row.N, "K": row.K, "kind": row.kind, "unit": row.unit,
        "flops": row.flops, "us": {}, "rate": {}, "failed": {},
    }  # fmt: skip
    for pass_name, calls_of in CALLS.items():
        ready = {}
        for name, call in calls_of(layer).items():
            try:
                ready[name] = _ready(call, layer, pass_name, timer, 1 if name in OURS else 2)
            except Exception as error:
                if name in OURS:
                    raise AssertionError(f"{name} on {row.name}: {one_line(error)}") from error
                entry["failed"].setdefault(pass_name, {})[name] = one_line(error)
            timer.settle()
        times = timer.interleaved_us(ready, repeats)
        us = entry["us"][pass_name] = {name: timing.summary(values) for name, values in times.items()}
        moved = "forward" if pass_name == "forward" else "dB"
        rates = {name: row.rate(each["median_us"], moved) for name, each in us.items()}
        entry["rate"][pass_name] = {name: float(f"{rate:.4g}") for name, rate in rates.items()}
        tell(f"{row.title}, {pass_name}: " + " · ".join(f"{name} {rate:.4g}" for name, rate in rates.items()))
        del ready, times  # graphs keep their memory
        timer.free()
    return entry


def rows() -> dict:
    """The record: every model, evenly and by Zipf's law."""
    return measure(models(), tell=functools.partial(print, flush=True))
