"""Operands for the Operator API without memory: NVIDIA's own example."""

import torch

from course_kernels import cutlass_ops

BF16, FP16, FP32, FP8 = torch.bfloat16, torch.float16, torch.float32, torch.float8_e4m3fn
TOTAL_M, G, K, N = 8192, 12, 1024, 2048  # the problem of NVIDIA's own notebook


def described(dtype=BF16, total_m=TOTAL_M, groups=G, k=K, n=N, **options):
    """Arguments without memory."""
    options = {"b_dtype": dtype, "offs_dtype": torch.int32, "out": None, "out_dtype": None, **options}
    mat_a = torch.empty(total_m, k, dtype=dtype, device="meta")
    mat_b = torch.empty(groups, n, k, dtype=options.pop("b_dtype"), device="meta").mT
    offs = torch.empty(groups, dtype=options.pop("offs_dtype"), device="meta")
    return cutlass_ops.arguments(options.pop("a", mat_a), options.pop("b", mat_b), offs=offs, **options)


def meta(*shape, dtype=BF16):
    return torch.empty(shape, dtype=dtype, device="meta")
