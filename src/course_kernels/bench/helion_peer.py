"""The peer that the jagged products start from: a persistent kernel that walks group by group. For comparison only.

As in Helion's example of a grouped GEMM, every worker goes through the tiles of every group: it counts slots up to the
number of the group's tiles, and leaves out those whose tile would not be in the group. Each group starts at worker 0
again, so that groups of few tiles all fall to the same few workers.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from course_kernels.jagged import helion_kernels  # raises where Helion is missing, and sets Triton up
from course_kernels.jagged.interpreting import widened_on_cpu

import helion  # isort: skip
import helion.language as hl  # isort: skip


def scanning(A_packed: Tensor, B: Tensor, group_offsets: Tensor, workers: int) -> Tensor:
    """The product, by ``workers`` programs."""
    BLOCK_M = hl.register_block_size(16, 256)
    BLOCK_N = hl.register_block_size(16, 256)
    total_m, K = A_packed.shape
    N = B.size(1)
    out = torch.zeros(total_m, N, dtype=torch.promote_types(A_packed.dtype, B.dtype), device=A_packed.device)
    G = group_offsets.size(0) - 1
    for worker in hl.grid(workers):
        for g in hl.grid(G):
            start = group_offsets[g]
            end = group_offsets[g + 1]
            tiles_m = helion_kernels.divide(end - start + BLOCK_M - 1, BLOCK_M)
            tiles = tiles_m * ((N + BLOCK_N - 1) // BLOCK_N)
            for slot in hl.grid(tiles):
                tile = slot * workers + worker
                if tile < tiles:
                    tile_n = helion_kernels.divide(tile, tiles_m)
                    rows = start + (tile - tile_n * tiles_m) * BLOCK_M + hl.arange(BLOCK_M)
                    cols = tile_n * BLOCK_N + hl.arange(BLOCK_N)
                    acc = hl.zeros([BLOCK_M, BLOCK_N], dtype=torch.float32)
                    for tile_k in hl.tile(K):
                        block_a = hl.load(A_packed, [rows, tile_k.index], extra_mask=(rows < end)[:, None])
                        block_b = hl.load(B, [tile_k.index, cols], extra_mask=(cols < N)[None, :])
                        acc = hl.dot(block_a, block_b, acc=acc)
                    inside = (rows < end)[:, None] & (cols < N)[None, :]
                    hl.store(out, [rows, cols], acc.to(out.dtype), extra_mask=inside)
    return out


def make_scanning(config: dict) -> Callable[[Tensor, Tensor, Tensor, int], Tensor]:
    """The product with the tile, the warps and the stages of a configuration of ``helion_kernels``."""
    kept = {name: config[name] for name in ("block_sizes", "num_warps", "num_stages") if name in config}
    return widened_on_cpu(helion.kernel(scanning, static_shapes=False, config=helion.Config(**kept)))
