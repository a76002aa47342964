"""Launch configurations of the Triton kernels: block sizes, warps, stages, and where a configuration is valid."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal, TypeAlias, get_args

ScheduleName: TypeAlias = Literal["round_robin", "chunks", "dynamic"]
SCHEDULES: tuple[ScheduleName, ...] = get_args(ScheduleName)
KERNELS = ("naive", "round_robin", "tma", "contiguous", "transposed", "masked")
# Schedules that a kernel does not have. On the naive kernel, one launch for each problem, a schedule has no effect.
_ABSENT_SCHEDULES = {
    "contiguous": ("chunks",), "transposed": ("chunks", "dynamic"), "masked": ("chunks", "dynamic"),
}  # fmt: skip
_MAX_PROGRAMS = 2**31 - 1  # of a launch
# Compiler options of Triton's AMD backend, and their values. ``num_stages`` and ``num_warps`` are every backend's.
AMD_OPTIONS = {"waves_per_eu": range(9), "matrix_instr_nonkdim": (0, 16, 32), "kpack": (1, 2)}


def check_programs(name: str, value: int | None) -> None:
    """Raise ValueError, naming the argument, unless a number of programs is one that a launch can have, or None."""
    if value is not None and (type(value) is not int or not 1 <= value <= _MAX_PROGRAMS):
        raise ValueError(f"{name} must be a positive integer below 2**31, or None, got {value!r}")


@dataclasses.dataclass(frozen=True)
class GemmConfig:
    """How a kernel is compiled and launched; immutable.

    >>> config = GemmConfig(block_m=128, block_n=256, num_warps=8)
    >>> config.block_n, config.block_k, config.schedule
    (256, 64, 'round_robin')

    Args:
        block_m, block_n, block_k: tile extents in elements, powers of two of at least 16.
        num_warps: warps per program: 1, 2, 4 or 8.
        num_stages: blocks of K in flight at a time.
        group_m: tile rows per strip of the L2 swizzle; 1 is row-major order.
        programs_per_sm: programs launched per SM.
        store_parts: 1 or 2; the descriptor kernel stores a tile in that many parts.
        schedule: how tiles are handed to programs: "round_robin", "chunks" (contiguous) or "dynamic" (a counter in
            memory). No effect where every problem has its own launch.
        programs: programs of a packed kernel's launch, at most one for each tile. None: programs_per_sm for each SM.
        num_xcds: chiplets (XCDs) that a GPU deals programs out to in turn, each with an L2 cache of its own: 8 on
            MI300. With more than 1, tiles that follow each other go to programs of one chiplet. Packed kernels only,
            and not with the schedule "dynamic", whose programs take tiles in any order.
        waves_per_eu, matrix_instr_nonkdim, kpack: Triton's compiler options for AMD GPUs, of packed kernels; None for
            the compiler's own choice. NVIDIA's GPUs have none of them, so there they are left out.
    """

    block_m: int = 64
    block_n: int = 64
    block_k: int = 64
    num_warps: int = 4
    num_stages: int = 3
    group_m: int = 8
    programs_per_sm: int = 1
    store_parts: int = 1
    schedule: ScheduleName = "round_robin"
    programs: int | None = None
    num_xcds: int = 1
    waves_per_eu: int | None = None
    matrix_instr_nonkdim: int | None = None
    kpack: int | None = None

    def __post_init__(self) -> None:
        for name in ("block_m", "block_n", "block_k"):
            value = getattr(self, name)
            if type(value) is not int or value < 16 or value & (value - 1):
                raise ValueError(f"{name} must be a power of two of at least 16, got {value!r}")
        for name, allowed in (("num_warps", (1, 2, 4, 8)), ("store_parts", (1, 2)), ("schedule", SCHEDULES)):
            if type(getattr(self, name)) is not type(allowed[0]) or getattr(self, name) not in allowed:
                raise ValueError(f"{name} must be one of {allowed}, got {getattr(self, name)!r}")
        for name in ("num_stages", "group_m", "programs_per_sm", "num_xcds"):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise ValueError(f"{name} must be a positive integer, got {value!r}")
        for name, values in AMD_OPTIONS.items():
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value not in values):
                raise ValueError(f"{name} must be None or one of {tuple(values)}, got {value!r}")
        check_programs("programs", self.programs)
        if self.num_xcds > 1 and self.schedule == "dynamic":
            raise ValueError(f"num_xcds must be 1 with the schedule 'dynamic', got {self.num_xcds}")

    @property
    def amd_options(self) -> dict[str, int]:
        """The compiler options for AMD GPUs that are given."""
        return {name: getattr(self, name) for name in AMD_OPTIONS if getattr(self, name) is not None}

    @property
    def block(self) -> tuple[int, int, int]:
        """(block_m, block_n, block_k)."""
        return self.block_m, self.block_n, self.block_k

    def shared_memory(
        self,
        kernel: str,
        itemsize: int,
        out_itemsize: int,
        capability: tuple[int, int] | None = None,
        *,
        uses_tma: bool = True,
        accumulate: bool = False,
        rank_block: int = 0,
        lds: int | None = None,
    ) -> int:
        """An upper bound of a program's shared memory in bytes (without 16 bytes for barriers of pointer kernels on
        sm_100). Arguments as for ``valid_for``; ``lds``: bytes of shared memory that a program can have on an AMD GPU.

        The compiler may take less: an older GPU keeps fewer stages there. A test compiles every candidate for every
        target and checks that none takes more.
        """
        stages = (self.num_stages * self.block_k + rank_block) * (self.block_m + self.block_n) * itemsize
        output = self.block_m * self.block_n * out_itemsize
        packed = kernel in _ABSENT_SCHEDULES
        # Packed kernels also have a row of bias or scales, the search for a tile's group, and barriers there.
        extras = max(1024, 4 * (self.block_m + self.block_n)) if packed else 64
        if packed and lds is not None:
            # The newest stage waits in registers; but Triton 3.9 copies it into the larger LDS of a gfx950. With one
            # stage the operands go through LDS one after the other, to change their layout. Blocks that need another
            # layout have a second buffer. A result that is added to goes through LDS, too, at most half of it at a
            # time.
            stage, area = self.block_k * (self.block_m + self.block_n) * itemsize, self.block_m * self.block_n
            ready = (self.num_stages - 1) * stage or self.block_k * max(self.block_m, self.block_n) * itemsize
            result = min(4 * area, max(16384, 2 * area)) if accumulate else min(output, 16384)
            copied = stages + 2048 + (result if accumulate else 0) if lds > 65536 else 0
            return max(ready + max(min(stage, 24576), result), copied) + max(2048, extras)
        if packed and itemsize == 4 and (10, 0) <= (capability or (0, 0)) < (12, 0):
            stages *= 2  # for TF32 the compiler keeps a second, transposed copy of the stages of one or both operands
        if kernel == "tma" or (packed and uses_tma):
            # The tile leaves through shared memory while the next one's blocks arrive. Before Blackwell the parts of a
            # tile take turns in one buffer; there the compiler gives each its own.
            parts = self.store_parts if (capability or (0, 0)) < (10, 0) else 1
            return stages + output // parts + extras
        if packed:
            # The result is transposed on its way to the pointers: 16-bit ones a piece at a time, unless they are read.
            return stages + (output if out_itemsize > 2 or accumulate else min(output, 16384)) + extras
        return max(stages, output)

    def valid_for(
        self,
        kernel: str,
        itemsize: int,
        out_itemsize: int | None = None,
        *,
        capability: tuple[int, int] | None = None,
        shared_limit: int | None = None,
        uses_tma: bool = True,
        accumulate: bool = False,
        rank_block: int = 0,
    ) -> str | None:
        """Why a kernel cannot run with this configuration, as words after "config does not suit"; None where it can.

        Args:
            kernel: one of ``KERNELS``.
            itemsize: bytes of one operand element.
            out_itemsize: bytes of one output element. Default: as ``itemsize``, and 2 for 1-byte operands.
            capability: the GPU's compute capability; None for the interpreter and AMD GPUs.
            shared_limit: bytes of shared memory that a program can have; None: no limit.
            uses_tma: the packed kernels store the result through a descriptor.
            accumulate: they add to the result's memory.
            rank_block: depth of a block of a product of low rank that comes first, 0 for none. Its operands have shared
                memory of their own.

        Raises:
            ValueError: there is no such kernel.
        """
        if kernel not in KERNELS:
            raise ValueError(f"kernel must be one of {KERNELS}, got {kernel!r}")
        if kernel not in _ABSENT_SCHEDULES and (self.programs is not None or self.num_xcds > 1):
            return f"the {kernel} kernel, which has neither programs nor num_xcds"
        if self.schedule in _ABSENT_SCHEDULES.get(kernel, ()):
            return f"the {kernel} kernel, which has no schedule {self.schedule!r}"
        if itemsize == 1 and self.block_k < 32 and capability is not None:
            return f"1-byte operands, of which an instruction takes 32 along K: block_k is {self.block_k}"
        if shared_limit is not None:
            out_itemsize = out_itemsize or max(2, itemsize)
            need = self.shared_memory(
                kernel, itemsize, out_itemsize, capability, uses_tma=uses_tma, accumulate=accumulate,
                rank_block=rank_block,
                lds=shared_limit if capability is None else None,  # the interpreter has no limit
            )  # fmt: skip
            if need > shared_limit:
                return f"the {shared_limit} bytes of shared memory that a program can have: it takes {need}"
        return None

    def fitted(self, kernel: str, itemsize: int, out_itemsize: int | None = None, **limits: Any) -> GemmConfig | None:
        """This configuration with as many of its stages as are valid, at least two if it has them; None if no number
        of stages is valid. Arguments as for ``valid_for``."""
        for stages in range(self.num_stages, min(self.num_stages, 2) - 1, -1):
            fewer = self if stages == self.num_stages else dataclasses.replace(self, num_stages=stages)
            if fewer.valid_for(kernel, itemsize, out_itemsize, **limits) is None:
                return fewer
        return None

    def tiles(self, m: int, n: int) -> int:
        """Number of tiles of an (m, n) result."""
        return -(-m // self.block_m) * -(-n // self.block_n)


@dataclasses.dataclass(frozen=True)
class LaunchOptions:
    """What is asked of a packed kernel's launch where its configuration is looked up; immutable.

    Args:
        programs: as in ``GemmConfig``; None leaves them as they are looked up.
        schedule: likewise.
    """

    programs: int | None = None
    schedule: ScheduleName | None = None

    def __post_init__(self) -> None:
        check_programs("programs", self.programs)
        if self.schedule not in (None, *SCHEDULES):
            raise ValueError(f"schedule must be None or one of {SCHEDULES}, got {self.schedule!r}")

    def applied(self, config: GemmConfig) -> GemmConfig:
        """A configuration with what is asked for."""
        asked = {"programs": self.programs, "schedule": self.schedule}  # torch 2.11 cannot trace dataclasses.asdict
        changes: dict[str, Any] = {name: value for name, value in asked.items() if value is not None}
        if changes.get("schedule") == "dynamic":
            changes["num_xcds"] = 1
        return dataclasses.replace(config, **changes)
