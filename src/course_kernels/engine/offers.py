"""Which backend computes a product."""

from __future__ import annotations

from torch import Tensor

from course_kernels.engine import torch_loop
from course_kernels.engine.hopper import cute
from course_kernels.engine.product import Problem, Product


def choose(problem: Problem, product: Product, out: Tensor):
    """The plan of the named backend where it can, else of the first that supports the product.

    Raises:
        ValueError, ImportError: the named one does not run here.
    """
    named, device = problem.options.backend, product.a.device
    if named == "cute":
        cute.check_available(device, "XQ" if problem.mode == "masked" else "mat_a")
    if named == "torch" or (named == "auto" and device.type == "cpu"):
        return torch_loop.Plan(problem)
    asks_cute = named == "cute" or (named == "auto" and cute.preferred(problem, product, out))
    if asks_cute and cute.supports(problem, product, out):
        return cute.plan(problem, product, out)
    from course_kernels.engine import launch  # imports Triton, which takes a second

    return launch.plan(problem, product, out)
