"""The kernel in CuTe DSL behind ``grouped_mm``: which products it takes, and in which configuration.

It computes mode "m" of 16-bit operands whose depth is contiguous, on Hopper. All else is the Triton kernels'.
"""

from __future__ import annotations

import functools
import importlib.util

import torch

from course_kernels import runtime
from course_kernels.kernels.cute_sm90.config import COOPERATIVE, PINGPONG, CuteConfig

CAPABILITY = (9, 0)
DTYPES = {torch.float16: "float16", torch.bfloat16: "bfloat16"}
OUT_DTYPES = {**DTYPES, torch.float32: "float32"}
_PACKAGES = ("cutlass", "tvm_ffi")
_MOST_ROWS = 2**30  # what the window on the result holds


@functools.cache
def installed() -> bool:
    """Whether the packages of the extra ``cutlass`` are there. Imports nothing."""
    return all(importlib.util.find_spec(name) for name in _PACKAGES)


@functools.cache
def runs_on(device: torch.device) -> bool:
    """Whether the kernel runs on a device, and what it needs is installed."""
    return device.type == "cuda" and torch.version.hip is None and runtime.capability(device) == CAPABILITY


def check_available(device: torch.device) -> None:
    """Raise unless the kernel can run on a device.

    Raises:
        ValueError: the device is no Hopper GPU.
        ImportError: a package is missing; the message names the extra.
    """
    if not runs_on(device):
        what = f"{device} has {runtime.capability(device)}" if device.type == "cuda" else f"mat_a is on {device}"
        raise ValueError(
            f"backend='cute' needs a GPU of compute capability 9.0 (H100, H200), and {what}; backend='auto' chooses "
            "what runs"
        )
    if not installed():
        raise ImportError(
            "backend='cute' needs NVIDIA's CUTLASS packages (nvidia-cutlass-dsl, apache-tvm-ffi): pip install "
            '".[cutlass]" where the course is checked out, or "grouped-gemm-course[cutlass]"'
        )


def takes(mat_a, mat_b, offs, out, bias=None, scale_a=None, keep_tail: bool = False) -> bool:
    """Whether the kernel computes a checked product: a matter of form and alignment alone.

    Args:
        mat_a, mat_b, offs, out, bias, scale_a, keep_tail: as for ``grouped_launch.multiply``.
    """
    if mat_a.dim() != 2 or mat_b.dim() != 3 or mat_a.dtype not in DTYPES:
        return False
    if bias is not None or scale_a is not None or keep_tail or offs.dtype != torch.int32:
        return False
    (total, depth), (groups, _, columns) = mat_a.shape, mat_b.shape
    if not (0 < total <= _MOST_ROWS and depth and columns and groups) or depth % 8 or columns % 8:
        return False
    return (
        _described(mat_a, (0,), 1)
        and _described(mat_b, (0, 2), 1)
        and _described(out, (0,), 1)
        and (groups == 1 or mat_b.stride(0) > 0)
    )


def _described(tensor: torch.Tensor, others: tuple[int, ...], contiguous: int) -> bool:
    """Whether a descriptor describes a tensor: 16 bytes divide its address, and each stride but one, which is 1."""
    unit = 16 // tensor.element_size()
    return (
        tensor.stride(contiguous) == 1
        and not tensor.data_ptr() % 16
        and all(tensor.stride(dim) % unit == 0 for dim in others)
    )


class Plan:
    """A compiled kernel, to be run on tensors of one form."""

    def __init__(self, device: torch.device, function):
        self._device, self._function = device, function

    def here(self) -> bool:
        """Whether the plan's device is the current one, as ``run`` wants it."""
        return self._device.index == torch.cuda.current_device()

    def run(self, tensors: tuple) -> None:
        """Launch on the tensors of ``grouped_launch.multiply``, in its order, on the current stream."""
        mat_a, mat_b, offs, out = tensors[:4]
        self._function(mat_a, mat_b, out, offs)


def multiply(mat_a, mat_b, offs, out, config: CuteConfig | None = None) -> Plan:
    """Write the product of operands that the kernel ``takes`` to ``out``, zeros to the tail.

    Args:
        mat_a, mat_b, offs, out: as for ``takes``.
        config: instead of the chosen one.

    Returns:
        The launch, which can be run again on tensors of the same form.
    """
    groups, depth, columns = mat_b.shape
    config = config or choose(mat_a.shape[0], columns, depth, groups)
    with torch.cuda.device(mat_a.device):
        plan = Plan(mat_a.device, _compiled(config, mat_a.dtype, out.dtype, mat_a.device))
        plan.run((mat_a, mat_b, offs, out))
    return plan


@functools.cache
def _compiled(config: CuteConfig, dtype: torch.dtype, out_dtype: torch.dtype, device: torch.device):
    from course_kernels.kernels.cute_sm90.kernel import compile_for

    processors = torch.cuda.get_device_properties(device).multi_processor_count
    return compile_for(config, DTYPES[dtype], OUT_DTYPES[out_dtype], multiprocessors=processors)


def choose(total: int, N: int, K: int, G: int) -> CuteConfig:
    """The configuration for a product, by the average group's rows and the columns.

    Args:
        total: rows of all groups; N: columns; K: depth; G: groups, at least 1.
    """
    if total <= 512 * G:
        # Rows are scarce: a cluster of two side by side wastes none of them.
        return (
            CuteConfig(128, 192, 64, 1, 2, 4, PINGPONG) if K > 1024 else CuteConfig(128, 256, 64, 1, 2, 4, COOPERATIVE)
        )
    if N > 8192:
        return CuteConfig(128, 192, 64, 1, 2, 4, PINGPONG)
    return CuteConfig(128, 128, 64, 2, 1, 6, PINGPONG)
