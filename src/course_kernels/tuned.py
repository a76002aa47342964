"""Tuned configurations of the packed products."""

from __future__ import annotations

import functools

import torch

from course_kernels.config import GemmConfig


@functools.lru_cache(maxsize=4096)
def get_config(op, M, K, N, G, *, dtype=torch.bfloat16, arch=None, explain=False):
    """The configuration for a shape."""
    if arch is None:
        return GemmConfig(32, 32, 32)
    if dtype == torch.float32:
        return GemmConfig(64, 64, 32, 4, 3, 8, 2, 1)
    if op == "grouped_mm_k":
        return GemmConfig(128, 256, 64, 8, 4, 8, 1, 2) if M * N >= 2**24 else GemmConfig(128, 128, 64, 4, 3, 4, 2, 2)
    rows = M // max(G, 1)
    if rows <= 16:
        return GemmConfig(16, 128, 128, 4, 4, 1, 1, 1)
    if rows <= 32:
        return GemmConfig(32, 128, 128, 4, 4, 1, 1, 1)
    if rows <= 64:
        return GemmConfig(64, 128, 128, 4, 3, 1, 1, 1)
    return GemmConfig(128, 256, 64, 8, 4, 8, 1, 2)
