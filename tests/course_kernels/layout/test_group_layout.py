import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from course_kernels.layout.group_layout import GroupLayout, padding_waste
from course_kernels.testing.data import integers

DTYPES = (torch.int32, torch.int64)
KINDS = ("sizes", "ends", "offsets", "row_groups", "masked_m")
TAIL = 3
sizes_lists = st.lists(st.integers(0, 9), max_size=12)


def build(kind, sizes, dtype=torch.int32, device="cpu"):
    """The layout of these sizes, from a description computed here in plain Python."""
    ends = [sum(sizes[: g + 1]) for g in range(len(sizes))]
    ids = [g for g, m in enumerate(sizes) for _ in range(m)] + [-1] * TAIL
    values = {"sizes": sizes, "ends": ends, "offsets": [0, *ends], "row_groups": ids, "masked_m": sizes}[kind]
    source = torch.tensor(values, dtype=dtype).to(device)
    if kind == "row_groups":
        return GroupLayout.from_row_groups(source, len(sizes))
    if kind == "masked_m":
        return GroupLayout.from_masked(source, max(sizes, default=0))
    return getattr(GroupLayout, f"from_{kind}")(source)


def every_description(layout, total_m, max_m):
    return {
        "sizes": layout.sizes,
        "masked_m": layout.masked_m,
        "ends": layout.ends,
        "offs": layout.offs,
        "offsets": layout.offsets,
        "row_groups": layout.row_groups(total_m),
        "masked": layout.masked(max_m),
        "pad_indices": layout.pad_indices(max_m),
        "pack_indices": layout.pack_indices(total_m, max_m),
    }


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=25, deadline=None)
@given(sizes=sizes_lists)
def test_every_description_converts_to_every_other(kind, dtype, sizes):
    layout = build(kind, sizes, dtype).validate(total_m=sum(sizes) + TAIL)
    ends = [sum(sizes[: g + 1]) for g in range(len(sizes))]
    ids = [g for g, m in enumerate(sizes) for _ in range(m)] + [-1] * TAIL
    assert layout.G == len(sizes)
    for got, wanted in (
        (layout.sizes, sizes),
        (layout.masked_m, sizes),
        (layout.ends, ends),
        (layout.offs, ends),
        (layout.offsets, [0, *ends]),
        (layout.row_groups(len(ids)), ids),
        (layout.row_groups(sum(sizes)), ids[: sum(sizes)]),
    ):
        assert got.tolist() == wanted
        assert got.dtype == dtype
    max_m = max(sizes, default=0) + 1
    assert layout.masked(max_m).tolist() == [[i < m for i in range(max_m)] for m in sizes]


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=25, deadline=None)
@given(sizes=sizes_lists, spare=st.integers(0, 2))
def test_pad_and_pack_are_inverse(kind, sizes, spare):
    layout = build(kind, sizes)
    max_m, used = max(sizes, default=0) + (0 if kind == "masked_m" else spare), sum(sizes)
    packed = torch.arange(1, 2 * (used + TAIL) + 1, dtype=torch.float64).view(used + TAIL, 2)
    padded = layout.pad(packed, max_m, fill=-7)
    start = 0
    for g, m in enumerate(sizes):
        assert torch.equal(padded[g, :m], packed[start : start + m])
        assert (padded[g, m:] == -7).all()
        start += m
    again = layout.pack(padded, used + TAIL)
    assert torch.equal(again[:used], packed[:used])
    assert torch.equal(again[used:], torch.zeros(TAIL, 2, dtype=torch.float64))


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.bfloat16, torch.float32, torch.int32])
def test_pad_and_pack_keep_the_dtype_and_trailing_dimensions(dtype):
    layout = build("sizes", [2, 0, 3])
    packed = integers((5, 2, 3), dtype)
    padded = layout.pad(packed, 4)
    assert padded.shape == (3, 4, 2, 3)
    assert padded.dtype == dtype
    assert torch.equal(layout.pack(padded, 5).to(torch.float64), packed.to(torch.float64))
    assert not padded[1].to(torch.float64).any()


def test_fp8_padding_takes_the_fill_value_and_not_its_bits():
    padded = build("sizes", [1]).pad(integers((1, 2), torch.float8_e4m3fn), 2, fill=1.5)
    assert padded.float()[0, 1].tolist() == [1.5, 1.5]


def test_pack_reads_no_padding_and_its_gradient_writes_none():
    layout = build("ends", [2, 0, 1])
    padded = torch.full((3, 2, 1), torch.nan, dtype=torch.float64)
    padded[0], padded[2, 0] = 1.0, 2.0
    padded.requires_grad_()
    packed = layout.pack(padded, 5)
    assert packed.flatten().tolist() == [1, 1, 2, 0, 0]
    packed.sum().backward()
    assert padded.grad.flatten().tolist() == [1, 1, 0, 0, 1, 0]


