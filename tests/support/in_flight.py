"""Machine code of wgmma, followed along all its branches: does anything touch sums that are still being computed?"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

_PRODUCT = re.compile(r"[HQ]GMMA\.64x(\d+)x\d+\S*\s+R(\d+), gdesc")
_WAIT = re.compile(r"WARPGROUP\.DEPBAR\.LE gsb0, 0x(\d)")
_BRANCH = re.compile(r"\bBRA\b.*`\((\.L_\w+)\)")
# Only so many of the latest wgmma groups are tracked.
MOST = 3


class InFlight(NamedTuple):
    """The most groups of products that are computed at one time, and instructions that touch sums of one of them."""

    most: int
    touching: list[str]


def disassembled(cubin: bytes, folder: Path) -> str:
    """The machine code, by the nvdisasm that comes with Triton; it reads a file, written to ``folder``."""
    triton = pytest.importorskip("triton", reason="its nvdisasm")
    (folder / "kernel.cubin").write_bytes(cubin)
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "nvdisasm"
    return subprocess.run([tool, "-c", folder / "kernel.cubin"], check=True, capture_output=True, text=True).stdout


def moves_between_products(sass: str) -> list[str]:
    """Instructions between products of a stage that move an address to a uniform register, where products want it."""
    code, _ = _code(sass)
    found: list[str] = []
    since: list[str] | None = None
    for instruction in code:
        if _PRODUCT.search(instruction):
            found += since or []
            since = None if "gsb0" in instruction else []
        elif since is not None and instruction.startswith("R2UR"):
            since.append(instruction)
    return found


def _code(sass: str) -> tuple[list[str], dict[str, int]]:
    """Instructions, and at which of them each label is."""
    code, labels = [], {}
    for line in sass.splitlines():
        if label := re.match(r"(\.L_\w+):", line):
            labels[label[1]] = len(code)
        elif instruction := re.match(r"\s+/\*[0-9a-f]+\*/\s+(.*?);", line):
            code.append(instruction[1].strip())
    return code, labels


def follow(sass: str) -> InFlight:
    """Walk through machine code, as nvdisasm prints it, with every set of sums in flight that a place can be reached
    with. Of a pair of registers only the first is looked at."""
    code, labels = _code(sass)
    most, touching, seen = 0, set(), set()
    waiting: list[tuple[int, tuple, frozenset]] = [(0, (), frozenset())]
    while waiting:
        at, groups, begun = waiting.pop()
        while at < len(code) and (at, groups, begun) not in seen:
            seen.add((at, groups, begun))
            instruction = code[at]
            used = {int(number) for number in re.findall(r"(?<![A-Z0-9])R(\d+)", instruction)}
            if product := _PRODUCT.search(instruction):
                first = int(product[2])
                used = set(range(first, first + int(product[1]) // 2))
                if any(used & group for group in groups):
                    touching.add(instruction)
                begun |= used
                if "gsb0" in instruction:
                    # Without waits there would be ever more.
                    groups, begun = (*groups, begun)[-MOST:], frozenset()
                most = max(most, len(groups))
            elif wait := _WAIT.search(instruction):
                groups = groups[max(0, len(groups) - int(wait[1])) :]
            elif any(used & group for group in (*groups, begun)):
                touching.add(instruction)
            if branch := _BRANCH.search(instruction):
                waiting.append((labels[branch[1]], groups, begun))
                if not instruction.startswith("@") and not re.search(r"BRA\s+U?P\d", instruction):
                    break
            if instruction.startswith("EXIT"):
                break
            at += 1
    return InFlight(most, sorted(touching))
