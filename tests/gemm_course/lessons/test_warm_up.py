"""The first check passes the right answer, and explains each likely wrong one."""

from __future__ import annotations

import pytest
import torch

from gemm_course.lessons.warm_up import check_ends


def test_a_running_total_passes(capsys):
    check_ends(lambda sizes: torch.cumsum(sizes, dim=0))
    assert capsys.readouterr().out == "Pass: every end is right, also those of empty groups.\n"


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (lambda sizes: sizes, "returned [3, 0, 5, 2]; the ends are [3, 3, 8, 10].\nThese are the sizes."),
        (lambda sizes: torch.cumsum(sizes, 0) - sizes, "These are the rows at which groups start."),
        (lambda sizes: torch.cumsum(sizes, 0) - 1, "These are the last rows."),
        (lambda sizes: torch.cumsum(sizes, 0) + 1, "Some ends are wrong."),
        (lambda sizes: None, "returned None; the ends are [3, 3, 8, 10].\nThe function returned None"),
        (lambda sizes: sizes.sum(), "one number for each of the 4 groups; the shape is ()"),
        (lambda sizes: torch.cumsum(sizes, 0).float(), "must be an integer; the type is torch.float32"),
        (lambda sizes: "ends", "must return a tensor of 4 integers, not str"),
        (lambda sizes: sizes.cumsum(0) if len(sizes) > 1 else sizes * 2, "For sizes [7] your function returned [14]"),
    ],
    ids=["sizes", "starts", "last rows", "other", "none", "one number", "floats", "text", "one group"],
)
def test_a_wrong_answer_is_explained(answer, says, capsys):
    check_ends(answer)
    told = capsys.readouterr().out
    assert told.startswith("Not yet. For sizes ")
    assert says in told
