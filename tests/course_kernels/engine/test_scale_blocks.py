"""Where the factors of a group's blocks are, if groups begin anywhere."""

from __future__ import annotations

import torch

from course_kernels.engine.scale_blocks import blocks_restart, first_column, padded_columns


def test_groups_never_share_a_column():
    """The columns of a group's blocks end before the next group's begin, and within the tensor."""
    for total in (0, 1, 127, 128, 129, 384, 500):
        for first in range(0, total + 1, 7):
            for second in range(first, total + 1, 13):
                ends, start, free = (first, second, total), 0, 0
                for g, end in enumerate(ends):
                    column = first_column(start, g)
                    assert column == start // 128 + g
                    assert column >= free
                    free = column + -(-(end - start) // 128)
                    start = end
                assert free <= padded_columns(total, len(ends))


def test_restarting_blocks_are_told_from_whole_ones():
    assert blocks_restart(torch.zeros(5, 4), 384, 1)
    assert not blocks_restart(torch.zeros(5, 3), 384, 1)
    assert blocks_restart(torch.zeros(5, 3), 383, 1), "one group restarts where it begins"


def test_of_many_groups_at_once():
    starts = torch.tensor([0, 0, 130, 256])
    assert first_column(starts, torch.arange(4)).tolist() == [0, 1, 3, 5]
