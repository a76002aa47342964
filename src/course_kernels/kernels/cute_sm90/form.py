"""The form of a product: together with configuration and dtypes, it defines a kernel."""

from __future__ import annotations

from typing import NamedTuple

from course_kernels.kernels.codes import Activation

LOAD, GATHER, SCALES, ZEROS, IDLE = "load", "gather", "scales", "zeros", "idle"
# Epilogues with an activation.
GATED, GATED_PRE, GATED_BACKWARD = "gated", "gated_pre", "gated_backward"
# Loads where an index says which lines of an operand the product has: the operand of each.
GATHERED = {"gather": "a", "gather_b": "b"}


class Form(NamedTuple):
    """The form of a product.

    Attributes:
        along: the extent that the groups divide, "m" or "k". Groups of 8-bit operands along "k" are whole blocks.
        b_major: the contiguous dimension of B, "k" or "n"; along "k" it is "n", but "k" for 8-bit operands.
        operand_bytes: of an element of the operands, 2 or 1.
        rows: "ends": groups follow each other, and each has an end; or "counts": groups are at equal distances along M,
            and each has a number of rows that count. Nothing is written to the other rows. Or "pieces": groups are in
            pieces, each with a start and an end, whose gathered rows may still be arriving from other GPUs.
        scaling: "none"; "lines", factors of the product's rows and columns; "groups", of its rows, and one for all
            columns of a group; "blocks", of 128 along K by 1 row of A or 128 columns of B, along "k" 1 column of B.
        epilogue: "store"; or "add", along "k" only: add to C, which is float32 and keeps the result of an empty group.
            Each element is in one tile, so the sums are the same in every run. Along "m", for 16-bit operands: "gated"
            stores an activation of the sums, "gated_pre" the sums, too, and "gated_backward" the gradient of an
            activation's argument, from the sums, which are that of its result.
        index_bytes: of an end or a count, 4 or 8.
        whole_rounds: the number of blocks along K is a multiple of the stages; only with ``CuteConfig.in_rounds``.
        load: "tma"; or "gather": an index says which row of A each row of the product has, along "k" which column of A
            each line along K; or "gather_b", along "k" only: which row of B.
        activation: of the epilogue, None where it has none.
        bias_bytes: of an element of the bias that is added to the sums, before an activation: 2 for the operands'
            dtype, 4 for float32; 0 without one. With epilogues "store", "gated" and "gated_pre" along "m".
    """

    along: str = "m"
    b_major: str = "k"
    operand_bytes: int = 2
    rows: str = "ends"
    scaling: str = "none"
    epilogue: str = "store"
    index_bytes: int = 4
    whole_rounds: bool = False
    load: str = "tma"
    activation: Activation | None = None
    bias_bytes: int = 0

    @property
    def stages_scales(self) -> bool:
        """Whether the factors of blocks come through the stages: if each column has its own."""
        return self.scaling == "blocks" and self.along == "k"

    @property
    def writes_zeros(self) -> bool:
        """Whether the parts of C without a product become zeros: its tail, or the results of empty groups."""
        return self.rows == "ends" and self.epilogue == "store"

    @property
    def has_others(self) -> bool:
        """Whether the product has tensors that not all products have: an index, an activation's argument, a bias."""
        return self.gathered is not None or self.stores > 1 or self.bias_bytes > 0

    @property
    def gathered(self) -> str | None:
        """The operand whose lines come by an index, "a" or "b"; None without one."""
        return GATHERED.get(self.load)

    @property
    def fused(self) -> str:
        """The time model's name for a layer's product with gathered lines: "gathered" along "k", else the epilogue. ""
        for other products."""
        if not self.gathered:
            return ""
        return "gathered" if self.along == "k" else self.epilogue if self.activation else GATED

    @property
    def pre_halves(self) -> int:
        """Halves of the activation's argument: 2 where it has a gate, else 1; 0 without an activation."""
        return 0 if self.activation is None else 1 + self.activation.gated

    @property
    def halves(self) -> int:
        """Columns of the product for each column of C: 2 where C is an activation of gate and up, else 1."""
        return self.pre_halves if self.epilogue in (GATED, GATED_PRE) else 1

    @property
    def stores(self) -> int:
        """Blocks that are stored for each block of the result's columns."""
        return 1 + self.pre_halves * (self.epilogue in (GATED_PRE, GATED_BACKWARD))

    @property
    def loading_warps(self) -> tuple[str, ...]:
        """The role of each warp of the loading warp group. Warps of one role are neighbours."""
        others = ZEROS if self.writes_zeros else IDLE
        if self.gathered:
            return LOAD, GATHER, GATHER, others
        return LOAD, SCALES if self.stages_scales else others, others, others

    def check(self) -> None:
        """Raise ValueError, which names the field, unless there is a kernel of this form."""
        for name, values in _VALUES.items():
            if getattr(self, name) not in values:
                raise ValueError(f"{name} must be {' or '.join(map(repr, values))}, got {getattr(self, name)!r}")
        eight_bits = self.operand_bytes == 1
        if self.b_major == "n" and eight_bits:
            # wgmma takes 8-bit operands only with their depth contiguous.
            raise ValueError("b_major must be 'k' where operands have 8 bits, got 'n'")
        if self.along == "k":
            if self.b_major == "k" and not eight_bits:
                raise ValueError("b_major must be 'n' where along is 'k' and operands have 16 bits, got 'k'")
            if self.rows != "ends":
                raise ValueError(f"rows must be 'ends' where along is 'k', got {self.rows!r}")
            if self.scaling != "none" and not eight_bits:
                raise ValueError(
                    f"scaling must be 'none' where along is 'k' and operands have 16 bits, got {self.scaling!r}"
                )
        elif self.rows == "pieces" and not (self.gathered and self.activation):
            raise ValueError("rows must be 'ends' unless they are gathered and an activation follows, got 'pieces'")
        elif self.epilogue == "add":
            raise ValueError("epilogue must not be 'add' where along is 'm'")
        activates = self.epilogue not in ("store", "add")
        if activates != (self.activation is not None):
            raise ValueError(f"activation goes with the epilogues that have one, got {self.activation!r}")
        if activates and self.along == "k":
            raise ValueError(f"epilogue must be 'store' or 'add' where along is 'k', got {self.epilogue!r}")
        if self.load == "gather_b" and self.along == "m":
            raise ValueError("load must be 'tma' or 'gather' where along is 'm', got 'gather_b'")
        if self.bias_bytes and (self.along == "k" or self.epilogue == GATED_BACKWARD):
            what = "along is 'k'" if self.along == "k" else f"epilogue is {self.epilogue!r}"
            raise ValueError(f"bias_bytes must be 0 where {what}, got {self.bias_bytes}")
        for name, special in (("epilogue", activates), ("load", self.gathered), ("bias_bytes", self.bias_bytes)):
            plain = not eight_bits and self.rows != "counts" and self.scaling == "none"
            if special and not plain:
                raise ValueError(
                    f"{name} must be {_VALUES[name][0]!r} unless rows have ends, operands have 16 bits and no scales, "
                    f"got {getattr(self, name)!r}"
                )
        if self.scaling == "blocks" and not eight_bits:
            raise ValueError("scaling must not be 'blocks' where operands have 16 bits")


_VALUES = {
    "along": ("m", "k"),
    "b_major": ("k", "n"),
    "operand_bytes": (2, 1),
    "rows": ("ends", "counts", "pieces"),
    "scaling": ("none", "lines", "groups", "blocks"),
    "epilogue": ("store", "add", GATED, GATED_PRE, GATED_BACKWARD),
    "index_bytes": (4, 8),
    "load": ("tma", *GATHERED),
    "bias_bytes": (0, 2, 4),
}
