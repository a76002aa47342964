"""The tuner of the Helion kernels keeps what is faster, refuses what is wrong, and writes what it has."""

from __future__ import annotations

import importlib.util
import json

import pytest
import torch

import helion_tune
from course_kernels.bench import jagged
from course_kernels.jagged import tuned

TINY = jagged.SharedRow("tiny", "", (17, 0, 9), 16, 24, "compute")
FOUND = {"block_sizes": [16, 16, 16], "num_warps": 4, "num_stages": 1, "group_m": 1, "workers_per_sm": 1}
needs_helion = pytest.mark.skipif(importlib.util.find_spec("helion") is None, reason="helion is not installed")


def entry(kernel, shape, us):
    return tuned.Entry(kernel, "bfloat16", shape, us, {"block_sizes": [16, 16, 16]})


@needs_helion
@pytest.mark.parametrize(
    ("us", "kept"), [({"found": 2.0, "present": 3.0}, True), ({"found": 3.0, "present": 2.5}, False)]
)
def test_the_faster_configuration_is_kept(us, kept):
    result = helion_tune.tune_row(TINY, "persistent", "cpu", torch.bfloat16, lambda *_: FOUND, lambda functions: us)
    assert result[:3] == ("persistent", "bfloat16", (26, 16, 24, 3))
    assert result.us == min(us.values())
    assert (result.config == FOUND) == kept


@needs_helion
def test_a_configuration_that_gives_a_wrong_result_is_refused(monkeypatch):
    monkeypatch.setattr(helion_tune, "count_wrong", lambda *_: [3])
    with pytest.raises(AssertionError, match="tiny, persistent: 3 of 416 elements are wrong"):
        helion_tune.tune_row(TINY, "persistent", "cpu", torch.bfloat16, lambda *_: FOUND, None)


def test_measured_entries_of_other_shapes_stay():
    old = [entry("simple", (1, 2, 3, 4), None), entry("simple", (2, 2, 2, 2), 5.0), entry("simple", (3, 3, 3, 3), 7.0)]
    new = [entry("simple", (3, 3, 3, 3), 6.0), entry("persistent", (3, 3, 3, 3), 4.0)]
    assert helion_tune.merged(old, new) == [new[1], old[1], new[0]]


def test_the_table_is_written_after_each_shape_and_can_be_read(monkeypatch, tmp_path):
    path = tmp_path / "sm_90.json"

    def tune_row(row, kernel, *_):
        shapes.append((row.name, kernel, path.exists()))
        return tuned.Entry(kernel, "bfloat16", (row.total_m, row.N, row.K, row.groups), 1.5, FOUND)

    shapes = []
    monkeypatch.setattr(helion_tune, "tune_row", tune_row)
    monkeypatch.setattr(helion_tune.torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(helion_tune.runtime, "capability", lambda: (9, 0))
    monkeypatch.setattr(helion_tune.importlib.metadata, "version", lambda name: "1.5.1")
    monkeypatch.setattr(helion_tune.record, "provenance", lambda commit, depends_on: {"commit": commit})
    monkeypatch.setattr("sys.argv", ["helion_tune.py", "document", "tb-256", "--out", str(path), "--seconds", "7"])
    monkeypatch.setenv("HELION_AUTOTUNE_BUDGET_SECONDS", "")
    monkeypatch.setenv("HELION_AUTOTUNE_EFFORT", "")
    helion_tune.main()
    assert shapes == [("document", "persistent", False), ("document", "simple", True), ("tb-256", "persistent", True),
                      ("tb-256", "simple", True)]  # fmt: skip
    assert helion_tune.os.environ["HELION_AUTOTUNE_BUDGET_SECONDS"] == "7"
    content = json.loads(path.read_text())
    assert (content["helion"], content["seconds"], content["effort"]) == ("1.5.1", 7, "full")
    monkeypatch.setattr(tuned, "TABLES", tmp_path)
    tuned.forget_tables()
    assert [each.us for each in tuned.read_table("sm_90")].count(1.5) == 4
    tuned.forget_tables()


@pytest.mark.parametrize(("options", "message"), [(["nothing"], "no row nothing"), (["document"], "torch sees none")])
def test_wrong_usage_is_refused(monkeypatch, capsys, options, message):
    monkeypatch.setattr(helion_tune.torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr("sys.argv", ["helion_tune.py", *options])
    with pytest.raises(SystemExit):
        helion_tune.main()
    assert message in capsys.readouterr().err
