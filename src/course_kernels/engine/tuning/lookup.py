"""Which configuration a packed product runs with: measured tables looked up by bucket, and defaults where they end.

On Hopper GPUs ``tuning.time_model`` is asked first, about 16-bit and scaled products whose operands all have
descriptors.

A table is a JSON file in ``tables/``, one for each architecture on which ``course tune --table`` was run, or for which
starting values were written by hand; those are marked ``"measured": false``. Without any, the defaults of
``tuning.defaults`` serve. Nothing is measured at call time, and what is chosen depends on the shape's bucket alone, so
that a total that changes from batch to batch neither compiles nor remembers anything new.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import re
from pathlib import Path

import torch

from course_kernels import runtime
from course_kernels.config import GemmConfig
from course_kernels.dtypes import IN_DTYPES, PRECISIONS, TYPE_BYTES, type_name
from course_kernels.engine.tuning import defaults as rules
from course_kernels.engine.tuning.defaults import Bucket

OPS = ("grouped_mm", "grouped_mm_k", "grouped_mm_batch", "masked", "masked_block")
TABLES = Path(__file__).parent / "tables"
CONFIG_FIELDS = tuple(field.name for field in dataclasses.fields(GemmConfig))
# An entry further away than this, in factors of two summed over the extents, says less than the defaults do.
MAX_DISTANCE = 6
# KiB of shared memory per program (CUDA C++ Programming Guide); what is not listed has no less than these.
_SHARED_KIB = {(7, 0): 96, (8, 0): 163, (8, 7): 163, (9, 0): 227, (10, 0): 227, (10, 3): 227, (11, 0): 227}
# Likewise of LDS of AMD's GPUs; those that are not listed have 64.
_LDS_KIB = {"gfx950": 160}
# Generation, version and stepping, or "gfx" alone where torch does not tell them.
_AMD = re.compile(r"gfx([1-9]\d?[0-9a-f]{2})?")
_NO_CAPABILITY = 200  # 12.1 is the highest there is. 942 is an AMD GPU without its "gfx".


@dataclasses.dataclass(frozen=True)
class Choice:
    """A configuration and why it was chosen; as text, the reasons.

    Attributes:
        op, dtype, arch: what was asked for; dtype is a name in ``dtypes.TYPE_BYTES``, arch "sm_90", "gfx942" or
            None for the interpreter.
        entry: the bucket of the table's entry that was taken; None where the defaults were.
        distance: from the bucket to the entry, in factors of two; 0 is the bucket's own.
        us: the time that was measured for the entry, in µs; None where it was not.
        notes: how it came about, a sentence each.
    """

    config: GemmConfig
    op: str
    dtype: str
    arch: str | None
    bucket: Bucket
    entry: Bucket | None
    distance: int | None
    us: float | None
    notes: tuple[str, ...]

    def __str__(self) -> str:
        lines = [f"{self.op}, {self.dtype}, {self.arch or 'interpreter'}: {describe(self.config)}"]
        return "\n".join([*lines, f"  bucket: {self.bucket}", *(f"  {note}" for note in self.notes)])


def describe(config: GemmConfig) -> str:
    """A configuration in words."""
    block = "×".join(map(str, config.block))
    return (
        f"{block}, {config.num_warps} warps, {config.num_stages} stages, strips of {config.group_m}, "
        f"{config.programs_per_sm} per SM, {config.store_parts}-part store"
        + ("" if config.schedule == "round_robin" else f", {config.schedule}")
        + ("" if config.programs is None else f", {config.programs} programs")
        + ("" if config.num_xcds == 1 else f", {config.num_xcds} XCDs")
    )


def get_config(
    op: str,
    M: int,
    K: int,
    N: int,
    G: int,
    *,
    dtype: torch.dtype = torch.bfloat16,
    arch: tuple[int, int] | int | str | None = None,
    precision: str = "ieee",
    uses_tma: bool | None = None,
    accumulate: bool = False,
    explain: bool = False,
) -> GemmConfig | Choice:
    """The table's configuration for a packed product, by its shape's ``defaults.Bucket``.

    Args:
        op: "grouped_mm" (M is the total of rows; a ragged N is the same of the transposed operands), "grouped_mm_k"
            (K is the total depth), "grouped_mm_batch" (M rows in every group), "masked" (M rows are expected in a
            group) or "masked_block" (the same with block scales).
        M, K, N, G: extents (the ragged one is the total over all groups), and the number of groups.
        arch: compute capability as (9, 0), 90 or "sm_90"; "gfx942" for an AMD GPU; None for the interpreter.
        precision: "ieee" or "tf32", for float32 operands.
        uses_tma: operands and result all go through descriptors. Default: where the architecture has them.
        accumulate: the product is added to its result, which takes shared memory where there is no descriptor.
        explain: return the choice with its reasons.

    Returns:
        A configuration, immutable and the same object for all shapes of a bucket; or the ``Choice`` it belongs to.

    Raises:
        ValueError: an unknown op, precision or architecture, a negative extent, a dtype that no kernel multiplies, or
            a table that is damaged.
        TypeError: an extent is no integer.

    Notes:
        The library does not ask this for 16-bit products on a Hopper GPU (compute capability 9.0) whose operands and
        result all go through descriptors, with groups along M, N or K, nor for 8-bit ones along M or N where its
        constants have them: ``tuning.time_model`` chooses kernel and configuration for those, and
        ``time_model.explain`` says why. Tables serve other dtypes, GPUs and operands, batches and masked products.

        A bucket that was not measured takes the nearest entry of the same type and kind of architecture, at most
        ``MAX_DISTANCE`` factors of two away (ties: the smaller bucket) and never one for another number of rows up to
        64; failing that, the defaults. float16 and bfloat16 serve each other, and "grouped_mm" serves
        "grouped_mm_batch" and "masked".
    """
    if op not in OPS:
        raise ValueError(f"op must be one of {OPS}, got {op!r}")
    for name, extent in (("M", M), ("K", K), ("N", N), ("G", G)):
        if not isinstance(extent, int) or isinstance(extent, bool):
            raise TypeError(f"{name} must be an integer, got {type(extent).__name__}")
        if extent < 0:
            raise ValueError(f"{name} must not be negative, got {extent}")
    if dtype not in IN_DTYPES:
        names = ", ".join(map(str, IN_DTYPES))
        raise ValueError(f"dtype must be one of {names}, got {dtype!r}")
    if precision not in PRECISIONS:
        raise ValueError(f"precision must be 'ieee' or 'tf32', got {precision!r}")
    name = type_name(dtype, precision)
    arch = canonical_arch(arch)
    if uses_tma is None:
        uses_tma = arch is None or has_descriptors(arch)
    choice = _choose(op, Bucket.of(op, M, K, N, G), name, arch, bool(uses_tma), bool(accumulate))
    return choice if explain else choice.config


def canonical_arch(arch) -> str | None:
    """The name of an architecture: "sm_90", "gfx942", or None. ValueError for none of ``get_config``'s forms."""
    if arch is None:
        return None
    number = arch
    if isinstance(arch, tuple) and len(arch) == 2 and all(type(part) is int for part in arch) and 0 <= arch[1] <= 9:
        number = 10 * arch[0] + arch[1]
    elif isinstance(arch, str):
        if _AMD.fullmatch(arch):
            return arch
        match = re.fullmatch(r"(?:sm_?)?(\d{2,3})[af]?", arch)
        number = int(match[1]) if match else None
    if type(number) is not int or not 50 <= number < _NO_CAPABILITY:
        raise ValueError(
            f"arch must be a compute capability such as (9, 0), 90 or 'sm_90', 'gfx942' or another AMD GPU, or None; "
            f"got {arch!r}"
        )
    return f"sm_{number}"


