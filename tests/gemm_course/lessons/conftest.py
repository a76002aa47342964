"""Kernels that several figures read, compiled once."""

from __future__ import annotations

import pytest

from course_kernels import GemmConfig, codegen


@pytest.fixture(scope="session")
def compiled():
    """The round-robin kernel with pointers, and with descriptors."""
    config = GemmConfig(128, 128, 64, 4, 3)
    return codegen.compile_many([(codegen.build(name, config=config), "sm_90") for name in ("round_robin", "tma")])
