"""Kinds of products and their texts, which are keys of constants and records."""

from __future__ import annotations

import pytest

from course_kernels.engine.tuning import Extents, Kind
from course_kernels.engine.tuning.kinds import KINDS, KINDS_8_BIT, KINDS_OF_LAYER
from course_kernels.kernels.codes import Scales


def test_a_text_names_one_kind():
    assert [str(kind) for kind in (*KINDS, *KINDS_8_BIT, *KINDS_OF_LAYER)] == [
        "m,k", "m,n", "k,n", "m,k fp8", "m,k fp8 blocks", "m,n fp8", "m,n fp8 blocks", "m,k gated", "m,k gated_pre",
        "m,n gated_backward", "k,n gathered",
    ]  # fmt: skip
    others = [
        Kind("batch", "n"),
        Kind("masked", "k", 1, Scales.BLOCKS),
        Kind("m", "k", 4, precision="tf32"),
        Kind("k", "n", 4),
    ]
    for kind in (*KINDS, *KINDS_8_BIT, *KINDS_OF_LAYER, *others):
        assert Kind.parse(str(kind)) == kind
    for text in ("forward", "m", "m,x", "q,k", "m,k fp9", "m,k blocks", "m,k gated fp8", ""):
        with pytest.raises(ValueError, match="is no kind of products"):
            Kind.parse(text)


def test_batches_masked_groups_and_layers_have_a_stand_in():
    assert Kind("batch", "n").stand_in == Kind("m", "n")
    assert str(Kind.parse("masked,k fp8 blocks").stand_in) == "m,k fp8 blocks"
    assert Kind("k", "n").stand_in == Kind("k", "n")
    assert [kind.stand_in for kind in KINDS_OF_LAYER] == [Kind("m"), Kind("m"), Kind("m", "n"), Kind("k", "n")]
    kernels = [Kind(along).kernel for along in ("m", "batch", "k", "masked")]
    assert kernels == ["contiguous", "contiguous", "transposed", "masked"]
    assert [Kind.parse(text).numbers for text in ("m,k", "m,k fp8", "m,k tf32", "m,k fp32")] == [
        "16-bit",
        "fp8",
        "tf32",
        "ieee",
    ]


def test_a_product_is_empty_if_any_extent_is():
    assert not Extents(1, 1, 1, 1).is_empty
    assert all(Extents(*[i != j for j in range(4)]).is_empty for i in range(4))