def capability_of(arch: str | None) -> tuple[int, int] | None:
    """Compute capability of a canonical name; None for AMD GPUs and the interpreter."""
    return divmod(int(arch[3:]), 10) if arch and arch.startswith("sm_") else None


def is_amd(arch: str | None) -> bool:
    """Whether a canonical architecture is AMD's."""
    return arch is not None and arch.startswith("gfx")


def num_sms(arch: str | None) -> int | None:
    """SMs (compute units) of the GPU that a canonical architecture's own table is for; None without one."""
    table = _tables().get(arch)
    return None if table is None else table.sms


def has_descriptors(arch: str | None) -> bool:
    """Whether a canonical architecture has TMA descriptors."""
    return (capability_of(arch) or (0, 0)) >= runtime.DESCRIPTOR_CAPABILITY


def shared_limit(arch: str | None) -> int | None:
    """Bytes of shared memory that a program can have on a canonical architecture, at least; None: no limit."""
    if arch is None:
        return None
    capability = capability_of(arch)
    if capability is None:
        return 1024 * _LDS_KIB.get(arch, 64)
    if capability < (8, 0):
        return 1024 * _SHARED_KIB.get(capability, 64)
    return 1024 * _SHARED_KIB.get(capability, 99)


def kernel_of(op: str) -> str:
    """The kernel that computes an op."""
    return {"grouped_mm_k": "transposed", "masked": "masked", "masked_block": "masked"}.get(op, "contiguous")


