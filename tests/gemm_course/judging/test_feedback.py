"""What is wrong with what came back, in sentences and panels."""

from __future__ import annotations

import pytest
import torch

from gemm_course.judging import feedback as diagnose
from gemm_course.judging.case import Ran
from outputs import block, written

BLOCK = 4


def panel(shape, spilled=(), probed=False, want=1.0):
    return diagnose.panel(
        written(shape, spilled, probed), torch.full(shape, want), (BLOCK, BLOCK), "your C", reach=BLOCK
    )


@pytest.mark.parametrize("probed", [False, True], ids=["carried out", "stopped by a probe"])
@pytest.mark.parametrize(
    ("spilled", "rectangles"),
    [
        ([], []),
        (block(range(6), range(7, 8)), [[0, 7, 6, 1]]),
        (block(range(6, 8), range(7)), [[6, 0, 2, 7]]),
        (block([6], [0, 1, 4]), [[6, 0, 1, 2], [6, 4, 1, 1]]),
        (block([6], [0, 1]) + block([7], [0]), [[6, 0, 1, 2], [7, 0, 1, 1]]),
        (block([-1, 6], [3]), [[-1, 3, 1, 1], [6, 3, 1, 1]]),
        (block(range(-4, 10), range(-4, 0)), [[-4, -4, 14, 4]]),
    ],
)
def test_what_was_written_around_a_matrix_is_in_its_panel(probed, spilled, rectangles):
    found = panel((6, 7), spilled, probed)
    assert found["outside"] == rectangles
    assert found["states"] == [[diagnose.RIGHT] * 2] * 2


def test_it_is_left_out_where_nobody_asks_for_it():
    found = diagnose.panel(written((6, 7), [(6, 0)]), torch.ones(6, 7), (BLOCK, BLOCK))
    assert "outside" not in found


EVENT = {
    "kind": "store", "matrix": "C", "line": 5, "side": "rows", "place": [9, 2], "far": [12, 3], "shape": [9, 4],
    "program": [3, 0, 0], "count": 1,
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({}, "line 5: program 3 writes row 9 of C, which has rows 0 to 8"),
        ({"line": 0, "kind": "load"}, "program 3 reads row 9 of C, which has rows 0 to 8"),
        (
            {"far": [9, 3]},
            "line 5: program 3 writes row 9 of C, which has rows 0 to 8: one too many, as `<=` in place of `<` gives",
        ),
        (
            {"side": "columns", "place": [0, -1]},
            "line 5: program 3 writes column -1 of C, which has columns 0 to 3",
        ),
        ({"shape": [0, 4]}, "line 5: program 3 writes row 9 of C, which has no rows"),
        ({"matrix": None}, "line 5: program 3 writes an address that belongs to no matrix"),
        ({"side": "gap"}, "line 5: program 3 writes between the elements of C: is a stride wrong?"),
        (
            {"kind": "sync", "what": "`.item()` reads a tensor"},
            "line 5: `.item()` reads a tensor, so the CPU has to wait for the GPU",
        ),
        (
            {"pitch": [7, 132], "far": [9, 3]},
            "line 5: program 3 writes row 9 of C, which has rows 0 to 8"
            "\nthe rows of C are 132 elements apart, and those of the pointers 7",
        ),
        ({"kind": "atomic"}, "line 5: program 3 updates C by an atomic operation"),
        (
            {"kind": "undefined"},
            "line 5: this load's mask leaves elements out and no `other=` says what they are: anything may be there",
        ),
    ],
)
def test_what_a_probe_saw_becomes_a_sentence(change, says):
    assert diagnose.sentence({**EVENT, **change}) == says


def test_numbers_have_their_plural():
    assert [diagnose.counted(number, "tile") for number in (0, 1, 2)] == ["0 tiles", "1 tile", "2 tiles"]


