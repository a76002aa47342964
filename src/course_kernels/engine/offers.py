"""Which backend computes a product."""

from __future__ import annotations

from torch import Tensor

from course_kernels.engine import torch_loop
from course_kernels.engine.hopper import cute
from course_kernels.engine.product import Operands, Problem
from course_kernels.engine.tuning import time_model


def choose(problem: Problem, operands: Operands, out: Tensor):
    """The backend that computes a product, or its offer: the named one where it can, else the first that supports it.

    Raises:
        ValueError, ImportError: the named one does not run here.
    """
    named, device = problem.options.backend, operands.mat_a.device
    if named == "cute":
        cute.check_available(device)
    if named == "torch" or (named == "auto" and device.type == "cpu"):
        return torch_loop
    if named == "cute" or (named == "auto" and cute.runs_on(device) and cute.installed()):
        offer = cute.offer(problem, operands, out)
        if offer and (named == "cute" or is_sooner(offer, operands.mat_a.element_size())):
            return offer
    from course_kernels.engine import launch as triton  # imports Triton, which takes a second

    return triton


def is_sooner(offer: cute.Offer, operand_bytes: int) -> bool:
    """Whether the kernel in CuTe DSL is expected to be faster than the Triton kernels. Without constants, that is
    expected of 8-bit operands."""
    other = time_model.fastest(*offer.asked, "triton")
    if offer.us is None:
        return other is None and operand_bytes == 1
    return other is None or offer.us <= other.us
