"""The peer that walks group by group: a correct product, and a loop over slots that are not the worker's own."""

from __future__ import annotations

import importlib.util
import re

import pytest
import torch

from course_kernels import runtime
from course_kernels.jagged.tuned import find_config
from jagged_cases import operands

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("helion") is None, reason="helion is not installed"),
    *([pytest.mark.gpu] if runtime.mode() == "gpu" else []),
]


def test_the_peer_scans_every_groups_slots():
    """`bench.jagged`'s provider of it is tested for its result."""
    from course_kernels.bench import helion_peer

    A_packed, B, offsets = operands((17, 0, 1, 40), 24, 40, torch.float16)
    config = find_config("persistent", 58, 40, 24, 4, torch.float16, None)
    kernel = helion_peer.make_scanning(config).__wrapped__
    assert dict(kernel.configs[0]) == {"block_sizes": [32, 32, 32], "num_warps": 4, "num_stages": 1}
    code = kernel.bind((A_packed, B, offsets, 3)).to_triton_code(kernel.configs[0])
    assert code.count("in tl.range(") == 3, "groups, slots, blocks of K"
    assert "workers" not in re.search(r"in tl.range\((.*)\):", code)[1], "each worker begins with the first group"
