"""Measuring: a wrong result is never timed, and a record has every number. The tests bring their own clock."""

from __future__ import annotations

import math

import pytest
import torch

from bench_stand_ins import DECODE, TINY, Correct, product
from clock import Clock
from course_kernels.bench import grouped, timing
from course_kernels.bench import providers as known
from course_kernels.bench.interface import Calls, make_operands
from course_kernels.bench.rows import PASSES, Row

PEERS = [known.Torch(), known.CublasLoop(), known.Dense()]
FP8 = torch.float8_e4m3fn


def measure(rows=(TINY,), providers=None, **arguments):
    arguments = {"timer": Clock(), "repeats": 4, "device": "cpu"} | arguments
    return grouped.measure(list(rows), providers or [Correct(), *PEERS], **arguments)


@pytest.mark.parametrize("of", PASSES)
def test_a_wrong_element_is_found(of):
    operands = make_operands(TINY, "cpu")
    result = next(iter(Correct().prepare(operands).of(of).values()))()
    grouped.verify(result, operands, of)
    place = (2, 3, 5) if of == "dB" else (9, 5)  # both in group 2
    for value in (float("nan"), result[place].item() + 1.0, float("inf")):
        broken = result.clone()
        broken[place] = value
        with pytest.raises(grouped.WrongResult, match=r"1 of \d+ elements of group 2 are wrong \(24 rows\)"):
            grouped.verify(broken, operands, of)


def test_the_gradient_of_an_empty_group_must_be_zero():
    operands = make_operands(TINY, "cpu")
    result = next(iter(Correct().prepare(operands).d_b.values()))()
    result[1, 0, 0] = 1e-30
    with pytest.raises(grouped.WrongResult, match="group 1"):
        grouped.verify(result, operands, "dB")


def test_a_result_of_another_shape_is_wrong():
    operands = make_operands(TINY, "cpu")
    with pytest.raises(grouped.WrongResult, match="shape"):
        grouped.verify(operands.out[:, :8], operands, "forward")


def test_a_result_with_too_few_groups_is_wrong():
    operands = make_operands(TINY, "cpu")
    with pytest.raises(grouped.WrongResult, match="3 groups came back, wanted 4"):
        grouped.verify(operands.out.split(operands.sizes)[:3], operands, "forward")


def test_a_wrong_result_of_8_bit_operands_is_found():
    operands = make_operands(TINY, "cpu", FP8)
    o = operands
    right = product(o.a, o.weight.mT, o.offs, o.scale_a, o.scale_b)
    grouped.verify(right, operands, "forward")
    for value in (float("nan"), right[9, 5].item() + 1.0):
        broken = right.clone()
        broken[9, 5] = value
        with pytest.raises(grouped.WrongResult, match="1 of 384 elements of group 2 are wrong"):
            grouped.verify(broken, operands, "forward")
    for scales in ((o.scale_a * 1.2, o.scale_b), (o.scale_a, o.scale_b.flip(0))):
        with pytest.raises(grouped.WrongResult):
            grouped.verify(product(o.a, o.weight.mT, o.offs, *scales), operands, "forward")


def test_a_record_has_every_number():
    clock = Clock({"mine": 10.0, "torch": 15.0, "loop": 20.0, "dense": 8.0}, host=7.25)
    results = measure([TINY, DECODE], timer=clock)
    entry = results["rows"]["tiny"]
    assert entry["sizes"] == [8, 0, 24, 8]
    for of in ("forward", "dA", "dB"):
        assert {name: us["median_us"] for name, us in entry["us"][of].items()} == clock.us
    assert set(entry["us"]["called"]) == {"mine", "torch", "loop"}
    assert entry["rate"]["forward"]["mine"] == pytest.approx(TINY.flops / 10 / 1e6, rel=1e-3)
    assert entry["host_us"] == {"mine": 7.2, "torch": 7.2, "loop": 7.2}
    assert "dense" in results["rows"]["tiny-decode"]["unsuited"]
    assert results["rows"]["tiny-decode"]["rate"]["dB"]["mine"] == pytest.approx(DECODE.rate(10.0, "dB"), rel=1e-3)
    assert results["copy_tb_s"] == 4.0
    assert results["providers"]["dense"]["role"] == "ceiling"
    assert (["dense", "loop", "mine", "torch"], 4) in clock.calls, "in turn, not one after the other"
    faster = results["speedups"]["mine"]["forward"]
    assert faster["torch"] == {"times": 1.5, "rows": 2, "worst": 1.5}
    assert faster["best peer"]["times"] == 1.5
    assert faster["dense"] == {"times": 0.8, "rows": 1, "worst": 0.8}


