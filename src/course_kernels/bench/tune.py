"""Which configuration of the packed kernels is fastest, measured bucket by bucket; the result is a table for `tuned`.

A run writes its file after every bucket and leaves out those that the file has from the same kernels, so that it can be
interrupted and continued. What measures is a parameter: the logic is tested without a GPU.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import random
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import torch

import course_kernels
from course_kernels.bench import rows as bench_rows
from course_kernels.config import GemmConfig
from course_kernels.dtypes import TYPE_BYTES
from course_kernels.packed.tuning import lookup as tuned
from course_kernels.packed.tuning.defaults import Bucket, candidates

__all__ = ["Case", "Measured", "Outcome", "Regret", "grid", "kernel_digest", "missing", "regret", "select", "tune"]

OPS = ("grouped_mm", "grouped_mm_k")
# What decides how fast a configuration is; tables say which state of these files they were measured with.
_KERNEL_SOURCES = (
    "kernels/contiguous.py", "kernels/transposed.py", "kernels/naive.py", "kernels/round_robin.py",
    "grouped_launch.py", "packed_configs.py",
)  # fmt: skip
_MOST_FLOPS, _MOST_BYTES = 5e12, 40e9  # of a product of the grid: 8 ms of arithmetic, 10 ms of traffic on an H200


@dataclasses.dataclass(frozen=True)
class Case:
    """A product that a bucket is measured with.

    Attributes:
        name: a row of the benchmark and its pass, or the extents.
        op: "grouped_mm" or "grouped_mm_k".
        dtype: a name in ``dtypes.TYPE_BYTES``.
        sizes: of each group, rows or depth.
        M: rows of the result, for "grouped_mm_k"; else 0.
        N: its columns.
        K: depth, for "grouped_mm"; else 0.
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
        """M, K, N, G as ``get_config`` takes them, the ragged one in total."""
        total = sum(self.sizes)
        M, K = (self.M, total) if self.op == "grouped_mm_k" else (total, self.K)
        return M, K, self.N, len(self.sizes)

    @property
    def bucket(self) -> Bucket:
        """The bucket that it stands for."""
        return Bucket.of(self.op, *self.extents)

    @property
    def flops(self) -> int:
        """Multiplications and additions."""
        M, K, N, _ = self.extents
        return 2 * M * K * N

    @property
    def bytes_moved(self) -> int:
        """Bytes of operands and result, each once, the result in at least 2 bytes."""
        M, K, N, G = self.extents
        size = TYPE_BYTES[self.dtype]
        a, b, c = (M * K, K * N, G * M * N) if self.op == "grouped_mm_k" else (M * K, G * K * N, M * N)
        return size * (a + b) + max(2, size) * c

    @property
    def seconds(self) -> float:
        """A guess of one call's time, for the time that is left."""
        rate = {1: 1e15, 2: 6e14}.get(TYPE_BYTES[self.dtype], 3e14 if self.dtype == "tf32" else 3e13)
        return max(self.flops / rate, self.bytes_moved / 4e12) + 5e-6


def _jittered(groups: int, mean: int, seed: int) -> tuple[int, ...]:
    """Sizes within ±30 % of a mean whose total is groups × mean."""
    draw = random.Random(seed)
    sizes = [round(mean * draw.uniform(0.7, 1.3)) for _ in range(groups)]
    for i in range(abs(excess := sum(sizes) - groups * mean)):
        sizes[i % groups] -= 1 if excess > 0 else -1
    return tuple(sizes)


