"""A grouped product in parts: operands, rows of the groups, scale factors, epilogue.

    Product(a, b, rows, scaling, epilogue)

    rows        Ends: exclusive ends of groups that follow each other, whose rows may be gathered by an index. Counts:
                for groups at equal distances, the number of rows that count. EACH: a batch of whole matrices.
    scaling     UNSCALED, Lines: factors of rows and columns, Blocks: factors of blocks of 128 along K.
    epilogue    Store: round and store, after a bias. ADD: add to what the result holds. Gated: store an activation of
                the sums. GatedBackward: from the sums, which are an activation's gradient, that of its argument.

Each part names its tensors, and gives its part of a plan's key (``key``): everything of it that a launch depends on.
``Problem`` is a product whose form was checked, without its tensors, with ``Options``: plans are made from it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from course_kernels.engine.low_rank import LowRank
from course_kernels.engine.options import Options
from course_kernels.engine.scaling import ROW, UNSCALED, Blocks, Lines, Scaling, block_lines
from course_kernels.kernels.codes import Activation, FunctionName

# ---- how rows are found


class Pieces(NamedTuple):
    """Groups in pieces, whose rows of A may still be arriving from other GPUs.

    Attributes:
        starts, ends: int32 (P * G,): of all groups' first pieces, then of their second ones, and so on.
        arrived: int32 (P,), not 0 where pieces of this number are there; that of piece 0 is not read.
        milliseconds: how long to wait for a piece; then the kernel traps.
    """

    starts: Tensor
    ends: Tensor
    arrived: Tensor
    milliseconds: int


class Ends(NamedTuple):
    """Groups follow each other along the extent that they share out.

    Attributes:
        offs: int32 or int64 (G,), the exclusive end of each group.
        index: int32 (rows,), contiguous: which row of A is the row of the product; in mode "k" (total,), which column
            of A or row of B is the line along K. None where they are the operand's in their order. Of the entries from
            the last end on, nothing is read.
        operand: whose lines the index names, "a", or in mode "k" "a" or "b". Only the CuTe kernel has an index in mode
            "k" (``plans.find_offered``).
        pieces: of the groups; None if all rows are there. The CuTe kernel alone waits for them.
    """

    offs: Tensor
    index: Tensor | None = None
    operand: str = "a"
    pieces: Pieces | None = None

    @property
    def load(self) -> FunctionName:
        """The Triton kernel's device function for a block of A."""
        return FunctionName("load_rows" if self.index is None else "gather_rows")

    def key(self) -> tuple | None:
        """The ends' part of a plan's key; None if kernels cannot read them as they are (gaps between them)."""
        offs, index = self.offs, self.index
        if not offs.is_contiguous():
            return None
        at = offs.data_ptr()
        key = offs.shape, offs.dtype, offs.device, at & 15 if at else None
        if index is None:
            return key
        return *key, index.dtype, index.device, index.data_ptr() & 15, self.operand, self.pieces is not None


class Counts(NamedTuple):
    """Groups have room for equally many rows, of which the first ones count.

    Attributes:
        sizes: int32 or int64 (G,), how many rows count.
        expected: rows of an average group, as ``rows_class`` gives them; 0 if unknown.
    """

    sizes: Tensor
    expected: int = 0

    def key(self) -> tuple | None:
        """The counts' part of a plan's key; None as for ``Ends``."""
        sizes = self.sizes
        if not sizes.is_contiguous():
            return None
        at = sizes.data_ptr()
        return "counts", self.expected, sizes.shape, sizes.dtype, sizes.device, at & 15 if at else None


class Each(NamedTuple):
    """Every matrix of a batch is multiplied whole."""

    load = FunctionName("load_rows")

    def key(self) -> tuple:
        """An empty part of a plan's key."""
        return ()


EACH = Each()
Rows: TypeAlias = Ends | Counts | Each

# ---- what becomes of the sums

NO_SIDES = dict.fromkeys(("pre_ptr", "weights_ptr", "activated_ptr", "dots_ptr"))


class Store(NamedTuple):
    """Round once and store.

    Attributes:
        bias: (G, N), added before the rounding, or None.
        keep_tail: leave what follows the last group as it is, instead of writing zeros.
        low_rank: a product that is added before the rounding, or None.
        function: the Triton kernel's device function.
    """

    bias: Tensor | None = None
    keep_tail: bool = False
    low_rank: LowRank | None = None

    function = FunctionName("store_sums")
    accumulates = False
    activation = None

    def sides(self) -> dict[str, Tensor | None]:
        """The tensors beside the result that the Triton kernel reads or writes, by argument."""
        return NO_SIDES

    def key(self) -> tuple | bool | None:
        """The epilogue's part of a plan's key; None for a lazily negated bias, which kernels cannot read."""
        bias = self.bias
        if self.low_rank is not None:
            parts = [_key(bias), self.low_rank.key()]
            return None if None in parts else ("low rank", self.keep_tail, *parts)
        if bias is None:
            return self.keep_tail
        if bias.is_neg():
            return None
        at = bias.data_ptr()
        return self.keep_tail, bias.shape, bias.stride(), bias.dtype, bias.device, at & 15 if at else None


