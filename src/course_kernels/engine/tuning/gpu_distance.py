"""A GPU as the time model knows it, and the distance between two GPUs."""

from __future__ import annotations

import math
from typing import NamedTuple

from course_kernels import targets
from course_kernels.runtime import Device

UNKNOWN_BANDWIDTH = 4.0  # TB/s, if torch does not report it


class Gpu(NamedTuple):
    """A GPU by its rates.

    Attributes:
        arch: its architecture: "sm_90", "gfx942".
        sms: SMs (compute units).
        bandwidth: of its memory, in TB/s.
        clock: of its SMs, in GHz; None if torch does not report it.
        shared: bytes of shared memory that a program can have; None: the minimum of the architecture.
    """

    arch: str
    sms: int
    bandwidth: float
    clock: float | None = None
    shared: int | None = None

    @classmethod
    def of(cls, device: Device) -> Gpu | None:
        """The GPU of a device; None for the interpreter."""
        if device.num_sms is None:
            return None
        bandwidth = device.bandwidth or UNKNOWN_BANDWIDTH
        return cls(targets.canonical_arch(device.arch), device.num_sms, bandwidth, device.clock, device.shared_limit)

    @property
    def capability(self) -> tuple[int, int] | None:
        """Compute capability; None for an AMD GPU."""
        return targets.capability_of(self.arch)

    @property
    def shared_limit(self) -> int:
        """Bytes of shared memory that a program can have."""
        return self.shared or targets.shared_limit(self.arch)

    @property
    def uses_tma(self) -> bool:
        """Whether its operands go through descriptors where they can."""
        return targets.has_descriptors(self.arch)

    @property
    def family(self) -> str:
        """The GPU's family. GPUs of one family read operands in the same way, so constants of one may serve another."""
        if targets.is_amd(self.arch):
            return "amd"
        return "descriptors" if self.uses_tma else "pointers" if targets.has_tensor_cores(self.arch) else "scalar"

    def distance(self, other: Gpu) -> tuple[bool, float]:
        """The difference of two GPUs, for sorting: first whether their architectures differ; then the sum of the
        absolute binary logarithms of the ratios of SMs, bandwidth, clock (if both are known) and shared memory."""
        pairs = [
            (self.sms, other.sms), (self.bandwidth, other.bandwidth), (self.shared_limit, other.shared_limit),
            (self.clock or 1, other.clock or 1) if self.clock and other.clock else (1, 1),
        ]  # fmt: skip
        return self.arch != other.arch, math.fsum(abs(math.log2(mine / its)) for mine, its in pairs)

    def __str__(self) -> str:
        clock = f", {self.clock:g} GHz" if self.clock else ""
        return f"{self.arch}, {self.sms} SMs, {self.bandwidth:g} TB/s{clock}"
