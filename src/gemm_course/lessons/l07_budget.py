"""Registers and shared memory of an SM that a compiled configuration uses, and whether they suffice."""

from __future__ import annotations

from typing import NamedTuple

from course_kernels.config import GemmConfig

# CUDA C++ Programming Guide, "Technical Specifications per Compute Capability", 9.0. The system reserves a KiB of
# shared memory per program, so a single program can use 227 KiB.
SM_REGISTERS = 65536
SM_SHARED_BYTES = 228 * 1024
RESERVED_BYTES = 1024
THREAD_REGISTERS = 255
# Bytes per thread. Triton 3.6 spills 16 bytes with the tile for few rows, which is still the fastest on an H200.
HARMLESS_SPILL = 64


class Use(NamedTuple):
    """The registers and shared memory that a compiled configuration uses."""

    config: GemmConfig
    registers: int  # per thread
    spilled: int  # bytes of local memory per thread
    shared: int  # bytes of shared memory per program

    @property
    def sums(self) -> float:
        """Registers per thread that the tile's float32 sums need."""
        return self.config.block_m * self.config.block_n / (32 * self.config.num_warps)

    @property
    def sm_shared(self) -> int:
        """Bytes of shared memory per SM, with the system's share of each program."""
        return self.config.programs_per_sm * (self.shared + RESERVED_BYTES)

    @property
    def sm_registers(self) -> int:
        """Registers per SM."""
        return self.config.programs_per_sm * self.config.num_warps * 32 * self.registers


def rejection_reason(use: Use) -> str:
    """The reason not to measure a configuration: "spills", "registers" or "shared memory"; "" if there is none."""
    if use.spilled > HARMLESS_SPILL or use.sm_registers > SM_REGISTERS:
        return "spills" if use.spilled > HARMLESS_SPILL else "registers"
    return "shared memory" if use.sm_shared > SM_SHARED_BYTES else ""
