"""Exercise 13, tiles of jagged groups to workers: the tests of any exercise, what is drawn, and other right walks."""

from __future__ import annotations

import importlib.util
import json
import random
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


def test_every_draw_has_every_kind_of_batch(exercise):
    module = exercise.module()
    for seed in range(30):
        cases = module.draw(random.Random(seed))
        kinds = set()
        for case in cases:
            sizes, N, workers = (case.inputs[name] for name in ("sizes", "N", "workers"))
            tiles = sum(-(-size // module.BLOCK_M) for size in sizes) * -(-N // module.BLOCK_N)
            kinds |= {"none"} if not any(sizes) else set()
            kinds |= {"one worker"} if workers == 1 else set()
            kinds |= {"idle workers"} if 0 < tiles < workers else set()
            kinds |= {"left over"} if workers > 1 and tiles % workers and tiles > workers else set()
            if any(sizes) and not sizes[0] and not sizes[-1] and 0 in sizes[2:-2]:
                kinds.add("empty everywhere")
            assert all(size % module.BLOCK_M for size in sizes if size), "every group has a tail"
            assert N % module.BLOCK_N
            assert workers != module.HARD_CODED or tiles < workers
        assert kinds == {"none", "one worker", "idle workers", "left over", "empty everywhere"}


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
