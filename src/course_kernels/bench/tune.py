"""Find the fastest configuration of the packed kernels, bucket by bucket, and write the table that lookups read.

A run writes the table after each bucket and skips buckets that the table has from the present code, so it can be
interrupted and continued. The function that measures is a parameter: tests of the logic need no GPU.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import torch

from course_kernels.bench import rows as bench_rows
from course_kernels.config import GemmConfig
from course_kernels.dtypes import TYPE_BYTES
from course_kernels.engine.tuning import lookup as tuned
from course_kernels.engine.tuning.defaults import Bucket, candidates
from course_kernels.files import write_atomically
from course_kernels.provenance import digest

__all__ = ["DEPENDS_ON", "Case", "Measured", "Outcome", "Regret", "grid", "missing", "regret", "select", "tune"]

OPS = ("grouped_mm", "grouped_mm_k")
# The files that decide which configurations are tried and how fast each is. An entry says which state of them it has.
DEPENDS_ON = (
    *(f"course_kernels/kernels/{name}.py" for name in ("codes", "common", "contiguous", "round_robin", "transposed")),
    *(f"course_kernels/engine/{name}.py" for name in ("access", "arguments", "launch", "relaunch")),
    *(f"course_kernels/{name}.py" for name in ("config", "dtypes", "engine/tuning/defaults")),
    *(f"course_kernels/bench/{name}.py" for name in ("timing", "tune_gpu", "verification")),
)
_MOST_FLOPS, _MOST_BYTES = 5e12, 40e9  # of a product of the grid: 8 ms of arithmetic, 10 ms of traffic on an H200


@dataclasses.dataclass(frozen=True)
class Case:
    """The product that represents a bucket.

    Attributes:
        name: a row of the benchmark and its pass, or the extents.
        op: "grouped_mm" or "grouped_mm_k".
        dtype: a name in ``dtypes.TYPE_BYTES``.
        sizes: rows of each group, or its depth for "grouped_mm_k".
        M: rows of the result for "grouped_mm_k", else 0.
        N: columns of the result.
        K: depth for "grouped_mm", else 0.
        b_layout: "col" for weights stored (G, N, K), "row" for (G, K, N).
    """

    name: str
    op: str
    dtype: str
    sizes: tuple[int, ...]
    M: int
    N: int
    K: int
    b_layout: str = "col"

    @property
    def extents(self) -> tuple[int, int, int, int]:
        """M, K, N, G as ``get_config`` takes them; the ragged one is a total."""
        total = sum(self.sizes)
        M, K = (self.M, total) if self.op == "grouped_mm_k" else (total, self.K)
        return M, K, self.N, len(self.sizes)

    @property
    def bucket(self) -> Bucket:
        """The bucket of these extents."""
        return Bucket.of(self.op, *self.extents)

    @property
    def flops(self) -> int:
        """Multiplications and additions."""
        M, K, N, _ = self.extents
        return 2 * M * K * N

    @property
    def bytes_moved(self) -> int:
        """Bytes of operands and result, each counted once."""
        M, K, N, G = self.extents
        size = TYPE_BYTES[self.dtype]
        a, b, c = (M * K, K * N, G * M * N) if self.op == "grouped_mm_k" else (M * K, G * K * N, M * N)
        return size * (a + b) + max(2, size) * c

    @property
    def seconds(self) -> float:
        """A rough time of one call, to estimate the time left."""
        rate = {1: 1e15, 2: 6e14}.get(TYPE_BYTES[self.dtype], 3e14 if self.dtype == "tf32" else 3e13)
        return max(self.flops / rate, self.bytes_moved / 4e12) + 5e-6


def _jittered(groups: int, mean: int, seed: int) -> tuple[int, ...]:
    """Sizes within ±30 % of a mean whose total is groups × mean."""
    sizes = list(bench_rows.jittered(groups, mean, seed))
    for i in range(abs(excess := sum(sizes) - groups * mean)):
        sizes[i % groups] -= 1 if excess > 0 else -1
    return tuple(sizes)


def _of_rows(dtype: str) -> Iterable[Case]:
    """Forward, dA and dB of the benchmark's rows; weights are stored (G, N, K)."""
    for row in bench_rows.rows():
        yield Case(f"{row.name}-forward", "grouped_mm", dtype, row.sizes, 0, row.N, row.K, "col")
        yield Case(f"{row.name}-dA", "grouped_mm", dtype, row.sizes, 0, row.K, row.N, "row")
        yield Case(f"{row.name}-dB", "grouped_mm_k", dtype, row.sizes, row.N, row.K, 0)


