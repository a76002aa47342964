"""FLOP counts of the library's operators for ``torch.utils.flop_counter``.

Importing torch's counter imports Triton, so its registry is not touched before somebody else has imported it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping

import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

_COUNTER = "torch.utils.flop_counter"


def flops(mat_a_shape, mat_b_shape, *others, out_shape=None) -> int:
    """Multiplications and additions of a grouped product. The tail counts as if it belonged to a group: only the device
    knows the groups' sizes."""
    groups = mat_a_shape[0] if len(mat_a_shape) == len(mat_b_shape) == 3 else 1
    return 2 * groups * mat_a_shape[-2] * mat_a_shape[-1] * mat_b_shape[-1]


def masked_flops(x_shape, w_shape, *others, out_shape=None) -> int:
    """Of ``deepgemm``: all rows count, for only the device knows which do."""
    return flops(x_shape, (w_shape[0], w_shape[2], w_shape[1]))


def list_flops(a_shapes, b_shapes, *others, out_shape=None) -> int:
    """Of ``group_gemm``."""
    return sum(flops(a, b) for a, b in zip(a_shapes, b_shapes))


_FORMULAS = dict.fromkeys(("grouped_mm", "scaled_grouped_mm", "grouped_mm_out", "grouped_gemm_jagged"), flops)
_FORMULAS |= {"deepgemm": masked_flops, "group_gemm_out": list_flops}


def register(formulas: Mapping[object, Callable[..., int]] | None = None) -> None:
    """Make operators known to torch's counter, if it has been imported, and to the counters that are active now.

    Args:
        formulas: the FLOP count of each operator, of its arguments' shapes. Default: those of this module.
    """
    counter = sys.modules.get(_COUNTER)
    if counter is None or not hasattr(counter, "register_flop_formula"):
        return
    if formulas is None:
        ops = torch.ops.course_kernels
        # While this package is being imported, some are not defined yet.
        formulas = {getattr(ops, name): formula for name, formula in _FORMULAS.items() if hasattr(ops, name)}
    for operator, formula in formulas.items():
        if operator not in counter.flop_registry:
            counter.register_flop_formula(operator)(formula)
    # A counter copies the registry when it is made, which may have been before.
    for mode in _get_current_dispatch_mode_stack():
        if isinstance(registry := getattr(getattr(mode, "counter", None), "flop_registry", None), dict):
            for operator in formulas:
                registry.setdefault(operator, counter.flop_registry[operator])
