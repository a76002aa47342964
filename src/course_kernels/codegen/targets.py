"""The GPUs that kernels can be compiled for."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Target:
    """A kind of GPU.

    Attributes:
        name: "sm_90", "gfx942", ...
        backend: "cuda" or "hip".
        arch: what Triton's ``GPUTarget`` calls it: 90, "gfx942".
        warp_size: threads per warp (wavefront).
        shared_limit: bytes of shared memory (LDS) that one program may have.
        gpus: what is sold with it.
    """

    name: str
    backend: str
    arch: int | str
    warp_size: int
    shared_limit: int
    gpus: str

    @property
    def capability(self) -> tuple[int, int] | None:
        """Compute capability, such as (9, 0); None for an AMD GPU."""
        return divmod(self.arch, 10) if isinstance(self.arch, int) else None

    def __str__(self) -> str:
        return self.name


def _cuda(arch: int, shared_kib: int, gpus: str) -> Target:
    return Target(f"sm_{arch}", "cuda", arch, 32, shared_kib * 1024, gpus)


def _hip(arch: str, shared_kib: int, gpus: str) -> Target:
    return Target(arch, "hip", arch, 64, shared_kib * 1024, gpus)


# Shared memory per block: CUDA C++ Programming Guide, "Technical Specifications per Compute Capability"; LDS per
# workgroup: AMD's CDNA 3 and CDNA 4 instruction set references.
TARGETS: dict[str, Target] = {
    target.name: target
    for target in (
        _cuda(75, 64, "T4, RTX 20"),
        _cuda(80, 163, "A100"),
        _cuda(86, 99, "A10, A40, RTX 30"),
        _cuda(89, 99, "L4, L40S, RTX 40"),
        _cuda(90, 227, "H100, H200"),
        _cuda(100, 227, "B200, GB200"),
        _cuda(103, 227, "B300, GB300"),
        _cuda(120, 99, "RTX 50"),
        _cuda(121, 99, "GB10 (DGX Spark)"),
        _hip("gfx942", 64, "MI300X"),
        _hip("gfx950", 160, "MI350X"),
    )
}


def find_target(target: str | Target) -> Target:
    """The target of that name; ValueError if there is none."""
    if isinstance(target, Target):
        return target
    if target not in TARGETS:
        raise ValueError(f"target must be one of {', '.join(TARGETS)}, got {target!r}")
    return TARGETS[target]
