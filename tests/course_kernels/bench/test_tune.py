"""The tuner without a GPU: what it measures, writes, leaves out and reports; clock and times are the test's own."""

from __future__ import annotations

import dataclasses
import json

import pytest

from course_kernels import GemmConfig
from course_kernels.bench import rows, tune
from course_kernels.bench.tune import Case, regret
from course_kernels.engine.tuning import lookup as tuned
from course_kernels.engine.tuning.defaults import Bucket, candidates
from course_kernels.provenance import digest
from tuner_stand_in import PROVENANCE, Fake

CASES = [
    Case("rows-a", "grouped_mm", "bfloat16", (300, 212), 0, 512, 1024),
    Case("depth-b", "grouped_mm_k", "bfloat16", (1000, 1048), 512, 512, 0),
    Case("rows-c", "grouped_mm", "bfloat16", (12, 12), 0, 512, 1024),
]


def run(path, fake, cases=CASES, **options):
    options = {"provenance": PROVENANCE, "tell": lambda line: None, **options}
    return tune.tune(cases, fake, path / "sm_90.json", record=path / "all.json", **options)


def content(path, name="sm_90.json"):
    return json.loads((path / name).read_text())


def test_the_fastest_by_median_is_written_with_its_runner_up_and_where_it_comes_from(tmp_path):
    outcome = run(tmp_path, Fake(place=2))
    assert dataclasses.astuple(outcome) == (3, 0, 0, 0, ())
    table = content(tmp_path)
    depends = {"depends_on": list(tune.DEPENDS_ON), "depends_digest": digest(tune.DEPENDS_ON)}
    assert table["provenance"] == content(tmp_path, "all.json")["provenance"] == PROVENANCE | depends
    assert table["config_fields"] == [field.name for field in dataclasses.fields(GemmConfig)]
    assert len(table["entries"]) == 3
    by_case = {entry["case"]: entry for entry in table["entries"]}
    for case in CASES:
        entry, configs = by_case[case.name], candidates(case.op, case.bucket, case.dtype)
        assert GemmConfig(*entry["config"]) == configs[2]
        assert entry["us"] == 10.0
        assert entry["runner_up"]["us"] == 11.0
        assert GemmConfig(*entry["runner_up"]["config"]) in (configs[1], configs[3])
        assert (entry["op"], Bucket(*entry["bucket"])) == (case.op, case.bucket)
        assert entry["shape"] == list(case.extents)
        assert (entry["source"], entry["date"]) == (digest(tune.DEPENDS_ON), "2026-01-01")


def test_what_is_written_is_what_get_config_reads(tmp_path, monkeypatch):
    run(tmp_path, Fake(place=1))
    (tmp_path / "all.json").unlink()
    monkeypatch.setattr(tuned, "TABLES", tmp_path)
    tuned.forget_tables()
    try:
        for case in CASES:
            choice = tuned.get_config(case.op, *case.extents, arch=90, explain=True)
            assert choice.config == candidates(case.op, case.bucket, case.dtype)[1]
            assert (choice.distance, choice.us) == (0, 10.0)
            assert "no GPU" in str(choice)
    finally:
        monkeypatch.undo()
        tuned.forget_tables()


def test_a_run_goes_on_where_the_last_one_ended(tmp_path, monkeypatch):
    seconds = iter(range(0, 1000, 10))
    first, said = Fake(), []
    outcome = run(tmp_path, first, limit_s=25, clock=lambda: next(seconds), tell=said.append)
    assert first.measured == ["rows-a"] or first.measured == ["rows-a", "depth-b"]
    assert outcome.left == 3 - outcome.measured > 0
    assert f"{outcome.left} buckets are left" in said[-1]
    second = Fake()
    outcome = run(tmp_path, second)
    assert first.measured + second.measured == [case.name for case in CASES]
    assert outcome.kept == len(first.measured)
    third = Fake()
    assert run(tmp_path, third).kept == 3
    assert third.measured == []
    assert run(tmp_path, third, again=True).measured == 3
    # Other kernels: what was measured with the old ones is stale, and stays until it is replaced.
    monkeypatch.setattr(tune, "digest", lambda patterns: "another")
    fourth = Fake()
    assert run(tmp_path, fourth, CASES[:1]).measured == 1
    assert fourth.measured == ["rows-a"]
    assert [entry["source"] == "another" for entry in content(tmp_path)["entries"]].count(True) == 1
    assert len(content(tmp_path)["entries"]) == 3
    assert content(tmp_path)["provenance"]["depends_digest"] is None, "a table with an old entry is stale"
    assert run(tmp_path, Fake()).measured == 2
    assert content(tmp_path)["provenance"]["depends_digest"] == "another"


def test_a_record_that_lacks_a_bucket_has_it_measured(tmp_path):
    tune.tune(CASES, Fake(), tmp_path / "sm_90.json", provenance=PROVENANCE, tell=lambda line: None)
    again = Fake()
    run(tmp_path, again)
    assert len(again.measured) == 3
    assert run(tmp_path, Fake()).kept == 3