# ---- tables


@dataclasses.dataclass(frozen=True)
class Entry:
    """One bucket of a table: the configuration that was fastest there, and its time in µs; or one that should be fast
    and was not measured, and None."""

    op: str
    dtype: str
    bucket: Bucket
    config: GemmConfig
    us: float | None


@dataclasses.dataclass(frozen=True)
class Table:
    """The entries for one architecture, the GPU's name, and its number of SMs if the table has it."""

    arch: str
    gpu: str
    sms: int | None
    entries: tuple[Entry, ...]


def read_table(path: str | Path) -> Table:
    """Read and check a table. ValueError, which says where, for a damaged file."""
    path = Path(path)
    try:
        content = json.loads(path.read_text())
        gpu, sms = content["provenance"]["gpu"], content["provenance"].get("sms")
        rows = content["entries"]
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is no table of configurations: {type(error).__name__}: {error}") from None
    entries = []
    for number, row in enumerate(rows):
        try:
            entry = Entry(row["op"], row["dtype"], Bucket(*row["bucket"]), GemmConfig(*row["config"]), _us(row))
            if entry.op not in OPS or entry.dtype not in TYPE_BYTES:
                raise ValueError(f"unknown op or dtype: {entry.op!r}, {entry.dtype!r}")
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path}, entry {number}: {type(error).__name__}: {error}") from None
        entries.append(entry)
    return Table(path.stem, str(gpu), sms, tuple(entries))


def _us(row: dict) -> float | None:
    """The time of a row of a table; None for a starting value."""
    return float(row["us"]) if row.get("measured", True) else None


@functools.lru_cache(maxsize=1)
def _tables() -> dict[str, Table]:
    return {path.stem: read_table(path) for path in sorted(TABLES.glob("*.json"))}


def forget_tables() -> None:
    """Read the tables again at the next lookup. Products that have run keep their configurations."""
    _tables.cache_clear()
    _choose.cache_clear()


def distance(op: str, bucket: Bucket, other: Bucket) -> int | None:
    """Factors of two between two buckets, summed over the extents; None where one cannot stand in for the other."""
    if op != "grouped_mm_k" and bucket.M != other.M and min(bucket.M, other.M) < 128:
        return None
    return sum(abs(a.bit_length() - b.bit_length()) for a, b in zip(bucket, other))


def _nearest_table(arch: str) -> Table | None:
    """The architecture's own table, or that of the one nearest in number; of two, the older. An AMD GPU has its own or
    none."""
    if is_amd(arch):
        return _tables().get(arch)
    if not has_descriptors(arch):
        return None  # what is measured goes through descriptors
    number = int(arch[3:])
    tables = [table for table in _tables().values() if has_descriptors(table.arch)]
    return min(tables, key=lambda t: (abs(int(t.arch[3:]) - number), int(t.arch[3:])), default=None)


def _serving(name: str) -> tuple[str, ...]:
    """The ops, or dtypes, whose entries serve one, its own first."""
    others = {
        "float16": "bfloat16", "bfloat16": "float16", "grouped_mm_batch": "grouped_mm", "masked": "grouped_mm",
    }  # fmt: skip
    return (name, others[name]) if name in others else (name,)


def _nearest_entry(table: Table, op: str, bucket: Bucket, dtype: str) -> tuple[int, Entry] | None:
    """Distance and entry: the op's and dtype's own if any is near enough, else those that serve them."""
    for served in _serving(op):
        for name in _serving(dtype):
            found = [
                (away, entry.bucket, entry)
                for entry in table.entries
                if (entry.op, entry.dtype) == (served, name)
                and (away := distance(op, bucket, entry.bucket)) is not None
                and away <= MAX_DISTANCE
            ]
            if found:
                away, _, entry = min(found, key=lambda item: item[:2])
                return away, entry
    return None


