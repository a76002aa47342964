"""The transport alone, in a group of one process; with others it is tested by ``test_expert_parallel``."""

from __future__ import annotations

import forked

PROGRAM = """
import datetime, tempfile
import torch, torch.distributed as dist
from course_kernels.distributed.transports.all_to_all import AllToAll

store = dist.FileStore(tempfile.mktemp(), 1)
dist.init_process_group("gloo", store=store, rank=0, world_size=1, timeout=datetime.timedelta(seconds=20))
way, ids = AllToAll(dist.group.WORLD, 4), torch.tensor([[1, 3], [4, -1], [0, 0]])
plan = way.plan(ids)
assert plan.matrix == ((2,),), plan.matrix
assert plan.local_index.tolist() == [[1, 3], [0, 0]]
assert plan.routing.ends.tolist() == [2, 3, 3, 4]
assert plan.routing.tokens.shape == (4,)  # as many as there are choices
x = torch.arange(6.0).reshape(3, 2)
weights = torch.tensor([[0.25, 0.5], [1.0, 1.0], [0.5, 0.5]])
rows, sent, _ = way.scatter(x, weights, plan)
assert torch.equal(rows, x[[0, 2]]) and torch.equal(sent, weights[[0, 2]])
rows, sent, planned = way.scatter(x, None, ids)
assert torch.equal(rows, x[[0, 2]]) and sent is None and planned.matrix == plan.matrix
once = [[1, 1], [0, 0], [1, 1]]
sums, values = way.collect(torch.ones(2, 2), torch.ones(2, 2), plan)
assert sums.tolist() == values.tolist() == once
assert way.collect(None, torch.ones(2, 2), plan)[0] is None
"""


def test_a_group_of_one():
    done = forked.run(PROGRAM)
    assert done.returncode == 0, done.stderr
