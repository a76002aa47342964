"""Rows one after the other: a record has every number, and memory that runs out costs no other row."""

from __future__ import annotations

import pytest
import torch

from bench_stand_ins import DECODE, TINY, Correct
from clock import Clock
from course_kernels.bench import grouped
from course_kernels.bench import providers as known
from course_kernels.bench.measured import speedups
from course_kernels.bench.operands import make_operands
from course_kernels.bench.rows import PASSES, Row

PEERS = [known.Torch(), known.CublasLoop(), known.Dense()]
FP8 = torch.float8_e4m3fn


def measure(rows=(TINY,), providers=None, **arguments):
    arguments = {"timer": Clock(), "repeats": 4, "device": "cpu"} | arguments
    return grouped.measure(list(rows), providers or [Correct(), *PEERS], **arguments)


def test_a_record_has_every_number():
    clock = Clock({"mine": 10.0, "torch": 15.0, "loop": 20.0, "dense": 8.0}, host=7.25)
    results = measure([TINY, DECODE], timer=clock)
    entry = results.rows["tiny"].timings
    assert results.rows["tiny"].row == TINY
    for of in ("forward", "dA", "dB"):
        assert {name: us.median_us for name, us in entry.us[of].items()} == clock.us
    assert set(entry.us["called"]) == {"mine", "torch", "loop"}
    assert results.rows["tiny"].rate["forward"]["mine"] == pytest.approx(TINY.flops / 10 / 1e6, rel=1e-3)
    assert entry.host_us == {"mine": 7.2, "torch": 7.2, "loop": 7.2}
    assert "dense" in results.rows["tiny-decode"].timings.unsuited
    assert results.rows["tiny-decode"].rate["dB"]["mine"] == pytest.approx(DECODE.rate(10.0, "dB"), rel=1e-3)
    assert results.copy_tb_s == 4.0
    assert results.providers["dense"]["role"] == "ceiling"
    assert (["dense", "loop", "mine", "torch"], 4) in clock.calls, "in turn, not one after the other"
    faster = speedups(results)["mine"]["forward"]
    assert faster["torch"] == {"times": 1.5, "rows": 2, "worst": 1.5}
    assert faster["best peer"]["times"] == 1.5
    assert faster["dense"] == {"times": 0.8, "rows": 1, "worst": 0.8}


def test_a_step_is_verified_timed_and_its_memory_recorded():
    clock = Clock({"mine": 10.0, "torch": 15.0})
    results = measure(providers=[Correct(), *PEERS], timer=clock, passes=("step",))
    entry = results.rows["tiny"].timings
    assert entry.failed == {}
    assert set(entry.us["step"]) == {"mine", "torch"}, "the others have no step"
    assert results.rows["tiny"].rate["step"]["mine"] == pytest.approx(3 * TINY.flops / 10 / 1e6, rel=1e-3)
    assert results.rows["tiny"].bytes["step"] == sum(TINY.bytes_moved(of) for of in ("forward", "dA", "dB"))
    assert entry.peak_bytes == {"mine": 3 * 2**20, "torch": 3 * 2**20}
    assert entry.step_timed == "as a CUDA graph"
    assert clock.calls.count("graph in a pool") == clock.calls.count("forget") == 2
    assert speedups(results)["mine"]["step"]["torch"]["times"] == 1.5


class ShortOfMemory(Clock):
    """Fails while a pass of the first row is timed."""

    def __init__(self, error, at=2):
        super().__init__()
        self.error, self.left = error, at

    def interleaved_us(self, functions, repeats):
        self.left -= 1
        if not self.left:
            raise self.error
        return super().interleaved_us(functions, repeats)


def test_memory_that_runs_out_while_a_pass_is_timed_costs_that_pass_alone():
    clock, kept = ShortOfMemory(torch.OutOfMemoryError("Tried to allocate 256.00 MiB")), []
    results = measure([TINY, DECODE], timer=clock, passes=("forward", "step", "dB"), keep=kept.append)
    found = results.rows["tiny"].timings
    assert {of: set(us) for of, us in found.us.items()} == {
        "forward": {"mine", "torch", "loop", "dense"}, "step": set(), "dB": {"mine", "torch", "loop", "dense"}
    }  # fmt: skip
    reason = {"step, while it was timed": "OutOfMemoryError: Tried to allocate 256.00 MiB"}
    assert found.out_of_memory == {"mine": reason, "torch": reason}
    assert results.rows["tiny-decode"].timings.us["step"].keys() == {"mine", "torch"}
    assert [(list(each.rows), each.unmeasured) for each in kept] == [
        (["tiny"], ("tiny-decode",)), (["tiny", "tiny-decode"], ())
    ]  # fmt: skip