def _of_rows(dtype: str) -> Iterable[Case]:
    """The benchmark's rows: forward product, dA and dB of a layer that stores its weights (G, N, K)."""
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
                few = rows <= 64  # all groups of few rows are full, so that the bucket is the tile's
                sizes = (rows * 3 // 4,) * groups if few else _jittered(groups, rows, rows + groups)
                extents = f"{rows}x{N}x{K}x{groups}"
                yield Case(f"rows-{extents}", "grouped_mm", dtype, sizes, 0, N, K, "col")
                if N >= K:
                    yield Case(f"depth-{extents}", "grouped_mm_k", dtype, sizes, N, K, 0)


def grid(dtypes: Sequence[str] = ("bfloat16",), ops: Sequence[str] = OPS, quick: bool = False) -> list[Case]:
    """What is measured by default: the benchmark's rows with their gradients first, then a grid of sizes; of cases in
    one bucket the first.

    Args:
        dtypes: names in ``dtypes.TYPE_BYTES``.
        ops: of ``OPS``. A batched product takes the entries of "grouped_mm".
        quick: no rows of the benchmark, and one layer and number of groups.

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
    """Cases whose names begin with one of ``names``; None takes all.

    Raises:
        ValueError: a name that no case's name begins with.
    """
    for name in names or ():
        if not any(case.name.startswith(name) for case in cases):
            raise ValueError(f"rows must be beginnings of names that --list shows, got {name!r}")
    return [case for case in cases if names is None or case.name.startswith(tuple(names))]


def kernel_digest() -> str:
    """SHA-256 over the sources that decide how fast a configuration is, shortened to 16 digits."""
    root = Path(course_kernels.__file__).parent
    digest = hashlib.sha256()
    for name in _KERNEL_SOURCES:
        digest.update(name.encode() + b"\0" + (root / name).read_bytes() + b"\0")
    return digest.hexdigest()[:16]


# ---- measuring


@dataclasses.dataclass(frozen=True)
class Measured:
    """Times of each configuration in µs; and of those that were wrong or did not run, the reason."""

    us: Mapping[GemmConfig, Sequence[float]]
    failed: Mapping[GemmConfig, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a run ended: buckets measured, left out because the file has them, without any configuration that ran, and
    left for another run because time was up; failures as lines."""

    measured: int
    kept: int
    empty: int
    left: int
    failures: tuple[str, ...]


def _row(config: GemmConfig) -> list:
    return list(dataclasses.astuple(config))


def _write(path: Path, provenance: dict, key: str, entries: Iterable[dict]) -> None:
    """Write a file of entries, one a line, in one step: an interruption leaves the old one."""
    head = {"provenance": provenance, "config_fields": list(tuned.CONFIG_FIELDS)}
    lines = ",\n".join(f"  {json.dumps(entry, ensure_ascii=False)}" for entry in entries)
    text = json.dumps(head, indent=1)[:-2] + f',\n "{key}": [\n{lines}\n ]\n}}\n'
    fresh = path.with_name(path.name + ".new")
    fresh.write_text(text)
    os.replace(fresh, path)


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
    """What a table and a record have, by bucket."""
    read = {_identity(entry): entry for entry in _read(out, "entries")}
    return read, {_identity(entry): entry for entry in (_read(record, "buckets") if record else [])}


def missing(cases: Sequence[Case], out: Path, record: Path | None, again: bool) -> list[Case]:
    """The cases that a table, and the record if there is to be one, lack from the present kernels; all if ``again``."""
    digest = kernel_digest()
    files = _known(out, record)[: 2 if record else 1]

    def known(case):
        identity = (case.op, case.dtype, tuple(case.bucket))
        return all(file.get(identity, {}).get("source") == digest for file in files)

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
    """Measure the candidates of each case's bucket and write the fastest to a table, after each.

    Args:
        cases: of different buckets, in the order in which they are measured.
        measure: times configurations of a case, or says why one cannot be.
        out: the table; what it has of other buckets stays.
        provenance: machine, versions, date and commit, as ``record.provenance`` gives them.
        record: a file that keeps the times of all candidates, for ``regret``.
        again: measure buckets, too, that the table has from the same sources.
        limit_s: no bucket is begun after this many seconds.
        tell: called with a line of progress for each bucket.
        clock: seconds.

    Returns:
        What was done.

    Raises:
        ValueError: ``out`` or ``record`` exists and was not written by this.
    """
    out, record = Path(out), None if record is None else Path(record)
    digest = kernel_digest()
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
            "case": case.name, "source": digest, "date": provenance.get("date"),
        }  # fmt: skip
        entry = {**common, "config": _row(best), "us": us[best]}
        if len(ranked) > 1:
            entry["runner_up"] = {"config": _row(ranked[1]), "us": us[ranked[1]]}
        entries[_identity(entry)] = entry
        _write(out, dict(provenance), "entries", [entries[key] for key in sorted(entries)])
        if record:
            times = [[*_row(config), us[config]] for config in ranked]
            failed = [[*_row(config), reason] for config, reason in found.failed.items()]
            recorded[_identity(entry)] = {**common, "times": times, "failed": failed}
            _write(record, dict(provenance), "buckets", [recorded[key] for key in sorted(recorded)])
    return Outcome(done - empty, kept, empty, len(due) - done, tuple(failures))


# ---- regret


@dataclasses.dataclass(frozen=True)
class Regret:
    """What a choice costs in one bucket: ``ratio`` is its time over the best one's; None where it was not measured."""

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
    """Chosen against best, for each bucket of a file that ``tune`` wrote with ``record``.

    Args:
        recorded: the file's content.
        choose: op, (M, K, N, G) and name of the dtype → configuration. Default: ``get_config`` on the record's GPU.

    Returns:
        One for each bucket, in the file's order.
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
