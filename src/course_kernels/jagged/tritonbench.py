"""The jagged products as implementations of TritonBench's operator ``grouped_gemm``.

TritonBench calls an implementation with its operator and one input, ``(group_A, group_B)`` or with two more entries of
newer versions, and times the callable that comes back:

    class Operator(BenchmarkOperator):
        jagged = register_benchmark()(grouped_gemm_jagged_tritonbench)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from course_kernels.jagged.api import grouped_gemm_jagged, grouped_gemm_jagged_persistent
from course_kernels.jagged.packing import pack_group_inputs
from course_kernels.type_checks import check_flags

__all__ = ["grouped_gemm_jagged_persistent_tritonbench", "grouped_gemm_jagged_tritonbench"]


def grouped_gemm_jagged_tritonbench(
    tb_op: object,
    group_A: Sequence[Tensor],
    group_B: Sequence[Tensor],
    w: Tensor | None = None,
    split: Tensor | None = None,
    *,
    pack_in_timed_region: bool = False,
    implementation: str = "auto",
) -> Callable[[], Tensor]:
    """The product of one TritonBench input, by ``grouped_gemm_jagged``.

    Args:
        tb_op: TritonBench's operator; not used.
        group_A, group_B: as for ``pack_group_inputs``: every B must be the same.
        w, split: what newer versions of TritonBench add to an input, the weights and sizes of all groups as tensors for
            a baseline of their own. They repeat the lists and are not read.
        pack_in_timed_region: pack in every call of the result, as Helion's example does, whose times are those of a
            concatenation and a copy of the offsets to the device, too. By default that is done here, once.
        implementation: as for ``grouped_gemm_jagged``.

    Returns:
        A function of no arguments that returns the product, (sum of M_i, N).

    Raises:
        TypeError, ValueError: the lists do not fit, or the Bs differ, as in TritonBench before it shared one B; always
            here, and not in the timed region.
    """
    return _adapter(grouped_gemm_jagged, group_A, group_B, pack_in_timed_region, implementation)


def grouped_gemm_jagged_persistent_tritonbench(
    tb_op: object,
    group_A: Sequence[Tensor],
    group_B: Sequence[Tensor],
    w: Tensor | None = None,
    split: Tensor | None = None,
    *,
    pack_in_timed_region: bool = False,
    implementation: str = "auto",
) -> Callable[[], Tensor]:
    """The product of one TritonBench input, by ``grouped_gemm_jagged_persistent``.

    Args, Returns, Raises: as ``grouped_gemm_jagged_tritonbench``.
    """
    return _adapter(grouped_gemm_jagged_persistent, group_A, group_B, pack_in_timed_region, implementation)


def _adapter(function, group_A, group_B, pack_in_timed_region: bool, implementation: str) -> Callable[[], Tensor]:
    check_flags(pack_in_timed_region=pack_in_timed_region)
    packed = pack_group_inputs(group_A, group_B)
    if pack_in_timed_region:
        return lambda: function(*pack_group_inputs(group_A, group_B), implementation=implementation)
    return lambda: function(*packed, implementation=implementation)
