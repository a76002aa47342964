"""Launches of the jagged kernels in Triton. Importing this loads Triton."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from course_kernels import runtime
from course_kernels.config import GemmConfig
from course_kernels.jagged.interpreting import widened_on_cpu
from course_kernels.kernels.codes import compared_groups
from course_kernels.kernels.jagged import jagged_kernel, jagged_persistent_kernel

KERNELS = {"simple": jagged_kernel, "persistent": jagged_persistent_kernel}
INTERPRETER = GemmConfig(32, 32, 32, 4, 1, 2)
_INTERPRETER_PROGRAMS = 4


def choose_config(total_m: int, groups: int, N: int, itemsize: int, shared_limit: int | None = None) -> GemmConfig:
    """The configuration on a GPU: large tiles where groups fill them, and half the depth for float32.

    Not tuned: these kernels read through pointers, and "auto" does not choose them for operands of one dtype.

    Args:
        total_m, groups, N: rows, groups and columns.
        itemsize: bytes of an element of the wider operand.
        shared_limit: bytes of shared memory that a program can have; None: no limit.
    """
    depth = 128 // itemsize
    if total_m >= 64 * groups and N >= 128:
        config = GemmConfig(128, 128, depth, 8, 3, 8)
    elif total_m > 16 * groups and N >= 64:
        config = GemmConfig(64, 64, depth, 4, 4, 8)
    else:
        config = GemmConfig(16, 64, depth, 4, 4, 8)
    # "round_robin" is a kernel that keeps the same blocks in shared memory.
    return config.fitted("round_robin", itemsize, shared_limit=shared_limit) or GemmConfig(16, 64, depth, 4, 2, 8)


def launch_arguments(
    A_packed: Tensor, B: Tensor, group_offsets: Tensor, out: Tensor, config: GemmConfig, precision: str
) -> dict[str, Any]:
    """The arguments of a launch of either kernel by name; ``codegen`` compiles what they say, too."""
    (total_m, K), N, groups = A_packed.shape, B.shape[1], group_offsets.shape[0] - 1
    return dict(
        a_ptr=A_packed, b_ptr=B, c_ptr=out, offsets_ptr=group_offsets, total=total_m, N=N, K=K, G=groups,
        stride_am=A_packed.stride(0), stride_ak=A_packed.stride(1), stride_bk=B.stride(0), stride_bn=B.stride(1),
        stride_cm=out.stride(0), stride_cn=out.stride(1), GROUPS=compared_groups(groups),
        BLOCK_M=config.block_m, BLOCK_N=config.block_n, BLOCK_K=config.block_k, GROUP_M=config.group_m,
        PRECISION=precision,
    )  # fmt: skip


@widened_on_cpu
def multiply(
    kernel: str, A_packed: Tensor, B: Tensor, group_offsets: Tensor, config: GemmConfig | None = None
) -> Tensor:
    """The product of checked operands with no extent of 0.

    Args:
        kernel: "simple" or "persistent".
        A_packed, B, group_offsets: as for ``grouped_gemm_jagged``; the offsets contiguous, the device the current one.
        config: blocks and launch parameters instead of the chosen ones.
    """
    total_m, N, groups = A_packed.shape[0], B.shape[1], group_offsets.shape[0] - 1
    out = torch.empty(total_m, N, dtype=torch.promote_types(A_packed.dtype, B.dtype), device=A_packed.device)
    device = runtime.Device.of(out.device)
    if config is None:
        limits = out.element_size(), device.shared_limit
        config = INTERPRETER if device.num_sms is None else choose_config(total_m, groups, N, *limits)
    # Each group and the tail end in one boundary tile.
    programs = (-(-total_m // config.block_m) + groups) * -(-N // config.block_n)
    if kernel == "persistent":
        workers = _INTERPRETER_PROGRAMS if device.num_sms is None else device.num_sms * config.programs_per_sm
        programs = min(programs, workers)
    tf32 = out.dtype == torch.float32 and runtime.allows_tf32() and runtime.supports_tf32(out.device)
    arguments = launch_arguments(A_packed, B, group_offsets, out, config, "tf32" if tf32 else "ieee")
    KERNELS[kernel][(programs,)](**arguments, num_warps=config.num_warps, num_stages=config.num_stages)
    return out
