"""What is read from compiled code agrees with the disassembler, and can be shown."""

from __future__ import annotations

import dataclasses
import re

import pytest

from course_kernels import GemmConfig, codegen
from course_kernels.codegen import compile_kernel


def test_registers_and_spills_agree_with_the_disassembler():
    compiled = compile_kernel("naive", "sm_75", config=GemmConfig(64, 64, 64))  # scalar arithmetic: far too large
    assert compiled.registers <= 255
    assert compiled.spills.bytes > 100
    assert compiled.spills.loads > 10
    assert compiled.spills.stores > 10
    used = {int(number) for number in re.findall(r"\bR(\d+)\b", compiled.sass)}
    assert max(used) < compiled.registers <= max(used) + 8  # allocated in eights
    small = compile_kernel("naive", "sm_90")
    assert small.spills == (0, 0, 0)
    assert not small.spills
    assert "STL" not in small.sass


def test_spills_of_a_target_that_the_disassembler_does_not_know():
    known = compile_kernel("naive", "sm_75", config=GemmConfig(64, 64, 64))
    header = bytearray(known.binary)
    header[0x30:0x34] = b"\xff" * 4  # the ELF header's flags, with the architecture
    unknown = dataclasses.replace(known, binary=bytes(header))
    assert unknown.spills == (known.spills.bytes, None, None)
    assert str(known.spills.bytes) in codegen.summary([unknown])
    with pytest.raises(RuntimeError, match=r"nvdisasm cannot read code for sm_75: nvdisasm fatal"):
        unknown.sass  # noqa: B018


def test_excerpts_and_summary():
    compiled = compile_kernel("tma", "sm_90")
    lines = compiled.excerpt(r"wgmma\.mma_async", before=1, after=1).splitlines()
    assert len(lines) == 3
    assert "wgmma.mma_async" in lines[1]
    assert max(map(len, lines)) < 120
    assert ".loc" not in compiled.excerpt("bulk.tensor", before=20, after=20)
    assert "ttng.warp_group_dot" in compiled.excerpt("warp_group_dot", stage="ttgir")
    assert compiled.excerpt("HGMMA|WGMMA", stage="sass")
    with pytest.raises(ValueError, match=r"stage must be among ttir, .*ptx.* and sass for .*, got 'asm'"):
        compiled.excerpt("HGMMA", stage="asm")
    with pytest.raises(ValueError, match="matches no line of"):
        compiled.excerpt("no such thing")
    with pytest.raises(
        ValueError, match=r"matches \d+ lines, and occurrence 999 is not among them, of the assembly of"
    ):
        compiled.excerpt("wgmma", occurrence=999)
    with pytest.raises(AttributeError, match="sm_90 has no amdgcn"):
        compiled.amdgcn  # noqa: B018
    assert 1000 < compiled.binary_bytes < 10**6
    amd = compile_kernel("naive", "gfx942")
    assert amd.excerpt("v_mfma")
    table = codegen.summary([compiled, amd]).splitlines()
    assert table[0].split()[:3] == ["kernel", "target", "registers"]
    assert str(compiled.registers) in table[1].split()
    assert "wgmma" in table[0]
    assert "mfma" in table[0]
    assert "tcgen05.mma" not in table[0]
