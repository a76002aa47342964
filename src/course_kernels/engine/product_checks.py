"""Checks of the arguments that all functions of grouped products share: group ends, backend, device, result."""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from course_kernels import runtime
from course_kernels.memory_overlap import check_detached
from course_kernels.type_checks import check_dense, is_symbol

Backend: TypeAlias = Literal["auto", "triton", "cute", "torch"]
BACKENDS: tuple[Backend, ...] = get_args(Backend)


def differ(one: int | torch.SymInt, other: int | torch.SymInt, rule: str) -> bool:
    """Whether two extents that must be equal differ. If they are known only when a traced program runs, the program
    compares them then, and its error names the broken rule; not in a graph of Dynamo's, which takes fixed texts."""
    if not is_symbol(one) and not is_symbol(other):
        return bool(one != other)
    from torch.fx.experimental.symbolic_shapes import guard_or_false  # imports sympy

    if guard_or_false(one != other):
        return True
    if not torch.compiler.is_dynamo_compiling():
        torch._check_value(one == other, lambda: f"{rule}, got {one} and {other}")
    elif not guard_or_false(one == other):
        torch._check(one == other, lambda: "two extents that must be equal differ")
    return False


def check_backend(backend) -> None:
    """Raise unless this is the name of a backend."""
    if backend not in BACKENDS:
        raise ValueError(f"backend must be one of {BACKENDS}, got {backend!r}")


def check_added_dtype(name: str, tensor: Tensor, dtype: torch.dtype, of: str) -> None:
    """Raise unless a tensor that is added in float32 has that dtype, or ``dtype``, which the argument ``of`` has."""
    if tensor.dtype not in (dtype, torch.float32):
        wanted = "dtype torch.float32" if dtype == torch.float32 else f"the dtype of {of}, {dtype}, or torch.float32"
        raise TypeError(f"{name} must have {wanted}, got {tensor.dtype}")


def check_num_sms(num_sms) -> None:
    """Raise unless ``num_sms`` is None or an int of at least 1."""
    if num_sms is None:
        return
    if not isinstance(num_sms, int) or isinstance(num_sms, bool):
        raise TypeError(f"num_sms must be an int or None, got {type(num_sms).__name__}")
    if num_sms < 1:
        raise ValueError(f"num_sms must be at least 1, got {num_sms}")


def check_offs(offs, name: str, device: torch.device) -> None:
    """Raise unless ``offs`` has the form of group ends, on the device of the tensor ``name``."""
    check_dense("offs", offs)
    if offs.dtype not in (torch.int32, torch.int64):
        raise TypeError(f"offs must be torch.int32 or torch.int64, got {offs.dtype}")
    if offs.dim() != 1:
        raise ValueError(f"offs must be 1-D, one end for each group, got shape {tuple(offs.shape)}")
    if offs.device != device:
        raise ValueError(f"offs must be on the device of {name}, {device}, got {offs.device}")


def check_device(name: str, operand: Tensor, backend: str) -> None:
    """Raise if no kernel runs on the operands' kind of device, or if the GPU does not multiply their dtype."""
    device = operand.device
    if backend == "torch" or device.type in ("cpu", "meta"):
        return
    if device.type != "cuda":
        raise ValueError(
            f"{name} must be on a CPU or a GPU of type cuda, got {device}; backend='torch' takes tensors of any device"
        )
    if torch.cuda.is_available() or not isinstance(operand, FakeTensor):  # a fake tensor may be of a missing GPU
        runtime.check_dtype(name, operand.dtype, device, "Convert the operands to float16, or pass backend='torch'.")


def check_out_form(name: str, out, shape: tuple[int, ...], dtype: torch.dtype, like: str, device: torch.device) -> None:
    """Raise unless a tensor that will be written to has the form of the result, on the device of the tensor ``like``.
    ``memory_overlap.check_written`` checks its addresses."""
    check_dense(name, out)
    if tuple(out.shape) != tuple(shape):
        raise ValueError(f"{name} must have shape {tuple(shape)}, got {tuple(out.shape)}")
    if out.dtype != dtype:
        raise TypeError(f"{name} must have dtype {dtype}, got {out.dtype}")
    if out.device != device:
        raise ValueError(f"{name} must be on the device of {like}, {device}, got {out.device}")
    check_detached(name, out)