def test_a_step_is_verified_timed_and_its_memory_recorded():
    clock = Clock({"mine": 10.0, "torch": 15.0})
    results = measure(providers=[Correct(), *PEERS], timer=clock, passes=("step",))
    entry = results["rows"]["tiny"]
    assert entry["failed"] == {}
    assert set(entry["us"]["step"]) == {"mine", "torch"}, "the others have no step"
    assert entry["rate"]["step"]["mine"] == pytest.approx(3 * TINY.flops / 10 / 1e6, rel=1e-3)
    assert entry["bytes"]["step"] == sum(TINY.bytes_moved(of) for of in ("forward", "dA", "dB"))
    assert entry["peak_bytes"] == {"mine": 3 * 2**20, "torch": 3 * 2**20}
    assert entry["step_timed"] == "as a CUDA graph"
    assert clock.calls.count("graph in a pool") == clock.calls.count("forget") == 2
    assert results["speedups"]["mine"]["step"]["torch"]["times"] == 1.5


@pytest.mark.parametrize(("wrong", "of"), [(0, "forward"), (1, "dA"), (2, "dB")])
def test_a_step_with_one_wrong_result_is_not_timed(wrong, of):
    class Wrong(Correct):
        def prepare(self, operands):
            (right,) = super().prepare(operands).step.values()

            def step():
                results = right()
                results[wrong].view(-1)[0] += 2.0
                return results

            return Calls({}, step={"": step})

    entry = measure(providers=[Wrong(), known.Torch()], passes=("step",))["rows"]["tiny"]
    assert set(entry["us"]["step"]) == set(entry["peak_bytes"]) == {"torch"}
    assert f"{of}: 1 of" in entry["failed"]["mine"]["step"]


def test_steps_are_timed_in_one_way_for_all():
    class NoCapture(Clock):
        def graph(self, function, pool=None):
            if function.__name__ == "of_torch":
                raise RuntimeError("operation not permitted when stream is capturing")
            return super().graph(function, pool)

    class Named(known.Torch):
        def prepare(self, operands):
            (step,) = super().prepare(operands).step.values()

            def of_torch():
                return step()

            return Calls({}, step={"": of_torch})

    entry = measure(providers=[Correct(), Named()], timer=NoCapture(), passes=("step",))["rows"]["tiny"]
    assert set(entry["us"]["step"]) == {"mine", "torch"}
    assert entry["step_timed"].startswith("as called, for torch cannot be captured: RuntimeError: operation not")
    assert entry["failed"] == {}


def test_means_are_geometric():
    rows = {
        "a": {"us": {"forward": {"mine": {"median_us": 1.0}, "torch": {"median_us": 4.0}}}},
        "b": {"us": {"forward": {"mine": {"median_us": 4.0}, "torch": {"median_us": 2.0}}}},
        "c": {"us": {"forward": {"torch": {"median_us": 2.0}}}},
    }
    about = {"mine": {"role": "ours"}, "torch": {"role": "peer"}}
    found = grouped.speedups({"providers": about, "rows": rows})["mine"]["forward"]["torch"]
    assert found == {"times": round(math.sqrt(2), 3), "rows": 2, "worst": 0.5}


@pytest.mark.parametrize("of", PASSES)
def test_a_wrong_result_is_never_timed(of):
    def spoil(result, which):
        if which == of:
            result.view(-1)[0] += 2.0
        return result

    entry = measure(providers=[Correct(spoil), known.Torch()])["rows"]["tiny"]
    timed = {which: "mine" in us for which, us in entry["us"].items()}
    assert timed == {which: which != of for which in PASSES}
    assert "WrongResult" in entry["failed"]["mine"][of]
    assert set(entry["us"][of]) == {"torch"}, "the others go on"


def test_an_output_that_is_not_written_is_seen():
    """The first call writes, the next does not: only poison between them shows it."""

    class Lazy(Correct):
        def prepare(self, operands):
            done, right = [], super().prepare(operands)

            def once():
                if not done:
                    done.append(next(iter(right.forward.values()))())
                return done[0]

            return Calls({"": once})

    entry = measure(providers=[Lazy()])["rows"]["tiny"]
    assert "WrongResult" in entry["failed"]["mine"]["forward"]


