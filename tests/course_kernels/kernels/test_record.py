"""What the kernels themselves did: the recorded walk is `schedule`'s, and every tile is computed once."""

from __future__ import annotations

import importlib
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import forked
from course_kernels import GemmConfig, GroupGemmPlan, runtime, schedule
from course_kernels.testing import Problem, assert_exact, empty_problems, make_operands
from places import ROOT

pytestmark = [pytest.mark.gpu] if runtime.mode() == "gpu" else []

GROUPED = ("round_robin", "tma")
BATCHES = {
    "one": [Problem(70, 90, 16)],
    "equal": [Problem(64, 48, 16)] * 3,
    "skewed": [Problem(80, 72, 16), Problem(1, 8, 16), Problem(33, 8, 16), Problem(16, 104, 16)],
    "empty between": [Problem(0, 8, 16), Problem(40, 40, 16), Problem(8, 0, 16), Problem(8, 8, 0), Problem(20, 40, 16)],
}


def recorded(problems, method, config, programs=None):
    """A plan that has run with its log, each product checked."""
    group_A, group_B = make_operands(problems, device=runtime.device())
    plan = GroupGemmPlan(group_A, group_B, method=method, config=config, programs=programs, record=True)
    for c in plan.out:
        c.fill_(float("nan"))
    plan.run()
    for i, (c, a, b) in enumerate(zip(plan.out, group_A, group_B)):
        assert_exact(c, a, b, what=f"problem {i}")
    return plan


def programs_by_tile(plan):
    (step,) = plan.launches
    return step.records[:, 0].tolist()


def expected_programs(problems, order, config, programs):
    """Program of each tile, by the pure Python walk."""
    walked = schedule.walk(problems, order, programs, config.block, config.group_m)
    owner = {tile.index: program for program, share in enumerate(walked) for tile in share}
    return [owner[i] for i in range(len(owner))]


@pytest.mark.parametrize("programs", [1, 3, 7])
@pytest.mark.parametrize("group_m", [1, 2])
@pytest.mark.parametrize("order", ["round_robin", "chunks"])
@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("method", GROUPED)
def test_walk_is_that_of_the_schedule(method, batch, order, group_m, programs):
    problems = BATCHES[batch]
    config = GemmConfig(32, 32, 16, group_m=group_m, schedule=order)
    plan = recorded(problems, method, config, programs)
    tiles = plan.launches[0].tiles
    assert tiles == sum(schedule.tile_counts(problems, config.block_m, config.block_n))
    assert programs_by_tile(plan) == expected_programs(problems, order, config, min(programs, tiles))


@given(data=st.data())
@settings(max_examples=15, deadline=None, derandomize=True)
def test_walk_of_random_batches(data):
    extent = st.integers(0, 70)
    problems = data.draw(st.lists(st.tuples(extent, extent, st.just(8)), min_size=1, max_size=4))
    order = data.draw(st.sampled_from(["round_robin", "chunks"]))
    config = GemmConfig(32, 32, 16, group_m=data.draw(st.integers(1, 3)), schedule=order)
    programs = data.draw(st.integers(1, 9))
    plan = recorded(problems, "round_robin", config, programs)
    for step in plan.launches:  # problems of different alignment have a walk of their own
        members = [problems[i] for i in step.problems]
        assert step.records[:, 0].tolist() == expected_programs(members, order, config, step.programs)


@pytest.mark.parametrize("group_m", [1, 2, 8])
@pytest.mark.parametrize("method", ["naive", *GROUPED])
def test_tile_index_means_the_same_piece_of_the_output_as_in_the_schedule(method, group_m):
    """A kernel that gets n as the number of tiles must write exactly the pieces that `schedule` lists first."""
    problem = Problem(100, 70, 16)
    config = GemmConfig(32, 32, 16, group_m=group_m)
    group_A, group_B = make_operands([problem], device=runtime.device())
    tiles = schedule.tiles([problem], 32, 32, group_m)
    plan = GroupGemmPlan(group_A, group_B, method=method, config=config, programs=3)
    ((kernel, grid, arguments, options),) = plan._prepared._calls
    total = None if method == "naive" else 6  # position of total_tiles; the naive kernel's grid is its count
    for count in range(1, len(tiles) + 1):
        plan.out[0].fill_(float("nan"))
        if total is None:
            plan._prepared._calls = [(kernel, (count,), arguments, options)]
        else:
            assert arguments[total] == len(tiles)
            shortened = (*arguments[:total], count, *arguments[total + 1 :])
            plan._prepared._calls = [(kernel, grid, shortened, options)]
        plan.run()
        expected = torch.zeros(problem.M, problem.N, dtype=torch.bool)
        for tile in tiles[:count]:
            expected[tile.m * 32 : tile.m * 32 + tile.rows, tile.n * 32 : tile.n * 32 + tile.cols] = True
        assert torch.equal(~plan.out[0].isnan().cpu(), expected), f"the first {count} tiles"


