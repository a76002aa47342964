"""What the probes see of descriptors' accesses, and of matrices with room between their rows."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import torch
import triton
import triton.language as tl

from course_kernels import runtime, testing
from gemm_course.judging.case import Written
from gemm_course.runner import probes

BLOCK = 8
pytestmark = pytest.mark.skipif(runtime.mode() != "interpreter", reason="probes look into Triton's interpreter")


@triton.jit
def copy_by_descriptor(source, target, rows, cols, source_stride, target_stride, BLOCK: tl.constexpr):
    """One tile a program, from descriptor to descriptor; both believe in an extent of (rows, cols)."""
    tiles = tl.cdiv(cols, BLOCK)
    row, col = tl.program_id(0) // tiles * BLOCK, tl.program_id(0) % tiles * BLOCK
    get = tl.make_tensor_descriptor(source, [rows, cols], [source_stride, 1], [BLOCK, BLOCK])
    put = tl.make_tensor_descriptor(target, [rows, cols], [target_stride, 1], [BLOCK, BLOCK])
    put.store([row, col], get.load([row, col]))


@triton.jit
def copy_by_pointer(source, target, rows, cols, source_stride, target_stride, BLOCK: tl.constexpr):
    """The same, to the target through pointers."""
    get = tl.make_tensor_descriptor(source, [rows, cols], [source_stride, 1], [BLOCK, BLOCK])
    down, across = tl.arange(0, BLOCK)[:, None], tl.arange(0, BLOCK)[None, :]
    tl.store(target + down * target_stride + across, get.load([0, 0]), mask=(down < rows) & (across < cols))


@triton.jit
def update(target, rows, stride, BLOCK: tl.constexpr):
    """Every program adds 1 to the first column; program 0 also claims the matrix's first element."""
    down = tl.arange(0, BLOCK)
    tl.atomic_add(target + down * stride, 1, mask=down < rows)
    if tl.program_id(0) == 0:
        tl.atomic_cas(target + 1, 0, 7)


@triton.jit
def exchange_at(target, address):
    """Puts 7 in the place of 5 at any address, and notes what it found."""
    found = tl.atomic_cas(address.to(tl.pointer_type(tl.int64)), 5, 7)
    tl.store(target, found.to(tl.float32))


@triton.jit
def load_one(source, target, default: tl.constexpr):
    """A single element, masked off."""
    tl.store(target, tl.load(source, mask=tl.program_id(0) > 0, other=default))


def launch(kernel, extents, *, matrix=(12, 16), programs=1, rooms=(0, 0), through=(), step=0):
    watch = probes.Watch(__file__)
    source = watch.matrix("A", testing.integers(matrix, generator=1, low=1), room=rooms[0])
    target = watch.output("C", matrix, torch.float16, room=rooms[1])
    watch.through_descriptors(*through)
    with watch:
        kernel[(programs,)](source, target, *extents, source.stride(0), target.stride(0) + step, BLOCK)
    report = watch.report()
    (output,), (form,) = report["outputs"], watch.layout()["outputs"]
    return source, Written(form | output), report["events"]


def test_a_descriptors_stores_are_counted_with_their_program():
    source, written, events = launch(copy_by_descriptor, (12, 16), programs=4)
    assert torch.equal(written.values, source)
    assert events == []
    assert (written.counts == 1).all()
    assert written.writers[::8, ::8].tolist() == [[0, 1], [2, 3]]
    assert written.outside == 0


@pytest.mark.parametrize(
    ("extents", "side", "place"), [((12, 24), "columns", [0, 16]), ((20, 16), "rows", [12, 0])], ids=["wide", "high"]
)
def test_a_descriptor_that_ends_behind_its_matrix_is_seen_and_stopped(extents, side, place):
    source, written, events = launch(copy_by_descriptor, extents, programs=6)
    assert [(event["kind"], event["matrix"], event["side"]) for event in events] == [
        ("load", "A", side), ("store", "C", side),
    ]  # fmt: skip
    text = Path(__file__).read_text(encoding="utf-8")
    line = 1 + text.splitlines().index("    put.store([row, col], get.load([row, col]))")
    assert {event["line"] for event in events} == {line}
    assert [event["place"] for event in events] == [place] * 2
    assert written.outside == 0, "not carried out"
    inside = slice(*(0, 8) if side == "columns" else (0, 12))
    assert torch.equal(written.values[inside, :16], source[inside, :16])


def test_room_makes_leading_dimensions_differ():
    source, written, events = launch(copy_by_descriptor, (12, 16), programs=4, rooms=(16, 8))
    assert (source.shape, source.stride()) == ((12, 16), (16 + 2 * probes.MARGIN + 16, 1))
    assert written.values.stride() == (16 + 2 * probes.MARGIN + 8, 1)
    assert torch.equal(written.values, source)
    assert events == []


