"""Functions in several processes of one group: what travels, what comes back, and what fails."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from gemm_course.lessons import l16_processes

NOTEBOOK = """
import torch
import torch.distributed as dist
SHIFT = torch.tensor(10)

def shifted(value):
    return [value + SHIFT for _ in range(1)][0]

def total(rank, start):
    mine = shifted(torch.tensor(start + rank))
    dist.all_reduce(mine)
    return int(mine)
"""


def wait_or_leave(rank):
    if rank == 0:
        dist.barrier()
    return rank


def fail(rank):
    raise KeyError(f"of rank {rank}")


def test_a_notebooks_function_takes_along_what_it_names():
    names = {"__name__": "__main__"}
    exec(NOTEBOOK, names)
    assert l16_processes.run(names["total"], 3, 1) == [36, 36, 36]


def test_a_function_of_a_module_and_tensors_travel():
    assert torch.equal(l16_processes.run(torch.add, 1, torch.ones(2))[0], torch.ones(2))


def test_a_rank_that_leaves_is_waited_for_no_longer_than_asked():
    stuck, left = l16_processes.run(wait_or_leave, 2, seconds=1.0, fails=True)
    assert (stuck.rank, left) == (0, 1)
    assert "imed out" in stuck.text


@pytest.mark.parametrize(
    "text",
    [
        "Operation timed out!",
        "[/src/gloo/tcp/unbound_buffer.cc:81] Timed out waiting 1500ms for recv operation to complete",
    ],
)
def test_every_time_out_reads_alike(text):
    failure = l16_processes.Failure(2, "RuntimeError", f"rank 2 had no answer: {text}. Call it.")
    assert str(failure) == "RuntimeError: rank 2 had no answer: timed out. Call it."


def test_a_failure_is_raised():
    with pytest.raises(RuntimeError, match="rank 0: KeyError: 'of rank 0'"):
        l16_processes.run(fail, 2)


def test_a_closure_is_refused():
    outside = 1

    def inner(rank):
        return outside

    with pytest.raises(TypeError, match="inner must not have a closure"):
        l16_processes.run(inner, 1)
