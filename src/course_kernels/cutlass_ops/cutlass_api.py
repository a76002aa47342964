"""The names of the API's first release, when its package was ``cutlass_api``, on top of the present ones.

Code for that release runs after ``from course_kernels.cutlass_ops import cutlass_api``. Every name warns that it is
deprecated.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from types import SimpleNamespace

import cutlass.operators as ops
from cutlass.operators.utils.device import device_or_env_supports

# NVIDIA's own class for this name, which warns by itself.
arguments = SimpleNamespace(GroupedGemmArguments=ops.GroupedGemmArguments, GemmArguments=ops.GemmArguments)


def get_kernels(
    args=None, metadata_filter: Callable | None = None, cc: int | None = None, providers=None
) -> list[ops.Operator]:
    """``cutlass.operators.get_operators``, with the target as ``cc``: compute capability without its dot, 90 or 100.

    Returns an empty list, without a reason, where no operator takes the arguments.
    """
    _warn("get_kernels", "get_operators(args, target_sm=...)")
    target = None if cc is None else ops.TargetSm(cc=cc)
    return ops.get_operators(args, metadata_filter, target, providers)


def _is_device_cc_supported(ccs: Iterable[int]) -> ops.Status:
    """Whether this machine's GPU is one of these, or CUTE_DSL_ARCH names one."""
    _warn("utils.is_device_cc_supported", "utils.device.device_or_env_supports")
    return device_or_env_supports([ops.TargetSm(cc=cc) for cc in ccs])


utils = SimpleNamespace(is_device_cc_supported=_is_device_cc_supported)


def _warn(old: str, new: str) -> None:
    message = f"cutlass_api.{old} is deprecated; use cutlass.operators.{new}, or course_kernels.cutlass_ops"
    warnings.warn(message, DeprecationWarning, stacklevel=3)
