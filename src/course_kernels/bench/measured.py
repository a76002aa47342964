"""Results of a measurement as values, and their form in records."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TypeVar

from course_kernels.bench.rows import Row

__all__ = ["Measured", "Results", "Time", "Timings", "speedups"]

_Old = TypeVar("_Old")
_New = TypeVar("_New")
ByPass = Mapping[str, Mapping[str, _New]]  # pass → provider → value
Reasons = Mapping[str, Mapping[str, str]]  # provider → step → why it was not measured


@dataclass(frozen=True)
class Time:
    """Median and quartiles of the times of a call, in µs."""

    median_us: float
    q1_us: float
    q3_us: float


@dataclass(frozen=True)
class Timings:
    """The measurement of one problem.

    Attributes:
        us: pass → provider → times.
        choice: pass → provider → the fastest candidate, if a provider has several.
        host_us: provider → host µs of a call as a user makes it.
        unsuited: provider → why it does not compute this problem.
        failed: provider → step → why it is wrong or did not run.
        out_of_memory: provider → step → the allocator's message. The step "operands" is before all passes.
        peak_bytes: provider → the most memory that a training step holds beside its operands.
        step_timed: how training steps were timed: as a CUDA graph, or as called; None without steps.
    """

    us: ByPass[Time] = field(default_factory=dict)
    choice: ByPass[str] = field(default_factory=dict)
    host_us: Mapping[str, float] = field(default_factory=dict)
    unsuited: Mapping[str, str] = field(default_factory=dict)
    failed: Reasons = field(default_factory=dict)
    out_of_memory: Reasons = field(default_factory=dict)
    peak_bytes: Mapping[str, int] = field(default_factory=dict)
    step_timed: str | None = None

    def us_as_json(self) -> dict:
        """The times in the form of records."""
        return _each(self.us, asdict)

    def medians_us(self, of: str) -> dict[str, float]:
        """Provider → median µs of a pass."""
        return {name: time.median_us for name, time in self.us.get(of, {}).items()}


@dataclass(frozen=True)
class Measured:
    """A row and its measurement.

    Attributes:
        bytes: pass → bytes of operands and results.
        rate: pass → provider → TFLOP/s or TB/s, see ``Row.rate``.
    """

    row: Row
    bytes: Mapping[str, int]
    rate: ByPass[float]
    timings: Timings

    @classmethod
    def of(cls, row: Row, passes: Sequence[str], operand_bytes: int, timings: Timings) -> Measured:
        """Compute rates from times; ``operand_bytes`` is the size of an operand's element."""
        rate = {
            of: {name: float(f"{row.rate(us, of, operand_bytes):.4g}") for name, us in timings.medians_us(of).items()}
            for of in timings.us
        }
        return cls(row, {of: row.bytes_moved(of, operand_bytes) for of in passes}, rate, timings)

    @classmethod
    def from_json(cls, name: str, entry: Mapping) -> Measured:
        """Read the row with this name from its entry in a record."""
        row = Row(name, entry["title"], tuple(entry["sizes"]), entry["N"], entry["K"], entry["kind"])
        rest = ("choice", "host_us", "unsuited", "failed", "out_of_memory", "peak_bytes", "step_timed")
        timings = Timings(_each(entry["us"], lambda us: Time(**us)), **{k: entry[k] for k in rest if k in entry})
        return cls(row, entry["bytes"], entry["rate"], timings)

    def as_json(self) -> dict:
        """The row's entry in a record; its key is the row's name."""
        row, timings = self.row, self.timings
        entry = {
            "title": row.title, "sizes": list(row.sizes), "N": row.N, "K": row.K, "kind": row.kind, "unit": row.unit,
            "flops": row.flops, "bytes": dict(self.bytes), "us": timings.us_as_json(), "rate": _each(self.rate),
            "choice": _each(timings.choice), "host_us": dict(timings.host_us), "unsuited": dict(timings.unsuited),
            "failed": _each(timings.failed),
        }  # fmt: skip
        if timings.out_of_memory:
            entry["out_of_memory"] = _each(timings.out_of_memory)
        if timings.step_timed is not None:
            entry |= {"peak_bytes": dict(timings.peak_bytes), "step_timed": timings.step_timed}
        return entry


@dataclass(frozen=True)
class Results:
    """A run over several rows.

    Attributes:
        dtype: of the operands.
        repeats: timed calls of each provider and pass.
        copy_tb_s: TB/s of a copy within the device's memory, the ceiling of memory-bound rows.
        providers: name → label, role, version, and "absent", the reason why it was not measured.
        rows: by name.
        unmeasured: names of rows that are still to come, in a run that is not finished.
    """

    dtype: str
    repeats: int
    copy_tb_s: float
    providers: Mapping[str, Mapping[str, str]]
    rows: Mapping[str, Measured]
    unmeasured: tuple[str, ...] = ()

    @classmethod
    def from_json(cls, record: Mapping) -> Results:
        """Read results from a record of ``as_json``, without the additions of a benchmark program."""
        rows = {name: Measured.from_json(name, entry) for name, entry in record["rows"].items()}
        about = (record[key] for key in ("dtype", "repeats", "copy_tb_s", "providers"))
        return cls(*about, rows, tuple(record.get("unmeasured", ())))

    def as_json(self) -> dict:
        """The results in the form of ``record.write``."""
        return {
            "dtype": self.dtype, "repeats": self.repeats, "copy_tb_s": self.copy_tb_s,
            "providers": dict(self.providers),
            "rows": {name: measured.as_json() for name, measured in self.rows.items()},
            "speedups": speedups(self),
        } | ({"unmeasured": list(self.unmeasured)} if self.unmeasured else {})  # fmt: skip

    def role(self, provider: str) -> str:
        """One of ``interface.ROLES``."""
        return self.providers[provider]["role"]


def speedups(results: Results) -> dict:
    """Compare each of our providers with the others, by geometric means over rows.

    Returns:
        ours → pass → other → {"times", "rows", "worst"}: how many times faster ours is, the number of rows, and the
        smallest ratio of a row. The other "best peer" is the fastest peer of each row.
    """
    ratios: dict = {}  # ours → pass → other → a ratio for each row
    for mine in (name for name in results.providers if results.role(name) == "ours"):
        for measured in results.rows.values():
            for of in measured.timings.us:
                us = measured.timings.medians_us(of)
                if mine not in us:
                    continue
                others = {name: us[name] for name in us if name != mine and results.role(name) != "candidate"}
                if peers := [time for name, time in others.items() if results.role(name) == "peer"]:
                    others["best peer"] = min(peers)
                for other, time in others.items():
                    by_other = ratios.setdefault(mine, {}).setdefault(of, {})
                    by_other.setdefault(other, []).append(time / us[mine])
    return {mine: _each(by_pass, _summary) for mine, by_pass in ratios.items()}


def _summary(ratios: list[float]) -> dict:
    mean = math.exp(statistics.fmean(map(math.log, ratios)))
    return {"times": round(mean, 3), "rows": len(ratios), "worst": round(min(ratios), 3)}


def _each(table: Mapping[str, Mapping[str, _Old]], change: Callable[[_Old], _New] = lambda value: value) -> dict:
    """Apply a function to every value of a table of two levels."""
    return {key: {name: change(value) for name, value in inner.items()} for key, inner in table.items()}
