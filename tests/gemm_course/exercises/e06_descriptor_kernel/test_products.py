"""Products that mistakes give: without their mistake they are the right one."""

from __future__ import annotations

import pytest
import torch

from gemm_course.exercises.e06_descriptor_kernel import products
from gemm_course.exercises.e06_descriptor_kernel.run import BLOCK_K, BLOCK_M, BLOCK_N

START, SIZE, N, K = 5, 2 * BLOCK_M - 3, BLOCK_N + 8, BLOCK_K + 8
A = torch.arange((START + SIZE) * K, dtype=torch.float64).view(-1, K) % 7 + 1
B = torch.arange(N * K, dtype=torch.float64).view(-1, K) % 5 + 1
BOUNDS = START, START + SIZE
RIGHT = A[START:] @ B.T


def test_the_right_loads_give_the_product():
    assert torch.equal(products.loaded(A, B, BOUNDS, lambda start, row, col, k: (row, k, col, k)), RIGHT)


@pytest.mark.parametrize("why", [why for _, why, _ in products.LOADS])
def test_other_loads_give_another_product(why):
    (places,) = (each for _, text, each in products.LOADS if text == why)
    assert not torch.equal(products.loaded(A, B, BOUNDS, places), RIGHT)


def test_a_moved_pointer_reads_further_down():
    assert torch.equal(products.moved(A, 0, len(A)), A)
    moved = products.moved(A, *BOUNDS)
    assert torch.equal(moved[:-START], A[2 * START :])
    assert not moved[-START:].any()


def test_a_program_with_one_tile_carries_nothing_over():
    tiles = torch.arange(len(A))[:, None] // BLOCK_M * 10 + torch.arange(N) // BLOCK_N
    tiles[START:] = torch.arange(SIZE)[:, None] // BLOCK_M * 10 + torch.arange(N) // BLOCK_N
    assert torch.equal(products.carried_over(A, B, tiles, BOUNDS), RIGHT)
    assert not torch.equal(products.carried_over(A, B, tiles * 0, BOUNDS), RIGHT)


def test_sums_of_one_block_are_right():
    a, b = A[:, :BLOCK_K], B[:, :BLOCK_K]
    assert torch.equal(products.each_added_again(a, b), a @ b.T)
    assert torch.equal(products.each_added_again(A, B), A @ B.T + a @ b.T)
    assert torch.equal(products.summed_in(torch.float32, 0, A, B), A @ B.T)


def test_a_reshaped_block_has_the_same_numbers():
    block = B[:BLOCK_N, :BLOCK_K]
    assert torch.equal(products.reshaped(block), block.reshape(BLOCK_K, BLOCK_N))
