"""Configurations of the Hopper kernel, and which of them fit."""

from __future__ import annotations

from dataclasses import dataclass, replace

from course_kernels.kernels.cute_sm90.form import GATED_BACKWARD, Form

# Rows of one wgmma, threads of the warp group that issues it.
MMA_ROWS = 64
WARP_GROUP = 128
# What one block may use of an SM's shared memory, less a kilobyte for barriers.
SHARED_BYTES = 227 * 1024 - 1024
# Bytes of a stage's two barriers, rounded up.
BARRIERS_BYTES = 32
# Elements along K, and columns of B, that share a factor where scales are those of blocks.
SCALE_BLOCK = 128
# Lines of a block that come by an index where groups are along K: a line a lane of two warps.
GATHERED_DEPTH = 64

COOPERATIVE = "cooperative"
PINGPONG = "pingpong"


@dataclass(frozen=True)
class CuteConfig:
    """One variant of the kernel.

    Args:
        tile_m, tile_n, tile_k: rows, columns and depth that a CTA multiplies at a time.
        cluster: CTAs of a cluster, 1 or 2. Two compute tiles one below the other and share the columns of B: each
            loads half of them, and multicast delivers it to both. If a group's last row of tiles has no partner, the
            two CTAs take neighbouring tiles of that row and share the rows of A.
        stages: blocks of A and B that are being loaded or in use.
        schedule: COOPERATIVE: two warp groups share a tile's rows. PINGPONG: each has its own tile, and one stores
            while the other multiplies.
        swizzle_size: rows of clusters that are walked together, for reuse in L2.
        last_tile_n: columns of narrow tiles, 0 for none. A group's last columns of tiles are narrow: as many of them
            as possible while the tiles still cover C.
        tail_tile_n: columns of flat tiles, 0 for none. If a group's last rows fill at most half a row of tiles, they
            get tiles of half the rows and this many columns, so that the other half is not multiplied; for groups
            along M.
        split_last_wave: whether the last wave's cluster tiles are split into two tiles of half the rows, if there is
            a cluster for each half and all belong to the last groups (``scheduler.first_half``). For groups along M,
            without narrow or flat tiles.
        dynamic: whether a cluster takes its next tile when it has room for one (``dynamic_order``), not every
            so-many-th: for groups whose tiles take unequal time. Not with a split last wave, nor with scales of blocks.
        most_stores: blocks of C that a warp group stages for its stores, if there is room beside the stages. Where K is
            short, writing C takes the time, and more blocks on their way write faster.
        store_row_bytes: bytes of a row of such a block: 128, or 64 for smaller blocks, which leave room for another
            stage, and of which the first is stored earlier.
        stream_b: whether L2 evicts what was loaded of B before anything else: for groups of one row of tiles, which
            read every weight once. What others left in L2, and rows of A, which all columns of tiles read, stay there.
    """

    tile_m: int = 128
    tile_n: int = 256
    tile_k: int = 64
    cluster: int = 2
    stages: int = 4
    schedule: str = COOPERATIVE
    swizzle_size: int = 8
    last_tile_n: int = 0
    tail_tile_n: int = 0
    split_last_wave: bool = False
    dynamic: bool = False
    most_stores: int = 2
    store_row_bytes: int = 128
    stream_b: bool = False

    @property
    def shapes(self) -> tuple[CuteConfig, ...]:
        """The configuration for each shape of tile: ordinary, then narrow, then flat or half."""
        most = replace(self, last_tile_n=0, tail_tile_n=0, split_last_wave=False)
        narrow = (replace(most, tile_n=self.last_tile_n),) * bool(self.last_tile_n)
        low = (replace(most, tile_m=self.tile_m // 2, tile_n=self.tail_tile_n or self.tile_n),)
        return most, *narrow, *(low * bool(self.tail_tile_n or self.split_last_wave))

    @property
    def sharing_groups(self) -> int:
        """Warp groups that share a tile."""
        return 2 if self.schedule == COOPERATIVE else 1

    @property
    def name(self) -> str:
        """Short name, by which records know it: tile, cluster, stages, schedule, swizzle; then what is not default."""
        tile = f"{self.tile_m}x{self.tile_n}x{self.tile_k}"
        return (
            f"{tile}_{self.cluster}_{self.stages}_{self.schedule}_{self.swizzle_size}"
            + f"_narrow{self.last_tile_n}" * bool(self.last_tile_n)
            + f"_flat{self.tail_tile_n}" * bool(self.tail_tile_n)
            + "_halved" * self.split_last_wave
            + "_dynamic" * self.dynamic
            + f"_stores{self.most_stores}" * (self.most_stores != 2)
            + f"x{self.store_row_bytes}" * (self.store_row_bytes != 128)
            + "_stream" * self.stream_b
        )

    def product_cols(self, form: Form) -> int:
        """Columns that one product of a warp group covers. Products of 8-bit operands have their own accumulators
        (``mainloop.multiply_apart``), and there is no room for two sets of 256 columns."""
        return 128 if form.operand_bytes == 1 and self.tile_n == 256 else self.tile_n

    def in_rounds(self, form: Form) -> bool:
        """Whether the loop over K takes a round of all stages at a time (``blockwise.multiply_blocks``)."""
        return form.scaling == "blocks" and form.along == "m" and self.schedule == COOPERATIVE

    def whole_rounds(self, depth: int, form: Form) -> bool:
        """Whether there are rounds, and K is a whole number of them: a kernel that is compiled for that is faster."""
        return self.in_rounds(form) and -(-depth // self.tile_k) % self.stages == 0

    @property
    def scale_cols(self) -> int:
        """Columns of a tile, from its first one on, that surely share a factor where scales are those of blocks."""
        within = all(shape.tile_n % SCALE_BLOCK == 0 for shape in self.shapes)
        return SCALE_BLOCK if within else SCALE_BLOCK // 2

    @property
    def stage_scales(self) -> int:
        """Number of factors of a stage, if it has any: for its rows, then for each column."""
        return self.tile_m + self.tile_n

    def accumulators(self, form: Form) -> int:
        """Registers that the sums take in a thread."""
        cols = self.tile_n + (self.product_cols(form) if form.operand_bytes == 1 else 0)
        return self.tile_m * cols // (WARP_GROUP * self.sharing_groups)

    @property
    def stage_lines(self) -> int:
        """Lines of A and B that a stage has room for."""
        return max(shape.tile_m + shape.tile_n for shape in self.shapes)

    def stage_bytes(self, form: Form) -> int:
        """Shared memory of the stages, in bytes; with factors of blocks, what does not fit beside the barriers."""
        stages = self.stages * self.stage_lines * self.tile_k * form.operand_bytes
        scales = self.stages * (BARRIERS_BYTES + 4 * self.stage_scales * form.stages_scales)
        return stages + (max(0, -(-scales // 1024) - 1) * 1024 if form.scaling == "blocks" else 0)

    def store_blocks(self, form: Form) -> int:
        """Number of blocks of C that each of the two warp groups stages, in sets of those that are stored together.
        Where an activation's argument is read through them there are two sets: one is read and stored while the other
        is loaded."""
        if form.epilogue == GATED_BACKWARD:
            return 2 * form.stores
        room = SHARED_BYTES - self.stage_bytes(form)
        count = min(room // (2 * MMA_ROWS * self.store_row_bytes), self.most_stores)
        return max(1, count // form.stores) * form.stores

    def shared_bytes(self, form: Form) -> int:
        """Shared memory of the stages and of the blocks of C, in bytes."""
        return self.stage_bytes(form) + 2 * self.store_blocks(form) * MMA_ROWS * self.store_row_bytes

    def fitted(self, form: Form) -> CuteConfig:
        """This configuration with blocks of C as an activation's epilogue wants them: they divide a tile's columns of
        C, half as many as of the product if there is a gate, and there is room for a set of them, or for two."""
        if form.activation is None:
            return self
        found = replace(self, most_stores=max(self.most_stores, 2 * form.stores))
        divide = all(shape.tile_n // form.halves % (self.store_row_bytes // 2) == 0 for shape in self.shapes)
        if form.epilogue == GATED_BACKWARD or not divide or found.shared_bytes(form) > SHARED_BYTES:
            found = replace(found, store_row_bytes=64)
        while found.stages > 2 and found.shared_bytes(form) > SHARED_BYTES:
            found = replace(found, stages=found.stages - 1)
        return found

    def why_not(self, form: Form) -> str | None:
        """The reason why no kernel of a form can have this configuration; None if one can."""
        blocks = form.scaling == "blocks"
        if blocks and self.tile_k != SCALE_BLOCK:
            return f"tile_k is {SCALE_BLOCK}, the depth of a block, where blocks have scales, got {self.tile_k}"
        if self.dynamic and (blocks or self.split_last_wave):
            what = "blocks have scales" if blocks else "the last wave is split"
            return f"dynamic is False where {what}, got {self.dynamic}"
        if form.whole_rounds and not self.in_rounds(form):
            return "whole_rounds is False where a loop over K has no rounds of stages, got True"
        if self.schedule not in (COOPERATIVE, PINGPONG):
            return f"schedule is {COOPERATIVE!r} or {PINGPONG!r}, got {self.schedule!r}"
        if self.tile_m % (MMA_ROWS * self.sharing_groups):
            return f"tile_m is a multiple of {MMA_ROWS * self.sharing_groups} where {self.schedule}, got {self.tile_m}"
        if self.tile_n % 64 or not 64 <= self.tile_n <= 256:
            return f"tile_n is 64, 128, 192 or 256, got {self.tile_n}"
        if self.tile_k * form.operand_bytes % 128:
            of_bytes = f"a multiple of {128 // form.operand_bytes} at {form.operand_bytes} bytes"
            return f"tile_k is {of_bytes}, got {self.tile_k}"
        if self.accumulators(form) > 208:
            return f"at most 208 accumulators fit into a thread's registers, got {self.accumulators(form)}"
        if self.store_row_bytes not in (64, 128):
            return f"store_row_bytes is 64 or 128, got {self.store_row_bytes}"
        if self.tile_n // form.halves % (self.store_row_bytes // 2):
            return f"store_row_bytes is 64 where a tile has {self.tile_n} columns of gate and up, got 128"
        if form.halves == 2 and form.b_major == "n" and self.tile_n % 128:
            return f"tile_n is 128 or 256 where columns of gate and up are contiguous, got {self.tile_n}"
        if form.epilogue == GATED_BACKWARD and (self.store_row_bytes != 64 or self.tile_n < 128):
            return f"blocks of 64 bytes and tile_n from 128 on where an activation's argument is read, got {self.name}"
        if self.cluster not in (1, 2):
            return f"a cluster has one or two CTAs, got {self.cluster}"
        if self.last_tile_n and not self.last_tile_n < self.tile_n:
            return f"last_tile_n is less than tile_n, {self.tile_n}, got {self.last_tile_n}"
        if self.split_last_wave and (self.last_tile_n or self.tail_tile_n):
            return f"split_last_wave is False where there are narrow or flat tiles, got {self.split_last_wave}"
        kinds = {"narrow": self.last_tile_n, "flat": self.tail_tile_n, "halved": self.split_last_wave}
        for name, shape in zip(filter(kinds.get, kinds), self.shapes[1:]):
            reason = shape.why_not(form)
            if reason is not None:
                return f"{name} tiles: {reason}"
        if self.stages < 2:
            return f"at least two stages take turns, one filled and one read, got {self.stages}"
        needed = self.shared_bytes(form)
        if needed > SHARED_BYTES:
            return f"{self.stages} stages need {needed} bytes of shared memory, and there are {SHARED_BYTES}"
        if form.along == "k" and form.gathered and self.tile_k != GATHERED_DEPTH:
            return f"tile_k is {GATHERED_DEPTH} where lines along K are gathered, got {self.tile_k}"
        if form.along == "k" and self.tail_tile_n:
            return f"tail_tile_n is 0 where along is 'k', got {self.tail_tile_n}"
        if form.along == "k" and self.split_last_wave:
            return f"split_last_wave is False where along is 'k', got {self.split_last_wave}"
        return None


CONFIGS = (
    CuteConfig(128, 256, 64, 2, 4, COOPERATIVE),
    CuteConfig(128, 192, 64, 2, 4, PINGPONG, split_last_wave=True),
    CuteConfig(128, 192, 64, 2, 5, PINGPONG, last_tile_n=128, tail_tile_n=256),
    CuteConfig(128, 192, 64, 2, 5, PINGPONG, last_tile_n=128),
    CuteConfig(128, 128, 64, 2, 6, PINGPONG, split_last_wave=True),
    CuteConfig(64, 256, 64, 2, 4, PINGPONG),
    # With as many tiles as large groups have, clusters drift apart; and flat tiles take less time than others.
    CuteConfig(128, 256, 64, 2, 4, COOPERATIVE, dynamic=True),
    CuteConfig(128, 192, 64, 2, 5, PINGPONG, last_tile_n=128, tail_tile_n=256, dynamic=True),
    CuteConfig(128, 192, 64, 2, 5, PINGPONG, last_tile_n=128, dynamic=True),
    CuteConfig(128, 128, 64, 2, 6, PINGPONG, dynamic=True),
    # For groups of few rows, where reading the weights takes the time.
    CuteConfig(64, 192, 64, 1, 5, PINGPONG, dynamic=True),
    CuteConfig(64, 128, 128, 1, 4, PINGPONG, dynamic=True),
    CuteConfig(64, 128, 128, 1, 4, PINGPONG),
)

# For groups along K. With small blocks for stores there is room for a fifth stage, or the stores begin earlier.
CONFIGS_ALONG_K = (
    CuteConfig(128, 256, 64, 2, 4, COOPERATIVE),
    CuteConfig(128, 192, 64, 2, 5, PINGPONG, most_stores=3, store_row_bytes=64),
    CuteConfig(128, 192, 64, 1, 4, PINGPONG),
    CuteConfig(128, 128, 64, 2, 6, PINGPONG),
    CuteConfig(128, 128, 64, 1, 6, PINGPONG),
    # Groups of unequal depth: clusters that are done earlier take more tiles.
    CuteConfig(128, 256, 64, 2, 4, COOPERATIVE, dynamic=True),
    CuteConfig(128, 192, 64, 2, 5, PINGPONG, dynamic=True, most_stores=3, store_row_bytes=64),
    CuteConfig(128, 128, 64, 2, 6, PINGPONG, dynamic=True, most_stores=4, store_row_bytes=64),
    # Of little depth: many stores are on their way at a time, and nobody waits for a partner. Loads are few, so sharing
    # them would save little.
    CuteConfig(128, 128, 64, 1, 6, PINGPONG, 1, dynamic=True),
    CuteConfig(128, 192, 64, 1, 3, PINGPONG, 1, dynamic=True, most_stores=6),
    CuteConfig(128, 256, 64, 1, 3, COOPERATIVE, 1, dynamic=True, most_stores=4),
    CuteConfig(256, 128, 64, 1, 2, COOPERATIVE, 1, dynamic=True, most_stores=8),
)

# For 8-bit operands. Cooperative: while a warp group adds what it multiplied apart, its partner has the tensor cores.
CONFIGS_8_BIT = (
    CuteConfig(128, 256, 128, 2, 4, COOPERATIVE),
    CuteConfig(128, 192, 128, 2, 4, COOPERATIVE),
    CuteConfig(128, 128, 128, 2, 6, COOPERATIVE),
    CuteConfig(64, 128, 128, 1, 8, PINGPONG),
)

# Likewise with scales of blocks. The first one is for groups of more than a few rows.
LARGE_BLOCK_SCALED = CuteConfig(128, 256, 128, 2, 4, COOPERATIVE)
CONFIGS_BLOCK_SCALED = (
    LARGE_BLOCK_SCALED,
    CuteConfig(128, 128, 128, 2, 6, COOPERATIVE),
    CuteConfig(64, 128, 128, 1, 8, PINGPONG),
)

# For 8-bit operands with groups along K; in either case the first one is what is chosen without constants.
CONFIGS_8_BIT_ALONG_K = CONFIGS_8_BIT[1:3]
CONFIGS_BLOCK_SCALED_ALONG_K = (
    LARGE_BLOCK_SCALED,
    CuteConfig(128, 192, 128, 2, 4, COOPERATIVE),
    CuteConfig(128, 128, 128, 2, 6, COOPERATIVE),
)


def configs_for(form: Form) -> tuple[CuteConfig, ...]:
    """The configurations of a form, each the fastest for some product.

    Returns:
        `CONFIGS`; `CONFIGS_8_BIT` for elements of one byte, or `CONFIGS_BLOCK_SCALED` if their blocks have scales;
        along "k" the constants of these names with `_ALONG_K`. With an activation, those that can be `fitted` to it.

    Raises:
        ValueError: there is no kernel of this form.
    """
    form.check()
    blocks = form.scaling == "blocks"
    if form.operand_bytes == 1 and form.along == "k":
        return CONFIGS_BLOCK_SCALED_ALONG_K if blocks else CONFIGS_8_BIT_ALONG_K
    if form.operand_bytes == 1:
        return CONFIGS_BLOCK_SCALED if blocks else CONFIGS_8_BIT
    if form.activation is not None:
        fitted = dict.fromkeys(config.fitted(form) for config in CONFIGS)
        return tuple(config for config in fitted if config.why_not(form) is None)
    return CONFIGS if form.along == "m" else CONFIGS_ALONG_K
