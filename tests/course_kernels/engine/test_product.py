"""A product's parts: made of an API's arguments, with the tensors under their names."""

from __future__ import annotations

import pytest
import torch

from course_kernels.engine.product import (
    ADD,
    EACH,
    STORE,
    Counts,
    Ends,
    Pieces,
    Product,
    Store,
    in_words_of,
    typical_rows,
)
from course_kernels.engine.scaling import UNSCALED, Blocks, Lines

A, B, OFFS = torch.zeros(6, 8), torch.zeros(2, 8, 4), torch.tensor([2, 6])
BIAS, SCALES = torch.zeros(2, 4), (torch.ones(6), torch.ones(2, 4))


def test_parts_of_the_arguments_of_grouped_mm():
    assert Product.packed(A, B, OFFS)[2:] == (Ends(OFFS), UNSCALED, STORE, False)
    assert Product.packed(B.mT, B)[2:] == (EACH, UNSCALED, STORE, False)
    assert Product.packed(A, B, OFFS, accumulate=True).epilogue is ADD
    assert Product.packed(A, B, OFFS, BIAS).epilogue == Store(BIAS)
    assert Product.packed(A, B, OFFS, keep_tail=True).epilogue == Store(None, True)
    assert type(Product.packed(A, B, OFFS, None, *SCALES).scaling) is Lines
    assert Product.packed(A, B, OFFS, None, *SCALES, scaling="1x128 1x128").scaling == Blocks(*SCALES, "1x128 1x128")


def test_a_bias_is_not_dropped_where_a_product_is_added():
    with pytest.raises(ValueError, match=r"bias must be None where accumulate is set, got shape \(2, 4\)"):
        Product.packed(A.mT, A, OFFS, BIAS, accumulate=True)


def test_tensors_have_the_names_of_an_api():
    product = Product.packed(A, B, OFFS, BIAS, *SCALES)
    names = dict(a="lhs", b="rhs", offs="ends", bias="bias", scale_a="left", scale_b="right")
    named = in_words_of(names, product)
    assert list(named) == ["lhs", "rhs", "ends", "bias", "left", "right"]
    for name, tensor in zip(named, (A, B, OFFS, BIAS, *SCALES)):
        assert named[name] is tensor
    assert set(Product.packed(A, B).tensors().values()) == {A, B, None}


def test_each_part_has_a_key_of_its_own():
    keys = [part.key() for part in (Ends(OFFS), Ends(OFFS.int()), Counts(OFFS), Counts(OFFS, 64), EACH)]
    index = torch.zeros(6, dtype=torch.int32)
    pieces = Pieces(OFFS, OFFS, OFFS, 1)
    keys += [part.key() for part in (Ends(OFFS, index), Ends(OFFS, index, "b"), Ends(OFFS, index, pieces=pieces))]
    keys += [part.key() for part in (STORE, ADD, Store(BIAS), Store(None, True), Store(BIAS.half()))]
    assert len(set(keys)) == len(keys)
    assert Ends(torch.zeros(4)[::2]).key() is None
    assert Counts(torch.zeros(4)[::2]).key() is None


def test_typical_rows_come_in_quarters_of_an_octave():
    assert typical_rows(0, 8) == 0
    assert typical_rows(800, 8) == typical_rows(820, 8)
    assert typical_rows(800, 8) != typical_rows(1000, 8)
