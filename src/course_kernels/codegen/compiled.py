"""A compiled kernel: its text, its instructions, and the registers and shared memory that it takes."""

from __future__ import annotations

import collections
import dataclasses
import functools
import importlib.util
import re
import struct
import subprocess
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from course_kernels.codegen.spec import Build
from course_kernels.targets import Target

# Start of an instruction in PTX (after an optional predicate) or AMD assembly.
_START = r"^[ \t]*(?:@!?%\w+[ \t]+)?"
_INSTRUCTIONS = {
    "wgmma": r"wgmma\.mma_async",
    "tcgen05.mma": r"tcgen05\.mma",
    "mma.sync": r"mma\.sync",
    "mfma": r"v_mfma",
    "fma": r"fma\.rn|v_(?:pk_)?fmac?_f|v_fma_mix|v_dot2",
    "bulk tensor load": r"cp\.async\.bulk\.tensor\.\dd\.shared",
    "bulk tensor store": r"cp\.async\.bulk\.tensor\.\dd\.global",
    "tensormap.replace": r"tensormap\.replace",
    "cp.async": r"cp\.async\.c[ag]",
    "ld.global": r"ld\.global|(?:global|buffer)_load",
    "st.global": r"st\.global|(?:global|buffer)_store",
    "setmaxnreg": r"setmaxnreg",
}
_PTX_ACCESS = re.compile(_START + r"((?:ld|st)\.global)[.\w:]*?(?:\.v(\d))?\.[busf](\d+)\s", re.MULTILINE)
_PTX_COPY = re.compile(_START + r"cp\.async\.c[ag][^;]*?\],[^;]*?\], (\w+)", re.MULTILINE)
_AMD_ACCESS = re.compile(_START + r"(?:global|buffer)_(load|store)_(?:lds_)?([a-z]+\d*)", re.MULTILINE)
_AMD_BYTES = {"dword": 4, "dwordx2": 8, "dwordx3": 12, "dwordx4": 16, "short": 2, "ushort": 2, "sshort": 2}

# Left out of excerpts: parts of a line (a wgmma lists up to 128 registers), and whole lines.
_COMMENT = re.compile(r"\s*//.*$|\s+;.*$|\s+loc\(#.*\)$")
_LONG_LIST = re.compile(r"\{\s*([%\w]+)(?:,\s*[%\w]+){6,},\s*([%\w]+)\s*\}")
_NOISE = re.compile(r"\s*\.(loc|file|cfi_\w+)\b|#loc|\$L__tmp|\.?Ltmp")


class Spills(NamedTuple):
    """Registers that did not fit.

    Attributes:
        bytes: local memory per thread, all of it: stack and spilled registers.
        stores, loads: instructions of the machine code that write and read it; None where Triton's nvdisasm does not
            know the target.
    """

    bytes: int
    stores: int | None
    loads: int | None

    def __bool__(self) -> bool:
        return self.bytes > 0


