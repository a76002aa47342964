"""What the measurement of expert parallelism reports. ``distributed/test_expert_parallel`` runs it, as the case
``benchmark``."""

from __future__ import annotations

import torch

from expert_parallel import imbalance, worst_error


def test_what_is_reported():
    assert imbalance(((3, 1), (1, 3))) == 1.0
    assert imbalance(((4, 0), (4, 0))) == 2.0
    assert worst_error([torch.tensor([1.0, 3.0])], [torch.tensor([1.0, 4.0])]) == 0.25