def test_a_wrong_stride_of_pointers_is_told_beside_the_right_one():
    right = 8 + 2 * probes.MARGIN
    for step, side, pitch in ((0, "rows", None), (-8, "columns", [right - 8, right])):
        event = launch(copy_by_pointer, (8, 8), matrix=(4, 8), step=step)[2][-1]
        assert (event["kind"], event["matrix"], event["side"]) == ("store", "C", side)
        assert event["pitch"] == pitch


def test_a_load_of_nothing_but_zeros_is_seen_where_descriptors_are_asked_for():
    (event,) = launch(copy_by_descriptor, (12, 16), programs=8, through=("A", "C"))[2]
    assert (event["kind"], event["matrix"], event["side"]) == ("beyond", "A", "rows")
    assert (event["place"], event["far"]) == ([16, 0], [24, 8])
    assert launch(copy_by_descriptor, (12, 16), programs=8)[2] == []


def test_a_pointer_is_told_from_a_descriptor_where_that_is_asked_for():
    _, _, events = launch(copy_by_pointer, (8, 8), through=("A", "C"))
    assert [(event["kind"], event["matrix"], event["side"]) for event in events] == [("pointer", "C", None)]
    assert launch(copy_by_descriptor, (8, 8), through=("A", "C"))[2] == []
    assert launch(copy_by_pointer, (8, 8), through=("A",))[2] == []


def test_a_part_of_an_output_has_its_own_name_and_elements():
    source, written, _ = launch(copy_by_descriptor, (8, 16), programs=2)
    part = written.part(slice(6, 10), slice(8, 16), "rows 6 to 9")
    assert (part.name, written.name) == ("rows 6 to 9", "C")
    assert torch.equal(part.values[:2], source[6:8, 8:])
    assert part.missing.tolist() == [[False] * 8] * 2 + [[True] * 8] * 2
    assert part.counts.tolist() == [[1] * 8] * 2 + [[0] * 8] * 2
    assert set(part.writers[:2].flatten().tolist()) == {1}


@pytest.mark.parametrize("rows", [5, 8], ids=["inside", "past the end"])
def test_an_atomic_update_is_a_store_and_an_event_of_its_own(rows):
    watch = probes.Watch(__file__)
    target = watch.output("C", (5, 4), torch.int32)
    target.zero_()
    with watch:
        update[(2,)](target, rows, target.stride(0), BLOCK)
    report = watch.report()
    written = Written(watch.layout()["outputs"][0] | report["outputs"][0])
    assert target.tolist() == [[2, 7, 0, 0], *[[2, 0, 0, 0]] * 4]
    assert written.counts.tolist() == [[2, 1, 0, 0], *[[2, 0, 0, 0]] * 4]
    assert written.outside == 0, "what is outside is not carried out"
    events = [(event["kind"], event["matrix"], event["side"]) for event in report["events"]]
    outside = [("store", "C", "rows")] if rows > 5 else []
    assert sorted(events, key=str) == sorted([("atomic", "C", None)] * 2 + outside, key=str)


@triton.jit
def add_to(source, target, BLOCK: tl.constexpr):
    """target += source, (BLOCK,)."""
    at = tl.arange(0, BLOCK)
    tl.store(target + at, tl.load(target + at) + tl.load(source + at))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.int32])
def test_a_kernel_reads_what_was_laid_out_or_stored(dtype):
    """A number that Python code puts there is taken back; a zero stays, for kernels that add."""
    watch = probes.Watch(__file__)
    laid_out = torch.arange(1, BLOCK + 1).to(dtype)
    source, target = watch.matrix("A", laid_out), watch.output("C", (BLOCK,), dtype)
    with watch:
        target.zero_()
        for _ in range(2):
            add_to[(1,)](source, target, BLOCK)
        assert watch.report()["events"] == []
        source[2], target[3] = 9, 9
        add_to[(1,)](source, target, BLOCK)
    assert torch.equal(target, 3 * laid_out), "what a kernel stored, a kernel may read"
    changed = [(each["kind"], each["matrix"], each["count"]) for each in watch.report()["events"]]
    assert sorted(changed) == [("changed", "A", 1), ("changed", "C", 1)]


def test_what_python_code_puts_in_the_place_of_a_store_is_told():
    watch = probes.Watch(__file__)
    source, target = watch.matrix("A", torch.ones(BLOCK)), watch.output("C", (BLOCK,), torch.float32)
    with watch:
        add_to[(1,)](source, target, BLOCK)
        target[1] = 3
    assert watch.report()["events"] == [{"kind": "changed", "matrix": "C"}]


