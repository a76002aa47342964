"""Measurements of ``gmm``, ``ptgmm`` and ``nptgmm``: layers of published models with biases, forward and gradients.

The peers do what a user of torch does about a bias: after ``grouped_mm`` the bias of each row's group is added, and its
gradient is an ``index_add_``; the cuBLAS loop takes it into each product. A row's group is known from the routing, so
the indices are made beforehand. Ours gets the sizes and computes the ends, every time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from course_kernels import gmm, nptgmm, ptgmm
from course_kernels.bench import grouped, report
from course_kernels.bench.interface import Calls, Function, Provider, WrongResult
from course_kernels.bench.measured import Measured, Results
from course_kernels.bench.operands import Operands, make_operands
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


def models() -> list[Row]:
    """Each model twice: with rows distributed evenly over groups, and by Zipf's law."""
    found = []
    for name, title, total, groups, N, K in MODELS:
        for how, sizes in (("equal", equal(groups, total)), ("zipf", zipf(groups, total, 7))):
            words = f"{title}: {describe(sizes, N, K, 'equal' if how == 'equal' else 'Zipf')}"
            found.append(Row(f"{name}-{how}", words, sizes, N, K, "compute" if total > 100 * groups else "memory"))
    return found


@dataclass(frozen=True)
class Layer:
    """A layer of experts with biases, and memory for its results.

    Attributes:
        matrices: operands and memory for results; the weights are (G, N, K).
        group_sizes: (G,) int32.
        groups: (total_m,) int64, the group of each row.
        bias: (G, N) of the operands' dtype.
        bias_grad: (G, N) float32.
        roundings: of a result to its dtype. torch rounds twice: the product, and its sum with the bias.
    """

    matrices: Operands
    group_sizes: Tensor
    groups: Tensor
    bias: Tensor
    bias_grad: Tensor
    roundings: int = 1

    @classmethod
    def of(cls, row: Row, device: torch.device | str, dtype: torch.dtype = torch.bfloat16) -> Layer:
        """Random operands of a row."""
        matrices = make_operands(row, device, dtype)
        sizes = torch.tensor(row.sizes, dtype=torch.int32)
        groups = torch.repeat_interleave(torch.arange(row.groups), sizes)
        generator = torch.Generator(device).manual_seed(1)
        bias = torch.randn(row.groups, row.N, generator=generator, device=device).to(dtype)
        bias_grad = torch.full((row.groups, row.N), torch.nan, device=device)
        return cls(matrices, sizes.to(device), groups.to(device), bias, bias_grad)

    def verify(self, result: Tensor | tuple[Tensor, Tensor], pass_name: str) -> None:
        """Compare the product, or the gradients of the weights and of the bias, with float64, group by group.

        Raises:
            WrongResult: a group is wrong; the message names the first one.
        """
        o, unit = self.matrices, self.roundings * torch.finfo(self.bias.dtype).eps
        if pass_name == "forward":
            checks = [("rows", result.split(o.sizes), self._exact_forward(), unit)]
        else:
            sums = (d_out.double().sum(0) for d_out in o.d_out.split(o.sizes))
            checks = [
                ("the weights' gradient", result[0].unbind(), o.exact("dB"), unit),
                ("the bias's gradient", result[1].unbind(), sums, SUM_UNIT),
            ]
        for what, groups, exact, bound in checks:
            for g, count in enumerate(count_wrong(groups, exact, bound)):
                if count:
                    raise WrongResult(f"{count} elements of {what} of group {g} are wrong ({o.sizes[g]} rows)")

    def _exact_forward(self) -> Iterator[Tensor]:
        return (product + bias.double() for product, bias in zip(self.matrices.exact("forward"), self.bias))


# ---- providers: the product with the bias, and the gradients of the weights and of the bias


def forward_of_ours(layer: Layer) -> Tensor:
    """Compute the product with the bias by our ``gmm``."""
    o = layer.matrices
    return gmm(o.a, o.weight, layer.group_sizes, layer.bias, existing_out=o.out, rhs_layout="gnk")


