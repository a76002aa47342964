"""The providers of products with 8-bit operands and a factor for each row and column."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from course_kernels import scaled_grouped_mm
from course_kernels.bench.interface import Calls, Provider
from course_kernels.bench.operands import Operands
from course_kernels.bench.providers import Dense, Ours, Torch, backends

__all__ = ["DTYPE", "DenseScaled", "OursScaled", "TorchScaled", "providers"]

DTYPE = torch.float8_e4m3fn


class OursScaled(Ours):
    """`scaled_grouped_mm` of this library with one of its backends."""

    def __init__(self, backend: str):
        super().__init__(backend)
        self.label = f"scaled_grouped_mm ({backend})"

    def prepare(self, operands: Operands) -> Calls:
        """The call for graphs writes into the shared buffer; the call as a user makes it allocates its result."""
        row_wise = torch.nn.functional.ScalingType.RowWise
        o, backend = operands, self.backend

        def call(**options) -> Tensor:
            return scaled_grouped_mm(
                o.a, o.weight.mT, o.scale_a, row_wise, o.scale_b, row_wise, offs=o.offs, backend=backend, **options
            )  # fmt: skip

        return Calls(forward={"": lambda: call(out=o.out)}, called={"": call})


class TorchScaled(Torch):
    """`torch.nn.functional.scaled_grouped_mm`; `fast` keeps sums in tensor cores all along K."""

    function_name, multiple = "scaled_grouped_mm", 16

    def __init__(self, fast: bool):
        self.fast, self.name = fast, "torch-fast" if fast else "torch"
        self.label = "torch scaled_grouped_mm" + ", fast accumulation" * fast

    def function(self) -> Callable | None:
        """The function, if this torch has it."""
        return getattr(torch.nn.functional, "scaled_grouped_mm", None)

    def prepare(self, operands: Operands) -> Calls:
        """It has no `out=`: each call allocates its result, in a graph once for all replays."""
        row_wise = torch.nn.functional.ScalingType.RowWise
        o, function, fast = operands, self.function(), self.fast

        def call() -> Tensor:
            return function(
                o.a, o.weight.mT, o.scale_a, row_wise, o.scale_b, row_wise, offs=o.offs,
                output_dtype=torch.bfloat16, use_fast_accum=fast,
            )  # fmt: skip

        return Calls(forward={"": call}, called={"": call})


class DenseScaled(Dense):
    """One product of the same total size by `torch._scaled_mm`."""

    label = "dense torch._scaled_mm, same size"

    def prepare(self, operands: Operands) -> Calls:
        """All rows with the first weight, by the faster of its two ways to accumulate."""
        o = operands.as_dense()
        scales = dict(scale_a=o.scale_a[:, None], scale_b=o.scale_b)

        def dense(fast: bool) -> Tensor:
            return torch._scaled_mm(o.a, o.weight[0].mT, **scales, out_dtype=torch.bfloat16, use_fast_accum=fast)

        return Calls(forward={"exact": lambda: dense(False), "fast": lambda: dense(True)}, operands=o)


def providers() -> list[Provider]:
    """All providers of scaled products, available here or not, ours first."""
    return [*map(OursScaled, backends()), TorchScaled(False), TorchScaled(True), DenseScaled()]