def test_python_code_sees_none_of_a_kernels_numbers_and_nothing_less_afterwards():
    laid_out, watch = torch.arange(1.0, 65.0).view(4, 16), probes.Watch(__file__)
    source, target = watch.matrix("A", laid_out), watch.output("C", (4, 16), torch.float32)
    unused = watch.matrix("B", laid_out)
    with watch:
        before = source.clone()
        copy_by_pointer[(1,)](source, target, 4, 16, source.stride(0), target.stride(0), 16)
        assert torch.equal(source, before), "as before the launch"
        assert target.isnan().all(), "not yet what was stored"
    assert sorted(before.flatten().tolist()) == laid_out.flatten().tolist() != before.flatten().tolist()
    assert all(torch.equal(each, laid_out) for each in (target, source, unused))
    assert watch.report()["events"] == [{"kind": "unread", "what": "B"}]
    assert watch.launched == [copy_by_pointer]


def test_an_access_that_raises_shows_nothing():
    watch = probes.Watch(__file__)
    laid_out = torch.arange(64.0)
    source = watch.matrix("A", laid_out)
    with watch:
        before = source.clone()
        with pytest.raises(Exception, match=r"."):
            load_one[(1,)](source, None, "no number")
        assert torch.equal(source, before)
    assert torch.equal(source, laid_out)


@pytest.mark.parametrize("default", [0.0, 3.0])
def test_of_a_single_masked_element_nobody_knows_whether_it_has_a_default(default):
    watch = probes.Watch(__file__)
    source = watch.matrix("A", testing.integers((1, 1), generator=1, low=1))
    target = watch.output("C", (1, 1), torch.float32)
    with watch:
        load_one[(1,)](source, target, default)
    assert [event["kind"] for event in watch.report()["events"]] == ["unread"]
    assert target.item() == default


@triton.jit
def load_at(source, target, place):
    """A single element, whatever is there."""
    tl.store(target, tl.load(source + place))


@pytest.mark.parametrize("put", [None, 99.0, 0.0])
@pytest.mark.parametrize(
    ("place", "kinds"),
    [(0, []), (146, []), (5, ["load"]), (-3, ["load"]), (435, ["load"]), (None, ["load", "unread"])],
    ids=["first", "in another row", "behind a row", "in front", "behind all", "elsewhere"],
)
def test_a_single_element_is_looked_at_as_a_block_is(place, kinds, put, monkeypatch):
    """Most of them are, by themselves, without what a block needs."""
    found, laid_out = [], torch.arange(1.0, 13.0).view(3, 4)
    for quick in (True, False):
        if not quick:
            monkeypatch.setattr(probes.Watch, "_look_at_one", lambda *_: False)
        watch = probes.Watch(__file__)
        source, target = watch.matrix("A", laid_out, room=12), watch.output("C", (1, 1), torch.float32)
        assert source.stride(0) == 144
        with watch:
            if put is not None:
                source[0, 0] = put
            load_at[(1,)](torch.ones(1) if place is None else source, target, place or 0)
        found.append((watch.report()["events"], source.tolist(), target.tolist()))
    assert str(found[0]) == str(found[1]), "as texts, since NaN is not equal to itself"
    events, _, ((number,),) = found[0]
    told = kinds if place != 0 or put != 99 else ["changed"]
    assert [each["kind"] for each in events if place == 0 or each["kind"] != "changed"] == told
    if place in (0, 146):
        assert number == (0 if put == 0 and place == 0 else laid_out[place // 144, place % 144])


def test_an_exchange_outside_of_the_matrices_is_not_carried_out():
    watch, box = probes.Watch(__file__), torch.full((2,), 5, dtype=torch.int64)
    target = watch.output("C", (1, 1), torch.float32)
    with watch:
        exchange_at[(1,)](target, box.data_ptr())
    assert box.tolist() == [5, 5]
    assert target.item() == 0
    assert [event["kind"] for event in watch.report()["events"]] == ["store"]


def test_everything_of_the_interpreters_is_put_back():
    from triton.runtime.interpreter import InterpretedFunction, InterpreterBuilder, TensorDescHandle

    names = ("create_masked_load", "create_masked_store", "create_atomic_rmw", "create_atomic_cas")
    others = (TensorDescHandle, "materialize_pointers"), (InterpretedFunction, "run")
    places = [*((InterpreterBuilder, name) for name in names), *others]
    before = [getattr(*place) for place in places]
    with probes.Watch(__file__):
        assert all(getattr(*place) is not was for place, was in zip(places, before))
    assert [getattr(*place) for place in places] == before


def test_pointers_that_leave_a_matrix_reach_no_other():
    """Else a message would depend on where the process has put its matrices."""
    watch = probes.Watch(__file__)
    for number in range(12):
        watch.matrix(f"A{number}", torch.zeros(3, 5 + number, dtype=torch.float16))
        watch.table(f"ends{number}", torch.arange(8, dtype=torch.int32))
    places = sorted(watch.layout()["addresses"].values(), key=lambda place: place[1])
    assert all(low % 64 == 0 for _, low, _ in places)
    assert all(low + size + (1 << 18) <= after for (_, low, size), (_, after, _) in itertools.pairwise(places))
