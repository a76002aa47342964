"""What ``group_gemm`` and its plans accept: settings, operands, outputs."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Literal, TypeAlias, get_args

import torch

from course_kernels import runtime
from course_kernels.config import GemmConfig
from course_kernels.contexts import autocast_dtype, cast, refuse_beside_dtensors
from course_kernels.dtypes import IN_DTYPES, MAX_EXTENT, OUT_DTYPES, PRECISIONS, default_out_dtype
from course_kernels.memory_overlap import check_apart, check_detached, check_written
from course_kernels.type_checks import check_dense, transposed_hint

Method: TypeAlias = Literal["auto", "naive", "round_robin", "tma"]
METHODS: tuple[Method, ...] = get_args(Method)


@dataclasses.dataclass(frozen=True)
class Settings:
    """How lists are multiplied, as ``group_gemm``'s arguments say."""

    method: str
    out_dtype: torch.dtype | None
    precision: str
    config: GemmConfig | None

    @classmethod
    def checked(cls, method, out_dtype, precision, config) -> Settings:
        """The settings, or TypeError or ValueError for one that is wrong."""
        if method not in METHODS:
            raise ValueError(f"method must be one of {METHODS}, got {method!r}")
        if out_dtype is not None and out_dtype not in OUT_DTYPES:
            raise TypeError(f"out_dtype must be one of {OUT_DTYPES}, got {out_dtype!r}")
        if precision not in PRECISIONS:
            raise ValueError(f"precision must be one of {PRECISIONS}, got {precision!r}")
        if config is not None and not isinstance(config, GemmConfig):
            raise TypeError(f"config must be a GemmConfig, got {type(config).__name__}")
        return cls(method, out_dtype, precision, config)

    def result_dtype(self, operand_dtype: torch.dtype) -> torch.dtype:
        """The dtype of results."""
        return self.out_dtype or default_out_dtype(operand_dtype)


def check_sequence(name: str, group) -> tuple[torch.Tensor, ...]:
    """A list of matrices as a tuple; TypeError or ValueError if kernels cannot read it."""
    if isinstance(group, torch.Tensor) or not isinstance(group, (Sequence, torch.nn.ParameterList)):
        raise TypeError(f"{name} must be a list or tuple of 2-D tensors, got {type(group).__name__}")
    for i, tensor in enumerate(group):
        check_dense(f"{name}[{i}]", tensor)
        if tensor.dim() != 2:
            raise ValueError(f"{name}[{i}] must be 2-D, got shape {tuple(tensor.shape)}")
        if tensor.is_neg():  # a view of a conjugate's imaginary part: the memory holds the values with the other sign
            raise ValueError(f"{name}[{i}] is a lazily negated view, which kernels cannot read: use its resolve_neg()")
        if max(tensor.shape) > MAX_EXTENT:
            raise ValueError(f"{name}[{i}] must have extents below 2**31 - 2**16, got shape {tuple(tensor.shape)}")
    return tuple(group)


def check_operands(
    group_A, group_B, precision, autocasts: bool = False
) -> tuple[tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]]:
    """Both lists as tuples, cast where autocast asks for it; TypeError or ValueError where they do not fit."""
    group_A, group_B = check_sequence("group_A", group_A), check_sequence("group_B", group_B)
    if autocasts and group_A and (dtype := autocast_dtype(group_A[0].device.type)):
        group_A, group_B = (tuple(cast(tensor, dtype) for tensor in group) for group in (group_A, group_B))
    if len(group_A) != len(group_B):
        raise ValueError(
            f"group_A and group_B must have the same length, got {len(group_A)} and {len(group_B)} matrices"
        )
    if not group_A:
        return group_A, group_B
    dtype, device = group_A[0].dtype, group_A[0].device
    if dtype not in IN_DTYPES:
        raise TypeError(f"group_A[0] must have a dtype of {IN_DTYPES}, got {dtype}")
    for name, group in (("group_A", group_A), ("group_B", group_B)):
        for i, tensor in enumerate(group):
            if tensor.dtype != dtype:
                raise TypeError(f"{name}[{i}] must have the dtype of group_A[0], {dtype}, got {tensor.dtype}")
            if tensor.device != device:
                raise ValueError(f"{name}[{i}] must be on the device of group_A[0], {device}, got {tensor.device}")
    for i, (a, b) in enumerate(zip(group_A, group_B)):
        if a.shape[1] != b.shape[0]:
            raise ValueError(
                f"problem {i}: group_A[{i}] has K = {a.shape[1]} columns and group_B[{i}] has {b.shape[0]} rows; "
                f"they must be equal (shapes {tuple(a.shape)} and {tuple(b.shape)})"
                + transposed_hint(f"group_B[{i}]", b, a.shape[1])
            )
    runtime.check_dtype("group_A", dtype, device, "Convert the operands to float16.")
    if dtype == torch.float32 and precision == "tf32" and not runtime.supports_tf32(device):
        raise ValueError(
            f"precision must be 'ieee' on this GPU, got 'tf32': TF32 needs an NVIDIA GPU of compute capability 8.0 or "
            f"newer; {device} has {runtime.capability(device)}"
        )
    return group_A, group_B


def prepare_out(group_A, group_B, settings: Settings, out) -> list[torch.Tensor]:
    """Allocate the outputs, or check those given. Nothing is written."""
    if out is not None:
        out = list(check_sequence("out", out))
        if len(out) != len(group_A):
            raise ValueError(f"out must have the length of group_A, {len(group_A)}, got {len(out)} matrices")
        refuse_beside_dtensors("out", *out, *group_A, *group_B)
        if group_A and group_A[0].is_meta:
            raise ValueError("out must be None for meta tensors, which have no memory to write to")
    if not group_A:
        return []
    dtype, device = settings.result_dtype(group_A[0].dtype), group_A[0].device
    shapes = [(a.shape[0], b.shape[1]) for a, b in zip(group_A, group_B)]
    if out is None:
        return [torch.empty(shape, dtype=dtype, device=device) for shape in shapes]
    for i, (tensor, shape) in enumerate(zip(out, shapes)):
        if tuple(tensor.shape) != shape:
            raise ValueError(f"out[{i}] must have shape {shape}, got {tuple(tensor.shape)}")
        if tensor.dtype != dtype:
            raise TypeError(f"out[{i}] must have dtype {dtype}, got {tensor.dtype}")
        if tensor.device != device:
            raise ValueError(f"out[{i}] must be on {device}, got {tensor.device}")
        check_detached(f"out[{i}]", tensor)
        check_written(f"out[{i}]", tensor, {})
    check_apart({"group_A": group_A, "group_B": group_B}, out)
    return out
