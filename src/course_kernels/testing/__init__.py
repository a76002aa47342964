"""What tests need of a grouped product: inputs, canaries, the float64 oracle, tolerances, cases."""

from course_kernels.testing.canaries import CANARY, STRIDES, poisoned, strided_like
from course_kernels.testing.data import (
    ROUTERS,
    Problem,
    empty_problems,
    integers,
    make_operands,
    ragged_problems,
    reference_problems,
    route,
    routed_sizes,
)
from course_kernels.testing.grouped_tolerance import assert_grouped_close, assert_grouped_exact, grouped_error_bound
from course_kernels.testing.tolerance import (
    TOLERANCES,
    assert_close_to_oracle,
    assert_exact,
    assert_group_close,
    error_bound,
)

__all__ = [
    "CANARY", "ROUTERS", "STRIDES", "TOLERANCES", "Problem", "assert_close_to_oracle", "assert_exact",
    "assert_group_close", "assert_grouped_close", "assert_grouped_exact", "empty_problems", "error_bound",
    "grouped_error_bound", "integers", "make_operands", "poisoned", "ragged_problems", "reference_problems", "route",
    "routed_sizes", "strided_like",
]  # fmt: skip