@functools.lru_cache(maxsize=4096)
def _choose(op: str, bucket: Bucket, dtype: str, arch: str | None, uses_tma: bool, accumulate: bool) -> Choice:
    def choice(config, *notes, entry=None, away=None):
        where, us = (entry.bucket, entry.us) if entry else (None, None)
        return Choice(config, op, dtype, arch, bucket, where, away, us, notes)

    if arch is None:
        return choice(rules.INTERPRETER, "the interpreter runs every shape with small blocks")
    capability = capability_of(arch)
    limits = dict(capability=capability, shared_limit=shared_limit(arch), uses_tma=uses_tma)
    notes = []
    if (uses_tma or is_amd(arch)) and (table := _nearest_table(arch)):
        if table.arch != arch:
            notes.append(f"no table for {arch}: the nearest is that of {table.arch}")
        if (found := _nearest_entry(table, op, bucket, dtype)) is None:
            notes.append(f"no entry of {table.arch} for {dtype} within a factor of {2**MAX_DISTANCE}: defaults")
        else:
            away, entry = found
            config = entry.config.fitted(kernel_of(op), TYPE_BYTES[dtype], **limits)
            if accumulate and is_amd(arch):  # tables are of products that are not added
                config = _shrunk(entry.config, kernel_of(op), TYPE_BYTES[dtype], limits)
            like = [f"{own} as {other}" for own, other in ((op, entry.op), (dtype, entry.dtype)) if own != other]
            how = (
                "not measured, a starting value for"
                if entry.us is None
                else f"measured on {table.gpu}, {entry.us:g} µs for"
            )
            notes.append(
                f"{how} "
                + ("this bucket" if not away else f"the nearest entry, a factor of {2**away} away: {entry.bucket}")
                + (f" ({', '.join(like)})" if like else "")
            )
            if config is not None:
                if config != entry.config:
                    smaller = (
                        "" if config.block == entry.config.block else f"{config.block_m}×{config.block_n} tiles and "
                    )
                    stages = f"{config.num_stages} of {entry.config.num_stages} stages"
                    notes.append(f"with {smaller}{stages}, for shared memory")
                return choice(config, *notes, entry=entry, away=away)
            notes.append(f"which does not fit into the shared memory of {arch}: defaults")
    elif uses_tma:
        notes.append("nothing was measured for this kind of architecture: defaults")
    else:
        notes.append("defaults for launches in which not everything goes through a descriptor; none is measured")
    config, *more = _default(op, bucket, dtype, arch, uses_tma)
    return choice(config, *notes, *more)


def _shrunk(config: GemmConfig, kernel: str, itemsize: int, limits: dict) -> GemmConfig | None:
    """A configuration for products that are added, with tiles that leave shared memory for the result."""
    while True:
        fitted = config.fitted(kernel, itemsize, accumulate=True, **limits)
        if fitted is not None or config.block_m * config.block_n <= 64 * 64:
            return fitted
        wider = "block_n" if config.block_n >= config.block_m else "block_m"
        config = dataclasses.replace(config, **{wider: getattr(config, wider) // 2})


def _default(op: str, bucket: Bucket, dtype: str, arch: str, uses_tma: bool) -> tuple:
    """The configuration where nothing was measured, and notes."""
    capability = capability_of(arch)
    if (capability or (0, 0)) < runtime.TENSOR_CORE_CAPABILITY:
        return rules.NARROW, "no tensor cores that the compiler uses, or none that were tried"
    options = rules.defaults(op, bucket, dtype, uses_tma)
    limits = dict(capability=capability, shared_limit=shared_limit(arch), uses_tma=uses_tma)
    for config in options:
        fitted = config.fitted(kernel_of(op), TYPE_BYTES[dtype], **limits)
        if fitted is not None:
            return (fitted,) if fitted == options[0] else (fitted, f"for shared memory: not {describe(options[0])}")
    raise ValueError(f"no configuration of {op} for {dtype} fits into the shared memory of {arch}")


def all_configs(op: str, dtype: str, arch: str, uses_tma: bool) -> tuple[GemmConfig, ...]:
    """Every configuration that ``get_config`` can return for an op, a name in ``TYPE_BYTES`` and a canonical name."""
    extents = (16, 32, 64, 128, 1024, 2048, 8192)
    found = [
        _default(op, Bucket(rows, extent, depth, 8), dtype, arch, uses_tma)[0]
        for rows, extent, depth in itertools.product(extents, extents, extents)
    ]
    if (uses_tma or is_amd(arch)) and (table := _nearest_table(arch)):
        limits = dict(capability=capability_of(arch), shared_limit=shared_limit(arch), uses_tma=uses_tma)
        served = [entry for entry in table.entries if entry.dtype in _serving(dtype) and entry.op in _serving(op)]
        found += [entry.config.fitted(kernel_of(op), TYPE_BYTES[dtype], **limits) for entry in served]
    return tuple(dict.fromkeys(config for config in found if config is not None))
