"""What a compiled operator contains, for Blackwell and Hopper."""

from __future__ import annotations

import cutlass.operators as ops
import pytest
import torch

from course_kernels import cutlass_ops
from cutlass_cases import meta


def test_blackwell_code_from_a_machine_without_one(blackwell):
    found = cutlass_ops.report(blackwell)
    assert ".target sm_100f" in found.ptx
    assert found.instructions["tcgen05.mma"] == found.instructions["tcgen05.mma, 2 CTAs"] > 0
    for name in ("tcgen05.mma", "tcgen05.mma, 2 CTAs", "tcgen05.ld", "TMA store", "setmaxnreg"):
        assert found.machine_instructions[name] == found.instructions[name], name
    assert found.instructions["wgmma"] == found.machine_instructions["wgmma"] == 0
    assert found.instructions["TMA load"] == found.machine_instructions["TMA load"] == 2
    assert found.instructions["mbarrier"] > found.instructions["mbarrier wait"] > 0
    assert found.instructions["tensormap.replace"] == 0, "no descriptor changes on the device"
    assert found.stages == blackwell.operator.impl.num_ab_stage > 1
    assert found.spills.bytes == 0
    assert found.threads % 32 == 0 < found.threads <= 1024
    assert 100 < found.registers <= 255
    assert found.binary_bytes == len(blackwell.cubin) > 10_000
    assert blackwell.cubin.startswith(b"\x7fELF")
    assert "tcgen05.mma" in found.excerpt(r"tcgen05\.mma", 0, 0)
    assert "UTCHMMA" in found.excerpt("UTCHMMA", 0, 0, stage="sass")
    assert "256×256×64 in clusters of 2×1 for sm_100f" in repr(found)
    with pytest.raises(
        ValueError, match=r"matches no line of the assembly of 256×256×64 in clusters of 2×1 for sm_100f$"
    ):
        found.excerpt("no such thing")


def test_dense_hopper_operator_multiplies_with_wgmma_and_both_fit_in_a_table(blackwell):
    """NVIDIA's own Hopper operator is for a single product."""
    operands = meta(512, 256), meta(512, 256).mT, meta(512, 512)
    args = ops.GemmArguments(*operands, accumulator_type=torch.float32)
    (operator, *_) = (
        each for each in ops.get_operators(args, target_sm="90a") if hasattr(each.impl, "cluster_shape_mn")
    )
    compiled = cutlass_ops.compile(operator, args, "90a")
    found = cutlass_ops.report(compiled)
    assert ".target sm_90a" in found.ptx
    assert found.instructions["wgmma"] == found.machine_instructions["wgmma"] > 0
    assert found.instructions["tcgen05.mma"] == 0
    table = cutlass_ops.side_by_side([found, cutlass_ops.report(blackwell)])
    rows = {line[: line.index("  ")]: line.split()[-2:] for line in table.splitlines()[1:]}
    assert rows["wgmma"] == [str(found.instructions["wgmma"]), "0"]
    assert rows["registers per thread"] == [str(found.registers), str(cutlass_ops.report(blackwell).registers)]
