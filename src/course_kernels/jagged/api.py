"""Products of packed groups of rows with one B that all groups share: one contract, several implementations.

A shared B makes a row's result independent of its group, so "auto" multiplies all rows as one group by the packed
backends, whose tiles cross the groups' borders (the kernel in CuTe DSL on Hopper): that is a dense GEMM which reads
its number of rows on the device, and nothing cut at borders can be faster. "triton" and "helion" do cut: their tiles
begin at a group's first row, as in Helion's example, so that the two languages can be compared kernel by kernel.
"""

from __future__ import annotations

from torch import Tensor

from course_kernels.contexts import autocast_dtype, cast, refuse_dtensors
from course_kernels.jagged.checks import Implementation, check_form, check_values
from course_kernels.jagged.torch_op import multiply
from course_kernels.packed.api import grouped_mm
from course_kernels.type_checks import check_flags

__all__ = ["grouped_gemm_jagged", "grouped_gemm_jagged_persistent"]


def grouped_gemm_jagged(
    A_packed: Tensor, B: Tensor, group_offsets: Tensor, *, implementation: Implementation = "auto", check: bool = False
) -> Tensor:
    """Multiply packed groups of rows by one B; by name of an implementation, with a program for every tile.

    >>> grouped_gemm_jagged(torch.ones(3, 4), torch.ones(4, 1), torch.tensor([0, 1, 3])).flatten()
    tensor([4., 4., 4.])

    Args:
        A_packed: (total_m, K), the groups one below the other. float16, bfloat16 or float32; any strides, any address.
        B: (K, N), likewise; its dtype may be another one.
        group_offsets: int32 or int64 (G + 1,): 0, then the exclusive end of each group; not decreasing, the last one is
            total_m. Group g is rows ``group_offsets[g]`` to ``group_offsets[g + 1]`` and may be empty. On the device of
            the operands, and never read on the host unless ``check`` is set.
        implementation: "auto" multiplies all rows as one group, by the fastest packed backend (with operands of two
            dtypes, on a GPU, by the persistent Triton kernel). "triton" runs the kernel in Triton, "helion" the one in
            Helion (extra ``helion``), on CPU tensors both in Triton's interpreter.
        check: validate the values of ``group_offsets``, which waits for the device. Without it, wrong offsets give
            unspecified rows, and never a write outside of the result; rows after the last offset are zero.

    Returns:
        (total_m, N), row-major, of dtype ``torch.promote_types(A_packed.dtype, B.dtype)``. Sums are float32 and
        rounded once. Equal to ``torch.cat([A_i @ B for A_i in groups])``.

    Raises:
        TypeError: an argument is no tensor, or of an unsupported dtype.
        ValueError: ranks, shapes or devices do not fit, a name is unknown, or ``check`` finds a wrong offset (with its
            index and value).
        ImportError: implementation "helion" without its package; the message names the extra.
        RuntimeError: the process cannot run kernels.

    Notes:
        Names and order of the arguments: ``grouped_gemm_jagged`` of Helion's example. Differentiable in A_packed and B
        in both modes, to any order. Gradients are products of ``grouped_mm`` in their operand's dtype; B's has its
        memory layout where an implementation is named.
        Both have everything that ``grouped_mm`` has (``torch.compile``, ``torch.func``, CUDA graphs), and "auto"
        DTensors; named implementations are one operator, ``torch.ops.course_kernels.grouped_gemm_jagged``.
        Operands of two dtypes are converted inside the kernels of "triton" and "helion". float32 operands multiply in
        full float32, or in TF32 where torch's settings allow it. Where offsets end at total_m, as they must, ``A_packed
        @ B`` is the same product; what this adds is that a fixed buffer may hold any number of rows.
    """
    return _multiply("simple", A_packed, B, group_offsets, implementation, check)


def grouped_gemm_jagged_persistent(
    A_packed: Tensor, B: Tensor, group_offsets: Tensor, *, implementation: Implementation = "auto", check: bool = False
) -> Tensor:
    """Multiply packed groups of rows by one B; by name of an implementation, with a fixed number of programs.

    >>> grouped_gemm_jagged_persistent(torch.ones(3, 4), torch.ones(4, 1), torch.tensor([0, 1, 3])).flatten()
    tensor([4., 4., 4.])

    Each program strides through one index over the tiles of all groups, finds a tile's group by comparing the index
    with cumulative counts, and looks at no tile that is not its own. Implementation "auto" is that of
    ``grouped_gemm_jagged``.

    Args, Returns, Raises, Notes: as ``grouped_gemm_jagged``.
    """
    return _multiply("persistent", A_packed, B, group_offsets, implementation, check)


def _multiply(kernel: str, A_packed, B, group_offsets, implementation, check) -> Tensor:
    check_form(A_packed, B, group_offsets, implementation)
    check_flags(check=check)
    if dtype := autocast_dtype(A_packed.device.type):
        A_packed, B = cast(A_packed, dtype), cast(B, dtype)
    if check:
        check_values(group_offsets, A_packed.shape[0])
    if implementation == "auto":
        if A_packed.dtype == B.dtype:
            return grouped_mm(A_packed, B.unsqueeze(0), offs=group_offsets[-1:])
        if A_packed.device.type != "cuda":
            return grouped_mm(A_packed.float(), B.float().unsqueeze(0), offs=group_offsets[-1:])
        kernel, implementation = "persistent", "triton"
    refuse_dtensors("a named implementation", A_packed=A_packed, B=B, group_offsets=group_offsets)
    return multiply(A_packed, B, group_offsets, kernel, implementation)
