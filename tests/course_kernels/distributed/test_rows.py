from __future__ import annotations

import pytest
import torch

from course_kernels.distributed.rows import spread, total
from course_kernels.moe import Routing


def routing_of(table, ranks=3):
    routing = Routing.of(torch.tensor(table), ranks)
    return routing, int(routing.ends[-1])


def test_rows_go_to_their_sends():
    routing, count = routing_of([[0, 2], [1, -1], [0, 1]])
    x = torch.arange(12.0).reshape(3, 4)
    assert torch.equal(spread(x, routing, count), x[[0, 2, 1, 2, 0]])
    assert spread(x, routing, 0).shape == (0, 4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sums_are_in_float32_in_the_order_of_ranks(dtype):
    routing, count = routing_of([[0, 1, 2], [2, -1, -1], [-1, -1, -1]])
    rows = torch.zeros(count, 2)
    rows[routing.rows.flatten()[:4].long()] = torch.tensor([[2.0**24, 256.0], [1.0, 1.0], [1.0, 1.0], [5.0, 7.0]])
    rows[-1] = torch.tensor([5.0, 7.0])
    rows = rows.to(dtype)
    out = total(rows, routing, 3)
    first = (rows[0].float() + rows[1].float() + rows[2].float()).to(dtype)
    assert torch.equal(out[0], first)
    assert torch.equal(out[1], rows[3])
    assert torch.equal(out[2], torch.zeros(2, dtype=dtype))


def test_rows_of_others_are_not_summed():
    routing, count = routing_of([[0, -1], [-1, -1]])
    rows = torch.full((count, 2), torch.nan)
    assert torch.equal(total(rows, routing, 2)[1], torch.zeros(2))


def test_nothing_to_sum():
    routing, _ = routing_of([[-1, -1]])
    assert torch.equal(total(torch.empty(0, 3), routing, 1), torch.zeros(1, 3))
    assert total(torch.empty(0, 3), routing, 0).shape == (0, 3)