def test_rows_that_do_not_fit_are_dropped_and_not_read_from_elsewhere():
    layout = build("sizes", [3, 2])
    packed = torch.arange(1.0, 4.0)[:, None]  # two rows fewer than the layout claims
    assert layout.pad(packed, 2).flatten().tolist() == [1, 2, 0, 0]
    assert layout.pack(torch.ones(2, 2, 1), 5).flatten().tolist() == [1, 1, 0, 1, 1]


def test_descriptions_follow_the_source_when_it_is_rewritten():
    sizes = torch.tensor([1, 2], dtype=torch.int32)
    layout = GroupLayout.from_sizes(sizes)
    assert layout.ends.tolist() == [1, 3]
    sizes.copy_(torch.tensor([4, 0]))
    assert layout.ends.tolist() == [4, 4]


@pytest.mark.parametrize("dtype", DTYPES)
@settings(max_examples=25, deadline=None)
@given(ids=st.lists(st.integers(-1, 4), max_size=30))
def test_sort_order_is_the_stable_dispatch_permutation(dtype, ids):
    order = GroupLayout.sort_order(torch.tensor(ids, dtype=dtype))
    assert order.tolist() == sorted(range(len(ids)), key=lambda r: (ids[r] < 0, ids[r], r))
    layout = GroupLayout.from_row_groups(torch.tensor(ids, dtype=dtype)[order], 5).validate()
    assert layout.sizes.tolist() == [ids.count(g) for g in range(5)]


def test_ids_that_name_no_group_count_as_padding():
    layout = GroupLayout.from_row_groups(torch.tensor([0, 7, -5, 1]), 2)
    assert layout.sizes.tolist() == [1, 1]


class NoHostRead(TorchDispatchMode):
    """Raises where an operation would make the host wait for a device, or shape a result by values."""

    forbidden = ("_local_scalar_dense", "nonzero", "masked_select", "unique", "equal", "repeat_interleave")

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        assert not name.startswith(self.forbidden), f"{name} reads values on the host"
        return func(*args, **(kwargs or {}))


def test_the_guard_notices_a_host_read():
    with NoHostRead(), pytest.raises(AssertionError, match="host"):
        torch.ones(2).sum().item()
    with NoHostRead(), pytest.raises(AssertionError, match="host"):
        bool(torch.ones(2).any())


@pytest.mark.parametrize("sizes", [[2, 0, 3], [0, 0], []])
@pytest.mark.parametrize("kind", KINDS)
def test_no_conversion_reads_a_value(kind, sizes):
    layout, meta = build(kind, sizes), build(kind, sizes, device="meta")
    max_m = layout.max_m if layout.max_m is not None else 4
    for candidate in (layout, meta):  # a meta tensor has no values at all, so even .tolist() fails on it
        with NoHostRead():
            shapes = {k: v.shape for k, v in every_description(candidate, 8, max_m).items()}
            order = GroupLayout.sort_order(candidate.row_groups(8))
            padded = candidate.pad(torch.zeros(8, 2, device=candidate.device), max_m)
            packed = candidate.pack(padded, 8)
        assert shapes["offsets"] == (len(sizes) + 1,)
        assert order.shape == (8,)
        assert padded.shape == (len(sizes), max_m, 2)
        assert packed.shape == (8, 2)
    assert f"G={len(sizes)}" in repr(meta)


def test_repr_shows_sizes_where_they_are_free():
    assert repr(build("ends", [2, 0, 3])) == "GroupLayout(ends, G=3, sizes=[2, 0, 3], torch.int32, cpu)"
    assert "max_m=3" in repr(build("masked_m", [2, 0, 3]))
    assert "sizes" not in repr(build("ends", [1] * 17))


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


@pytest.mark.parametrize("sizes, waste", [([4, 4], 0.0), ([8, 0, 0, 0], 3.0), ([3, 1], 0.5), ([], 0.0), ([0, 0], 0.0)])
def test_padding_waste(sizes, waste):
    assert padding_waste(sizes) == waste
    assert padding_waste(torch.tensor(sizes, dtype=torch.int32)) == waste
    assert padding_waste(build("offsets", sizes)) == waste


def test_padding_waste_refuses_negative_sizes():
    with pytest.raises(ValueError, match=r"sizes\[1\] = -3"):
        padding_waste([1, -3])


@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS)
def test_conversions_are_captured_in_a_cuda_graph_and_follow_its_inputs(kind):
    first, second = build(kind, [2, 0, 3], device="cuda"), build(kind, [1, 3, 1])
    torch.cuda.set_sync_debug_mode("error")
    try:
        every_description(first, 8, 3)
        repr(first)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = every_description(first, 8, 3)
    first.source.copy_(second.source)
    graph.replay()
    for name, wanted in every_description(second, 8, 3).items():
        assert torch.equal(captured[name].cpu(), wanted), name
