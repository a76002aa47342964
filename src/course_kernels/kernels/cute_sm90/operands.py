"""What a product of a layer reads and writes besides A, B and C."""

from typing import NamedTuple

from cutlass import Int32, cute


class Layer(NamedTuple):
    """Tensors of a layer's product; each is None where the form has no use for it.

    Attributes:
        index: int32, with ``Form.gathered``: (rows of C,), the row of A that each row of the product has; along "k"
            (total_k,), the column of A or the row of B that each line along K has.
        pre: (rows of C, 1 or 2, columns): an activation's argument, with a gate before up, of C's dtype: written by
            epilogue "gated_pre", read by "gated_backward".
        weights: (rows of C,) float32, factors of the rows of an activation, for "gated_backward", like those below.
        activated: (rows of C, columns): the activation times these factors is written there, in C's dtype.
        dots: (rows of C, ceil(columns / 32)) float32: dot products of the sums and the activation, each of 32 columns
            and without factors, are written there.
        starts, arrived: int32, with ``Form.rows`` "pieces": (ends,), the first row of each piece; and (pieces,), not 0
            where the rows of A of a group's piece of this number are there, which other GPUs write. That of piece 0 is
            not read.
        milliseconds: int, how long to wait for a piece. Then the kernel traps.
        bias: with ``Form.bias_bytes``: (G, product columns), with a gate (G, 2, columns) of gate and of up; of A's
            dtype or float32, with any strides.
    """

    index: cute.Tensor | None = None
    pre: cute.Tensor | None = None
    weights: cute.Tensor | None = None
    activated: cute.Tensor | None = None
    dots: cute.Tensor | None = None
    starts: cute.Tensor | None = None
    arrived: cute.Tensor | None = None
    milliseconds: Int32 | None = None
    bias: cute.Tensor | None = None
