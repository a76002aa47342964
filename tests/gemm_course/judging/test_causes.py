"""Causes: what an examiner may give for one, and events without what an access needs."""

from __future__ import annotations

import msgspec
import pytest

from gemm_course.judging.causes import ABOVE, Event, Observed, Words, WrongStride, causes_of

OUTSIDE = {"kind": "store", "matrix": "C", "side": "rows", "place": [9, 2], "far": [12, 3], "shape": [9, 4]}


def test_words_and_nested_causes_become_one_sequence():
    event = Observed(Event("sync", what="`.item()`"))
    assert causes_of(None) == causes_of("") == causes_of(((), [None, ""])) == ()
    assert causes_of("odd") == causes_of(["odd"]) == (Words("odd"),)
    assert causes_of((event, ("odd", "", [ABOVE]))) == (event, Words("odd"), ABOVE)


def test_an_event_arrives_as_a_dictionary():
    event = msgspec.convert({**OUTSIDE, "program": [3, 0, 0], "pitch": [7, 132], "count": 4, "line": 5}, Event)
    assert event == Event("store", "C", 5, "rows", (9, 2), (12, 3), (9, 4), (3, 0, 0), 4, (7, 132))
    assert event.wrong_stride == WrongStride("C", pointers=7, stride=132)
    assert Event("store").wrong_stride is None


def test_a_table_arrives_as_one_row():
    event = Event("load", "ends", 5, "columns", (0, 9), (0, 9), (1, 9))
    assert event.of_table
    assert not msgspec.structs.replace(event, shape=(2, 9)).of_table
    assert not msgspec.structs.replace(event, side="rows").of_table
    assert not Event("load").of_table


@pytest.mark.parametrize(
    "change",
    [
        {"place": None}, {"side": None}, {"shape": None}, {"shape": [9]}, {"side": "diagonal"}, {"program": []},
        {"place": [9]}, {"line": "5"},
    ],
)  # fmt: skip
def test_an_access_outside_that_lacks_its_place_is_refused(change):
    assert msgspec.convert(OUTSIDE, Event)
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({**OUTSIDE, **change}, Event)


@pytest.mark.parametrize("kind", ["pointer", "beyond", "calls", "anything"])
def test_an_event_without_words_is_no_cause(kind):
    with pytest.raises(ValueError, match="only its exercise can explain"):
        Observed(Event(kind))
