"""Shapes and tables that tests of the tuning room share."""

from __future__ import annotations

import dataclasses
import itertools
import json

import pytest

from course_kernels.engine.tuning import lookup as tuned

SHAPES = [(m, n, k, g) for m, n, k in itertools.product((1, 20, 64, 500, 8192), (16, 1536, 8192), (64, 768, 7168))
          for g in (1, 12, 256)]  # fmt: skip


@pytest.fixture
def tables(tmp_path, monkeypatch):
    """An empty folder of tables; what it is called with is written there as a table."""
    monkeypatch.setattr(tuned, "TABLES", tmp_path)
    tuned.forget_tables()

    def write(arch, *entries):
        rows = [
            dict(op=op, dtype=dtype, bucket=list(bucket), config=list(dataclasses.astuple(config)), us=12.5)
            for op, dtype, bucket, config in entries
        ]
        (tmp_path / f"{arch}.json").write_text(json.dumps({"provenance": {"gpu": "some GPU"}, "entries": rows}))
        tuned.forget_tables()
        return tmp_path / f"{arch}.json"

    yield write
    monkeypatch.undo()
    tuned.forget_tables()