def test_tiles_are_right_wrong_or_missing():
    found, want = written((6, 7), unwritten=block(range(4), range(4, 7)) + [(4, 0)]), torch.ones(6, 7)
    want[5, 5] = 2.0
    size = (BLOCK, BLOCK)
    right, wrong, missing = diagnose.RIGHT, diagnose.WRONG, diagnose.MISSING
    assert diagnose.tile_states(found, want, size) == [[right, missing], [missing, wrong]]
    assert diagnose.tiles(found, want, size) == (
        "tile (0, 1) of C was never written, and 1 more like it\ntile (1, 1) of C is wrong: at (5, 5) there is 1, not 2"
    )
    assert diagnose.right_as_written(found, want, size) == 2, "one in full, and one as far as it was written"
    assert diagnose.tiles(written((6, 7)), torch.ones(6, 7), size) is None
    partly = diagnose.tiles(written((6, 7), unwritten=[(4, 0)]), torch.ones(6, 7), size)
    assert partly == "tile (1, 0) of C was only partly written"


def test_the_program_that_wrote_a_wrong_tile_is_named():
    found = written((8, 4))
    found.writers[4, 1] = 6
    want = torch.ones(8, 4)
    want[4, 1] = want[0, 3] = 3.5
    assert diagnose.tiles(found, want, (BLOCK, BLOCK)).endswith(
        "tile (0, 0) of C is wrong: at (0, 3) there is 1, not 3.5; 2 tiles of 2 are wrong"
    )
    want[0, 3] = 1.0
    assert diagnose.tiles(found, want, (BLOCK, BLOCK)).endswith("at (4, 1) there is 1, not 3.5; program 6 wrote it")
    assert diagnose.tiles(found, want, (BLOCK, BLOCK), right=torch.ones(8, 4, dtype=torch.bool)) is None


def test_accesses_outside_come_from_probes_or_from_what_changed():
    spilled = Ran(None, {"C": written((3, 4), [(3, 0), (3, 1)])}, [])
    assert diagnose.stores_outside(spilled) == ("2 elements around C changed: something was written outside of it")
    probed = Ran(None, spilled.outputs, [{**EVENT, "kind": kind} for kind in ("load", "store", "undefined")])
    assert diagnose.stores_outside(probed) == diagnose.sentence(EVENT), "a probe says more"
    assert diagnose.loads_outside(probed) == diagnose.sentence({**EVENT, "kind": "load"})
    assert "no `other=`" in diagnose.undefined(probed)
    clean = Ran(None, {"C": written((3, 4))}, [])
    assert [look(clean) for look in (diagnose.stores_outside, diagnose.loads_outside, diagnose.undefined)] == [None] * 3
    many = Ran(None, {}, [EVENT] * 7)
    assert len(diagnose.stores_outside(many).splitlines()) == 3


def test_a_list_is_drawn_entry_by_entry():
    right, wrong, missing = diagnose.RIGHT, diagnose.WRONG, diagnose.MISSING
    short = diagnose.row_panel([1, 5], [1, 2, 3], "ends")
    assert (short["states"], short["labels"]) == ([[right, wrong, missing]], [["1", "5", "–"]])
    assert (short["title"], short["shape"], short["block"]) == ("ends", [1, 3], [1, 1])
    assert diagnose.row_panel([1, 2], [1], "ends")["states"] == [[right, wrong]]


def test_a_line_that_a_message_numbers_is_quoted_below_it():
    source = "def f():\r\n    return tl.load(x)\n"
    said = diagnose.quote_line("line 2: program 0 reads row 9\nof A", source)
    assert said == "line 2: program 0 reads row 9\n    return tl.load(x)\nof A"
    both = diagnose.quote_line("right here, but on the GPU: line 1: odd\nline 2: worse\nline 2: worst", source)
    assert both.splitlines()[1::2] == ["    def f():", "    return tl.load(x)"], "each of them once"
    for other in ("line 9: beyond the end", "tile (0, 0) is wrong", "line 2: return tl.load(x) is not allowed"):
        assert diagnose.quote_line(other, source) == other


def test_a_number_cut_off_to_bfloat16_counts_as_rounded_too():
    nearest, cut = diagnose.roundings(torch.tensor([281.9, 2.0]), torch.bfloat16)
    assert (nearest.tolist(), cut.tolist()) == ([282.0, 2.0], [280.0, 2.0])
    (half,) = diagnose.roundings(torch.tensor([2049.0]), torch.float16)
    assert half.item() == 2048.0
