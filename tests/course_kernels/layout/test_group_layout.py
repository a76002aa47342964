import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from course_kernels.layout.group_layout import GroupLayout, padding_waste
from group_layouts import KINDS, TAIL, build

DTYPES = (torch.int32, torch.int64)
sizes_lists = st.lists(st.integers(0, 9), max_size=12)


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


@pytest.mark.parametrize("dtype", DTYPES)
@settings(max_examples=50, deadline=None)
@given(ids=st.lists(st.integers(-9, 9), max_size=12), G=st.integers(0, 5), slots=st.integers(0, 4))
def test_ids_that_name_no_group_count_as_padding(dtype, ids, G, slots):
    """Ids of experts on other ranks, for example. Padding may be in between, too, where only the sizes are right."""
    padded = [g if 0 <= g < G else -1 for g in ids]
    layout, plain = (GroupLayout.from_row_groups(torch.tensor(each, dtype=dtype), G) for each in (ids, padded))
    assert layout.row_groups().tolist() == padded
    assert layout.sizes.tolist() == [padded.count(g) for g in range(G)]
    for total in (len(ids), len(ids) + 2):
        wanted = every_description(plain, total, slots)
        for name, found in every_description(layout, total, slots).items():
            assert torch.equal(found, wanted[name]), name
        values = torch.arange(1.0, G * slots + 1).view(G, slots, 1)
        assert torch.equal(layout.pack(values, total), plain.pack(values, total))


def test_rows_of_other_ranks_experts_are_left_out():
    layout = GroupLayout.from_row_groups(torch.tensor([0, 1, 1, 2, 2]), 2)
    assert layout.row_groups(5).tolist() == [0, 1, 1, -1, -1]
    assert layout.pack(torch.ones(2, 4, 1), 5).flatten().tolist() == [1, 1, 1, 0, 0]
    with pytest.raises(ValueError, match=r"row_groups\[3\] = 2: wants a group from 0"):
        layout.validate()


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
