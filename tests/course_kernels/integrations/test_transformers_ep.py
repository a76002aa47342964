"""transformers' models with their experts on two ranks: the cases of ``tests/support``, in two processes."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

import ranks

pytest.importorskip("transformers", minversion="5.24", reason="needs transformers 5.24 or later")
CASES = Path(ranks.__file__).with_name("transformers_ep_cases.py")
found = functools.cache(ranks.found)


@pytest.mark.parametrize("case", ["other_batches", "one_batch", "page"])
def test_two_processes(case):
    results = found(str(CASES), 2, "cpu")
    assert results[case] is True, results[case]