@dataclasses.dataclass(frozen=True, repr=False)
class Compiled:
    """A kernel compiled for a target.

    Attributes:
        asm: text of each stage: "ttir", "ttgir", "llir" and "ptx" or "amdgcn".
        binary: the cubin or hsaco file.
        shared_bytes: bytes of shared memory (LDS) per program.
    """

    build: Build
    target: Target
    asm: Mapping[str, str]
    binary: bytes
    shared_bytes: int

    @classmethod
    def from_artefacts(cls, build: Build, target: Target, artefacts: dict[str, Any]) -> Compiled:
        """From the reply of the child process."""
        asm = {name: artefacts[name] for name in ("ttir", "ttgir", "llir", "ptx", "amdgcn") if name in artefacts}
        binary = artefacts["cubin" if target.backend == "cuda" else "hsaco"]
        return cls(build, target, asm, binary, artefacts["shared"])

    def __repr__(self) -> str:
        return f"<Compiled {self.build} for {self.target}: {self.registers} registers, {self.shared_bytes} B shared>"

    @property
    def text(self) -> str:
        """The assembly: PTX or AMD's."""
        return self.asm["ptx" if self.target.backend == "cuda" else "amdgcn"]

    @property
    def ptx(self) -> str:
        """PTX; only for NVIDIA targets."""
        return self._stage("ptx")

    @property
    def amdgcn(self) -> str:
        """AMD assembly; only for AMD targets."""
        return self._stage("amdgcn")

    @property
    def ttgir(self) -> str:
        """Triton's GPU dialect, where layouts, pipelining and warps are decided."""
        return self._stage("ttgir")

    def _stage(self, name: str) -> str:
        if name not in self.asm:
            raise AttributeError(f"{self.target} has no {name}; it has {', '.join(self.asm)}")
        return self.asm[name]

    @property
    def fits(self) -> bool:
        """Whether the target has a program's shared memory. The compiler does not check it; a launch does."""
        return self.shared_bytes <= self.target.shared_limit

    @property
    def binary_bytes(self) -> int:
        """Size of the machine code's file, debug information included."""
        return len(self.binary)

    @functools.cached_property
    def registers(self) -> int:
        """Registers per thread (vector registers on AMD)."""
        if self.target.backend == "cuda":
            return _cubin_attribute(self.binary, _REGCOUNT)
        return self._amd_metadata("vgpr_count")

    @functools.cached_property
    def spills(self) -> Spills:
        """What did not fit in registers. Scalar registers that AMD's compiler keeps in vector registers do not count,
        because they never reach memory."""
        if self.target.backend != "cuda":
            size = self._amd_metadata("private_segment_fixed_size")
            return Spills(size, self.text.count("scratch_store"), self.text.count("scratch_load"))
        size = _cubin_attribute(self.binary, _FRAME_SIZE)
        if not size:
            return Spills(0, 0, 0)
        try:
            sass = self.sass
        except RuntimeError:
            return Spills(size, None, None)
        return Spills(size, len(re.findall(r"\bSTL\b", sass)), len(re.findall(r"\bLDL\b", sass)))

    def _amd_metadata(self, name: str) -> int:
        found = re.search(rf"\.{name}:\s+(\d+)", self.text)
        if found is None:
            raise RuntimeError(f"the assembly for {self.target} has no .{name}")
        return int(found[1])

    @functools.cached_property
    def sass(self) -> str:
        """NVIDIA machine code, disassembled by the nvdisasm that comes with Triton. That of Triton 3.6 does not know
        sm_103 and sm_121, and a RuntimeError says so."""
        if self.target.backend != "cuda":
            raise AttributeError(f"{self.target} has no sass; amdgcn is its machine code's assembly")
        # Found without importing Triton, which would settle this process's mode.
        tool = Path(importlib.util.find_spec("triton").origin).parent / "backends" / "nvidia" / "bin" / "nvdisasm"
        with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
            file.write(self.binary)
            file.flush()
            done = subprocess.run([tool, file.name], capture_output=True, text=True, timeout=60)
        if done.returncode:
            raise RuntimeError(f"this Triton's nvdisasm cannot read code for {self.target}: {done.stderr.strip()}")
        return done.stdout

    @functools.cached_property
    def instructions(self) -> dict[str, int]:
        """How often important instructions occur in the assembly (not how often they run). ``bulk tensor`` copies are
        TMA's; ``cp.async`` counts the other asynchronous copies to shared memory."""
        return {
            name: len(re.findall(f"{_START}(?:{pattern})", self.text, re.MULTILINE))
            for name, pattern in _INSTRUCTIONS.items()
        }

    @functools.cached_property
    def widths(self) -> dict[str, dict[int, int]]:
        """For "ld.global", "st.global" and "cp.async": bytes per thread → how many instructions move that many."""
        counts = {name: collections.Counter() for name in ("ld.global", "st.global", "cp.async")}
        if self.target.backend == "cuda":
            for name, vector, bits in _PTX_ACCESS.findall(self.text):
                counts[name][int(vector or 1) * int(bits) // 8] += 1
            for size in _PTX_COPY.findall(self.text):
                counts["cp.async"][int(size, 0)] += 1
        else:
            for name, kind in _AMD_ACCESS.findall(self.text):
                counts["ld.global" if name == "load" else "st.global"][_AMD_BYTES.get(kind, 1)] += 1
        return {name: dict(sorted(count.items(), reverse=True)) for name, count in counts.items()}

    def excerpt(self, pattern: str, before: int = 2, after: int = 6, *, occurrence: int = 0, stage: str = "") -> str:
        """Lines around a place in the assembly, without the debugger's directives.

        Args:
            pattern: regular expression, searched line by line.
            before, after: lines to show around the one that matches.
            occurrence: which match, counted from 0; negative from the end.
            stage: a name in ``asm`` instead of the assembly, or "sass".

        Raises:
            ValueError: there is no such stage, or no such match.
        """
        if stage and stage != "sass" and stage not in self.asm:
            raise ValueError(f"stage must be among {', '.join(self.asm)} and sass for {self.target}, got {stage!r}")
        text = self.sass if stage == "sass" else self._stage(stage) if stage else self.text
        lines = [_COMMENT.sub("", line.expandtabs(4)).rstrip() for line in text.splitlines()]
        lines = [_LONG_LIST.sub(r"{\1, …, \2}", line) for line in lines]
        lines = [line for line in lines if line.strip() and not _NOISE.match(line)]
        hits = [i for i, line in enumerate(lines) if re.search(pattern, line)]
        try:
            hit = hits[occurrence]
        except IndexError:
            where = str(self.build) if str(self.target) in str(self.build) else f"{self.build} for {self.target}"
            counted = f"{len(hits)} lines, and occurrence {occurrence} is not among them," if hits else "no line"
            raise ValueError(f"pattern {pattern!r} matches {counted} of the {stage or 'assembly'} of {where}") from None
        return "\n".join(lines[max(0, hit - before) : hit + after + 1])


# Attributes of a cubin's .nv.info section, as `cuobjdump -elf` names them.
_REGCOUNT, _FRAME_SIZE = 0x2F, 0x11
_FORMAT_WITH_SIZE = 4


def _cubin_attribute(cubin: bytes, attribute: int) -> int:
    """The largest value that .nv.info gives any function for an attribute; 0 where it does not occur.

    An entry is a format, an attribute and 16 bits: a value, or for format 4 the size of the data that follows, here a
    symbol and a value of 32 bits each. The driver could tell, too, but is not installed without a GPU.
    """
    table_offset = struct.unpack_from("<Q", cubin, 0x28)[0]
    entry_size, count, names_index = struct.unpack_from("<HHH", cubin, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", cubin, table_offset + i * entry_size) for i in range(count)]
    names_offset = headers[names_index][4]
    value = 0
    for name_offset, _, _, _, offset, size in headers:
        start = names_offset + name_offset
        if cubin[start : cubin.index(b"\0", start)] != b".nv.info":
            continue
        position = offset
        while position < offset + size:
            form, code, low = struct.unpack_from("<BBH", cubin, position)
            position += 4
            if form == _FORMAT_WITH_SIZE:
                if code == attribute:
                    value = max(value, struct.unpack_from("<II", cubin, position)[1])
                position += low
    return value


def summary(compiled: Iterable[Compiled]) -> str:
    """A text table: a line for each kernel, with its resources and a column for each instruction that any has."""
    compiled = list(compiled)
    names = [name for name in _INSTRUCTIONS if any(one.instructions[name] for one in compiled)]
    rows = [["kernel", "target", "registers", "spilled B", "shared B", *names]]
    for one in compiled:
        numbers = [one.registers, one.spills.bytes, one.shared_bytes, *(one.instructions[name] for name in names)]
        rows.append([str(one.build), one.target.name, *map(str, numbers)])
    return text_table(rows, left=2)


def text_table(rows: Sequence[Sequence[str]], left: int) -> str:
    """Rows of cells in columns two spaces apart, the first ``left`` columns to the left and the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    justify = [str.ljust] * left + [str.rjust] * (len(widths) - left)
    lines = ("  ".join(f(cell, w) for f, cell, w in zip(justify, row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)