@pytest.mark.skipif(runtime.mode() == "gpu", reason="the interpreter runs Python, which can be watched")
@pytest.mark.parametrize("programs", [1, 3, 50])
@pytest.mark.parametrize("order", ["round_robin", "chunks", "dynamic"])
@pytest.mark.parametrize("method", GROUPED)
def test_each_tile_is_computed_once_and_in_the_schedules_order(method, order, programs, monkeypatch):
    """The log has one row for each tile, which hides a tile that is computed twice; a list of events does not."""
    import triton.language as tl

    from course_kernels.kernels import round_robin, tma

    events = []

    def watch(log_ptr, tile, started, RECORD):
        index = tile if isinstance(tile, int) else tile.handle.data.item()
        events.append((tl.program_id(0).handle.data.item(), index))

    monkeypatch.setattr({"round_robin": round_robin, "tma": tma}[method], "record_tile", watch)
    problems = BATCHES["skewed"]
    group_A, group_B = make_operands(problems)
    config = GemmConfig(32, 32, 16, schedule=order, group_m=2)
    plan = GroupGemmPlan(group_A, group_B, method=method, config=config, programs=programs)
    plan.run()
    (step,) = plan.launches
    assert sorted(tile for _, tile in events) == list(range(step.tiles))
    if order != "dynamic":
        shares = schedule.walk(problems, order, step.programs, (32, 32), 2)
        assert events == [(p, tile.index) for p, share in enumerate(shares) for tile in share]


def test_naive_computes_tile_p_in_program_p():
    problems = BATCHES["skewed"]
    plan = recorded(problems, "naive", GemmConfig(32, 32, 16, group_m=2))
    assert [step.problems for step in plan.launches] == [(i,) for i in range(len(problems))]
    for step in plan.launches:
        assert step.records[:, 0].tolist() == list(range(step.tiles))


@pytest.mark.parametrize("programs", [1, 3, 50])
@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("method", GROUPED)
def test_dynamic_computes_every_tile_and_resets_its_counter(method, batch, programs):
    config = GemmConfig(32, 32, 16, schedule="dynamic")
    plan = recorded(BATCHES[batch], method, config, programs)
    (step,) = plan.launches
    counter = plan._prepared._calls[0][2][7]
    assert counter.shape == (1,)
    for _ in range(2):
        assert counter.item() == 0
        owners = step.records[:, 0].tolist()
        assert all(0 <= owner < step.programs for owner in owners), "a tile was not computed"
        step.records.fill_(-1)
        plan.run()


@pytest.mark.parametrize("method", ["naive", *GROUPED])
def test_without_record_there_is_no_log(method):
    group_A, group_B = make_operands(BATCHES["equal"], device=runtime.device())
    plan = GroupGemmPlan(group_A, group_B, method=method, config=GemmConfig(32, 32, 16))
    assert all(step.records is None for step in plan.launches)


@pytest.mark.parametrize("method", ["naive", *GROUPED])
def test_recording_changes_no_result(method):
    recorded(empty_problems(), method, GemmConfig(32, 32, 16))


@pytest.mark.skipif(runtime.mode() == "gpu", reason="the interpreter's log has programs only")
def test_interpreter_log_leaves_times_blank():
    plan = recorded(BATCHES["equal"], "round_robin", GemmConfig(32, 32, 16))
    (step,) = plan.launches
    assert step.records.shape == (step.tiles, 4)
    assert (step.records[:, 1:] == -1).all()


SANITIZE = ROOT / "tools" / "sanitize.py"


@pytest.mark.skipif(runtime.mode() == "gpu", reason="run it under compute-sanitizer there")
def test_sanitizer_program_runs(monkeypatch, capsys):
    names = ["tma-dynamic-aligned-float16-row-row-ieee-2", "round_robin-chunks-empty-float16-row-row-ieee-1"]
    names.append("packed-k-0x0x80x96x64-float16-None-None-row-row-padded-zero-round_robin-ieee-1")
    names.append("jagged-persistent-0x0-float16-float16-row-row")
    start = f"import runpy, sys\nsys.argv[1:], sys.path[0] = {names}, {str(SANITIZE.parent)!r}\n"
    done = forked.run(f"{start}runpy.run_path({str(SANITIZE)!r}, None, '__main__')")
    assert done.returncode == 0, done.stderr
    assert [line.split(":")[0] for line in done.stdout.splitlines()[:4]] == names
    assert "exact" in done.stdout
    monkeypatch.setenv("PYTORCH_NO_CUDA_MEMORY_CACHING", "1")  # the program sets it, for a process of its own
    sanitize = importlib.import_module("sanitize")
    monkeypatch.setattr(sys, "argv", [str(SANITIZE), "--list"])
    sanitize.main()
    found = capsys.readouterr().out.split()
    assert len(found) == len(set(found)) > 40
    kernels = "naive round_robin tma packed jagged gmm tgmm accumulate sums deepgemm quantize pack blockscaled"
    kernels += " feedforward route journey"
    assert {name.split("-")[0] for name in found} == set(kernels.split())
    monkeypatch.setattr(sys, "argv", [str(SANITIZE), "nonsense"])
    with pytest.raises(SystemExit, match=r"^2$"):
        sanitize.main()
    assert "nonsense" in capsys.readouterr().err
