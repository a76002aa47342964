"""The dispatcher before it has a group; with two and four ranks ``distributed/test_expert_parallel`` tests it."""

from __future__ import annotations

import pytest
import torch

from course_kernels.integrations.torchtitan import TokenDispatcher


def test_a_dispatcher_without_a_group():
    dispatcher = TokenDispatcher(4)
    dispatcher.init_buffer()
    with pytest.raises(RuntimeError, match="wire_meshes must be called before dispatch"):
        dispatcher.dispatch(torch.ones(2, 4), torch.ones(2, 1), torch.zeros(2, 1, dtype=torch.int64))
