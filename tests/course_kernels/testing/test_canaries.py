"""Tensors in any layout, and canaries around them."""

import pytest
import torch

from course_kernels import testing as t
from course_kernels.testing.canaries import guarded, laid_out, layouts

FP8 = [torch.float8_e4m3fn, torch.float8_e5m2]
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64, *FP8]
ALL = [*FLOATS, torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64]


@pytest.mark.parametrize("shape", [(5,), (3, 4), (2, 3, 4), (0, 4), (3, 0)])
@pytest.mark.parametrize("dtype", ALL)
def test_poisoned_views_start_as_canaries_and_accept_writes_inside(dtype, shape):
    view, verify = t.poisoned(shape, dtype, margin=2)
    assert view.shape == shape
    assert view.dtype == dtype
    if dtype.is_floating_point:
        assert view.to(torch.float64).isnan().all()
    verify()
    if view.numel():
        with pytest.raises(AssertionError, match=f"{view.numel()} element.*never written, the first at"):
            verify(all_written=True)
    view.copy_(torch.ones(shape))
    verify(all_written=True)


@pytest.mark.parametrize("index, at", [((0, 1), r"\[-2, -1\]"), ((2, 6), r"\[0, 4\]"), ((5, 3), r"\[3, 1\]")])
def test_poisoned_finds_a_write_outside(index, at):
    view, verify = t.poisoned((3, 4), torch.float16, margin=2)
    buffer = view.as_strided((7, 8), (8, 1), 0)
    buffer[index] = 0.0
    with pytest.raises(AssertionError, match=rf"1 element\(s\) outside .* the first at {at}"):
        verify()


def test_poisoned_tells_a_computed_nan_from_its_canary():
    view, verify = t.poisoned((2, 2), torch.float16, margin=1)
    buffer = view.as_strided((4, 4), (4, 1), 0)
    view.copy_(torch.full((2, 2), torch.nan))
    verify(all_written=True)
    buffer[0, 0] = torch.nan
    with pytest.raises(AssertionError, match=r"the first at \[-1, -1\]"):
        verify()


def test_poisoned_sees_between_the_matrices_of_a_batch():
    view, verify = t.poisoned((2, 2, 2), torch.int32, margin=1)
    view.as_strided((2, 4, 4), (16, 4, 1), 0)[1, 3, 2] = 0
    with pytest.raises(AssertionError, match=r"the first at \[1, 2, 1\]"):
        verify()


def test_poisoned_refuses_nonsense():
    with pytest.raises(ValueError, match="at least one dimension"):
        t.poisoned(())
    with pytest.raises(ValueError, match="margin must be at least 1, got 0"):
        t.poisoned((2,), margin=0)
    with pytest.raises(ValueError, match=r"dtype must be one of .*got torch.complex64"):
        t.poisoned((2,), torch.complex64)


STRIDES_OF_5_BY_6 = {
    "row": (6, 1),
    "col": (1, 5),
    "transposed": (1, 21),
    "padded": (22, 1),
    "unaligned": (7, 1),
    "every_other": (12, 2),
    "expanded": (0, 1),
}


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float8_e4m3fn])
@pytest.mark.parametrize("how", t.STRIDES)
def test_strided_like_moves_values_and_changes_strides_only(how, dtype):
    data = t.integers((5, 6), dtype)
    view = t.strided_like(data, how)
    assert view.stride() == STRIDES_OF_5_BY_6[how]
    wanted = data[:1].expand(5, 6) if how == "expanded" else data
    assert torch.equal(view.to(torch.float64), wanted.to(torch.float64))
    assert (view.data_ptr() % 16 != 0) == (how == "unaligned")
    whole = view.as_strided((view.untyped_storage().nbytes() // dtype.itemsize,), (1,), 0).to(torch.float64)
    gaps = how in ("transposed", "padded", "unaligned", "every_other")
    assert bool(whole.isnan().any()) == gaps  # reading a gap shows


@pytest.mark.parametrize("how", t.STRIDES)
@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (2, 4, 3), (1, 1)])
def test_strided_like_takes_empty_matrices_and_batches(how, shape):
    data = t.integers(shape)
    view = t.strided_like(data, how)
    assert view.shape == shape
    assert how == "expanded" or torch.equal(view, data)


def test_strided_like_refuses_nonsense():
    with pytest.raises(ValueError, match=r"how must be one of row, .*got 'diagonal'"):
        t.strided_like(torch.ones(2, 2), "diagonal")
    with pytest.raises(ValueError, match=r"at least 2 dimensions, got shape \(2,\)"):
        t.strided_like(torch.ones(2), "row")


@pytest.mark.parametrize("how", layouts(3))
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float8_e4m3fn])
def test_layouts_of_batches_and_their_guards(dtype, how):
    values = t.integers((3, 4, 5), dtype)
    view = laid_out(values, how)
    wanted = {"shared": values[:1].expand(3, 4, 5), "expanded": values[:, :1].expand(3, 4, 5)}.get(how, values)
    twin, buffer = guarded(view)
    for each in (view, twin):
        assert torch.equal(each.float(), wanted.float())
        assert each.stride() == view.stride()
        assert each.data_ptr() % 16 == view.data_ptr() % 16
    assert twin.untyped_storage().data_ptr() == buffer.data_ptr()
    memory = buffer.view(dtype).float()
    assert memory[:64].isnan().all()
    assert memory[-64:].isnan().all()
    expected = {"shared": (0, 5, 1), "permuted": (5, 15, 1), "pitched": (64, 16, 1)}
    assert how not in expected or view.stride() == expected[how]


def test_layouts_of_batches_are_refused_for_matrices():
    with pytest.raises(ValueError, match=r"how = 'shared' is for batches, got shape \(2, 2\)"):
        laid_out(torch.ones(2, 2), "shared")