def test_a_provider_that_raises_is_noted_and_the_others_go_on():
    class Broken(Correct):
        name, role = "broken", "peer"

        def prepare(self, operands):
            raise RuntimeError("no kernel image\nand a long story")

    results = measure(providers=[Correct(), Broken()])
    assert results["rows"]["tiny"]["failed"] == {"broken": {"prepare": "RuntimeError: no kernel image"}}
    assert set(results["rows"]["tiny"]["us"]["forward"]) == {"mine"}


def test_a_lost_device_ends_the_run():
    class Lost(Clock):
        def settle(self):
            raise RuntimeError("an illegal memory access was encountered")

    with pytest.raises(RuntimeError, match="illegal memory access"):
        measure(timer=Lost())


def test_the_fastest_configuration_is_taken_and_named():
    class Choosy(Correct):
        def prepare(self, operands):
            right = next(iter(super().prepare(operands).forward.values()))

            def fails():
                raise RuntimeError("out of shared memory")

            return Calls({"slow": right, "fast": right, "broken": fails})

    entry = measure(providers=[Choosy()], timer=Clock({"slow": 9.0, "fast": 3.0, "mine": 3.5}))["rows"]["tiny"]
    assert entry["choice"]["forward"] == {"mine": "fast"}
    assert entry["us"]["forward"]["mine"]["median_us"] == 3.5
    assert entry["failed"]["mine"] == {"forward, broken": "RuntimeError: out of shared memory"}


def test_a_wrong_configuration_is_noted_and_the_next_fastest_taken():
    class Choosy(Correct):
        def prepare(self, operands):
            right = next(iter(super().prepare(operands).forward.values()))
            return Calls({"right": right, "wrong": lambda: right() + 1.0})

    clock = Clock({"right": 9.0, "wrong": 3.0, "mine": 9.5})
    entry = measure(providers=[Choosy()], timer=clock, passes=("forward",))["rows"]["tiny"]
    assert entry["choice"]["forward"] == {"mine": "right"}
    assert entry["us"]["forward"]["mine"]["median_us"] == 9.5
    assert "elements of group 0 are wrong" in entry["failed"]["mine"]["forward, wrong"]


def test_one_that_is_not_installed_is_left_out_with_its_reason():
    class Absent(Correct):
        name, role = "absent", "peer"

        def unavailable(self):
            return "not installed"

        def prepare(self, operands):
            raise AssertionError("was asked all the same")

    results = measure(providers=[Correct(), Absent()])
    assert results["providers"]["absent"]["absent"] == "not installed"
    assert results["rows"]["tiny"]["failed"] == {}


def test_rows_are_told_as_they_come_and_memory_is_freed_between():
    told, clock = [], Clock()
    measure([TINY, DECODE], timer=clock, tell=lambda row, entry: told.append((row.name, len(clock.calls))))
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


def test_a_timer_of_long_runs_differs_in_how_functions_take_turns():
    assert grouped.GpuTimer().interleaved_us is timing.interleaved_us
    assert grouped.SustainedTimer().interleaved_us is timing.sustained_us
    assert issubclass(grouped.SustainedTimer, grouped.GpuTimer)


@pytest.mark.gpu
def test_one_row_on_the_gpu():
    row = Row("small", "", (100, 0, 300, 7), 512, 256, "compute")
    results = grouped.measure([row], known.providers(), repeats=5)
    entry = results["rows"]["small"]
    assert entry["failed"] == {}
    present = {name for name, about in results["providers"].items() if "absent" not in about}
    assert set(entry["us"]["forward"]) == present
    assert results["copy_tb_s"] > 0.1
    assert all(us["median_us"] > 0 for by in entry["us"].values() for us in by.values())


@pytest.mark.gpu
def test_a_step_on_the_gpu_is_a_graph_with_peak_memory():
    row = Row("small", "", (100, 0, 300, 7), 512, 256, "compute")
    results = grouped.measure([row], known.zoo(), passes=("step",), repeats=5)
    entry = results["rows"]["small"]
    assert entry["failed"] == {}
    assert entry["step_timed"] == "as a CUDA graph"
    assert {"auto", "triton", "torch"} <= set(entry["us"]["step"])
    results_of_a_step = 2 * (row.total_m * (row.N + row.K) + row.groups * row.N * row.K)
    assert all(peak >= results_of_a_step for peak in entry["peak_bytes"].values())
