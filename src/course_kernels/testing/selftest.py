"""Two trials of an installation: run one kernel and compare, compile one kernel for an H200."""

from __future__ import annotations

import torch

from course_kernels import codegen, group_gemm, runtime, testing


def run_a_kernel() -> None:
    """Group four small problems through the pointer kernel, and compare with torch on the CPU."""
    operands = testing.make_operands(testing.reference_problems(scale=16))
    group_A, group_B = ([matrix.to(runtime.device()) for matrix in group] for group in operands)
    results = group_gemm(group_A, group_B, method="round_robin")
    for index, (a, b, c) in enumerate(zip(*operands, results)):
        if not torch.equal(c.cpu().float(), a.float() @ b.float()):
            raise ArithmeticError(f"problem {index} of a grouped GEMM has a wrong result")


def compile_a_kernel() -> None:
    """Compile the descriptor kernel for an H200, which needs no GPU."""
    compiled = codegen.compile_kernel("tma", "sm_90", dtype="float16")
    if not compiled.instructions["wgmma"]:
        raise ArithmeticError("the descriptor kernel compiled for sm_90 has no wgmma instruction")
