"""transformers' models with their experts on two ranks: the cases of ``tests/support``, in two processes."""

from __future__ import annotations

from pathlib import Path

import pytest

import ranks

pytest.importorskip("transformers", minversion="5.24", reason="needs transformers 5.24 or later")
CASES = Path(ranks.__file__).with_name("transformers_ep_cases.py")


def test_two_processes():
    ranks.check(str(CASES), [2], "cpu")
