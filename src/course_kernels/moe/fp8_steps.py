"""Rows of experts, and weights, as float8 operands of the layer's products: by kernels, or by torch alone.

Recipes are those of ``to_fp8_then_scaled_grouped_mm``: "rowwise" has a factor for each line along what a product sums
over, "blockwise" one for each 128 elements of it, and for each 128 × 128 of weights. Factors are laid out as products
read them.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from course_kernels.dtypes import FP8
from course_kernels.engine import whole_blocks
from course_kernels.engine.scale_blocks import BLOCK, padded_columns
from course_kernels.engine.torch_activations import activate
from course_kernels.fp8.lines import UNACTIVATED, quantize_group_lines, quantize_lines
from course_kernels.fp8.quantize import quantize_1x128, quantize_squares, quantize_whole_blocks
from course_kernels.fp8.training import scales_whole_lines
from course_kernels.kernels.codes import Activation
from course_kernels.moe.launching import launch
from course_kernels.moe.routing import Routing
from course_kernels.moe.steps import block_columns, constants_of


class Rounded(NamedTuple):
    """A float8 operand.

    Attributes:
        values: float8_e4m3fn.
        factors: float32.
        ends: of the experts in ``values``, where these are columns of experts.
    """

    values: Tensor
    factors: Tensor
    ends: Tensor | None = None


class Rounding(NamedTuple):
    """How operands are rounded.

    Attributes:
        recipe: "rowwise" or "blockwise".
        in_torch: without kernels.
    """

    recipe: str
    in_torch: bool

    @property
    def is_whole(self) -> bool:
        """Whether a factor is of a whole line."""
        return scales_whole_lines(self.recipe)

    def tokens(self, x: Tensor, routing: Routing, weights: Tensor | None = None) -> Rounded:
        """Round tokens x (T, H), each once, and give each row of experts its token's values (rows, H) and factors;
        the factors times the float32 ``weights`` (T, k) of the choices if those are given. Rows of no expert here are
        not written."""
        (tokens, cols), count = x.shape, routing.tokens.shape[0]
        if self.in_torch:
            values, factors = self._lines(x)
            of_rows = routing.tokens.long()
            factors = factors[of_rows]
            if weights is not None:
                scale = weights.reshape(-1)[routing.choices.long()]
                factors = factors * scale.reshape(-1, *(1,) * (factors.dim() - 1))
            return Rounded(values.view(torch.uint8)[of_rows].view(FP8), factors)
        values, blocks = x.new_empty((count, cols), dtype=FP8), self._blocks(cols)
        factors = x.new_empty((blocks, routing.rows.numel()), dtype=torch.float32)
        block_m, block_n = self._tile(cols, 4096)
        launch(
            "moe_float8", "quantize_tokens_kernel", -(-tokens // block_m) * blocks, tokens, x_ptr=x,
            positions_ptr=routing.rows, weights_ptr=weights, q_ptr=values, scale_ptr=factors, stride_t=x.stride(0),
            stride_h=x.stride(1), COLS=cols, TOP_K=routing.rows.shape[1], WHOLE=self.is_whole,
            BLOCK_M=block_m, BLOCK_N=block_n, ROUND=not x.is_cuda,
        )  # fmt: skip
        return Rounded(values, self._of_lines(factors)[:count])

    def rows(
        self, pre: Tensor, routing: Routing, activation: Activation | None = None, interleaved: bool = False
    ) -> Rounded:
        """Round the activation of rows of experts pre (rows, N), or these themselves where that is None. The activation
        is not rounded before. Rows after the last end are not written."""
        if self.in_torch:
            return Rounded(*self._lines(pre if activation is None else activate(pre, activation, interleaved)))
        gated = activation is not None and activation.gated
        count, cols = pre.shape[0], pre.shape[1] // (1 + gated)
        values, blocks = pre.new_empty((count, cols), dtype=FP8), self._blocks(cols)
        factors = pre.new_empty((blocks, count), dtype=torch.float32)
        block_m, block_n = self._tile(cols, 2048)
        launch(
            "moe_float8", "quantize_rows_kernel", -(-count // block_m) * blocks, count, x_ptr=pre,
            offs_ptr=routing.ends, q_ptr=values, scale_ptr=factors, lines=None, stride_b=0, stride_r=pre.stride(0),
            stride_c=pre.stride(1), COLS=cols, EXPERTS=routing.ends.shape[0], **_activation(activation, interleaved),
            POWER_OF_TWO=False, WHOLE=self.is_whole, BLOCK_M=block_m, BLOCK_N=block_n, ROUND=not pre.is_cuda,
        )  # fmt: skip
        return Rounded(values, self._of_lines(factors))

    def columns(
        self, x: Tensor, routing: Routing, *, gathers: bool = False, weights: Tensor | None = None,
        activation: Activation | None = None, interleaved: bool = False,
    ) -> Rounded:  # fmt: skip
        """Round the columns of rows of experts, for a sum over each expert's rows: values (columns, rows) with the
        rows contiguous.

        Args:
            x: (rows, N); with ``gathers`` tokens (T, N), of which the rows are gathered.
            weights: float32 (T, k), multiplied with the rows of the choices, or None.
            activation, interleaved: as for ``rows``.
        """
        count, ends = routing.tokens.shape[0], routing.ends
        if self.in_torch:
            rows = x[routing.tokens.long()] if gathers else x
            rows = rows.float() if activation is None else activate(rows, activation, interleaved)
            if weights is not None:
                rows = rows * weights.reshape(-1)[routing.choices.long()][:, None]
            if self.is_whole:
                return Rounded(*quantize_group_lines(rows, ends, FP8, backend="torch"), ends)
            return Rounded(*quantize_whole_blocks(rows.mT, ends, backend="torch"))
        gated, experts = activation is not None and activation.gated, ends.shape[0]
        cols = x.shape[1] // (1 + gated)
        given = dict(
            x_ptr=x, index_ptr=routing.tokens if gathers else None, weights_ptr=weights, offs_ptr=ends,
            slots_ptr=None if weights is None else routing.choices, stride_r=x.stride(0), stride_c=x.stride(1),
            COLS=cols, EXPERTS=experts, **_activation(activation, interleaved), ROUND=not x.is_cuda,
        )  # fmt: skip
        if self.is_whole:
            values = x.new_empty((cols, count), dtype=FP8)
            factors = x.new_empty((experts, cols), dtype=torch.float32)
            block_m = block_n = 64
            launch(
                "moe_float8", "quantize_group_columns_kernel", experts * -(-cols // block_n), count, **given,
                q_ptr=values, scale_ptr=factors, POWER_OF_TWO=False, BLOCK_M=block_m, BLOCK_N=block_n,
            )  # fmt: skip
            return Rounded(values, factors, ends)
        blocks, block_n = padded_columns(count, experts), 32
        values = x.new_empty((cols, blocks * BLOCK), dtype=FP8)
        factors = x.new_empty((blocks, cols), dtype=torch.float32)
        whole_ends = torch.empty_like(ends)
        launch(
            "moe_float8", "quantize_column_blocks_kernel", blocks * -(-cols // block_n), count, **given,
            ends_ptr=whole_ends, q_ptr=values, scale_ptr=factors,
            GROUPS=whole_blocks.fill_ends(whole_ends, ends, count), BLOCK_N=block_n,
        )  # fmt: skip
        return Rounded(values, factors.mT, whole_ends)

    def weights(self, weight: Tensor) -> Rounded:
        """Round weights (E, lines, D), which products sum over D: factors (E, lines), or of blocks (E, lines', D')."""
        backend = "torch" if self.in_torch else "triton"
        if self.is_whole:
            return Rounded(*quantize_lines(weight, FP8, backend=backend))
        return Rounded(*quantize_squares(weight, backend=backend))

    def _lines(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return quantize_lines(x, FP8, backend="torch") if self.is_whole else quantize_1x128(x, backend="torch")

    def _blocks(self, cols: int) -> int:
        """Factors of a line."""
        return 1 if self.is_whole else -(-cols // BLOCK)

    def _tile(self, cols: int, elements: int) -> tuple[int, int]:
        """Rows and columns that a program has at a time."""
        block_n = block_columns(cols, 1024) if self.is_whole else BLOCK
        return max(1, elements // block_n), block_n

    def _of_lines(self, factors: Tensor) -> Tensor:
        """Factors (1 or blocks, lines) as products read them."""
        return factors[0] if self.is_whole else factors.mT


def dequantized(weight: Tensor, factors: Tensor, dtype: torch.dtype) -> Tensor:
    """Float8 weights (E, lines, D) times their factors, in float32, rounded to ``dtype``."""
    wide = factors[:, :, None]
    if factors.dim() == 3:
        wide = factors.repeat_interleave(BLOCK, 1)[:, : weight.shape[1]]
        wide = wide.repeat_interleave(BLOCK, 2)[:, :, : weight.shape[2]]
    return (weight.float() * wide).to(dtype)


def _activation(activation: Activation | None, interleaved: bool) -> dict:
    """The kernels' constants."""
    return UNACTIVATED if activation is None else constants_of(activation, interleaved)
