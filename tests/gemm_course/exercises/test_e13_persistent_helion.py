"""Exercise 13, tiles of jagged groups to workers: the tests of any exercise, and other right walks."""

from __future__ import annotations

import importlib.util
import json
import sys

import pytest

from course_kernels import runtime
from exercise_checks import *  # noqa: F403 (the tests of any exercise)
from exercise_checks import source_of
from exercise_diagnoses import test_no_mutant_passes_by_luck  # noqa: F401 (stricter than the one above)
from jagged_cases import needs_helion
from places import ROOT

GROUP_BY_GROUP = """        passed = 0
        for g in hl.grid(group_offsets.size(0) - 1):
            start, end = group_offsets[g], group_offsets[g + 1]
            tiles_m = (end - start + BLOCK_M - 1) // BLOCK_M
            for tile in hl.grid((worker - passed) % workers, tiles_m * tiles_n, workers):
                row, col = start + tile % tiles_m * BLOCK_M, tile // tiles_m * BLOCK_N
                COMPUTE_TILE(A_packed, B, out, row, end, col, BLOCK_M, BLOCK_N)
            passed = passed + tiles_m * tiles_n
"""


def test_a_walk_over_groups_that_looks_at_its_own_tiles_passes(judge, exercise):
    source = source_of("solutions", exercise)
    head, _, _ = source.partition("        ### BEGIN SOLUTION")
    result = judge.check(
        exercise, (head if head != source else source.partition("        tile_ends")[0]) + GROUP_BY_GROUP
    )
    assert result.passed, result.text()


def test_checks_that_a_wrong_walk_cannot_decide_earn_no_points(judge, exercise):
    source = source_of("solutions", exercise)
    head, _, _ = source.partition("        ### BEGIN SOLUTION")
    head = head if head != source else source.partition("        tile_ends")[0]
    # Tile 2 of each group of tiles is computed twice, and tile 3 never: no known walk.
    odd = GROUP_BY_GROUP.replace("tile % tiles_m", "(tile - tile // 3 % 2) % tiles_m")
    result = judge.check(exercise, head + odd, seed=0)
    messages = {each.name: each.message for each in result.properties if each.status != "pass"}
    assert messages["turn"].startswith("not counted, because not every tile is computed exactly once"), result.text()


@needs_helion
@pytest.mark.skipif(runtime.mode() not in ("interpreter", "gpu"), reason="no kernel runs here")
def test_what_the_check_runs_as_python_is_a_helion_kernel(exercise, tmp_path):
    cells = json.loads((ROOT / "solutions" / f"{exercise.name}.ipynb").read_text(encoding="utf-8"))["cells"]
    sources = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    wanted = ("import helion\n", "def COUNT_TILE_ROWS(", "def visit_tiles(", "def product(")
    text = "\n\n".join(next(source for source in sources if source.startswith(start)) for start in wanted)
    path = tmp_path / "helion_solution.py"  # Helion reads a function's source
    path.write_text(text.partition("if result.passed")[0], encoding="utf-8")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        assert module.product((70, 0, 20, 0), 3)
    finally:
        del sys.modules[path.stem]


@pytest.mark.parametrize("line", ["hl.skipped.clear()", "hl.tiles.append([0, 0, 0, 0])", "hl.start()"])
def test_what_was_noted_is_nowhere_in_the_language(judge, exercise, line):
    source = source_of("solutions", exercise)
    result = judge.check(exercise, source.replace("        tile_ends = ", f"        {line}\n        tile_ends = "), 1)
    assert result.points == 0
    assert "the check knows no hl." in result.message, result.text()
