from __future__ import annotations

import pytest
import torch

from course_kernels.distributed.transports.agreement import UNKNOWN, check_agreement, check_same, form_of


def rows(dtype=torch.bfloat16, width=8):
    return form_of(torch.empty(3, width, dtype=dtype))


def test_equal_forms_agree():
    check_agreement("x", [rows(), rows()], 1)
    check_agreement("x", [UNKNOWN, UNKNOWN], 0)
    check_agreement("x", [rows(), UNKNOWN, rows()], 1)


@pytest.mark.parametrize("other, words", [(rows(width=0), "bfloat16 of width 0"), (rows(torch.float32), "float32 of")])
@pytest.mark.parametrize("here, first, rank", [(0, 0, 2), (1, 0, 2), (2, 2, 0)])
def test_every_rank_raises_and_names_another(other, words, here, first, rank):
    """Also the rank whose rows are unknown."""
    forms = [rows(), UNKNOWN, other]
    mine, its = ("bfloat16 of width 8", words) if first == 0 else (words, "bfloat16 of width 8")
    with pytest.raises(ValueError, match=rf"^x must .* got torch.{mine}.* on rank {first} and torch.{its}.*{rank}$"):
        check_agreement("x", forms, here)


def test_no_form_is_unknown():
    assert form_of(None) == UNKNOWN
    assert UNKNOWN not in {rows(dtype, width) for dtype in (torch.float16, torch.int32) for width in (0, 1)}


def test_numbers_agree_or_every_rank_names_another():
    check_same("num_experts", [8, 8, 8], 1)
    for here, words in ((0, "8 on rank 0 and 16 on rank 2"), (2, "16 on rank 2 and 8 on rank 0")):
        with pytest.raises(ValueError, match=f"^num_experts must be the same on all ranks, got {words}$"):
            check_same("num_experts", [8, 8, 16], here)
