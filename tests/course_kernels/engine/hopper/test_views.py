"""A product's tensors as the kernel in CuTe DSL takes them: a layer's, whose gate and up it finds apart."""

from __future__ import annotations

import pytest
import torch

from course_kernels.engine.hopper import cute
from course_kernels.engine.hopper.views import Views
from course_kernels.engine.product import ADD, EACH, STORE, Counts, Ends, Gated, GatedBackward, Pieces, Product, Store
from course_kernels.kernels.codes import Activation, Function

SWIGLU, RELU2 = Activation(Function.SILU), Activation(Function.RELU2, gated=False)
OFFS = torch.tensor([3, 7], dtype=torch.int32)
INDEX = torch.arange(16, dtype=torch.int32)


def made(*shape, dtype=torch.bfloat16):
    return torch.empty(shape, dtype=dtype)


A, B = made(16, 32), torch.randn(2, 48, 32).bfloat16().mT


def product(epilogue, b=B, index=None, a=A):
    return Product(a, b, Ends(OFFS, index), epilogue=epilogue)


def backward(activation, columns=48):
    halves = 1 + activation.gated
    return GatedBackward(
        activation, False, made(16, halves * columns), made(16, dtype=torch.float32), made(16, columns),
        made(16, -(-columns // 32), dtype=torch.float32),
    )  # fmt: skip


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("b", [B, B.contiguous()], ids=["columns", "rows"])
def test_halves_of_weights(b, interleaved):
    views = Views.of(product(Gated(SWIGLU, interleaved), b), made(16, 24))
    gate, up = (b[..., ::2], b[..., 1::2]) if interleaved else b.chunk(2, 2)
    assert torch.equal(views.b, torch.stack((gate, up), 2))
    assert views.b.data_ptr() == b.data_ptr()
    assert views.layer is None


def test_what_a_layer_has_besides():
    pre, out = torch.randn(16, 48), made(16, 24)
    views = Views.of(product(Gated(SWIGLU, pre=pre), index=INDEX), out)
    assert views.layer[0] is INDEX
    assert torch.equal(views.layer[1], torch.stack(pre.chunk(2, 1), 1))
    assert views.layer[2:] == (None,) * 7
    assert views.c is out
    views = Views.of(product(Gated(RELU2, pre=pre)), made(16, 48))
    assert views.b is B
    assert torch.equal(views.layer[1], pre[:, None])

    epilogue, out = backward(SWIGLU), torch.randn(16, 96).bfloat16()
    views = Views.of(product(epilogue), out)
    assert torch.equal(views.c, torch.stack(out.chunk(2, 1), 1))
    assert views.layer[0] is None
    assert views.layer[1].shape == (16, 2, 48)
    assert views.layer[2:] == (epilogue.weights, epilogue.activated, epilogue.dots, *(None,) * 4)
    assert Views.of(product(backward(RELU2)), made(16, 48)).c.shape == (16, 1, 48)
    assert Views.of(Product(A, B, Ends(OFFS, INDEX)), made(16, 48)).layer == (INDEX, *(None,) * 8)


@pytest.mark.parametrize("interleaved", [False, True])
def test_a_bias_in_the_order_of_the_columns(interleaved):
    bias = torch.randn(2, 96)[:, ::2]
    views = Views.of(product(Gated(SWIGLU, interleaved, bias=bias)), made(16, 24))
    gate, up = (bias[:, ::2], bias[:, 1::2]) if interleaved else bias.chunk(2, 1)
    assert torch.equal(views.layer[-1], torch.stack((gate, up), 1))
    assert views.layer[-1].data_ptr() == bias.data_ptr()
    assert views.layer[:-1] == (None,) * 8
    for epilogue in (Store(bias), Gated(RELU2, bias=bias)):
        assert Views.of(product(epilogue), made(16, 48)).layer == (*(None,) * 8, bias)


def test_products_that_are_of_no_layer():
    out = made(16, 48)
    assert Views.of(Product(A, B, Ends(OFFS)), out) == (A, B, out, OFFS, None, None, None)
    assert Views.of(Product(made(2, 3, 32), B, EACH), made(2, 3, 48)) is None
    assert Views.of(Product(made(2, 3, 32), B, Counts(OFFS)), made(2, 3, 48)).layer is None


@pytest.mark.parametrize(
    ("epilogue", "columns", "expected"),
    [
        (Gated(SWIGLU), 24, "gated"),
        (Gated(SWIGLU, True), 24, "gated"),
        (Gated(SWIGLU, pre=made(16, 48)), 24, "gated_pre"),
        (Gated(RELU2, pre=made(16, 48)), 48, "gated_pre"),
        (backward(SWIGLU), 96, "gated_backward"),
        (backward(RELU2), 48, "gated_backward"),
    ],
    ids=["gated", "interleaved", "pre", "no gate", "backward", "no gate backward"],
)
def test_forms(epilogue, columns, expected):
    for index in (None, INDEX):
        form = cute.match_form(product(epilogue, index=index), made(16, columns))
        assert (form.epilogue, form.activation, form.b_major) == (expected, epilogue.activation, "k")
        assert form.load == ("tma" if index is None else "gather")
    form.check()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("index", [None, INDEX], ids=["tma", "gathered"])
def test_forms_with_a_bias(index, dtype):
    """The kernel takes a bias with any strides. A stride may be 0: one number serves all columns, or one row all
    groups."""
    whole = made(2, 48, dtype=dtype)
    odd = made(3, 98, dtype=dtype)[1:, 1::2][:, :48], whole[:1].expand(2, 48), whole[:, :1].expand(2, 48)
    for bias in (whole, *odd):
        epilogues = {
            "store": (Store(bias), made(16, 48)),
            "gated": (Gated(SWIGLU, bias=bias), made(16, 24)),
            "gated_pre": (Gated(SWIGLU, False, made(16, 48), bias), made(16, 24)),
        }
        for name, (epilogue, out) in epilogues.items():
            form = cute.match_form(product(epilogue, index=index), out)
            assert (form.epilogue, form.bias_bytes) == (name, dtype.itemsize)
            form.check()
    turns = cute.match_form(product(Gated(SWIGLU, True, bias=whole), index=index), made(16, 24))
    assert (turns.epilogue, turns.bias_bytes) == ("gated", dtype.itemsize)
    float32 = cute.match_form(product(Store(whole), index=index), made(16, 48, dtype=torch.float32))
    assert (float32.epilogue, float32.bias_bytes) == ("store", dtype.itemsize)


def test_a_bias_of_counted_rows_or_along_k_is_not_taken():
    counted = Product(made(2, 3, 32), B, Counts(OFFS), epilogue=Store(made(2, 48)))
    assert cute.match_form(counted, made(2, 3, 48)) is None
    assert cute.match_form(along_k(epilogue=Store(made(2, 40))), made(2, 24, 40)) is None
    assert cute.match_form(along_k(epilogue=Store(made(2, 40)), index=None), made(2, 24, 40)) is None


def test_gathered_rows_have_a_form_of_their_own():
    form = cute.match_form(product(Store(), index=INDEX, a=made(5, 32)), made(16, 48))
    assert (form.epilogue, form.load, form.activation) == ("store", "gather", None)


@pytest.mark.parametrize(
    ("epilogue", "b", "index", "out"),
    [
        (Gated(SWIGLU, True, bias=made(2, 48)), B.contiguous(), None, made(16, 24)),
        (Store(made(2, 48), keep_tail=True), B, INDEX, made(16, 48)),
        (Gated(SWIGLU, interleaved=True), B.contiguous(), None, made(16, 24)),
        (Gated(SWIGLU, True, made(16, 48)), B, None, made(16, 24)),
        (backward(SWIGLU)._replace(interleaved=True), B, None, made(16, 96)),
        (Gated(SWIGLU), B, None, made(16, 24, dtype=torch.float32)),
        (Gated(SWIGLU, pre=made(16, 48, dtype=torch.float32)), B, None, made(16, 24)),
        (Gated(SWIGLU), torch.randn(2, 40, 32).bfloat16().mT, None, made(16, 20)),
        (backward(SWIGLU)._replace(dots=made(2, 16, dtype=torch.float32).mT), B, None, made(16, 96)),
        (backward(SWIGLU)._replace(weights=made(32, dtype=torch.float32)[::2]), B, None, made(16, 96)),
        (Store(), B, made(32, dtype=torch.int32)[::2], made(16, 48)),
        (Store(keep_tail=True), B, INDEX, made(16, 48)),
    ],
    ids=[
        "a bias, columns take turns",
        "a bias, kept tail",
        "columns take turns",
        "pre takes turns",
        "gradients take turns",
        "float32",
        "pre of float32",
        "columns",
        "dots",
        "weights",
        "index",
        "kept tail",
    ],
)
def test_what_the_kernel_does_not_take(epilogue, b, index, out):
    assert cute.match_form(product(epilogue, b, index), out) is None


def test_rows_in_pieces_have_starts_and_ends_of_pieces():
    starts, ends, arrived = made(6, dtype=torch.int32), made(6, dtype=torch.int32), made(3, dtype=torch.int32)
    rows, out = Ends(OFFS, INDEX, pieces=Pieces(starts, ends, arrived, 7)), made(16, 24)
    views = Views.of(Product(A, B, rows, epilogue=Gated(SWIGLU)), out)
    assert views.offs is ends
    assert views.layer[0] is INDEX
    assert views.layer[5:] == (starts, arrived, 7, None)
    form = cute.match_form(Product(A, B, rows, epilogue=Gated(SWIGLU)), out)
    assert (form.rows, form.load, form.epilogue) == ("pieces", "gather", "gated")
    assert cute.match_form(Product(A, B, rows), made(16, 48)) is None  # without an activation


LEFT, RIGHT, LINES = made(7, 24).mT, made(16, 40), dict(dtype=torch.float32)


def along_k(left=LEFT, right=RIGHT, operand="a", epilogue=STORE, index=INDEX):
    return Product(left, right, Ends(OFFS, index, operand), epilogue=epilogue)


def test_lines_along_k_are_gathered_of_either_operand():
    out = made(2, 24, 40)
    form = cute.match_form(along_k(), out)
    assert (form.along, form.b_major, form.load, form.epilogue) == ("k", "n", "gather", "store")
    swapped = along_k(RIGHT.mT, LEFT.mT, "b", ADD)
    assert Views.of(swapped, out).layer == (INDEX, *(None,) * 8)
    form = cute.match_form(swapped, made(2, 40, 24, **LINES))
    assert (form.along, form.load, form.epilogue) == ("k", "gather_b", "add")
    form.check()


@pytest.mark.parametrize(
    ("product", "out"),
    [
        (along_k(made(7, 20).mT), made(2, 20, 40)),
        (along_k(made(24, 7)), made(2, 24, 40)),
        (along_k(index=made(32, dtype=torch.int32)[::2]), made(2, 24, 40)),
        (along_k(made(7, 24, **LINES).mT, made(16, 40, **LINES)), made(2, 24, 40, **LINES)),
        (along_k(made(1, 24).expand(7, 24).mT), made(2, 24, 40)),
        (along_k(epilogue=ADD), made(2, 24, 40)),
        (Product(A, B, Ends(OFFS, INDEX, "b")), made(16, 48)),
    ],
    ids=["columns", "lines contiguous", "index", "float32", "one line", "16 bits added to", "experts"],
)
def test_lines_along_k_that_the_kernel_does_not_gather(product, out):
    assert cute.match_form(product, out) is None
