"""What a kernel of the Hopper kernel's is built for: which forms there are, and who does what."""

from __future__ import annotations

import itertools

import pytest

from course_kernels.kernels.cute_sm90.form import _VALUES, IDLE, LOAD, SCALES, ZEROS, Form


@pytest.mark.parametrize(
    ("form", "said"),
    [
        (Form("n"), "along must be 'm' or 'k', got 'n'"),
        (Form("m", "m"), "b_major must be 'k' or 'n', got 'm'"),
        (Form(operand_bytes=4), "operand_bytes must be 2 or 1, got 4"),
        (Form(rows="index"), "rows must be 'ends' or 'counts', got 'index'"),
        (Form(scaling="row"), "scaling must be 'none' or 'lines' or 'groups' or 'blocks', got 'row'"),
        (Form(epilogue="bias"), "epilogue must be 'store' or 'add', got 'bias'"),
        (Form(index_bytes=2), "index_bytes must be 4 or 8, got 2"),
        (Form("k", "k"), "b_major must be 'n' where along is 'k' and operands have 16 bits, got 'k'"),
        (Form("m", "n", 1), "b_major must be 'k' where operands have 8 bits, got 'n'"),
        (Form("k", "n", rows="counts"), "rows must be 'ends' where along is 'k', got 'counts'"),
        (Form("k", "n", scaling="lines"), "scaling must be 'none' where along is 'k' and operands have 16 bits"),
        (Form(scaling="blocks"), "scaling must not be 'blocks' where operands have 16 bits"),
        (Form(epilogue="add"), "epilogue must be 'store' where along is 'm', got 'add'"),
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

    found = [form for values in itertools.product(*_VALUES.values()) if has(form := Form(*values))]
    sixteen_m = 2 * 2 * 3  # majors of B, rows, scalings
    eight_m, sixteen_k, eight_k = 2 * 4, 2, 4 * 2
    assert len(set(found)) == 2 * (sixteen_m + eight_m + sixteen_k + eight_k)


def test_warps_that_load():
    assert Form().loading_warps == Form("k", "n").loading_warps == (LOAD, ZEROS, ZEROS, ZEROS)
    assert Form(rows="counts").loading_warps == Form("k", "n", epilogue="add").loading_warps == (LOAD, *[IDLE] * 3)
    blocks = Form("k", "k", 1, scaling="blocks")
    assert blocks.loading_warps == (LOAD, SCALES, ZEROS, ZEROS)
    assert blocks._replace(epilogue="add").loading_warps == (LOAD, SCALES, IDLE, IDLE)
    assert blocks._replace(along="m").loading_warps == (LOAD, ZEROS, ZEROS, ZEROS), "a thread reads its own factors"
