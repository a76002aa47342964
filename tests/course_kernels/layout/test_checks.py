"""What is wrong with a description is named: its form always, its values on request."""

import pytest
import torch

from course_kernels.layout.group_layout import GroupLayout
from group_layouts import build

DTYPES = (torch.int32, torch.int64)


@pytest.mark.parametrize("kind", ["sizes", "ends", "offsets", "row_groups", "masked"])
@pytest.mark.parametrize(
    "value, error, text",
    [
        ([1, 2], TypeError, "must be a torch.Tensor, got list"),
        (torch.tensor([1.0]), TypeError, "int32 or torch.int64, got torch.float32"),
        (torch.tensor([1], dtype=torch.int16), TypeError, "got torch.int16"),
        (torch.tensor([True]), TypeError, "got torch.bool"),
        (torch.tensor(3), ValueError, r"must be 1-D, got shape \(\)"),
        (torch.ones(2, 2, dtype=torch.int32), ValueError, r"must be 1-D, got shape \(2, 2\)"),
        (torch.tensor([1, 2]).to_sparse(), TypeError, r"dense \(strided\) tensor, got layout torch.sparse_coo"),
    ],
)
def test_form_is_always_checked(kind, value, error, text):
    extra = (4,) if kind in ("row_groups", "masked") else ()
    with pytest.raises(error, match=f"{kind}.*{text}"):
        getattr(GroupLayout, f"from_{kind}")(value, *extra)


def test_counts_are_host_integers():
    ids = torch.tensor([0, 1])
    layout = GroupLayout.from_sizes(ids)
    with pytest.raises(ValueError, match=r"offsets must have G \+ 1 entries"):
        GroupLayout.from_offsets(ids[:0])
    with pytest.raises(TypeError, match="G must be an int on the host, got Tensor"):
        GroupLayout.from_row_groups(ids, torch.tensor(2))
    with pytest.raises(ValueError, match="max_m must not be negative, got -1"):
        GroupLayout.from_masked(ids, -1)
    with pytest.raises(ValueError, match="row_groups needs total_m"):
        layout.row_groups()
    with pytest.raises(TypeError, match="total_m must be an int"):
        layout.row_groups(2.0)
    with pytest.raises(ValueError, match="max_m is needed"):
        layout.masked()
    with pytest.raises(ValueError, match="kind must be one of"):
        GroupLayout(ids, "starts", 2)
    with pytest.raises(ValueError, match="sizes of G = 3 groups must have 3 entries, got 2"):
        GroupLayout(ids, "sizes", 3)
    with pytest.raises(ValueError, match="max_m belongs to masked_m"):
        GroupLayout(ids, "sizes", 2, max_m=4)


def test_row_tensors_are_checked():
    layout = build("masked_m", [2, 1])
    empty = torch.ones(6, 4)
    empty.untyped_storage().resize_(0)
    with pytest.raises(ValueError, match=r"packed of shape \(6, 4\) has no memory"):
        layout.pad(empty, 2)
    with pytest.raises(TypeError, match=r"packed must be a torch.Tensor, got list"):
        layout.pad([1, 2, 3])
    with pytest.raises(ValueError, match=r"padded must have at least 2 dimension\(s\), got shape \(2,\)"):
        layout.pack(torch.ones(2), 3)
    with pytest.raises(ValueError, match="padded holds 3 groups, the layout has G = 2"):
        layout.pack(torch.ones(3, 2), 3)
    with pytest.raises(ValueError, match="padded holds 5 slots a group, the layout has max_m = 2"):
        layout.pack(torch.ones(2, 5), 3)
    with pytest.raises(ValueError, match="packed is on meta, the layout is on cpu"):
        layout.pad(torch.ones(3, 1, device="meta"))
    with pytest.raises(TypeError, match=r"packed must be a dense \(strided\) tensor, got layout torch.sparse_coo"):
        layout.pad(torch.ones(3, 1).to_sparse())
    with pytest.raises(TypeError, match=r"padded must be a dense \(strided\) tensor, got layout torch.sparse_coo"):
        layout.pack(torch.ones(2, 2).to_sparse(), 3)


@pytest.mark.parametrize("dtype, fill, text", [
    (torch.float32, "x", "fill must be a number for rows of torch.float32, got 'x'"),
    (torch.float32, None, "fill must be a number"),
    (torch.float32, 1j, "fill must be a number"),
    (torch.int64, 0.5, "fill must be an int for rows of torch.int64, got 0.5"),
    (torch.float8_e4m3fn, "x", "fill must be a number"),
])  # fmt: skip
def test_rows_are_filled_with_a_number_of_their_dtype(dtype, fill, text):
    layout = build("masked_m", [2, 1])
    with pytest.raises(TypeError, match=text):
        layout.pad(torch.ones(3, 1).to(dtype), fill=fill)
    with pytest.raises(TypeError, match=text):
        layout.pack(torch.ones(2, 2, 1).to(dtype), 4, fill=fill)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "make, text",
    [
        (lambda t: GroupLayout.from_sizes(t([1, -2])), r"sizes\[1\] = -2"),
        (lambda t: GroupLayout.from_masked(t([0, -1]), 3), r"masked_m\[1\] = -1"),
        (lambda t: GroupLayout.from_masked(t([3, 4]), 3), "group 1 has 4 rows, more than its max_m = 3"),
        (lambda t: GroupLayout.from_ends(t([-1, 2])), r"ends\[0\] = -1"),
        (lambda t: GroupLayout.from_ends(t([1, 5, 4])), r"ends\[2\] = 4 is less than ends\[1\] = 5"),
        (lambda t: GroupLayout.from_ends(t([1, 5, 11])), "11 rows, more than total_m = 10"),
        (lambda t: GroupLayout.from_offsets(t([1, 5])), r"offsets\[0\] = 1: the first group starts at row 0"),
        (lambda t: GroupLayout.from_offsets(t([0, 5, 4])), r"offsets\[2\] = 4 is less than offsets\[1\] = 5"),
        (lambda t: GroupLayout.from_row_groups(t([0, 2]), 2), r"row_groups\[1\] = 2: wants a group from 0"),
        (lambda t: GroupLayout.from_row_groups(t([-2, 0]), 2), r"row_groups\[0\] = -2"),
        (lambda t: GroupLayout.from_row_groups(t([0, 1, 0]), 2), r"row_groups\[2\] = 0 follows .*\[1\] = 1"),
        (lambda t: GroupLayout.from_row_groups(t([0, -1, 1]), 2), r"row_groups\[2\] = 1 follows .*= -1"),
    ],
)
def test_validate_names_the_index_and_the_value(make, text, dtype):
    layout = make(lambda values: torch.tensor(values, dtype=dtype))
    with pytest.raises(ValueError, match=text):
        layout.validate(total_m=10)


def test_validate_notices_sizes_that_their_dtype_cannot_sum():
    huge = torch.tensor([2**30, 2**30], dtype=torch.int32)
    with pytest.raises(ValueError, match=r"2147483648 rows, more than torch.int32 can count"):
        GroupLayout.from_sizes(huge).validate()
    assert GroupLayout.from_sizes(huge.long()).validate().ends[-1] == 2**31


def test_validate_checks_the_slots_of_any_description():
    layout = build("ends", [2, 0, 3])
    assert layout.validate(total_m=5, max_m=3) is layout
    with pytest.raises(ValueError, match="group 2 has 3 rows, more than its max_m = 2"):
        layout.validate(max_m=2)
    with pytest.raises(TypeError, match="total_m must be an int"):
        layout.validate(total_m=torch.tensor(5))
