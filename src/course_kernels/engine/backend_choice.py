"""The choice of the backend that computes a product."""

from __future__ import annotations

from torch import Tensor

from course_kernels.engine import torch_loop
from course_kernels.engine.hopper import cute
from course_kernels.engine.product import Problem, Product
from course_kernels.engine.tuning import log_choice, time_model

# Of an average group of a layer, from where on the kernel in CuTe DSL is faster: on an H200 with 128 experts, 140 µs
# for the Triton kernel's 141 of 1 row, and 205 for 197 of 4 rows.
LAYER_ROWS = 2


def choose(problem: Problem, product: Product, out: Tensor):
    """Make the plan of the named backend, or of the fastest expected one. Triton takes what "cute" does not compute.

    Raises:
        ValueError, ImportError: the named backend does not run here, or the one that is left takes no index or pieces.
    """
    named, device = problem.options.backend, product.a.device
    in_torch = named == "torch" or (named == "auto" and device.type == "cpu")
    if in_torch and product.index is None:
        log_choice(problem, "torch", None, None, "as named" if named == "torch" else "operands are on a CPU")
        return torch_loop.Plan(problem)
    plan = offered(problem, product, out)
    if plan is not None:
        return plan
    if getattr(product.rows, "pieces", None) is not None:
        raise ValueError(f"rows must be there, not in pieces, for backend {named!r}: wait for them first")
    if product.index is not None and (in_torch or problem.mode == "k"):
        raise ValueError(f"rows must have no index in mode {problem.mode!r} of backend {named!r}: gather them first")
    from course_kernels.engine import triton_launch  # imports Triton, which takes a second

    return triton_launch.plan(problem, product, out)


def offered(problem: Problem, product: Product, out: Tensor) -> cute.Plan | None:
    """Make the plan of the kernel in CuTe DSL, if it computes the product and is the named backend, or "auto" expects
    it to be faster than Triton's kernels; else None.

    Raises:
        ValueError, ImportError: the named backend does not run here.
    """
    named, device = problem.options.backend, product.a.device
    if named == "cute":
        cute.check_available(device)
    elif named != "auto" or not (cute.runs_on(device) and cute.installed()):
        return None
    offer = cute.offer(problem, product, out)
    if offer is None:
        return None
    taken = named == "cute" or is_sooner(offer, product.a.element_size(), _layer_rows(problem, product))
    faster = "expected to be faster than Triton" if taken else "not taken, Triton is expected to be faster"
    log_choice(problem, "cute", offer.config, offer.us, "as named" if named == "cute" else faster)
    return offer.plan() if taken else None


def _layer_rows(problem: Problem, product: Product) -> float | None:
    """Rows of an average group of a product that gathers rows or has an activation; else None."""
    special = product.index is not None or product.epilogue.activation is not None
    return problem.rows_per_group if special else None


def is_sooner(offer: cute.Offer, operand_bytes: int, layer_rows: float | None = None) -> bool:
    """Whether the kernel in CuTe DSL is expected to be faster than the Triton kernels. Without constants: whether
    operands have 8 bits. The Triton kernel reads a layer's rows and weights through pointers, which the time model does
    not know; ``layer_rows``, rows of an average group, decide there."""
    if layer_rows is not None:
        return layer_rows >= LAYER_ROWS
    other = time_model.fastest(*offer.asked, "triton")
    if offer.us is None:
        return other is None and operand_bytes == 1
    return other is None or offer.us <= other.us