def test_an_error_of_the_device_while_a_pass_is_timed_ends_the_run_and_what_was_measured_is_kept():
    clock, kept = ShortOfMemory(RuntimeError("CUDA error: an illegal memory access"), at=3), []
    with pytest.raises(RuntimeError, match="illegal memory access"):
        measure([TINY, DECODE], timer=clock, passes=("forward", "dB"), keep=kept.append)
    assert [list(each.rows) for each in kept] == [["tiny"]]


def test_a_row_without_memory_for_its_operands_is_left_out_and_the_next_is_measured():
    def make(row, device, dtype):
        if row is TINY:
            raise torch.OutOfMemoryError("Tried to allocate 14.00 GiB")
        return make_operands(row, device, dtype)

    results = measure([TINY, DECODE], [Correct(), known.Torch()], make=make)
    found = results.rows["tiny"].timings
    reason = {"operands": "OutOfMemoryError: Tried to allocate 14.00 GiB"}
    assert found.out_of_memory == {"mine": reason, "torch": reason}
    assert found.us == {of: {} for of in PASSES}
    assert set(results.rows["tiny-decode"].timings.us["forward"]) == {"mine", "torch"}


def test_one_that_is_not_installed_is_left_out_with_its_reason():
    class Absent(Correct):
        name, role = "absent", "peer"

        def unavailable(self):
            return "not installed"

        def prepare(self, operands):
            raise AssertionError("was asked all the same")

    results = measure(providers=[Correct(), Absent()])
    assert results.providers["absent"]["absent"] == "not installed"
    assert results.rows["tiny"].timings.failed == {}


def test_rows_are_told_as_they_come_and_memory_is_freed_between():
    told, clock = [], Clock()
    measure([TINY, DECODE], timer=clock, tell=lambda measured: told.append((measured.row.name, len(clock.calls))))
    assert [name for name, _ in told] == ["tiny", "tiny-decode"]
    assert clock.calls.count("free") >= 3
    assert told[0][1] < told[1][1], "the first row is reported before the second is measured"


def test_bad_arguments_are_refused_before_anything_runs():
    with pytest.raises(ValueError, match="passes must be among forward, called, dA, dB, step, got 'dC'"):
        measure(passes=("dC",), timer=None)
    with pytest.raises(ValueError, match="repeats must be at least 2"):
        measure(repeats=1, timer=None)


def test_8_bit_operands_have_no_gradients():
    with pytest.raises(ValueError, match="passes must be among forward, called, got 'dA'"):
        grouped.measure([TINY], [], passes=("forward", "dA"), dtype=FP8, timer=Clock())


@pytest.mark.gpu
def test_one_row_on_the_gpu():
    row = Row("small", "", (100, 0, 300, 7), 512, 256, "compute")
    results = grouped.measure([row], known.providers(), repeats=5)
    entry = results.rows["small"].timings
    assert entry.failed == {}
    present = {name for name, about in results.providers.items() if "absent" not in about}
    assert set(entry.us["forward"]) == present
    assert results.copy_tb_s > 0.1
    assert all(us.median_us > 0 for by in entry.us.values() for us in by.values())


@pytest.mark.gpu
def test_a_step_on_the_gpu_is_a_graph_with_peak_memory():
    row = Row("small", "", (100, 0, 300, 7), 512, 256, "compute")
    results = grouped.measure([row], known.zoo(), passes=("step",), repeats=5)
    entry = results.rows["small"].timings
    assert entry.failed == {}
    assert entry.step_timed == "as a CUDA graph"
    assert {"auto", "triton", "torch"} <= set(entry.us["step"])
    results_of_a_step = 2 * (row.total_m * (row.N + row.K) + row.groups * row.N * row.K)
    assert all(peak >= results_of_a_step for peak in entry.peak_bytes.values())
