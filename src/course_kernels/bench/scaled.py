"""Who computes the rows of a benchmark with 8-bit operands and a factor for each row and column."""

from __future__ import annotations

import torch
from torch import Tensor

from course_kernels.bench.interface import Calls, Operands, Provider
from course_kernels.bench.providers import Ours, backends
from course_kernels.bench.rows import Row

__all__ = ["DTYPE", "DenseScaled", "OursScaled", "TorchScaled", "providers"]

DTYPE = torch.float8_e4m3fn


class OursScaled(Ours):
    """`scaled_grouped_mm` of this library with one of its backends."""

    def __init__(self, backend: str):
        super().__init__(backend)
        self.label = f"scaled_grouped_mm ({backend})"

    def prepare(self, operands: Operands) -> Calls:
        """The result of a graph goes into the shared buffer; the call as a user makes it allocates its own."""
        from course_kernels import scaled_grouped_mm

        row_wise = torch.nn.functional.ScalingType.RowWise
        o, backend = operands, self.backend

        def call(**options) -> Tensor:
            return scaled_grouped_mm(
                o.a, o.weight.mT, o.scale_a, row_wise, o.scale_b, row_wise, offs=o.offs, backend=backend, **options
            )  # fmt: skip

        return Calls(forward={"": lambda: call(out=o.out)}, called={"": call})


class TorchScaled(Provider):
    """`torch.nn.functional.scaled_grouped_mm`, with sums kept in tensor cores all along K where `fast`."""

    def __init__(self, fast: bool):
        self.fast, self.name = fast, "torch-fast" if fast else "torch"
        self.label = "torch scaled_grouped_mm" + ", fast accumulation" * fast

    @staticmethod
    def _function():
        return getattr(torch.nn.functional, "scaled_grouped_mm", None)

    def unavailable(self) -> str | None:
        """It came with torch 2.10."""
        return None if self._function() else f"torch {torch.__version__} has no scaled_grouped_mm"

    def unsuited(self, row: Row) -> str | None:
        """Its rule of 16 bytes."""
        return None if row.N % 16 == row.K % 16 == 0 else "torch wants N and K to be multiples of 16"

    def prepare(self, operands: Operands) -> Calls:
        """It has no `out=`: it allocates its result, in a graph once for all replays."""
        row_wise = torch.nn.functional.ScalingType.RowWise
        o, function, fast = operands, self._function(), self.fast

        def call() -> Tensor:
            return function(
                o.a, o.weight.mT, o.scale_a, row_wise, o.scale_b, row_wise, offs=o.offs,
                output_dtype=torch.bfloat16, use_fast_accum=fast,
            )  # fmt: skip

        return Calls(forward={"": call}, called={"": call})


class DenseScaled(Provider):
    """One product of the same total size by `torch._scaled_mm`, which computes something else."""

    name, label, role = "dense", "dense torch._scaled_mm, same size", "ceiling"

    def unsuited(self, row: Row) -> str | None:
        """Reading one weight instead of all of them bounds nothing."""
        return None if row.kind == "compute" else "a dense product reads one weight; here the copy bandwidth bounds"

    def prepare(self, operands: Operands) -> Calls:
        """All rows with the first weight; the faster one of its two ways to accumulate."""
        o = operands.as_dense()
        scales = dict(scale_a=o.scale_a[:, None], scale_b=o.scale_b)

        def dense(fast: bool) -> Tensor:
            return torch._scaled_mm(o.a, o.weight[0].mT, **scales, out_dtype=torch.bfloat16, use_fast_accum=fast)

        return Calls(forward={"exact": lambda: dense(False), "fast": lambda: dense(True)}, operands=o)


def providers() -> list[Provider]:
    """Every provider of scaled products, whether it can run here or not, ours first."""
    return [*map(OursScaled, backends()), TorchScaled(False), TorchScaled(True), DenseScaled()]
