"""The GPUs that kernels are compiled and tuned for: names and properties of architectures."""

from __future__ import annotations

import dataclasses
import re
from typing import TypeAlias

from course_kernels import runtime

Arch: TypeAlias = "tuple[int, int] | int | str | None"


@dataclasses.dataclass(frozen=True)
class Target:
    """A kind of GPU.

    Attributes:
        name: "sm_90", "gfx942", ...
        backend: "cuda" or "hip".
        arch: its name in Triton's ``GPUTarget``: 90, "gfx942".
        warp_size: threads per warp (wavefront).
        shared_limit: bytes of shared memory (LDS) that one program may have.
        gpus: product names.
        sms: SMs (compute units) of the product that the library was written for; None without one.
    """

    name: str
    backend: str
    arch: int | str
    warp_size: int
    shared_limit: int
    gpus: str
    sms: int | None = None

    @property
    def capability(self) -> tuple[int, int] | None:
        """Compute capability, such as (9, 0); None for an AMD GPU."""
        return divmod(self.arch, 10) if isinstance(self.arch, int) else None

    def __str__(self) -> str:
        return self.name


def _cuda(arch: int, shared_kib: int, gpus: str, sms: int | None = None) -> Target:
    return Target(f"sm_{arch}", "cuda", arch, 32, shared_kib * 1024, gpus, sms)


def _hip(arch: str, shared_kib: int, gpus: str, sms: int) -> Target:
    return Target(arch, "hip", arch, 64, shared_kib * 1024, gpus, sms)


# Shared memory per block: CUDA C++ Programming Guide, "Technical Specifications per Compute Capability"; LDS per
# workgroup: AMD's CDNA 3 and CDNA 4 instruction set references.
TARGETS: dict[str, Target] = {
    target.name: target
    for target in (
        _cuda(75, 64, "T4, RTX 20"),
        _cuda(80, 163, "A100"),
        _cuda(86, 99, "A10, A40, RTX 30"),
        _cuda(89, 99, "L4, L40S, RTX 40"),
        _cuda(90, 227, "H100, H200", 132),
        _cuda(100, 227, "B200, GB200"),
        _cuda(103, 227, "B300, GB300"),
        _cuda(120, 99, "RTX 50"),
        _cuda(121, 99, "GB10 (DGX Spark)"),
        _hip("gfx942", 64, "MI300X", 304),
        _hip("gfx950", 160, "MI350X", 256),
    )
}
# KiB of other architectures. Those not listed have at least 64, and NVIDIA's from 8.0 on at least 99.
_OTHER_KIB = {"sm_70": 96, "sm_87": 163, "sm_110": 227}
# Generation, version and stepping, or "gfx" alone if torch does not report them.
_AMD = re.compile(r"gfx([1-9]\d?[0-9a-f]{2})?")
_NO_CAPABILITY = 200  # the highest capability is 12.1 (121); 942 is an AMD GPU without its "gfx"


def find_target(target: str | Target) -> Target:
    """Find the target of a name; ValueError if there is none."""
    if isinstance(target, Target):
        return target
    if target not in TARGETS:
        raise ValueError(f"target must be one of {', '.join(TARGETS)}, got {target!r}")
    return TARGETS[target]


def canonical_arch(arch: Arch) -> str | None:
    """Turn a description of an architecture into its canonical name.

    Args:
        arch: compute capability as (9, 0), 90 or "sm_90"; "gfx942" or another name of AMD's; None for the interpreter.

    Returns:
        "sm_90", "gfx942", or None.

    Raises:
        ValueError: ``arch`` is none of these.
    """
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


def has_descriptors(arch: str | None) -> bool:
    """Whether a canonical architecture has TMA descriptors."""
    return (capability_of(arch) or (0, 0)) >= runtime.DESCRIPTOR_CAPABILITY


def has_tensor_cores(arch: str | None) -> bool:
    """Whether a canonical architecture is NVIDIA's, with tensor cores that Triton uses."""
    return (capability_of(arch) or (0, 0)) >= runtime.TENSOR_CORE_CAPABILITY


def shared_limit(arch: str | None) -> int | None:
    """Least bytes of shared memory that a program can have on a canonical architecture; None: no limit."""
    if arch is None:
        return None
    if arch in TARGETS:
        return TARGETS[arch].shared_limit
    return 1024 * _OTHER_KIB.get(arch, 99 if has_tensor_cores(arch) else 64)


def num_sms(arch: str | None) -> int | None:
    """SMs (compute units) of ``Target.sms`` for a canonical architecture; None if unknown."""
    return TARGETS[arch].sms if arch in TARGETS else None
