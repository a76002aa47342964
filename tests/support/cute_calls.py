"""Calls of grouped_mm that only the kernel in CuTe DSL may answer, for tests on a GPU."""

from __future__ import annotations

from torch.nn.functional import ScalingType

from course_kernels import grouped_mm, scaled_grouped_mm
from course_kernels.engine import backend_choice
from course_kernels.engine import plans as execute
from course_kernels.engine import triton_launch as triton
from course_kernels.engine.hopper import compiled_cache as cute_cache
from course_kernels.engine.hopper import cute
from course_kernels.engine.product import Product
from cute_forms import form_for

ROW = ScalingType.RowWise


def cute_alone(monkeypatch):
    """From here on ``backend="auto"`` expects it to be the faster one, and asking the Triton kernels is an error."""

    def refuse(*args, **options):
        raise AssertionError("the kernel in CuTe DSL was not used")

    monkeypatch.setattr(execute, "plans", execute.PlanCache())
    monkeypatch.setattr(triton, "plan", refuse)
    monkeypatch.setattr(backend_choice, "is_sooner", lambda *offer: True)


def call(a, b, **arguments):
    return grouped_mm(a, b, backend="cute", **arguments)


def call_scaled(a, b, scale_a, scale_b, out_dtype=None, **arguments):
    return scaled_grouped_mm(a, b, scale_a, ROW, scale_b, ROW, output_dtype=out_dtype, backend="cute", **arguments)


def form_of(mat_a, mat_b, offs, out, bias=None, scale_a=None, scale_b=None, keep_tail=False, scaling="row"):
    """The kernel's form for operands that are named one by one."""
    tensors = mat_a, mat_b, offs, bias, scale_a, scale_b
    return cute.match_form(Product.packed(*tensors, scaling=scaling, keep_tail=keep_tail), out)


def kept_kernel(config, dtype: str, out_dtype: str, **fields):
    """A kernel of ``compile_for``, compiled once for all test processes, which runs on all SMs. A call may leave out
    trailing arguments that are None."""
    function = cute_cache.compiled(config, form_for(dtype, **fields), dtype, out_dtype)

    def launch(a, b, c, offs, *rest):
        function(a, b, c, offs, cute.clusters_of(config, c.device), *rest, *[None] * (3 - len(rest)))

    return launch
