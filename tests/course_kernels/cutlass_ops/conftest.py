"""A compiled operator that several modules look at."""

import pytest


@pytest.fixture(scope="session")
def blackwell():
    """NVIDIA's operator with its largest tile, two CTAs to an instruction, compiled."""
    from course_kernels import cutlass_ops  # needs the extra `cutlass`, and a conftest must load without
    from cutlass_cases import described

    args = described()
    (operator, *_) = cutlass_ops.discover(args, "100f").where(ctas=2, tile=(256, 256, 64), cluster=(2, 1))
    return cutlass_ops.compile(operator, args, "100f")
