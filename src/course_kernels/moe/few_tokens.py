"""A layer of few tokens, as in generation, without gradients: two kernels, and no routing.

Reading weights takes all the time there. Sorting choices, filling tiles of a product with one row, and summing rows in
a launch of their own would come on top. Float8 weights are multiplied as they are, by tokens that are not rounded.
"""

from __future__ import annotations

from typing import TypeAlias

import torch
from torch import Tensor

from course_kernels import runtime
from course_kernels.contexts import wants_grad
from course_kernels.dtypes import FP8
from course_kernels.engine.scaling import BLOCK
from course_kernels.moe.form import Form, Operands
from course_kernels.moe.launching import Launch
from course_kernels.moe.steps import constants_of
from course_kernels.type_checks import is_number

SHARE = 8  # of so many experts at most one is chosen: then hardly any two choices read the same weights
TOP_K = 64  # at most
_BYTES = 4096  # of a weight, in a program's block
Scales: TypeAlias = tuple[Tensor | None, Tensor | None]  # factors of gate_up and down: of lines, or of blocks


def fits(operands: Operands, ids: Tensor, form: Form) -> bool:
    """Whether these kernels compute a layer of checked arguments: no gradient is asked for, and one token, or so few
    that almost every choice has its expert to itself. ``weights`` may be of any floating dtype and strides."""
    x, gate_up, down, *_ = operands
    (tokens, top_k), device = ids.shape, x.device
    on_gpu = form.backend == "auto" and device.type == "cuda"
    if form.num_sms is not None or not (on_gpu or form.backend == "triton") or wants_grad(*operands):
        return False
    few = _are_few(tokens, top_k, gate_up.shape[0])
    return bool(few and 0 < top_k <= TOP_K and x.numel() and gate_up.numel() and down.numel())


def _are_few(tokens: int | torch.SymInt, top_k: int | torch.SymInt, experts: int | torch.SymInt) -> bool:
    """Whether almost every choice has its expert to itself. ``torch.compile`` makes a graph for few tokens and one for
    others. A program for any number of tokens routes: one that is exported, or whose tokens other tensors count."""
    if is_number(tokens) and is_number(top_k):
        return tokens == 1 or bool(SHARE * tokens * top_k <= experts)
    if torch.compiler.is_exporting() or not torch.compiler.is_dynamo_compiling():
        return False
    from torch.fx.experimental.symbolic_shapes import guard_or_false  # imports sympy

    return guard_or_false(SHARE * tokens * top_k <= experts)


class FewTokens:
    """The layer for arguments like those given. It serves as a plan; see ``layer_plan.LayerPlan``.

    Args:
        operands, ids, form: for which ``fits`` holds.
        scales: of float8 weights.
    """

    keep = False

    def __init__(self, operands: Operands, ids: Tensor, form: Form, scales: Scales = (None, None)):
        x, gate_up, down, weights, gate_up_bias, down_bias = operands
        if gate_up.dtype == FP8:
            runtime.check_dtype("gate_up", FP8, x.device, "Pass backend='torch'.")
        runtime.check_can_launch(x.device)
        (tokens, hidden), (experts, _, inner), top_k = x.shape, down.shape, ids.shape[1]
        self.form, self._on_input = form, form.on_input
        self._inner, self._rows, self._dtype, self._device = inner, tokens * top_k, x.dtype, x.device
        self._shape = tokens, hidden
        sizes = dict(EXPERTS=experts, TOP_K=top_k, HIDDEN=hidden, INNER=inner)
        ids_strides = dict(zip(("stride_it", "stride_ik"), ids.stride()))
        choices = ids_strides | dict(zip(("stride_wt", "stride_wk"), weights.stride()))
        rows, depth = _block(gate_up, 1, scales[0])
        self._first = Launch(
            "moe_few", "first_kernel", tokens * top_k * -(-inner // rows), None,
            ("x_ptr", "ids_ptr", "weights_ptr", "gate_up_ptr", "scale_ptr", "bias_ptr", "activated_ptr"),
            **dict(zip(("stride_xt", "stride_xh"), x.stride())), **choices,
            **dict(zip(("stride_e", "stride_n", "stride_h"), gate_up.stride())), **_strides(gate_up_bias, scales[0]),
            **sizes, **constants_of(form.activation, form.interleaved), BLOCK_N=rows, BLOCK_K=depth,
        )  # fmt: skip
        places = 1 << (top_k - 1).bit_length()
        rows, depth = _block(down, places, scales[1])
        self._second = Launch(
            "moe_few", "second_kernel", tokens * -(-hidden // rows), None,
            ("activated_ptr", "ids_ptr", "weights_ptr", "down_ptr", "scale_ptr", "bias_ptr", "out_ptr"), **choices,
            **dict(zip(("stride_e", "stride_n", "stride_k"), down.stride())), **_strides(down_bias, scales[1]), **sizes,
            PLACES=places, BLOCK_N=rows, BLOCK_K=depth,
        )  # fmt: skip

    def prepare(self, operands: Operands, ids: Tensor) -> tuple[Operands, Tensor]:
        """Return what ``forward`` takes: nothing is sorted."""
        return operands, ids

    def forward(self, operands: Operands, ids: Tensor, scales: Scales = (None, None)) -> tuple[Tensor, None]:
        """Compute the result (T, H). Nothing is kept for a backward."""
        x, gate_up, down, weights, gate_up_bias, down_bias = operands
        hidden, out = self._empty(self._rows, self._inner), self._empty(*self._shape)
        of_x, of_result = (weights, None) if self._on_input else (None, weights)
        self._first(x, ids, of_x, gate_up, scales[0], gate_up_bias, hidden)
        self._second(hidden, ids, of_result, down, scales[1], down_bias, out)
        return out, None

    def _empty(self, rows: int, columns: int) -> Tensor:
        return torch.empty_strided((rows, columns), (columns, 1), dtype=self._dtype, device=self._device)


def _strides(bias: Tensor | None, scale: Tensor | None) -> dict[str, int]:
    """The constants of a weight's bias and factors; 0 for what is not there."""
    of_bias, of_scale = ((0, 0) if bias is None else bias.stride()), (() if scale is None else scale.stride())
    kind = {0: 0, 2: 1, 3: BLOCK}[len(of_scale)]
    names = "stride_scale_e", "stride_scale_n", "stride_scale_k"
    return dict(zip(("stride_bias_e", "stride_bias_n"), of_bias)) | dict(zip(names, (*of_scale, 0, 0, 0)), SCALES=kind)


def _block(weight: Tensor, places: int, scale: Tensor | None) -> tuple[int, int]:
    """Lines of a weight (E, N, K) in a block, and how deep it is: long where the memory runs, and not much longer than
    the extents. ``places`` experts are read at once."""
    elements = max(1, _BYTES // weight.element_size() // places)
    most = 512 if scale is None or scale.dim() == 2 else BLOCK
    _, lines, depth = (1 << (extent - 1).bit_length() for extent in weight.shape)
    if weight.stride(2) == 1 or weight.stride(1) != 1:
        block_k = min(depth, most, elements)
        return max(1, min(lines, elements // block_k)), block_k
    block_n = min(lines, 64, elements)
    return block_n, max(1, min(depth, most, elements // block_n))
