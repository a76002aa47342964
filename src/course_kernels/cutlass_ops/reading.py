"""A compiled operator: size, registers, and the instructions that matter."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable

from course_kernels.codegen import Compiled as Code
from course_kernels.codegen import Spills, Target
from course_kernels.codegen.compiled import text_table
from course_kernels.cutlass_ops.artifact import Compiled
from course_kernels.cutlass_ops.discovery import design

# In the order in which a block of the operands passes through them.
_PTX = {
    "TMA load": r"cp\.async\.bulk\.tensor\.\dd\.shared",
    "TMA load, multicast": r"cp\.async\.bulk\.tensor\.\dd\.shared\S*\.multicast",
    "mbarrier": r"mbarrier\.",
    "mbarrier wait": r"mbarrier\.(?:try|test)_wait",
    "wgmma": r"wgmma\.mma_async",
    "tcgen05.mma": r"tcgen05\.mma",
    "tcgen05.mma, 2 CTAs": r"tcgen05\.mma\S*\.cta_group::2",
    "tcgen05.ld": r"tcgen05\.ld",
    "TMA store": r"cp\.async\.bulk\.tensor\.\dd\.global",
    "st.global": r"st\.global",
    "setmaxnreg": r"setmaxnreg",
    "cluster barrier": r"barrier\.cluster",
    "tensormap.replace": r"tensormap\.replace",
}
# The same in machine code.
_SASS = {
    "TMA load": r"UTMALDG",
    "TMA load, multicast": r"UTMALDG\S*\.MULTICAST",
    "mbarrier": r"SYNCS\.",
    "wgmma": r"HGMMA|QGMMA|IGMMA",
    "tcgen05.mma": r"UTC[HQIO]MMA",
    "tcgen05.mma, 2 CTAs": r"UTC[HQIO]MMA\S*\.2CTA",
    "tcgen05.ld": r"LDTM",
    "TMA store": r"UTMASTG",
    "st.global": r"STG",
    "setmaxnreg": r"USETMAXREG",
}
_PREDICATE = r"^[ \t]*(?:@!?%\w+[ \t]+)?"
_SASS_START = r"^\s*(?:/\*\w+\*/\s+)?(?:@!?U?P\w+\s+)?"


class Report:
    """The code of an operator that ``compile`` has compiled."""

    def __init__(self, compiled: Compiled):
        self.compiled = compiled
        target = Target(f"sm_{compiled.target}", "cuda", compiled.target.cc, 32, 227 * 1024, "")
        self._code = Code(str(compiled), target, {"ptx": compiled.ptx}, compiled.cubin, 0)

    @property
    def ptx(self) -> str:
        """The assembly for a virtual machine."""
        return self.compiled.ptx

    @property
    def binary_bytes(self) -> int:
        """Bytes of the machine code's file."""
        return len(self.compiled.cubin)

    @property
    def registers(self) -> int:
        """Registers per thread at launch; ``setmaxnreg`` moves them between warps later."""
        return self._code.registers

    @property
    def spills(self) -> Spills:
        """Registers that did not fit."""
        return self._code.spills

    @functools.cached_property
    def threads(self) -> int:
        """Threads per CTA."""
        sizes = re.search(r"\.(?:reqntid|maxntid)\s+(\d+)(?:,\s*(\d+))?(?:,\s*(\d+))?", self.ptx)
        if sizes is None:
            raise RuntimeError("the PTX does not say how many threads a CTA has")
        return functools.reduce(lambda product, size: product * int(size or 1), sizes.groups(), 1)

    @functools.cached_property
    def stages(self) -> int | None:
        """Blocks in flight: from the metadata, or as the operator decided at compilation; None if neither says."""
        decided = vars(getattr(self.compiled.operator, "impl", None) or object)
        stages = (decided.get(name) for name in ("num_ab_stage", "ab_stage"))
        return design(self.compiled.operator).stages or next((n for n in stages if n is not None), None)

    @functools.cached_property
    def instructions(self) -> dict[str, int]:
        """How often important instructions occur in the PTX (not how often they run)."""
        return {name: len(re.findall(f"{_PREDICATE}(?:{p})", self.ptx, re.MULTILINE)) for name, p in _PTX.items()}

    @property
    def sass(self) -> str:
        """The machine code, disassembled by the nvdisasm that comes with Triton."""
        return self._code.sass

    @functools.cached_property
    def machine_instructions(self) -> dict[str, int]:
        """``instructions`` of the machine code, in which loops may be unrolled and waits expanded."""
        return {name: len(re.findall(f"{_SASS_START}(?:{p})", self.sass, re.MULTILINE)) for name, p in _SASS.items()}

    def excerpt(self, pattern: str, before: int = 2, after: int = 6, *, occurrence: int = 0, stage: str = "") -> str:
        """Lines around a place in the PTX (``stage="sass"``: the machine code), as ``codegen.Compiled.excerpt``."""
        return self._code.excerpt(pattern, before, after, occurrence=occurrence, stage=stage)

    def __str__(self) -> str:
        return side_by_side([self])

    def __repr__(self) -> str:
        return f"<Report of {self.compiled}: {self.registers} registers, {self.threads} threads>"


def report(compiled: Compiled) -> Report:
    """Read what ``compile`` returned: counts, sizes and excerpts; printed, a table. TypeError for anything else."""
    if not isinstance(compiled, Compiled):
        raise TypeError(f"compiled must be what compile returned, got {type(compiled).__name__}")
    return Report(compiled)


def side_by_side(reports: Iterable[Report]) -> str:
    """A text table: a column for each report, a row for each number that any has. TypeError for anything else."""
    reports = list(reports)
    for i, each in enumerate(reports):
        if not isinstance(each, Report):
            raise TypeError(f"reports[{i}] must be what report returned, got {type(each).__name__}")
    rows = [["", *(f"sm_{each.compiled.target}" for each in reports)]]
    for title, read in (
        ("tile", lambda each: "×".join(map(str, design(each.compiled.operator).tile))),
        ("cluster", lambda each: "×".join(map(str, design(each.compiled.operator).cluster))),
        ("clusters launched at most", lambda each: each.compiled.clusters or "asked of the driver"),
        ("stages", lambda each: each.stages or "–"),
        ("threads per CTA", lambda each: each.threads),
        ("registers per thread", lambda each: each.registers),
        ("spilled bytes", lambda each: each.spills.bytes),
    ):
        rows.append([title, *(str(read(each)) for each in reports)])
    for name in _PTX:
        if any(each.instructions[name] for each in reports):
            rows.append([name, *(str(each.instructions[name]) for each in reports)])
    return text_table(rows, left=1)
