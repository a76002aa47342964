"""What a kernel of the Hopper kernel's is built for: which forms there are, and who does what."""

from __future__ import annotations

import itertools

import pytest

from course_kernels.kernels.codes import Activation, Function
from course_kernels.kernels.cute_sm90.form import _VALUES, GATHER, IDLE, LOAD, SCALES, ZEROS, Form

SWIGLU, RELU2 = Activation(Function.SILU), Activation(Function.RELU2, gated=False)


@pytest.mark.parametrize(
    ("form", "said"),
    [
        (Form("n"), "along must be 'm' or 'k', got 'n'"),
        (Form("m", "m"), "b_major must be 'k' or 'n', got 'm'"),
        (Form(operand_bytes=4), "operand_bytes must be 2 or 1, got 4"),
        (Form(rows="index"), "rows must be 'ends' or 'counts' or 'pieces', got 'index'"),
        (Form(scaling="row"), "scaling must be 'none' or 'lines' or 'groups' or 'blocks', got 'row'"),
        (Form(epilogue="bias"), "epilogue must be 'store' or 'add' or 'gated' or 'gated_pre' or 'gated_backward', got"),
        (Form(load="ldmatrix"), "load must be 'tma' or 'gather' or 'gather_b', got 'ldmatrix'"),
        (Form(index_bytes=2), "index_bytes must be 4 or 8, got 2"),
        (Form("k", "k"), "b_major must be 'n' where along is 'k' and operands have 16 bits, got 'k'"),
        (Form("m", "n", 1), "b_major must be 'k' where operands have 8 bits, got 'n'"),
        (Form("k", "n", rows="counts"), "rows must be 'ends' where along is 'k', got 'counts'"),
        (Form("k", "n", scaling="lines"), "scaling must be 'none' where along is 'k' and operands have 16 bits"),
        (Form(scaling="blocks"), "scaling must not be 'blocks' where operands have 16 bits"),
        (Form(epilogue="add"), "epilogue must not be 'add' where along is 'm'"),
        (Form(epilogue="gated"), "activation goes with the epilogues that have one, got None"),
        (Form(activation=SWIGLU), "activation goes with the epilogues that have one, got Activation"),
        (Form("k", "n", epilogue="gated", activation=SWIGLU), "epilogue must be 'store' or 'add' where along is 'k'"),
        (Form(load="gather_b"), "load must be 'tma' or 'gather' where along is 'm', got 'gather_b'"),
        (Form("k", "k", 1, load="gather_b"), "load must be 'tma' unless rows have ends, operands have 16 bits"),
        (Form("m", "k", 1, epilogue="gated", activation=SWIGLU), "operands have 16 bits and no scales, got 'gated'"),
        (Form(rows="counts", load="gather"), "load must be 'tma' unless rows have ends, operands have"),
        (Form(scaling="lines", load="gather"), "16 bits and no scales, got 'gather'"),
        (Form(rows="pieces", load="gather"), "rows must be 'ends' unless they are gathered and an activation follows"),
        (Form(rows="pieces", epilogue="gated", activation=SWIGLU), "rows must be 'ends' unless they are gathered"),
        (Form("k", "n", rows="pieces", load="gather"), "rows must be 'ends' where along is 'k', got 'pieces'"),
        (Form(bias_bytes=1), "bias_bytes must be 0 or 2 or 4, got 1"),
        (Form("k", "n", bias_bytes=2), "bias_bytes must be 0 where along is 'k', got 2"),
        (
            Form(epilogue="gated_backward", activation=SWIGLU, bias_bytes=4),
            "bias_bytes must be 0 where epilogue is 'gated_backward', got 4",
        ),
        (Form("m", "k", 1, bias_bytes=2), "bias_bytes must be 0 unless rows have ends, operands have 16 bits and no"),
        (Form(rows="counts", bias_bytes=4), "bias_bytes must be 0 unless rows have ends, operands have 16 bits and no"),
    ],
)
def test_forms_without_a_kernel_are_refused_by_the_field(form, said):
    with pytest.raises(ValueError, match=said):
        form.check()


def test_every_other_combination_has_a_kernel():
    def has(form):
        try:
            return form.check() is None
        except ValueError:
            return False

    found = [
        form
        for values in itertools.product(*_VALUES.values(), (None, SWIGLU))
        if has(form := Form(**dict(zip((*_VALUES, "activation"), values))))
    ]
    sixteen_m = 2 * 2 * 3  # majors of B, rows, scalings
    eight_m, sixteen_k, eight_k = 2 * 4, 2, 4 * 2
    activated, gathered = 2 * 3, 2 * (1 + 3)  # majors of B, epilogues
    gathered_k = 2 * 2  # operands, epilogues
    in_pieces = 2 * 3  # majors of B, epilogues with an activation
    biased = 2 * 2 * (3 + 3 + 2)  # majors of B, dtypes of the bias, epilogues: plain, gathered, in pieces
    along_m, along_k = sixteen_m + eight_m + activated + gathered + in_pieces + biased, sixteen_k + eight_k + gathered_k
    assert len(set(found)) == 2 * (along_m + along_k)


def test_warps_that_load():
    assert Form().loading_warps == Form("k", "n").loading_warps == (LOAD, ZEROS, ZEROS, ZEROS)
    assert Form(rows="counts").loading_warps == Form("k", "n", epilogue="add").loading_warps == (LOAD, *[IDLE] * 3)
    assert Form(load="gather").loading_warps == (LOAD, GATHER, GATHER, ZEROS)
    assert Form(load="gather", epilogue="gated", activation=SWIGLU).loading_warps == (LOAD, GATHER, GATHER, IDLE)
    assert Form("k", "n", load="gather_b").loading_warps == (LOAD, GATHER, GATHER, ZEROS)
    assert Form("k", "n", load="gather", epilogue="add").loading_warps == (LOAD, GATHER, GATHER, IDLE)
    blocks = Form("k", "k", 1, scaling="blocks")
    assert blocks.loading_warps == (LOAD, SCALES, ZEROS, ZEROS)
    assert blocks._replace(epilogue="add").loading_warps == (LOAD, SCALES, IDLE, IDLE)
    assert blocks._replace(along="m").loading_warps == (LOAD, ZEROS, ZEROS, ZEROS), "a thread reads its own factors"


def test_the_gathered_operand():
    assert [Form("k", "n", load=load).gathered for load in ("tma", "gather", "gather_b")] == [None, "a", "b"]
    assert [Form("k", "n", load=load).has_others for load in ("tma", "gather", "gather_b")] == [False, True, True]


def test_a_bias_is_a_tensor_of_its_own():
    assert [Form(bias_bytes=each).has_others for each in (0, 2, 4)] == [False, True, True]
    assert Form(bias_bytes=2).writes_zeros


@pytest.mark.parametrize(
    ("epilogue", "activation", "pre_halves", "halves", "stores"),
    [
        ("store", None, 0, 1, 1),
        ("gated", SWIGLU, 2, 2, 1),
        ("gated", RELU2, 1, 1, 1),
        ("gated_pre", SWIGLU, 2, 2, 3),
        ("gated_pre", RELU2, 1, 1, 2),
        ("gated_backward", SWIGLU, 2, 1, 3),
        ("gated_backward", RELU2, 1, 1, 2),
    ],
)
def test_what_an_activation_reads_and_stores(epilogue, activation, pre_halves, halves, stores):
    form = Form(epilogue=epilogue, activation=activation)
    form.check()
    assert (form.pre_halves, form.halves, form.stores) == (pre_halves, halves, stores)
    assert form.writes_zeros == (epilogue == "store")
