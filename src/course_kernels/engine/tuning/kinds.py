"""Kinds of products. A kind selects constants of the time model, together with the extents and the GPU."""

from __future__ import annotations

from typing import NamedTuple

from course_kernels.kernels.codes import Scales

ALONG = ("m", "k", "batch", "masked")
# What the kernel in CuTe DSL does beside a layer's products; see ``Kind.fused``.
FUSED = ("gated", "gated_pre", "gated_backward", "gathered")


class Kind(NamedTuple):
    """The common properties of products that run the same code. As text: "m,k", "m,n fp8 blocks", "m,k gated".

    Attributes:
        along: the layout of the groups: "m" or "k", the extent that they divide; "batch", equally many rows in each;
            "masked", at equal distances, with a number of rows that count in each.
        b_major: the contiguous dimension of B (K×N), "k" or "n".
        element_bytes: of an operand's element.
        scaling: the factors that the operands have.
        precision: of the multiplication of 4-byte elements, "ieee" or "tf32".
        fused: what the kernel in CuTe DSL does in a layer of experts: gather rows, then store an activation ("gated"),
            its argument, too ("gated_pre"), or the argument's gradient ("gated_backward"); or gather lines along K
            ("gathered"). "" for a product alone.
    """

    along: str
    b_major: str = "k"
    element_bytes: int = 2
    scaling: Scales = Scales.NONE
    precision: str = "ieee"
    fused: str = ""

    @classmethod
    def parse(cls, text: str) -> Kind:
        """Parse a kind from text, as in the keys of constants and records. ValueError for any other text."""
        form, *words = text.split(" ")
        fused = words.pop() if words and words[-1] in FUSED else ""
        along, _, b_major = form.partition(",")
        numbers, scaling = {
            (): (2, Scales.NONE), ("fp8",): (1, Scales.LINES), ("fp8", "blocks"): (1, Scales.BLOCKS),
            ("tf32",): (4, Scales.NONE), ("fp32",): (4, Scales.NONE),
        }.get(tuple(words), (0, Scales.NONE))  # fmt: skip
        if along not in ALONG or b_major not in ("k", "n") or not numbers:
            raise ValueError(f"{text!r} is no kind of products")
        return cls(along, b_major, numbers, scaling, "tf32" if words == ["tf32"] else "ieee", fused)

    def __str__(self) -> str:
        numbers = {1: " fp8", 2: ""}.get(self.element_bytes, " tf32" if self.precision == "tf32" else " fp32")
        blocks = " blocks" * (self.scaling == Scales.BLOCKS)
        return f"{self.along},{self.b_major}{numbers}{blocks} {self.fused}".rstrip()

    @property
    def kernel(self) -> str:
        """The Triton kernel that computes it."""
        return {"k": "transposed", "masked": "masked"}.get(self.along, "contiguous")

    @property
    def numbers(self) -> str:
        """The class of element types that share tiles: "16-bit", "fp8", "tf32" or "ieee"."""
        return {1: "fp8", 2: "16-bit"}.get(self.element_bytes, self.precision)

    @property
    def stand_in(self) -> Kind:
        """The kind whose constants serve this one if it has none: "m" for batches and masked groups, a product alone
        for one of a layer."""
        return self._replace(along="m" if self.along in ("batch", "masked") else self.along, fused="")

    @property
    def title(self) -> str:
        """The kind in words."""
        name = {
            ("m", "k"): "forward", ("m", "n"): "gradient of the rows", ("k", "n"): "gradient of the weights",
        }.get((self.along, self.b_major), f"{self.along},{self.b_major}")  # fmt: skip
        return name + str(self)[len(self.along) + 2 :]


class Extents(NamedTuple):
    """The extents of an average group's product, and the number of groups; the ragged extent, M or K, is an average."""

    M: float
    N: int
    K: float
    G: int

    @property
    def is_empty(self) -> bool:
        """Whether nothing is multiplied."""
        return not (self.M and self.N and self.K and self.G)


# The measured kinds: a linear layer's forward pass and both gradients; then 8-bit operands with factors of rows and
# columns, or of blocks.
KINDS = (Kind("m", "k"), Kind("m", "n"), Kind("k", "n"))
KINDS_8_BIT = tuple(Kind("m", major, 1, scaling) for major in "kn" for scaling in (Scales.LINES, Scales.BLOCKS))
# The first product of a layer of experts, without and with a backward; of its backward, the first product, and a
# weight's gradient.
KINDS_OF_LAYER = tuple(Kind.parse(f"{each} {fused}") for each, fused in zip(("m,k", "m,k", "m,n", "k,n"), FUSED))