class Add(NamedTuple):
    """Add to what the result holds, in float32, and round once."""

    accumulates = True
    activation = None
    bias = low_rank = None
    keep_tail = False

    def sides(self) -> dict[str, Tensor | None]:
        """The same as ``Store.sides``."""
        return NO_SIDES

    def key(self) -> str:
        """The epilogue's part of a plan's key."""
        return "add"


class Gated(NamedTuple):
    """Round an activation of the sums and store it: (rows, N / 2) where it has a gate, else (rows, N).

    Attributes:
        activation: which one. With a gate, B's columns are those of the gate and those of up.
        interleaved: gate and up take turns in B's columns; else the gate's columns come first.
        pre: (rows, N) of the result's dtype, row-major: the sums are stored there, too, rounded, in the order of B's
            columns; the activation is of the rounded sums then, as a backward that reads them computes it again. None
            does without.
        bias: (G, N), in the order of B's columns, added before; or None.
        low_rank: a product that is added before, or None.
        function: the Triton kernel's device function.
    """

    activation: Activation
    interleaved: bool = False
    pre: Tensor | None = None
    bias: Tensor | None = None
    low_rank: LowRank | None = None

    function = FunctionName("store_activated")
    accumulates = False
    keep_tail = True

    def sides(self) -> dict[str, Tensor | None]:
        """The same as ``Store.sides``."""
        return NO_SIDES | dict(pre_ptr=self.pre)

    def key(self) -> tuple | None:
        """The epilogue's part of a plan's key; None as for ``Store``."""
        parts = [_key(self.pre), _key(self.bias), self.low_rank.key() if self.low_rank else ()]
        return None if None in parts else ("gated", self.activation, self.interleaved, *parts)


class GatedBackward(NamedTuple):
    """The sums are the gradient of an activation's result, before a factor of each row: store the gradient of its
    argument, (rows, 2 * N) with a gate, in the order of ``pre``, else (rows, N).

    Attributes:
        activation: which one.
        interleaved: as for ``Gated``.
        pre: the activation's argument, as ``Gated`` stored it.
        weights: float32 (rows,), the factor of each row.
        activated: (rows, N) of the result's dtype, row-major: the activation times the row's factor is stored there.
        dots: float32 (rows, ceil(N / 32)), contiguous. The entries of a row become parts of the dot product of its
            sums and its activation, unrounded both. How it is divided into parts is the kernel's choice.
        low_rank: a product that is added to the sums, or None.
    """

    activation: Activation
    interleaved: bool
    pre: Tensor
    weights: Tensor
    activated: Tensor
    dots: Tensor
    low_rank: LowRank | None = None

    function = FunctionName("store_gradient")
    accumulates = False
    keep_tail = True
    bias = None

    def sides(self) -> dict[str, Tensor | None]:
        """The same as ``Store.sides``."""
        return dict(zip(NO_SIDES, self[2:]))

    def key(self) -> tuple | None:
        """The epilogue's part of a plan's key; None as for ``Store``."""
        parts = [*map(_key, self[2:6]), self.low_rank.key() if self.low_rank else ()]
        return None if None in parts else ("backward", *self[:2], *parts)


def _key(tensor: Tensor | None) -> tuple | None:
    """The part of a plan's key for a tensor whose first extent does not matter; None for a lazily negated one."""
    if tensor is None:
        return ()
    if tensor.is_neg():
        return None
    return tensor.shape[1:], tensor.stride(), tensor.dtype, tensor.device, tensor.data_ptr() & 15


STORE, ADD = Store(), Add()
Epilogue: TypeAlias = Store | Add | Gated | GatedBackward

# ---- a product

_FORMS = {
    "m": "{G:,} groups: M {M:,} in total, N {N:,}, K {K:,} each",
    "n": "{G:,} groups: M {M:,}, N {N:,} in total, K {K:,} each",
    "k": "{G:,} groups: M {M:,}, N {N:,} each, K {K:,} in total",
    "batch": "{G:,} products: M {M:,}, N {N:,}, K {K:,} each",
    "masked": "{G:,} groups: M up to {M:,}, N {N:,}, K {K:,} each",
}


