"""The operators for some operands, and how they differ."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import cutlass.operators as ops
import torch

from course_kernels.codegen.compiled import text_table
from course_kernels.cutlass_ops.operands import NoOperator, accepts, check_arguments, gaps, reasons


class Design(NamedTuple):
    """How operators for the same operands differ, from their metadata.

    Attributes:
        tile: rows, columns and depth that one MMA instruction group works on at a time, in one CTA or in two.
        others: rows and columns of tiles of other shapes, where the metadata names some.
        cluster: CTAs along M and N that are launched together and share loads.
        ctas: CTAs that share one MMA instruction, 1 or 2.
        stages: blocks in flight from global to shared memory; None where the operator decides at compilation.
        schedule: how warps share the work; "" where the metadata does not say.
        targets: GPUs that it can be compiled for.
        source: the package that it comes from.
    """

    tile: tuple[int, int, int]
    others: tuple[tuple[int, int], ...]
    cluster: tuple[int, int]
    ctas: int
    stages: int | None
    schedule: str
    targets: tuple[str, ...]
    source: str


def design(operator: ops.Operator) -> Design:
    """The design of any operator of the API for matrix products."""
    metadata = operator.metadata
    made = metadata.design
    return Design(
        tile=tuple(made.tile_shape),
        others=getattr(made, "other_tiles", ()),
        cluster=tuple(made.cluster_shape[:2]),
        ctas=2 if getattr(made, "use_2cta_mma", False) else 1,
        stages=made.num_smem_stages,
        schedule=getattr(made, "schedule", ""),
        targets=tuple(str(target) for target in metadata.supported_targets),
        source=metadata.operator_class.__module__.partition(".")[0],
    )


class Operators(Sequence):
    """Operators that were found: a sequence of NVIDIA's objects, and a table when printed."""

    _COLUMNS = ("", "tile", "others", "cluster", "CTAs", "stages", "schedule", "targets", "source")

    def __init__(self, operators: Iterable[ops.Operator], why_none: str = ""):
        self._operators, self._why_none = list(operators), why_none

    def __len__(self) -> int:
        return len(self._operators)

    def __getitem__(self, index):
        if isinstance(index, slice):
            return Operators(self._operators[index])
        try:
            return self._operators[index]
        except IndexError:
            why = f" ({self._why_none})" if self._why_none else ""
            raise IndexError(f"there are {len(self)} operators, none at index {index}{why}") from None

    @property
    def designs(self) -> list[Design]:
        """The design of each."""
        return [design(operator) for operator in self]

    def where(self, **wanted) -> Operators:
        """Those whose design has these values: fields of ``Design``, each with the value to have or a predicate.

        Raises:
            TypeError: a design has no such field.
        """
        if unknown := wanted.keys() - set(Design._fields):
            raise TypeError(f"a design has {', '.join(Design._fields)}, and no {', '.join(sorted(unknown))}")

        def fits(row: Design) -> bool:
            values = row._asdict()
            return all(want(values[key]) if callable(want) else want == values[key] for key, want in wanted.items())

        fitting = [operator for operator, row in zip(self, self.designs) if fits(row)]
        return Operators(fitting, "" if fitting else self._why_none or self._missing(wanted))

    def _missing(self, wanted: dict) -> str:
        """The wanted values that no design has, and those that there are."""
        rows = [row._asdict() for row in self.designs]
        missing = []
        for key, want in wanted.items():
            there = sorted({row[key] for row in rows}, key=str)
            if not any(want(value) if callable(want) else want == value for value in there):
                what = "what was asked" if callable(want) else repr(want)
                missing.append(f"{key} is one of {', '.join(map(repr, there))}, not {what}")
        return "; ".join(missing) or f"none has all of {', '.join(wanted)} as asked"

    def __str__(self) -> str:
        if not self._operators:
            return f"no operators: {self._why_none}" if self._why_none else "no operators"
        rows = [self._COLUMNS]
        for i, row in enumerate(self.designs):
            tile, cluster = "×".join(map(str, row.tile)), "×".join(map(str, row.cluster))
            stages = "auto" if row.stages is None else str(row.stages)
            others = ", ".join("×".join(map(str, each)) for each in row.others)
            rows.append(
                (str(i), tile, others, cluster, str(row.ctas), stages, row.schedule, ", ".join(row.targets), row.source)
            )
        kept = [i for i in range(len(self._COLUMNS)) if i == 0 or any(row[i] for row in rows[1:])]
        return text_table([[row[i] for i in kept] for row in rows], left=len(kept))

    def __repr__(self) -> str:
        return f"<{len(self)} operators>"


def discover(
    args: ops.IndexPtrGroupedGemmArguments,
    target: str | ops.TargetSm | None = None,
    *,
    where: Callable[[ops.OperatorMetadata], bool] | None = None,
) -> Operators:
    """List the operators, at least one, that take these operands on a target.

    Args:
        args: of ``arguments``.
        target: "90a" (H100, H200), "100f" (B200 and its family), ...; see ``find_target``.
        where: predicate of an operator's metadata.

    Raises:
        NoOperator: there is none; the message says which operands or target there would have to be.
        TypeError: args are not of ``arguments``.
        ValueError: there is no such target.
    """
    target = find_target(target)
    check_arguments(args)
    if wrong := gaps(args):
        raise NoOperator("no operator takes these operands", wrong)
    found = _taking(args, target)
    if not found:
        nearest = [each for each in _with_a_letter(target) if _taking(args, each)]
        meant = [f"did you mean {' or '.join(repr(str(each)) for each in nearest)}?"] if nearest else []
        raise NoOperator(f"no operator takes these operands on {target}", [*reasons(args, target), *meant])
    chosen = [operator for operator in found if where is None or where(operator.metadata)]
    if not chosen:
        raise NoOperator("no operator passes", [f"where says no to each of the {len(found)} that take these operands"])
    return Operators(chosen)


def _taking(args, target: ops.TargetSm) -> list[ops.Operator]:
    try:
        return [each for each in ops.get_operators(args, target_sm=target) if accepts(each, args, target)]
    except NotImplementedError:  # a class that cannot even name an instruction for the dtype
        return []


def _with_a_letter(target: ops.TargetSm) -> list[ops.TargetSm]:
    """For a portable target, such as "90", the targets of that GPU alone and of its family: "90a"."""
    if not str(target).isdigit():
        return []
    found = []
    for letter in "af":
        with contextlib.suppress(ValueError, IndexError):
            found.append(ops.TargetSm(f"{target}{letter}"))
    return found


def find_target(target: str | ops.TargetSm | None) -> ops.TargetSm:
    """The target of that name, or this machine's.

    Args:
        target: compute capability without its dot, and a letter for what the code may use: "90a" for instructions of
            that GPU alone, "100f" for those of its family, "80" for those of all later GPUs; also as "sm_90a". None
            means this machine's GPU.

    Raises:
        ValueError: there is no such target, or None was given and there is no GPU.
    """
    if isinstance(target, ops.TargetSm):
        return target
    if target is None:
        if not torch.cuda.is_available():
            raise ValueError('target must be given where there is no GPU, such as "90a" or "100f"; got None')
        major, minor = torch.cuda.get_device_capability()
        return ops.TargetSm(cc=10 * major + minor)
    try:
        return ops.TargetSm(str(target).lower().removeprefix("sm_"))
    except (ValueError, IndexError):
        raise ValueError(f'target must be like "90a", "100f" or "sm_100a", got {target!r}') from None
