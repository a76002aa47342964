"""Which backend computes a product."""

from __future__ import annotations

from torch import Tensor

from course_kernels.engine import torch_loop
from course_kernels.engine.hopper import cute
from course_kernels.engine.product import Operands, Problem


def choose(problem: Problem, operands: Operands, out: Tensor):
    """The backend that computes a product: the named one where it can, else the first that supports it.

    Raises:
        ValueError, ImportError: the named one does not run here.
    """
    named, device = problem.options.backend, operands.mat_a.device
    if named == "cute":
        cute.check_available(device)
    if named == "torch" or (named == "auto" and device.type == "cpu"):
        return torch_loop
    asks_cute = named == "cute" or (named == "auto" and cute.preferred(problem, operands, out))
    if asks_cute and cute.supports(problem, operands, out):
        return cute
    from course_kernels.engine import launch as triton  # imports Triton, which takes a second

    return triton
