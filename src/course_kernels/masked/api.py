"""Grouped GEMM with groups of equal capacity, whose sizes only the device knows."""

from __future__ import annotations

from torch import Tensor

from course_kernels.config import GemmConfig
from course_kernels.contexts import refuse_tangents
from course_kernels.engine.options import Options
from course_kernels.engine.product_checks import Backend
from course_kernels.engine.tuning.fallback_rules import rows_class
from course_kernels.masked.checks import Call, resolve_mark
from course_kernels.masked.torch_op import multiply
from course_kernels.type_checks import check_flags


def deepgemm(
    XQ: Tensor,
    WQ: Tensor,
    Y: Tensor,
    group_layout: Tensor,
    x_scale: Tensor | None = None,
    w_scale: Tensor | None = None,
    *,
    shuffled: bool | None = None,
    check: bool = False,
    backend: Backend = "auto",
    config: GemmConfig | None = None,
    expected_m: int | None = None,
    num_sms: int | None = None,
) -> Tensor:
    """Multiply the rows that count of each group: ``Y[g, :n] = XQ[g, :n] @ WQ[g].T`` with ``n = group_layout[g]``.

    >>> slots, weights = torch.ones(2, 3, 4).half(), torch.ones(2, 1, 4).half()  # 2 groups of up to 3 rows
    >>> out = torch.zeros(2, 3, 1).half()
    >>> deepgemm(slots, weights, out, group_layout=torch.tensor([1, 2])).flatten(1)
    tensor([[4., 0., 0.],
            [4., 4., 0.]], dtype=torch.float16)

    Nothing is written to rows from n on, and nothing of them has an influence. The host reads nothing of the device: a
    call can be captured in a CUDA graph, and each replay computes the rows that ``group_layout`` says then.

    Args:
        XQ: (G, max_M, K), float16 or bfloat16, or float8_e4m3fn, on AMD's gfx942 float8_e4m3fnuz; any strides.
        WQ: (G, N, K) of that dtype, any strides; or what ``shuffle_weight`` made of it.
        Y: (G, max_M, N), float16, bfloat16 or float32, any strides; it shares no memory with the others. Written in
            place.
        group_layout: (G,) int32 or int64, rows of each group that count, on the same device; what is below 0 or above
            max_M counts as 0 or max_M.
        x_scale: float32, for float8 alone, where both scales are needed: a factor for each row, (G, max_M) or
            (G, max_M, 1); or for each 1 × 128 of XQ, (G, max_M, ceil(K / 128)).
        w_scale: with factors of rows a factor for each group, (G,) or (G, 1, 1), or for each line, (G, N) or (G, N, 1);
            else for each 128 × 128 of WQ, (G, ceil(N / 128), ceil(K / 128)). Where K is up to 128, shapes that fit
            both mean rows and groups.
        shuffled: whether WQ is in the order of ``shuffle_weight``. None: as its mark says, a plain tensor being plain.
            True also takes a plain tensor with these bytes; ``torch.compile(fullgraph=True)`` needs that, for a mark
            breaks the graph.
        check: validate the values of ``group_layout``, which waits for the device.
        backend: "triton", "cute" (on Hopper, and "triton" computes what it does not), "torch" (a loop that waits for
            the device), or "auto": on a GPU one of the first two, on a CPU "torch".
        config: for the Triton kernel, instead of the chosen one.
        expected_m: rows of an average group, which choose the tiles; any value is right. Default: max_M. Say it where
            max_M is a bound that is seldom reached.
        num_sms: as for ``grouped_mm``.

    Returns:
        Y.

    Raises:
        TypeError, ValueError: naming the argument, what it got and what it wants; nothing is written then. Also an
            operand that requires a gradient, and a DTensor: pass ``to_local()``.
        ImportError: backend "cute" without its packages.
        RuntimeError: under ``torch.func.functionalize``, or the process cannot run kernels.

    Notes:
        Arguments: ``aiter.deepgemm`` of AMD's AITER, which wants shuffled weights. ``expected_m``, and the layout of
        block scales: DeepGEMM's ``m_grouped_*_gemm_nt_masked``. Sums are float32; with block scales the products of
        each 128 of K are added up apart, scaled, and added to that.
        ``torch.func.vmap`` makes a call for each element of the batch; Y must be batched, too.
    """
    check_flags(check=check)
    WQ, shuffled = resolve_mark(WQ, shuffled)
    rows = 0
    if expected_m is not None:
        if not isinstance(expected_m, int) or isinstance(expected_m, bool):
            raise TypeError(f"expected_m must be an int or None, got {type(expected_m).__name__}")
        if expected_m < 0:
            raise ValueError(f"expected_m must not be negative, got {expected_m}")
        rows = rows_class(expected_m)
    call = Call(XQ, WQ, Y, group_layout, x_scale, w_scale, shuffled, rows)
    refuse_tangents("deepgemm", *call[:6], instead=None)
    return multiply(call, Options(None, check, backend, config, num_sms))