def gradients_of_ours(layer: Layer, function: Callable) -> tuple[Tensor, Tensor]:
    """Compute both gradients by our ``ptgmm`` or ``nptgmm``."""
    o = layer.matrices
    function(o.d_out, o.a, layer.group_sizes, layer.bias_grad, existing_out=o.d_weight, lhs_layout="mk")
    return o.d_weight, layer.bias_grad


def by_torch(layer: Layer) -> Calls:
    """Call torch's ``grouped_mm``; add the bias and sum its gradient in separate calls, as a user does."""
    o, grouped_mm = layer.matrices, torch.nn.functional.grouped_mm

    def gradients() -> tuple[Tensor, Tensor]:
        product = grouped_mm(o.d_out.mT, o.a, offs=o.offs)
        return product, layer.bias_grad.zero_().index_add_(0, layer.groups, o.d_out.float())

    def forward() -> Tensor:
        return grouped_mm(o.a, o.weight.mT, offs=o.offs).add_(layer.bias[layer.groups])

    return Calls({"": forward}, d_b={"": gradients}, operands=replace(layer, roundings=2))


def by_cublas(layer: Layer) -> Calls:
    """Call cuBLAS once per group."""
    o = layer.matrices
    parts = list(zip(o.a.split(o.sizes), o.d_out.split(o.sizes), o.out.split(o.sizes)))
    weight_t = [weight.mT for weight in o.weight.unbind()]

    def forward() -> Tensor:
        for g, (a, _, out) in enumerate(parts):
            torch.addmm(layer.bias[g], a, weight_t[g], out=out)
        return o.out

    def gradients() -> tuple[Tensor, Tensor]:
        for g, (a, d_out, _) in enumerate(parts):
            torch.mm(d_out.mT, a, out=o.d_weight[g])
            torch.sum(d_out, 0, dtype=torch.float32, out=layer.bias_grad[g])
        return o.d_weight, layer.bias_grad

    return Calls({"": forward}, d_b={"": gradients}, operands=replace(layer, roundings=2))


def providers() -> list[Provider]:
    """All measured functions, ours first."""

    def of_gradients(function: Callable) -> Callable[[Layer], Calls]:
        return lambda layer: Calls({}, d_b={"": lambda: gradients_of_ours(layer, function)})

    return [
        Function("gmm", lambda layer: Calls({"": lambda: forward_of_ours(layer)}), "ours"),
        Function("ptgmm", of_gradients(ptgmm), "ours"),
        Function("nptgmm", of_gradients(nptgmm), "ours"),
        Function("torch grouped_mm", by_torch),
        Function("cuBLAS loop", by_cublas),
    ]


# ---- the record


def line(measured: Measured) -> str:
    """The rates of a row as text."""
    passes = (
        f"{of}: " + " · ".join(f"{name} {rate:.4g}" for name, rate in rates.items())
        for of, rates in measured.rate.items()
    )
    return f"{measured.row.title}, " + "; ".join(passes)


def rows(keep: Callable[[Results], object] | None = None) -> dict:
    """Measure all rows of ``models``. A wrong or failed result of ours is an error.

    The record calls the gradients of weights and biases "gradients", since they are more than dB.
    """
    results = grouped.measure(
        models(),
        providers(),
        passes=("forward", "dB"),
        repeats=REPEATS,
        make=Layer.of,
        tell=lambda measured: print(line(measured), flush=True),
        keep=keep,
    )
    found = report.require_correct(results).as_json()
    for entry in found["rows"].values():
        entry |= {key: _renamed(entry[key]) for key in ("bytes", "us", "rate", "choice")}
    return found | {"speedups": {mine: _renamed(by_pass) for mine, by_pass in found["speedups"].items()}}


def _renamed(by_pass: Mapping) -> dict:
    return {"gradients" if of == "dB" else of: value for of, value in by_pass.items()}
