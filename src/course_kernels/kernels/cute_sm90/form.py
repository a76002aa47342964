"""The form of a product: together with configuration and dtypes, it defines a kernel."""

from __future__ import annotations

from typing import NamedTuple

LOAD, SCALES, ZEROS, IDLE = "load", "scales", "zeros", "idle"


class Form(NamedTuple):
    """The form of a product.

    Attributes:
        along: the extent that the groups divide, "m" or "k". Groups of 8-bit operands along "k" are whole blocks.
        b_major: the contiguous dimension of B, "k" or "n"; along "k" it is "n", but "k" for 8-bit operands.
        operand_bytes: of an element of the operands, 2 or 1.
        rows: "ends": groups follow each other, and each has an end; or "counts": groups are at equal distances along M,
            and each has a number of rows that count. Nothing is written to the other rows.
        scaling: "none"; "lines", factors of the product's rows and columns; "groups", of its rows, and one for all
            columns of a group; "blocks", of 128 along K by 1 row of A or 128 columns of B, along "k" 1 column of B.
        epilogue: "store"; or "add", along "k" only: add to C, which is float32 and keeps the result of an empty group.
            Each element is in one tile, so the sums are the same in every run.
        index_bytes: of an end or a count, 4 or 8.
        whole_rounds: the number of blocks along K is a multiple of the stages; only with ``CuteConfig.in_rounds``.
    """

    along: str = "m"
    b_major: str = "k"
    operand_bytes: int = 2
    rows: str = "ends"
    scaling: str = "none"
    epilogue: str = "store"
    index_bytes: int = 4
    whole_rounds: bool = False

    @property
    def stages_scales(self) -> bool:
        """Whether the factors of blocks come through the stages: if each column has its own."""
        return self.scaling == "blocks" and self.along == "k"

    @property
    def writes_zeros(self) -> bool:
        """Whether the parts of C without a product become zeros: its tail, or the results of empty groups."""
        return self.rows == "ends" and self.epilogue == "store"

    @property
    def loading_warps(self) -> tuple[str, ...]:
        """The role of each warp of the loading warp group. Warps of one role are neighbours."""
        others = ZEROS if self.writes_zeros else IDLE
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
        elif self.epilogue == "add":
            raise ValueError("epilogue must be 'store' where along is 'm', got 'add'")
        if self.scaling == "blocks" and not eight_bits:
            raise ValueError("scaling must not be 'blocks' where operands have 16 bits")


_VALUES = {
    "along": ("m", "k"),
    "b_major": ("k", "n"),
    "operand_bytes": (2, 1),
    "rows": ("ends", "counts"),
    "scaling": ("none", "lines", "groups", "blocks"),
    "epilogue": ("store", "add"),
    "index_bytes": (4, 8),
}