def test_progress_says_how_far_and_how_long(tmp_path):
    seconds, said = iter(range(0, 1000, 10)), []
    run(tmp_path, Fake(), tell=said.append, clock=lambda: next(seconds))
    assert [line.split(" ")[0] for line in said] == ["[1/3,", "[2/3,", "[3/3,"]
    assert "   0 s left] rows-c: 10 µs with" in said[-1]
    assert "   0 s left" not in said[0]


def test_what_is_wrong_is_never_chosen_and_is_reported(tmp_path):
    outcome = run(tmp_path, Fake(place=1, failing=lambda i: i == 1))
    assert len(outcome.failures) == 3
    assert outcome.failures[0].startswith("rows-a, ")
    assert outcome.failures[0].endswith("wrong, on purpose")
    for entry in content(tmp_path)["entries"]:
        case = next(case for case in CASES if case.name == entry["case"])
        assert GemmConfig(*entry["config"]) != candidates(case.op, case.bucket, case.dtype)[1]
    assert all(len(bucket["failed"]) == 1 for bucket in content(tmp_path, "all.json")["buckets"])


def test_a_bucket_without_any_result_is_not_written(tmp_path):
    outcome = run(tmp_path, Fake(failing=lambda i: True))
    assert (outcome.measured, outcome.empty) == (0, 3)
    assert not (tmp_path / "sm_90.json").exists()


def test_files_of_others_are_not_overwritten(tmp_path):
    (tmp_path / "sm_90.json").write_text('{"something": "else"}')
    with pytest.raises(ValueError, match="not a file of entries that the tuner wrote"):
        run(tmp_path, Fake())
    assert content(tmp_path) == {"something": "else"}


def test_regret_is_chosen_over_best(tmp_path):
    run(tmp_path, Fake(place=1))
    record = content(tmp_path, "all.json")
    defaults = regret(record, lambda op, extents, dtype: candidates(op, Bucket.of(op, *extents), dtype)[0])
    assert [each.ratio for each in defaults] == [11.0 / 10.0] * 3
    for each in defaults:
        assert (each.us, each.best_us) == (11.0, 10.0)
        assert each.best == candidates(each.op, each.bucket, each.dtype)[1]
    best = {tuple(each.bucket): each.best for each in defaults}
    chosen = regret(record, lambda op, extents, dtype: best[tuple(Bucket.of(op, *extents))])
    assert [each.ratio for each in chosen] == [1.0] * 3
    unknown = regret(record, lambda op, extents, dtype: GemmConfig(16, 16, 16))
    assert [each.ratio for each in unknown] == [None] * 3
    assert all(each.ratio is None or each.ratio >= 1 for each in regret(record))


def test_the_grid_has_one_case_for_each_bucket_and_the_rows_of_the_benchmark_first():
    cases = tune.grid()
    assert len({(case.op, case.dtype, case.bucket) for case in cases}) == len(cases)
    for row in rows.rows():
        for op, extents in (
            ("grouped_mm", (row.total_m, row.K, row.N, row.groups)),
            ("grouped_mm", (row.total_m, row.N, row.K, row.groups)),
            ("grouped_mm_k", (row.N, row.total_m, row.K, row.groups)),
        ):
            assert any((case.op, case.bucket) == (op, Bucket.of(op, *extents)) for case in cases[:27])
    names = [case.name for case in cases]
    assert len(set(names)) == len(names)
    assert {case.bucket.M for case in cases if case.op == "grouped_mm"} >= {16, 32, 64, 128, 256, 512, 1024, 4096}
    assert all(case.flops > 0 and case.bytes_moved < 60e9 for case in cases)


def test_the_grid_is_restricted_by_what_is_asked_for():
    quick = tune.grid(quick=True)
    assert 0 < len(quick) < 20
    assert {case.op for case in tune.grid(ops=["grouped_mm_k"])} == {"grouped_mm_k"}
    assert {case.dtype for case in tune.grid(dtypes=["tf32", "float16"])} == {"tf32", "float16"}
    assert {case.op for case in tune.grid(dtypes=["float8_e4m3fn"])} == {"grouped_mm"}
    with pytest.raises(ValueError, match=r"dtypes must be of .*'int8'"):
        tune.grid(dtypes=["int8"])
    with pytest.raises(ValueError, match="ops must be of"):
        tune.grid(ops=["grouped_mm_batch"])
    assert {case.name.split("-")[0] for case in tune.select(tune.grid(), ["decode", "equal12"])} == {
        "decode256", "decode32", "equal12"
    }  # fmt: skip
    with pytest.raises(ValueError, match="beginnings of names"):
        tune.select(tune.grid(), ["nothing"])


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_sizes_of_a_case(case):
    M, K, N, G = case.extents
    assert G == 2
    if case.op == "grouped_mm_k":
        assert (M, K) == (512, 2048)
        assert case.bytes_moved == 2 * (512 * 2048 + 2048 * 512 + 2 * 512 * 512)
    else:
        assert (M, K) == (sum(case.sizes), 1024)
        assert case.bytes_moved == 2 * (M * 1024 + 2 * 1024 * 512 + M * 512)
    assert case.flops == 2 * M * K * N
