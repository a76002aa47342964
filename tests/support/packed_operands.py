"""Operands of every mode, for tests of the packed products."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import ScalingType

from course_kernels import grouped_mm, runtime
from course_kernels.engine.product import Product
from course_kernels.testing import integers

MODES = ("m", "n", "k", "batch")


DEVICE = runtime.device()


FP8 = torch.float8_e4m3fn


ROW = ScalingType.RowWise


class Operands(NamedTuple):
    """The arguments of ``Product.packed``, and of ``grouped_mm``, in their order."""

    mat_a: Tensor
    mat_b: Tensor
    offs: Tensor | None = None
    bias: Tensor | None = None
    scale_a: Tensor | None = None
    scale_b: Tensor | None = None

    def product(self, **parts) -> Product:
        """The `Product` of these operands. ``parts`` are the other arguments of ``Product.packed``."""
        return Product.packed(*self, **parts)


def shapes(mode, total=20, G=3, M=6, N=10, K=7):
    return {
        "m": ((total, K), (G, K, N)),
        "n": ((G, M, K), (K, total)),
        "k": ((M, total), (total, N)),
        "batch": ((G, M, K), (G, K, N)),
    }[mode]


def operands(mode, dtype=torch.float32, total=20, ends=(5, 5, 17), grad=False, bias=False):
    """mat_a, mat_b, offs, bias: groups of 5, 0 and 12, and a tail of 3."""
    a, b = (integers(shape, dtype, i, device=DEVICE) for i, shape in enumerate(shapes(mode, total)))
    offs = None if mode == "batch" else torch.tensor(ends, dtype=torch.int32, device=DEVICE)
    made = integers((3, 10), dtype, 5, device=DEVICE) if bias and mode != "n" else None
    for tensor in (a, b, made):
        if tensor is not None:
            tensor.requires_grad_(grad)
    return a, b, offs, made


def call(a, b, offs, bias, **options):
    return grouped_mm(a, b, offs=offs, bias=bias, **options)


def scales(mode, total=20, G=3, M=6, N=10):
    shape_a = {"m": (total,), "n": (G, M), "k": (G * M,), "batch": (G, M)}[mode]
    shape_b = {"m": (G, N), "n": (total,), "k": (G * N,), "batch": (G, N)}[mode]
    return [2.0 ** integers(shape, torch.float32, i, device=DEVICE) for i, shape in enumerate((shape_a, shape_b))]


def layer(total, mode="m", groups=3, rows=16, columns=24, depth=40):
    """Operands of a layer on a batch of ``total`` rows, packed along M, N or K."""
    shapes = {
        "m": ((total, depth), (groups, depth, columns)),
        "n": ((groups, rows, depth), (depth, total)),
        "k": ((rows, total), (total, columns)),
    }[mode]
    a, b = (integers(shape, torch.float32, i, device=DEVICE) for i, shape in enumerate(shapes))
    if mode == "k":
        a = a.mT.contiguous().mT  # column-major, as a gradient is: its strides do not depend on the total
    offs = torch.tensor([total // 3, total // 3, total - 1], dtype=torch.int32, device=DEVICE)
    return Operands(a, b, offs)
