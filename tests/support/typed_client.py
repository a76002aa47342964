"""A client's code, for ``test_typing``: type checkers in strict mode find neither a mistake nor an ``Any``.

Each line that ends in ``type: ignore`` has a mistake. A checker that lets it pass reports the comment as unused.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import ScalingType, SwizzleType

from course_kernels import (
    GemmConfig,
    GroupGemmPlan,
    GroupLayout,
    codegen,
    deepgemm,
    gmm,
    group_gemm,
    group_sums,
    grouped_gemm_jagged,
    grouped_gemm_jagged_persistent,
    grouped_mm,
    nptgmm,
    ptgmm,
    quantize_1x128,
    quantize_128x128,
    runtime,
    scaled_grouped_mm,
    schedule,
    shuffle_weight,
    testing,
    to_fp8_then_scaled_grouped_mm,
    unshuffle_weight,
)


class Experts(nn.Module):
    """A layer of experts."""

    def __init__(self, experts: int, width: int, hidden: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(experts, hidden, width))
        self.bias = nn.Parameter(torch.empty(experts, hidden))
        self.config = GemmConfig(block_m=128, schedule="dynamic")

    def forward(self, x: Tensor, sizes: Tensor) -> Tensor:
        """The product of each group of rows with its expert."""
        layout: GroupLayout = GroupLayout.from_sizes(sizes)
        out: Tensor = grouped_mm(
            x, self.weight.mT, offs=layout.offs, bias=self.bias, tail="zero", backend="triton", config=self.config
        )
        return out


def products(x: Tensor, w: Tensor, offs: Tensor) -> list[Tensor]:
    """Every function, with arguments of every type that it takes."""
    rows, recipe = ScalingType.RowWise, [ScalingType.RowWise]
    q, factors = quantize_1x128(x, power_of_two=True, backend="auto")
    squares: tuple[Tensor, Tensor] = quantize_128x128(w)
    return [
        scaled_grouped_mm(q, w, factors, rows, [squares[1]], recipe, SwizzleType.NO_SWIZZLE, offs=offs, tail="zero"),
        group_sums(x, offs, accumulate=False, backend="torch"),
        gmm(x, w, offs, config={"BLOCK_SIZE_M": 64}, rhs_layout="gnk", backend="auto"),
        ptgmm(x, x, offs, lhs_layout="km"),
        nptgmm(x, x, offs, accumulate=True),
        grouped_gemm_jagged(x, x, offs, implementation="helion"),
        grouped_gemm_jagged_persistent(x, x, offs, check=True),
        deepgemm(x, w, x, offs, expected_m=4, backend="auto"),
        unshuffle_weight(shuffle_weight(w, layout=(16, 16))),
        to_fp8_then_scaled_grouped_mm(x, w, offs=offs, recipe="blockwise"),
        grouped_mm(x, w, offs=offs, out_dtype=torch.float32, accumulate=True, out=x, main_grad=None),
    ]


def lists(parameters: nn.ParameterList, matrices: list[Tensor]) -> str:
    """Lists of matrices, parameters among them, and a plan."""
    outs: list[Tensor] = group_gemm(matrices, parameters, method="tma", precision="tf32", out=tuple(matrices))
    plan = GroupGemmPlan(outs, matrices, record=True)
    first: Tensor = plan.run()[0]
    tiles: int = plan.launches[0].tiles
    mode: str = runtime.mode()
    return f"{first.shape} {tiles} {plan.out[0].dtype} {mode}"


def tools(x: Tensor, w: Tensor, offs: Tensor) -> str:
    """The packages beside the functions."""
    compiled: codegen.Compiled = codegen.compile_kernel("tma", "sm_90", dtype="float16", config=GemmConfig())
    build: codegen.Build = codegen.build("contiguous", dtype=torch.bfloat16)
    many: list[codegen.Compiled | codegen.CompileError] = codegen.compile_many([(build, "sm_100")])
    targets: tuple[str, ...] = codegen.claims(build)
    timeline: schedule.Timeline = schedule.simulate([(256, 256, 64)], "round_robin", cost=schedule.CostModel())
    traffic: schedule.Traffic = schedule.bytes_moved(timeline)
    padded: Tensor = GroupLayout.from_sizes(offs).pad(x, 8)
    testing.assert_grouped_close(padded, x, w, offs, bias=None)
    return f"{compiled.spills.bytes} {len(many)} {targets} {traffic}"


def mistakes(x: Tensor, w: Tensor, offs: Tensor) -> None:
    """Never called."""
    grouped_mm(x, w, offs=offs, tail="nope")  # type: ignore[arg-type]
    grouped_mm(x, w, offs=offs, backend="cuda")  # type: ignore[arg-type]
    grouped_mm(x, w, offs)  # type: ignore[call-arg]
    grouped_mm(x, w, offs=[1, 2])  # type: ignore[arg-type]
    group_gemm([x], [w], method="fast")  # type: ignore[arg-type]
    group_gemm([x], [w], precision="fp16")  # type: ignore[arg-type]
    group_gemm(3, [w])  # type: ignore[arg-type]
    group_sums(x, offs, backend="numpy")  # type: ignore[arg-type]
    gmm(x, w, offs, rhs_layout="kgn")  # type: ignore[arg-type]
    grouped_gemm_jagged(x, w, offs, implementation="cuda")  # type: ignore[arg-type]
    quantize_1x128(x, backend="cute")  # type: ignore[arg-type]
    GemmConfig(schedule="static")  # type: ignore[arg-type]
    if runtime.mode() == "cpu":  # type: ignore[comparison-overlap]
        raise AssertionError