def _of_grid(dtype: str, quick: bool) -> Iterable[Case]:
    """Sizes from decoding to large, over layers that are square, expand, and contract."""
    layers = ((2048, 2048), (4096, 4096), (8192, 2048), (2048, 8192))
    for rows in (16, 32, 64, 128, 256, 512, 1024, 4096):
        for N, K in layers[:1] if quick else layers:
            for groups in (8,) if quick else (8, 64):
                few = rows <= 64  # equal groups: one bucket is one height of tile
                sizes = (rows * 3 // 4,) * groups if few else _jittered(groups, rows, rows + groups)
                extents = f"{rows}x{N}x{K}x{groups}"
                yield Case(f"rows-{extents}", "grouped_mm", dtype, sizes, 0, N, K, "col")
                if N >= K:
                    yield Case(f"depth-{extents}", "grouped_mm_k", dtype, sizes, N, K, 0)


def grid(dtypes: Sequence[str] = ("bfloat16",), ops: Sequence[str] = OPS, quick: bool = False) -> list[Case]:
    """The cases to measure: the benchmark's rows with their gradients, then a grid of sizes. A bucket has one case.

    Args:
        dtypes: names in ``dtypes.TYPE_BYTES``.
        ops: of ``OPS``. Batched products use the entries of "grouped_mm".
        quick: leave out the benchmark's rows, and take one layer and one number of groups.

    Raises:
        ValueError: an unknown dtype or op.
    """
    for name, given, allowed in (("dtypes", dtypes, tuple(TYPE_BYTES)), ("ops", ops, OPS)):
        if unknown := [value for value in given if value not in allowed]:
            raise ValueError(f"{name} must be of {', '.join(allowed)}, got {', '.join(map(repr, unknown))}")
    cases: dict[tuple, Case] = {}
    for dtype in dtypes:
        for case in [*([] if quick else _of_rows(dtype)), *_of_grid(dtype, quick)]:
            suits = case.op in ops and case.flops <= _MOST_FLOPS and case.bytes_moved <= _MOST_BYTES
            if suits and not (case.op == "grouped_mm_k" and dtype == "float8_e4m3fn"):  # no such recipe
                cases.setdefault((case.op, dtype, case.bucket), case)
    return list(cases.values())


def select(cases: Sequence[Case], names: Sequence[str] | None) -> list[Case]:
    """Cases whose names begin with one of ``names``; None takes all. ValueError for a name that selects none."""
    for name in names or ():
        if not any(case.name.startswith(name) for case in cases):
            raise ValueError(f"rows must be beginnings of names that --list shows, got {name!r}")
    return [case for case in cases if names is None or case.name.startswith(tuple(names))]


# ---- measuring


@dataclasses.dataclass(frozen=True)
class Measured:
    """Times of each configuration in µs, and why others were wrong or failed."""

    us: Mapping[GemmConfig, Sequence[float]]
    failed: Mapping[GemmConfig, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Outcome:
    """Counts of buckets: measured; kept from an earlier run of the same code; empty, because no configuration ran; left
    for another run, because time was up. And a line for each configuration that failed or was wrong."""

    measured: int
    kept: int
    empty: int
    left: int
    failures: tuple[str, ...]


def _row(config: GemmConfig) -> list:
    return list(dataclasses.astuple(config))


def _write(path: Path, provenance: Mapping, key: str, entries: Mapping) -> None:
    """Write a file of entries, one a line, in one step: an interruption leaves the old file.

    The file has a digest only if all entries have the same, so a file with an old entry is stale.
    """
    rows = [entries[identity] for identity in sorted(entries)]
    sources = {row.get("source") for row in rows}
    depends = {"depends_on": DEPENDS_ON, "depends_digest": sources.pop() if len(sources) == 1 else None}
    head = {"provenance": {**provenance, **depends}, "config_fields": list(tuned.CONFIG_FIELDS)}
    lines = ",\n".join(f"  {json.dumps(row, ensure_ascii=False)}" for row in rows)
    text = json.dumps(head, indent=1)[:-2] + f',\n "{key}": [\n{lines}\n ]\n}}\n'
    write_atomically(path, text)


def _read(path: Path, key: str) -> list[dict]:
    if not path.is_file():
        return []
    try:
        return list(json.loads(path.read_text())[key])
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is not a file of {key} that the tuner wrote: {error}") from None


def _identity(entry: Mapping) -> tuple:
    return entry["op"], entry["dtype"], tuple(entry["bucket"])


def _known(out: Path, record: Path | None) -> tuple[dict, dict]:
    """The entries of a table and of a record, by bucket."""
    read = {_identity(entry): entry for entry in _read(out, "entries")}
    return read, {_identity(entry): entry for entry in (_read(record, "buckets") if record else [])}


def missing(cases: Sequence[Case], out: Path, record: Path | None, again: bool) -> list[Case]:
    """The cases whose buckets the table or the record lacks, or has from other code; all of them if ``again``."""
    source = digest(DEPENDS_ON)
    files = _known(out, record)[: 2 if record else 1]

    def known(case):
        identity = (case.op, case.dtype, tuple(case.bucket))
        return all(file.get(identity, {}).get("source") == source for file in files)

    return [case for case in cases if again or not known(case)]


def tune(
    cases: Sequence[Case],
    measure: Callable[[Case, Sequence[GemmConfig]], Measured],
    out: str | Path,
    *,
    provenance: Mapping,
    record: str | Path | None = None,
    again: bool = False,
    limit_s: float | None = None,
    tell: Callable[[str], object] = print,
    clock: Callable[[], float] = time.monotonic,
) -> Outcome:
    """Measure the candidates of each case's bucket, and write the fastest to a table after each bucket.

    Args:
        cases: one for each bucket, in the order of measuring.
        measure: times configurations of a case.
        out: the table; its entries of other buckets stay.
        provenance: machine, versions, date and commit, as from ``record.provenance``.
        record: a file for the times of all candidates, which ``regret`` reads.
        again: measure even the buckets that the table has from the present code.
        limit_s: begin no bucket after this many seconds.
        tell: called with a line of progress for each bucket.

    Raises:
        ValueError: ``out`` or ``record`` exists and the tuner did not write it.
    """
    out, record = Path(out), None if record is None else Path(record)
    source = digest(DEPENDS_ON)
    entries, recorded = _known(out, record)
    due = missing(cases, out, record, again)
    kept = len(cases) - len(due)
    if kept:
        tell(f"{kept} buckets are in {out.name} already, measured with the same kernels; --again measures them again")
    began = clock()
    weights = [0.3 + 12 * len(candidates(case.op, case.bucket, case.dtype)) * (case.seconds + 2e-4) for case in due]
    failures: list[str] = []
    empty = done = 0
    for number, case in enumerate(due):
        elapsed = clock() - began
        if limit_s is not None and elapsed > limit_s:
            tell(f"{limit_s:g} s are over: {len(due) - number} buckets are left for another run")
            break
        found = measure(case, candidates(case.op, case.bucket, case.dtype))
        done = number + 1
        failures += [f"{case.name}, {tuned.describe(config)}: {reason}" for config, reason in found.failed.items()]
        us = {config: round(statistics.median(times), 2) for config, times in found.us.items()}
        ranked = sorted(us, key=us.get)
        share = sum(weights[:done]) / sum(weights)
        left = (clock() - began) * (1 - share) / share
        about = f"[{done}/{len(due)}, {left:4.0f} s left] {case.name}"
        if not ranked:
            empty += 1
            tell(f"{about}: no configuration ran")
            continue
        best = ranked[0]
        tell(f"{about}: {us[best]:g} µs with {tuned.describe(best)}")
        common = {
            "op": case.op, "dtype": case.dtype, "bucket": list(case.bucket), "shape": list(case.extents),
            "case": case.name, "source": source, "date": provenance.get("date"),
        }  # fmt: skip
        entry = {**common, "config": _row(best), "us": us[best]}
        if len(ranked) > 1:
            entry["runner_up"] = {"config": _row(ranked[1]), "us": us[ranked[1]]}
        entries[_identity(entry)] = entry
        _write(out, provenance, "entries", entries)
        if record:
            times = [[*_row(config), us[config]] for config in ranked]
            failed = [[*_row(config), reason] for config, reason in found.failed.items()]
            recorded[_identity(entry)] = {**common, "times": times, "failed": failed}
            _write(record, provenance, "buckets", recorded)
    return Outcome(done - empty, kept, empty, len(due) - done, tuple(failures))


# ---- regret


@dataclasses.dataclass(frozen=True)
class Regret:
    """The cost of a choice in one bucket: ``ratio`` is its time over the best one's, or None if it was not measured."""

    op: str
    dtype: str
    bucket: Bucket
    case: str
    chosen: GemmConfig
    us: float | None
    best: GemmConfig
    best_us: float
    ratio: float | None


def regret(
    recorded: Mapping, choose: Callable[[str, tuple[int, int, int, int], str], GemmConfig] | None = None
) -> list[Regret]:
    """The chosen configuration against the best one, for each bucket of a record of ``tune``.

    Args:
        choose: op, (M, K, N, G) and name of the dtype → configuration. Default: ``get_config`` on the record's GPU.
    """
    major, minor = map(int, str(recorded["provenance"]["capability"]).split("."))

    def looked_up(op, extents, dtype):
        precision = "tf32" if dtype == "tf32" else "ieee"
        torch_dtype = torch.float32 if dtype == "tf32" else getattr(torch, dtype)
        return tuned.get_config(op, *extents, dtype=torch_dtype, precision=precision, arch=(major, minor))

    found = []
    for entry in recorded["buckets"]:
        us = {GemmConfig(*row[:-1]): row[-1] for row in entry["times"]}
        chosen = (choose or looked_up)(entry["op"], tuple(entry["shape"]), entry["dtype"])
        best = min(us, key=us.get)
        time_us = us.get(chosen)
        ratio = None if time_us is None else time_us / us[best]
        bucket = Bucket(*entry["bucket"])
        found.append(Regret(entry["op"], entry["dtype"], bucket, entry["case"], chosen, time_us, best, us[best], ratio))
    return found