class Product(NamedTuple):
    """The parts of one product.

    Attributes:
        a, b: the matrices. Their ranks and the type of ``rows`` give the mode.
        rows, scaling, epilogue: as in this module's docstring.
        shuffled: whether b's memory is in the order of ``shuffle_weight``; with ``Counts`` alone.
    """

    a: Tensor
    b: Tensor
    rows: Rows = EACH
    scaling: Scaling = UNSCALED
    epilogue: Epilogue = STORE
    shuffled: bool = False

    @classmethod
    def packed(
        cls, mat_a: Tensor, mat_b: Tensor, offs: Tensor | None = None, bias: Tensor | None = None,
        scale_a: Tensor | None = None, scale_b: Tensor | None = None, *,
        scaling: str = ROW, keep_tail: bool = False, accumulate: bool = False,
    ) -> Product:  # fmt: skip
        """Make a product of the arguments of ``grouped_mm`` or ``scaled_grouped_mm``, which may be unchecked;
        ``scaling`` as in ``engine.scaling``.

        Raises:
            ValueError: ``bias`` is given and ``accumulate`` is set.
        """
        if accumulate and bias is not None:
            got = f"shape {tuple(bias.shape)}" if isinstance(bias, Tensor) else type(bias).__name__
            raise ValueError(f"bias must be None where accumulate is set, got {got}: it is added once")
        rows = EACH if offs is None else Ends(offs)
        scales = UNSCALED
        if scale_a is not None:
            scales = Lines(scale_a, scale_b) if scaling == ROW else Blocks(scale_a, scale_b, scaling)
        epilogue = ADD if accumulate else STORE if bias is None and not keep_tail else Store(bias, keep_tail)
        return cls(mat_a, mat_b, rows, scales, epilogue)

    @property
    def index(self) -> Tensor | None:
        """The index by which lines of an operand are gathered; None without one."""
        return self.rows.index if type(self.rows) is Ends else None

    @property
    def rows_of_a(self) -> int:
        """Rows of A, or of its index: the total of mode "m"."""
        index = self.index
        return self.a.shape[0] if index is None else index.shape[0]

    @property
    def offs(self) -> Tensor | None:
        """The ends of the groups, or the numbers of rows that count; None for a batch."""
        rows = self.rows
        return rows[0] if rows else None

    def tensors(self) -> dict[str, Tensor | None]:
        """Every tensor by the name of its field: a, b, offs, bias, scale_a, scale_b."""
        return dict(
            a=self.a, b=self.b, offs=self.offs, bias=self.epilogue.bias,
            scale_a=self.scaling.a, scale_b=self.scaling.b,
        )  # fmt: skip


class Problem(NamedTuple):
    """A product whose form was checked, without its tensors.

    Attributes:
        mode: the ragged extent, "m", "n" or "k"; "batch", or "masked" where rows are counted.
        G: number of groups.
        M, N, K: extents of the operands; the ragged one is the sum over the groups, tail included. In mode "masked" M
            is the rows that a group has room for.
        out_shape: (M, N), or (G, M, N) in all modes but "m" and "n".
        out_dtype: of the result.
        precision: "tf32" where float32 operands may be rounded to it, else "ieee".
        options: as given.
        scaling: None, "row", or the blocks of both operands: see ``engine.scaling``.
        keep_tail, accumulate: of the epilogue.
        expected: rows of an average group in mode "masked".
        pack: elements of 16 bytes where b is shuffled, else 0.
    """

    mode: str
    G: int
    M: int
    N: int
    K: int
    out_shape: tuple[int, ...]
    out_dtype: torch.dtype
    precision: str
    options: Options
    scaling: str | None = None
    keep_tail: bool = False
    accumulate: bool = False
    expected: int = 0
    pack: int = 0

    def __str__(self) -> str:
        form, dtype = _FORMS[self.mode].format(**self._asdict()), str(self.out_dtype).removeprefix("torch.")
        return f"{form}; {'float8, ' if self.scaling else ''}result {dtype}"

    @property
    def block_lines(self) -> tuple[int, int] | None:
        """Lines of A's and B's blocks that share a factor; None without factors of blocks."""
        return block_lines(self.scaling)

    @property
    def ragged(self) -> int | None:
        """The extent that the groups divide; None if they divide none."""
        return {"m": self.M, "n": self.N, "k": self.K}.get(self.mode)

    @property
    def rows_per_group(self) -> float:
        """An average group's part of the ragged extent, by ``typical_rows``; without one, ``expected`` or M."""
        if self.ragged is None:
            return self.expected or self.M
        return typical_rows(self.ragged, self.G)


def quarter_octave(total: int, groups: int) -> int:
    """Four times the binary logarithm of the average, rounded to an integer; 0 for averages below 1."""
    average = total / max(1, groups)
    return int(8 * math.log2(average) + 1) >> 1 if average > 1 else 0


def typical_rows(total: int, groups: int) -> float:
    """Rows of an average group, rounded to a quarter of an octave. Choices depend on no other number of rows, so a
    product is computed in the same way whichever total came first."""
    return 2 ** (quarter_octave(total, groups) / 4) if total else 0.0


def in_words_of(names: Mapping[str, str], product: Product) -> dict[str, Tensor | None]:
    """A product's tensors by an API's names for them."""
    return {names[field]: tensor for field, tensor in product.tensors().items()}
