"""The operands of a row for every provider of `grouped_mm`, and the verification of results."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from course_kernels.bench.gpu_timer import Result
from course_kernels.bench.interface import WrongResult
from course_kernels.bench.rows import Row
from course_kernels.bench.verification import count_wrong

__all__ = ["Operands", "make_operands", "training_step"]

# The relative loss of sums of 8-bit products in tensor cores: 1 to 2 % if all of K is one sum.
_LOSS_OF_8_BITS = 2.0**-5


@dataclass(frozen=True)
class Operands:
    """Tensors that every provider reads and may write.

    Attributes:
        a: (total_m, K), row-major.
        weight: (G, N, K), row-major, as a layer stores it; the product's B is `weight.mT`.
        d_out: (total_m, N), row-major, the gradient of the result.
        offs: (G,) int32 exclusive ends, on the device.
        sizes: rows of each group, on the host.
        out, d_a, d_weight: memory for results, shaped as the result, `a` and `weight`.
        scale_a, scale_b: (total_m,) and (G, N) float32, factors of the product's rows and columns. Only 8-bit operands
            have them; they have no gradients, so `d_out`, `d_a` and `d_weight` are None.
    """

    a: Tensor
    weight: Tensor
    d_out: Tensor | None
    offs: Tensor
    sizes: tuple[int, ...]
    out: Tensor
    d_a: Tensor | None
    d_weight: Tensor | None
    scale_a: Tensor | None = None
    scale_b: Tensor | None = None

    def as_dense(self) -> Operands:
        """The dense product of the same size: one group of all rows, with the first weight."""

        def first(value: Tensor | None) -> Tensor | None:
            return None if value is None else value[:1]

        return replace(
            self, weight=self.weight[:1], offs=self.offs[-1:], sizes=(sum(self.sizes),),
            d_weight=first(self.d_weight), scale_b=first(self.scale_b),
        )  # fmt: skip

    def exact(self, pass_name: str) -> Iterator[Tensor]:
        """The float64 results of each group."""
        a = self.a.split(self.sizes)
        if pass_name in ("dA", "dB"):
            for g, d_out in enumerate(self.d_out.split(self.sizes)):
                left, right = (d_out, self.weight[g]) if pass_name == "dA" else (d_out.mT, a[g])
                yield left.double() @ right.double()
            return
        for g, factors in enumerate([None] * len(a) if self.scale_a is None else self.scale_a.split(self.sizes)):
            product = a[g].double() @ self.weight[g].double().mT
            yield product if factors is None else product * (factors[:, None].double() * self.scale_b[g].double())

    def verify(self, result: Result, pass_name: str) -> None:
        """Compare a result with float64 products, as `count_wrong` does, within one unit in the last place.

        The bound is wider for 8-bit operands, whose sums may lose more. ``result`` may be a list of the groups.

        Raises:
            WrongResult: names the first group that is wrong, and how many of its elements are.
        """
        if pass_name == "step":
            for each, part in zip(("forward", "dA", "dB"), result, strict=True):
                try:
                    self.verify(part, each)
                except WrongResult as error:
                    raise WrongResult(f"{each}: {error}") from None
            return
        groups = result
        if isinstance(result, Tensor):
            groups = result.unbind() if pass_name == "dB" else result.split(self.sizes)
        if len(groups) != len(self.sizes):
            raise WrongResult(f"{len(groups)} groups came back, wanted {len(self.sizes)}")
        N, K = self.weight.shape[1:]
        for g, (group, size) in enumerate(zip(groups, self.sizes)):
            shape = {"dA": (size, K), "dB": (N, K)}.get(pass_name, (size, N))
            if group.shape != shape:
                raise WrongResult(f"group {g} has shape {tuple(group.shape)}, wanted {shape}")
        unit = _LOSS_OF_8_BITS if self.scale_a is not None else torch.finfo(groups[0].dtype).eps if groups else 0.0
        for g, count in enumerate(count_wrong(groups, self.exact(pass_name), unit)):
            if count:
                raise WrongResult(
                    f"{count} of {groups[g].numel()} elements of group {g} are wrong ({self.sizes[g]} rows)"
                )


def make_operands(row: Row, device: torch.device | str, dtype: torch.dtype = torch.bfloat16, seed: int = 0) -> Operands:
    """Make random normal operands of a row, scaled so that results are near 1. Memory for results holds NaN.

    Results have the operands' dtype; those of 8-bit operands are bfloat16.
    """
    generator = torch.Generator(device).manual_seed(seed)

    def normal(*shape: int, scale: float = 1.0) -> Tensor:
        # Filled in place: 30 GB of weights leave no room for a float32 copy.
        return torch.empty(shape, dtype=dtype, device=device).normal_(0.0, scale, generator=generator)

    def nans(*shape: int) -> Tensor:
        return torch.full(shape, float("nan"), dtype=dtype if dtype.itemsize > 1 else torch.bfloat16, device=device)

    def factors(*shape: int, scale: float = 1.0) -> Tensor:
        return torch.empty(shape, dtype=torch.float32, device=device).uniform_(
            0.5 * scale, 1.5 * scale, generator=generator
        )

    def normal_8_bit(*shape: int) -> Tensor:
        # torch cannot draw float8, so each matrix is drawn in float32 and copied.
        values = torch.empty(shape, dtype=dtype, device=device)
        for part in values.unbind() if len(shape) == 3 else [values]:
            part.copy_(torch.empty(part.shape, dtype=torch.float32, device=device).normal_(generator=generator))
        return values

    G, M, N, K = row.groups, row.total_m, row.N, row.K
    offs = torch.tensor(row.sizes, dtype=torch.int32, device="cpu").cumsum(0, dtype=torch.int32).to(device)
    if dtype.itemsize == 1:
        scales = dict(scale_a=factors(M), scale_b=factors(G, N, scale=K**-0.5))
        a, weight = normal_8_bit(M, K), normal_8_bit(G, N, K)
        return Operands(a, weight, None, offs, row.sizes, nans(M, N), None, None, **scales)
    return Operands(
        a=normal(M, K),
        weight=normal(G, N, K, scale=K**-0.5),
        d_out=normal(M, N),
        offs=offs,
        sizes=row.sizes,
        out=nans(M, N),
        d_a=nans(M, K),
        d_weight=nans(G, N, K),
    )


def training_step(product: Callable[[Tensor, Tensor], Tensor], operands: Operands) -> Callable[[], tuple]:
    """Make a function that runs a training step: forward and backward through autograd, with a weight parameter.

    Args:
        product: (a, weight.mT) → the result, (total_m, N); both require gradients.

    Returns:
        A function that returns the result and the `grad` of both, with the strides of `a` and of the weight.

    Notes:
        Each call makes new leaves in the operands' memory: autograd's node of a leaf keeps the stream it was made on,
        and a CUDA graph is captured on another one. New leaves have no gradient yet, so nothing is added to it.
    """

    def step() -> tuple[Tensor, Tensor, Tensor]:
        a, weight = operands.a.detach().requires_grad_(), torch.nn.Parameter(operands.weight)
        out = product(a, weight.mT)
        out.backward(operands.d_out)
        return out.detach(), a.grad, weight.grad

    return step
