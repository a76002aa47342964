"""Grouped products of lists of matrices: ``group_gemm`` and ``GroupGemmPlan``."""
