"""Verify the results of several providers over poisoned memory, then time the providers in turn."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import Tensor

from course_kernels.bench import timing
from course_kernels.bench.gpu_timer import Result
from course_kernels.bench.interface import Calls, Provider, Verified, WrongResult, is_out_of_memory, one_line
from course_kernels.bench.measured import Time, Timings

__all__ = ["measure_one", "verified_call"]

_TRIAL_REPEATS = 5  # timed calls to choose a candidate


def _poison(result: Result | None) -> None:
    for part in [result] if isinstance(result, Tensor) else result or ():
        part.fill_(float("nan"))


def _fastest(candidates: dict[str, Callable], timer, failures: dict[str, str]) -> tuple[str, Callable[[], Result]]:
    """Find name and graph of the fastest candidate; `failures` gets the reasons of those that cannot run."""
    graphs, cause = {}, None
    for name, function in candidates.items():
        try:
            graphs[name] = timer.graph(function)
        except Exception as error:
            timer.settle()
            if len(candidates) == 1:
                raise
            failures[name] = one_line(error)
            cause = error.with_traceback(None) if cause is None or is_out_of_memory(error) else cause
    if not graphs:
        raise RuntimeError(f"no configuration runs; the first: {next(iter(failures.values()))}") from cause
    if len(graphs) == 1:
        return next(iter(graphs.items()))
    times = timer.interleaved_us(graphs, _TRIAL_REPEATS)
    best = min(graphs, key=lambda name: statistics.median(times[name]))
    return best, graphs[best]


def verified_call(
    candidates: dict[str, Callable], pass_name: str, operands: Verified, timer, failures: dict[str, str]
) -> tuple[str, Callable[[], Result]]:
    """Verify a result over poisoned memory; return name and function of the candidate to time.

    If a candidate cannot run or is wrong, the next fastest follows, and `failures` gets the reason.
    """
    if pass_name == "called":
        choice, function = next(iter(candidates.items()))
    else:
        choice, function = _fastest(candidates, timer, failures)
    # A call that makes its own result gets the freed NaNs from the allocator.
    _poison(function())
    try:
        operands.verify(function(), pass_name)
    except WrongResult as error:
        others = {name: each for name, each in candidates.items() if name != choice and name not in failures}
        if pass_name == "called" or not others:
            raise
        failures[choice] = one_line(error)
        del function  # its graph keeps memory
        return verified_call(others, pass_name, operands, timer, failures)
    return choice, function


class _Measurement:
    """The measurement of one problem, pass by pass."""

    def __init__(self, providers: Iterable[Provider], operands: Verified, timer):
        self.operands, self.timer = operands, timer
        self.us, self.choice, self.host_us = {}, {}, {}
        self.failed, self.out_of_memory = {}, {}
        self.peak_bytes, self.step_timed = {}, None
        self.prepared: dict[str, Calls] = {}
        for provider in providers:
            if (calls := self._attempt(provider.name, "prepare", provider.prepare, operands)) is not None:
                self.prepared[provider.name] = calls

    def timings(self, unsuited: Mapping[str, str]) -> Timings:
        """The results."""
        return Timings(
            self.us, self.choice, self.host_us, unsuited, self.failed, self.out_of_memory, self.peak_bytes,
            self.step_timed,
        )  # fmt: skip

    def time(self, pass_name: str, repeats: int) -> None:
        """Verify and time one pass of all providers."""
        choices: dict[str, str] = {}
        ready = self._verified_steps() if pass_name == "step" else self._verified_calls(pass_name, choices)
        times = {}
        try:
            times = self.timer.interleaved_us(ready, repeats) if ready else {}
        except Exception as error:
            if not is_out_of_memory(error):
                raise  # an error of the device: nothing more can be measured
            for name in ready:
                self._note(name, f"{pass_name}, while it was timed", error)
            ready = {}
            self.timer.settle()
        self.us[pass_name] = {name: Time(**timing.summary(values)) for name, values in times.items()}
        self.choice[pass_name] = {name: choice for name, choice in choices.items() if choice and name in times}
        if pass_name == "called":
            for name, function in ready.items():
                if (us := self._attempt(name, "host time", self.timer.host_us, function)) is not None:
                    self.host_us[name] = round(us, 1)
        del ready  # graphs keep their memory
        self.timer.free()

    def _note(self, name: str, step: str, error: Exception) -> None:
        reasons = self.out_of_memory if is_out_of_memory(error) else self.failed
        reasons.setdefault(name, {})[step] = one_line(error)

    def _attempt(self, name: str, step: str, function: Callable, *arguments):
        """Call a function; return its value, or note why it fails and return None."""
        try:
            value = function(*arguments)
            self.timer.settle()
            return value
        except Exception as error:
            self._note(name, step, error)
        self.timer.settle()  # raises if the device is lost: nothing more can be measured
        return None

    def _verified_calls(self, pass_name: str, choices: dict[str, str]) -> dict[str, Callable[[], Result]]:
        """Provider → function to time; `choices` gets the names of candidates."""
        ready = {}
        for name, calls in self.prepared.items():
            if not (candidates := calls.of(pass_name)):
                continue
            failures: dict[str, str] = {}
            arguments = (candidates, pass_name, calls.operands or self.operands, self.timer, failures)
            found = self._attempt(name, pass_name, verified_call, *arguments)
            for candidate, reason in failures.items():
                self.failed.setdefault(name, {})[f"{pass_name}, {candidate}"] = reason
            if found is not None:
                choices[name], ready[name] = found
        return ready

    def _verified_steps(self) -> dict[str, Callable]:
        """Provider → step to time, as CUDA graphs; if one cannot be captured, all as they are called.

        All of them were verified. The peak memory of each is noted.
        """
        timer, peaks, called, replays, replay = self.timer, self.peak_bytes, {}, {}, None
        pool = timer.pool()
        for name, calls in self.prepared.items():
            for function in calls.step.values():
                self._attempt(name, "step", function)  # the first call compiles and fills caches
                if (peak := self._attempt(name, "step", timer.peak_bytes, function)) is not None:
                    called[name], peaks[name] = function, peak
        self.step_timed = "as a CUDA graph"
        for name, function in called.items():
            timer.free()  # memory of earlier calls in the allocator's cache
            try:
                replay = timer.graph(function, pool)
                timer.settle()
            except Exception as error:
                self.step_timed = f"as called, for {name} cannot be captured: {one_line(error)}"
                break
            if self._is_right(name, replay):
                replays[name] = replay
            timer.forget(replay)
        else:
            return replays
        timer.settle()
        replays, replay = {}, None  # the graphs keep the pool's memory, which steps need now
        timer.free()
        return {name: function for name, function in called.items() if self._is_right(name, function)}

    def _is_right(self, name: str, step: Callable) -> bool:
        """Whether a step is right over poisoned memory; if not, its peak memory is dropped, too."""

        def check() -> bool:
            _poison(step())
            self.operands.verify(step(), "step")
            return True

        right = name in self.peak_bytes and self._attempt(name, "step", check)
        if not right:
            self.peak_bytes.pop(name, None)
        return bool(right)


def measure_one(
    row,
    operands: Callable[[], Verified],
    providers: Sequence[Provider],
    passes: Sequence[str],
    repeats: int,
    timer,
) -> Timings:
    """Verify every provider's result of one problem over poisoned memory, then time all of them in turn.

    Args:
        row: the argument of ``Provider.unsuited``.
        operands: makes the operands that the providers prepare their calls for.
        providers: the available ones.
        passes: of `EVERY_PASS`.
        repeats: timed calls of each provider and pass, at least 2.
        timer: a ``GpuTimer``.
    """
    unsuited = {provider.name: why for provider in providers if (why := provider.unsuited(row))}
    suited = [provider for provider in providers if provider.name not in unsuited]
    try:
        made = operands()
    except torch.OutOfMemoryError as error:
        short = {provider.name: {"operands": one_line(error)} for provider in suited}
        return Timings({of: {} for of in passes}, unsuited=unsuited, out_of_memory=short)
    measurement = _Measurement(suited, made, timer)
    for pass_name in passes:
        measurement.time(pass_name, repeats)
    return measurement.timings(unsuited)
