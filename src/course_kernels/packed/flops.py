"""FLOP counts of ``grouped_mm`` for ``torch.utils.flop_counter``."""

from __future__ import annotations

import importlib.abc
import importlib.util
import sys

import torch


def flops(mat_a_shape, mat_b_shape, *others, out_shape=None) -> int:
    """Multiplications and additions of a grouped product, the tail counted as if it belonged to a group: what the
    groups hold is known to the device alone."""
    groups = mat_a_shape[0] if len(mat_a_shape) == len(mat_b_shape) == 3 else 1
    return 2 * groups * mat_a_shape[-2] * mat_a_shape[-1] * mat_b_shape[-1]


def _register_flops(flop_counter) -> None:
    ops = torch.ops.course_kernels
    flop_counter.register_flop_formula([ops.grouped_mm, ops.scaled_grouped_mm, ops.grouped_mm_out])(flops)


class _WhenImported(importlib.abc.MetaPathFinder):
    """Registers the FLOP formula when torch's counter is first imported: importing it here would import triton, too."""

    name = "torch.utils.flop_counter"

    def find_spec(self, fullname, path=None, target=None):
        """The module's ordinary spec, with the registration behind its execution."""
        if fullname != self.name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            _register_flops(module)

        spec.loader.exec_module = exec_module
        return spec


def register() -> None:
    """Make the operators known to torch's counter, now or when it is first imported."""
    if _WhenImported.name in sys.modules:
        _register_flops(sys.modules[_WhenImported.name])
    else:
        sys.meta_path.insert(0, _WhenImported())
