"""What a launch depends on of a device: this machine's, or one that kernels are compiled for."""

from __future__ import annotations

from typing import NamedTuple

import torch

from course_kernels import runtime


class Device(NamedTuple):
    """A device as launches see it.

    Attributes:
        arch: what ``tuned.get_config`` takes: compute capability, "gfx" for an AMD GPU, None for the interpreter.
        capability: compute capability; None for an AMD GPU and the interpreter.
        num_sms: streaming multiprocessors; None in the interpreter.
        shared_limit: bytes of shared memory that a program can have; None in the interpreter.
        described: whether operands go through descriptors where they can.
    """

    arch: tuple[int, int] | str | None
    capability: tuple[int, int] | None
    num_sms: int | None
    shared_limit: int | None
    described: bool

    @classmethod
    def of(cls, device: torch.device) -> Device:
        """This machine's."""
        capability, num_sms = runtime.capability(device), runtime.num_sms(device)
        arch = capability or (None if num_sms is None else "gfx")
        limit, described = runtime.shared_memory_limit(device), runtime.supports_descriptors(device)
        return cls(arch, capability, num_sms, limit, described)
