"""The peer that this course starts from: a grouped GEMM as tutorials present it. For comparison; do not use it.

Row-major fp16 operands in plain tables of pointers, no masks (memory has to be padded to whole tiles), three
configurations, and an autotuner whose key is the number of problems alone.
"""

from __future__ import annotations

import torch

from course_kernels.kernels.language import tl, triton


@triton.jit
def tutorial_kernel(
    a_ptrs, b_ptrs, c_ptrs, sizes, lds, num_problems,
    NUM_SM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """C_g = A_g @ B_g by a fixed number of programs; reads and writes whole tiles."""
    tile = tl.program_id(0)
    passed = 0
    for g in range(num_problems):
        m_size = tl.load(sizes + g * 3)
        n_size = tl.load(sizes + g * 3 + 1)
        k_size = tl.load(sizes + g * 3 + 2)
        tiles_n = tl.cdiv(n_size, BLOCK_N)
        count = tl.cdiv(m_size, BLOCK_M) * tiles_n
        while tile >= passed and tile < passed + count:
            lda = tl.load(lds + g * 3)
            ldb = tl.load(lds + g * 3 + 1)
            ldc = tl.load(lds + g * 3 + 2)
            a = tl.load(a_ptrs + g).to(tl.pointer_type(tl.float16))
            b = tl.load(b_ptrs + g).to(tl.pointer_type(tl.float16))
            c = tl.load(c_ptrs + g).to(tl.pointer_type(tl.float16))
            inside = tile - passed
            rows = (inside // tiles_n) * BLOCK_M + tl.arange(0, BLOCK_M)
            cols = (inside % tiles_n) * BLOCK_N + tl.arange(0, BLOCK_N)
            depth = tl.arange(0, BLOCK_K)
            a_tile = a + rows[:, None] * lda + depth[None, :]
            b_tile = b + depth[:, None] * ldb + cols[None, :]
            acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
            for _ in range(0, tl.cdiv(k_size, BLOCK_K)):
                tl.multiple_of(a_tile, [16, 16])
                tl.multiple_of(b_tile, [16, 16])
                acc += tl.dot(tl.load(a_tile), tl.load(b_tile))
                a_tile += BLOCK_K
                b_tile += BLOCK_K * ldb
            tl.store(c + rows[:, None] * ldc + cols[None, :], acc.to(tl.float16))
            tile += NUM_SM
        passed += count


def configurations() -> list[dict]:
    """The three configurations that the autotuner chooses from."""
    sms = torch.cuda.get_device_properties(torch.cuda.current_device()).multi_processor_count
    return [
        dict(NUM_SM=84, BLOCK_M=128, BLOCK_N=128, BLOCK_K=32),
        dict(NUM_SM=128, BLOCK_M=64, BLOCK_N=64, BLOCK_K=32),
        dict(NUM_SM=sms, BLOCK_M=128, BLOCK_N=128, BLOCK_K=64),
    ]


class TutorialPlan:
    """Tables and padded operands for ``tutorial_kernel``, with one of its configurations.

    Args:
        group_A, group_B: matrices (M_i, K_i) and (K_i, N_i), float16, on a GPU; K_i multiples of 64. Extents that
            are not multiples of 128 are copied into padded memory: the kernel reads and writes whole tiles.
        config: index into ``configurations()``.
    """

    def __init__(self, group_A, group_B, config: int):
        def whole(matrix):
            """The matrix itself if it is whole tiles, else a padded copy."""
            rows, cols = (-(-extent // 128) * 128 for extent in matrix.shape)
            if matrix.shape == (rows, cols):
                return matrix
            copy = torch.zeros(rows, cols, dtype=matrix.dtype, device=matrix.device)
            copy[: matrix.shape[0], : matrix.shape[1]] = matrix
            return copy

        self._memory = []
        addresses, sizes, lds, self.out = [[], [], []], [], [], []
        for a, b in zip(group_A, group_B):
            (m, k), n = a.shape, b.shape[1]
            store_a, store_b, store_c = whole(a), whole(b), whole(a.new_empty(m, n))
            self._memory += [store_a, store_b, store_c]
            for column, matrix in zip(addresses, (store_a, store_b, store_c)):
                column.append(matrix.data_ptr())
            sizes.append((m, n, k))
            lds.append((store_a.stride(0), store_b.stride(0), store_c.stride(0)))
            self.out.append(store_c[:m, :n])
        self._pointers = torch.tensor(addresses, dtype=torch.int64, device="cuda")
        self._sizes = torch.tensor(sizes, dtype=torch.int32, device="cuda")
        self._lds = torch.tensor(lds, dtype=torch.int32, device="cuda")
        self.config = configurations()[config]

    def run(self) -> list[torch.Tensor]:
        """Launch; returns the outputs."""
        a, b, c = self._pointers
        tutorial_kernel[(self.config["NUM_SM"],)](a, b, c, self._sizes, self._lds, len(self.out), **self.config)
        return self.out
