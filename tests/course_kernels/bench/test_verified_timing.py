"""One problem: a wrong result is never timed, and whatever fails is noted. The tests bring their own clock."""

from __future__ import annotations

import dataclasses
import functools

import pytest
import torch

from bench_stand_ins import TINY, Correct
from clock import Clock
from course_kernels.bench import providers as known
from course_kernels.bench.interface import Calls, Function, Unverified
from course_kernels.bench.operands import make_operands
from course_kernels.bench.rows import EVERY_PASS, PASSES
from course_kernels.bench.verified_timing import measure_one

PEERS = [known.Torch(), known.CublasLoop(), known.Dense()]


def measure(providers=None, passes=PASSES, timer=None):
    operands = functools.partial(make_operands, TINY, "cpu")
    return measure_one(TINY, operands, providers or [Correct(), *PEERS], passes, 4, timer or Clock())


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

    entry = measure(providers=[Wrong(), known.Torch()], passes=("step",))
    assert set(entry.us["step"]) == set(entry.peak_bytes) == {"torch"}
    assert f"{of}: 1 of" in entry.failed["mine"]["step"]


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

    entry = measure(providers=[Correct(), Named()], timer=NoCapture(), passes=("step",))
    assert set(entry.us["step"]) == {"mine", "torch"}
    assert entry.step_timed.startswith("as called, for torch cannot be captured: RuntimeError: operation not")
    assert entry.failed == {}


@pytest.mark.parametrize("of", PASSES)
def test_a_wrong_result_is_never_timed(of):
    def spoil(result, which):
        if which == of:
            result.view(-1)[0] += 2.0
        return result

    entry = measure(providers=[Correct(spoil), known.Torch()])
    timed = {which: "mine" in us for which, us in entry.us.items()}
    assert timed == {which: which != of for which in PASSES}
    assert "WrongResult" in entry.failed["mine"][of]
    assert set(entry.us[of]) == {"torch"}, "the others go on"


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

    entry = measure(providers=[Lazy()])
    assert "WrongResult" in entry.failed["mine"]["forward"]


def test_a_provider_that_raises_is_noted_and_the_others_go_on():
    class Broken(Correct):
        name, role = "broken", "peer"

        def prepare(self, operands):
            raise RuntimeError("no kernel image\nand a long story")

    results = measure(providers=[Correct(), Broken()])
    assert results.failed == {"broken": {"prepare": "RuntimeError: no kernel image"}}
    assert set(results.us["forward"]) == {"mine"}


def test_a_lost_device_ends_the_run():
    class Lost(Clock):
        def settle(self):
            raise RuntimeError("an illegal memory access was encountered")

    with pytest.raises(RuntimeError, match="illegal memory access"):
        measure(timer=Lost())


class OutOfMemory(Correct):
    """A peer without memory for one step of its measurement."""

    name, role = "large", "peer"

    def __init__(self, step, error=torch.OutOfMemoryError):
        super().__init__()
        self.step, self.error = step, error

    def prepare(self, operands):
        calls = super().prepare(operands)

        def fails(*arguments):
            raise self.error("Tried to allocate 14.00 GiB\nand a long story")

        if self.step == "prepare":
            fails()
        table = calls.of(self.step)
        return dataclasses.replace(calls, **{{"dB": "d_b"}.get(self.step, self.step): dict.fromkeys(table, fails)})


@pytest.mark.parametrize("step", ["prepare", "forward", "dB", "step"])
def test_a_provider_that_runs_out_of_memory_is_noted_with_its_reason(step):
    found = measure(providers=[Correct(), OutOfMemory(step)], passes=EVERY_PASS)
    assert found.failed == {}
    assert found.out_of_memory == {"large": {step: "OutOfMemoryError: Tried to allocate 14.00 GiB"}}
    assert all("mine" in found.us[of] for of in EVERY_PASS), "the others go on"
    assert [of for of in EVERY_PASS if "large" in found.us[of]] == (
        [] if step == "prepare" else [of for of in EVERY_PASS if of != step]
    )


def test_another_error_of_the_device_stays_a_failure():
    found = measure(providers=[OutOfMemory("dB", RuntimeError)])
    assert found.failed == {"large": {"dB": "RuntimeError: Tried to allocate 14.00 GiB"}}
    assert found.out_of_memory == {}


def test_a_provider_without_memory_for_any_configuration():
    class Large(OutOfMemory):
        def prepare(self, operands):
            (fails,) = super().prepare(operands).forward.values()
            return Calls({"one": fails, "two": fails})

    found = measure(providers=[Large("forward")], passes=("forward",))
    assert "no configuration runs" in found.out_of_memory["large"]["forward"]


def test_a_capture_that_ends_with_another_error_ran_out_of_memory():
    class Captures(Clock):
        def graph(self, function, pool=None):
            try:
                raise torch.OutOfMemoryError("Tried to allocate 14.00 GiB")
            finally:
                raise RuntimeError("operation failed due to a previous error during capture")

    found = measure(providers=[Correct()], timer=Captures(), passes=("forward",))
    assert set(found.out_of_memory) == {"mine"}


def test_the_fastest_configuration_is_taken_and_named():
    class Choosy(Correct):
        def prepare(self, operands):
            right = next(iter(super().prepare(operands).forward.values()))

            def fails():
                raise RuntimeError("out of shared memory")

            return Calls({"slow": right, "fast": right, "broken": fails})

    entry = measure(providers=[Choosy()], timer=Clock({"slow": 9.0, "fast": 3.0, "mine": 3.5}))
    assert entry.choice["forward"] == {"mine": "fast"}
    assert entry.us["forward"]["mine"].median_us == 3.5
    assert entry.failed["mine"] == {"forward, broken": "RuntimeError: out of shared memory"}


def test_a_wrong_configuration_is_noted_and_the_next_fastest_taken():
    class Choosy(Correct):
        def prepare(self, operands):
            right = next(iter(super().prepare(operands).forward.values()))
            return Calls({"right": right, "wrong": lambda: right() + 1.0})

    clock = Clock({"right": 9.0, "wrong": 3.0, "mine": 9.5})
    entry = measure(providers=[Choosy()], timer=clock, passes=("forward",))
    assert entry.choice["forward"] == {"mine": "right"}
    assert entry.us["forward"]["mine"].median_us == 9.5
    assert "elements of group 0 are wrong" in entry.failed["mine"]["forward, wrong"]


def test_a_function_is_a_provider_and_what_has_no_result_is_not_verified():
    launched = []
    empty = Function("empty", lambda operands: Calls({"": lambda: launched.append(operands)}, operands=Unverified()))
    found = measure([empty, Correct()], ("forward",))
    assert set(found.us["forward"]) == {"empty", "mine"}
    assert launched
    assert launched[0].sizes == TINY.sizes
