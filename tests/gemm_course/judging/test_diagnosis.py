"""From what came back to causes: tiles, and accesses outside."""

from __future__ import annotations

import torch

from gemm_course.judging import diagnosis
from gemm_course.judging.case import Ran
from gemm_course.judging.causes import ChangedAround, Event, Observed, UnwrittenTile, WrongStride, WrongTile
from gemm_course.judging.panels import MISSING, RIGHT, WRONG, tile_states
from outputs import block, written

SIZE = (4, 4)
STORE = Event("store", "C", 5, "rows", (9, 2), (12, 3), (9, 4), (3, 0, 0), 1)
LOAD, UNDEFINED = (Event(kind, "C", 5, "rows", (9, 2), (12, 3), (9, 4)) for kind in ("load", "undefined"))


def test_tiles_are_right_wrong_or_missing():
    found, want = written((6, 7), unwritten=block(range(4), range(4, 7)) + [(4, 0)]), torch.ones(6, 7)
    want[5, 5] = 2.0
    assert tile_states(found, want, SIZE) == [[RIGHT, MISSING], [MISSING, WRONG]]
    assert diagnosis.tiles(found, want, SIZE) == (
        UnwrittenTile("C", (0, 1), True, 1),
        WrongTile("C", (1, 1), (5, 5), 1.0, 2.0, -1, 1, 4),
    )
    assert diagnosis.right_as_written(found, want, SIZE) == 2, "one in full, and one as far as it was written"
    assert diagnosis.tiles(written((6, 7)), torch.ones(6, 7), SIZE) == ()
    partly = diagnosis.tiles(written((6, 7), unwritten=[(4, 0)]), torch.ones(6, 7), SIZE)
    assert partly == (UnwrittenTile("C", (1, 0), False, 0),)


def test_the_program_that_wrote_a_wrong_tile_is_named():
    found = written((8, 4))
    found.writers[4, 1] = 6
    want = torch.ones(8, 4)
    want[4, 1] = want[0, 3] = 3.5
    assert diagnosis.tiles(found, want, SIZE) == (WrongTile("C", (0, 0), (0, 3), 1.0, 3.5, -1, 2, 2),)
    want[0, 3] = 1.0
    assert diagnosis.tiles(found, want, SIZE) == (WrongTile("C", (1, 0), (4, 1), 1.0, 3.5, 6, 1, 2),)
    assert diagnosis.tiles(found, want, SIZE, right=torch.ones(8, 4, dtype=torch.bool)) == ()


def test_accesses_outside_come_from_probes_or_from_what_changed():
    spilled = Ran(None, {"C": written((3, 4), [(3, 0), (3, 1)])}, [])
    assert diagnosis.stores_outside(spilled) == (ChangedAround("C", 2),)
    assert diagnosis.stores_outside(spilled, ".") == (ChangedAround("C", 2, "."),)
    probed = Ran(None, spilled.outputs, [LOAD, STORE, UNDEFINED])
    assert diagnosis.stores_outside(probed) == (Observed(STORE),), "a probe says more"
    assert diagnosis.loads_outside(probed) == (Observed(LOAD),)
    clean = Ran(None, {"C": written((3, 4))}, [])
    assert diagnosis.stores_outside(clean) == diagnosis.loads_outside(clean) == ()
    many = Ran(None, {}, [Event("store", line=line) for line in range(7)])
    assert [each.note for each in diagnosis.stores_outside(many, ".")] == ["", "", "."]


def test_a_wrong_stride_is_that_of_the_first_access_that_has_one():
    wrong = Event("load", "A", 4, "gap", (9, 2), shape=(9, 4), pitch=(7, 132))
    assert diagnosis.wrong_stride(Ran(None, {}, [LOAD, wrong])) == WrongStride("A", 7, 132)
    assert diagnosis.wrong_stride(Ran(None, {}, [LOAD])) is None


def test_a_number_cut_off_to_bfloat16_counts_as_rounded_too():
    nearest, cut = diagnosis.roundings(torch.tensor([281.9, 2.0]), torch.bfloat16)
    assert (nearest.tolist(), cut.tolist()) == ([282.0, 2.0], [280.0, 2.0])
    (half,) = diagnosis.roundings(torch.tensor([2049.0]), torch.float16)
    assert half.item() == 2048.0
