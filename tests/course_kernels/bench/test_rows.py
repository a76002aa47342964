"""The rows of the benchmark: exact sizes, counted work, selection by name."""

from __future__ import annotations

import pytest

from bench_stand_ins import DECODE, TINY, TINY_8_BIT
from course_kernels.bench import rows as bench_rows

ZIPF8 = (2910, 1068, 1208, 1398, 960, 5066, 2103, 1671)


def test_rows_are_those_of_the_targets():
    sizes = {row.name: (row.groups, row.total_m, row.N, row.K) for row in bench_rows.rows()}
    assert len(sizes) == 9
    assert sizes["equal12"] == (12, 8192, 2048, 1024)
    assert sizes["zipf8"] == (8, 16384, 14336, 4096)
    assert sizes["zipf128-up"] == (128, 32768, 1536, 2048)
    assert sizes["zipf128-down"] == (128, 32768, 2048, 768)
    assert sizes["decode256"] == (256, 1024, 4096, 7168)
    assert sizes["decode32"] == (32, 640, 7168, 2048)
    for name, groups in (("jitter4", 4), ("jitter8-tall", 8), ("jitter8-square", 8)):
        assert sizes[name][0] == groups
        assert sizes[name][1] == pytest.approx(32768, rel=0.002)
    assert [row.name for row in bench_rows.variants()] == ["jitter12", "one-hot8", "half-empty128", "single256"]


def test_sizes_are_the_same_everywhere():
    """Records of two machines are compared row by row: these numbers must never move."""
    table = bench_rows.by_name()
    assert table["jitter4"].sizes == (6395, 9900, 9489, 6988)
    assert table["jitter8-tall"].sizes == (3366, 5134, 3790, 4909, 3958, 2880, 3977, 4802)
    assert table["jitter8-square"].sizes == (4976, 4282, 3659, 3535, 5322, 3594, 3990, 3405)
    assert table["jitter12"].sizes == (663, 707, 856, 669, 686, 718, 554, 688, 736, 803, 516, 602)
    assert table["zipf8"].sizes == ZIPF8
    assert table["equal12"].sizes == (682, 683, 683) * 4
    for name, weighed in (("zipf128-up", 2239835), ("zipf128-down", 2321851)):
        assert sum(g * size for g, size in enumerate(table[name].sizes)) == weighed


def test_sizes_have_the_shape_that_their_names_promise():
    table = bench_rows.by_name()
    for name in ("jitter4", "jitter8-tall", "jitter8-square", "jitter12"):
        mean = {"jitter12": 8192 / 12}.get(name, 32768 / table[name].groups)
        assert all(0.7 * mean - 1 <= size <= 1.3 * mean + 1 for size in table[name].sizes)
    largest_first = sorted(table["zipf128-up"].sizes, reverse=True)
    assert largest_first[0] / largest_first[9] == pytest.approx(10**0.8, rel=0.01)
    assert list(table["zipf128-up"].sizes) != largest_first, "a router's favourites are not the first experts"
    assert table["zipf128-up"].sizes != table["zipf128-down"].sizes
    assert sorted(table["one-hot8"].sizes) == [0] * 7 + [16384]
    assert table["half-empty128"].sizes[:4] == (0, 512, 0, 512)
    assert sum(size == 0 for size in table["half-empty128"].sizes) == 64
    assert set(table["single256"].sizes) == {1}


def test_a_title_says_groups_rows_how_they_were_drawn_and_extents():
    titles = {name: row.title for name, row in bench_rows.by_name().items()}
    assert titles["zipf128-up"] == "128 experts, 32,768 tokens (Zipf), N 1536, K 2048"
    assert titles["jitter4"] == "4 experts, 32,772 tokens (±30%), N 6144, K 7168"
    assert titles["decode256"] == "256 experts, 1,024 tokens (4 each), N 4096, K 7168"


def test_a_title_may_break_before_its_extents():
    row = bench_rows.by_name()["zipf8"]
    assert bench_rows.title_of({"title": row.title}) == row.title
    assert bench_rows.title_of({"title": row.title}, lines=2) == "8 experts, 16,384 tokens (Zipf)\nN 14336, K 4096"
    assert bench_rows.title_of({"title": "last"}, lines=2) == "last"


def test_work_is_counted_once():
    assert TINY.flops == 2 * 40 * 16 * 24
    activations = 2 * 40 * (16 + 24)
    assert TINY.bytes_moved() == TINY.bytes_moved("dA") == activations + 2 * 3 * 16 * 24, "an empty group's is not read"
    assert TINY.bytes_moved("dB") == activations + 2 * 4 * 16 * 24, "but its gradient is written"
    assert TINY.rate(10.0) == pytest.approx(TINY.flops / 10e-6 / 1e12)
    assert DECODE.rate(10.0, "dB") == pytest.approx(DECODE.bytes_moved("dB") / 10e-6 / 1e12)
    assert (TINY.unit, DECODE.unit) == ("TFLOP/s", "TB/s")


def test_bytes_of_8_bit_operands_are_half():
    rows_a, rows_out, weights = 40 * 32, 40 * 16, 16 * 32
    assert TINY_8_BIT.bytes_moved("forward", 1) == rows_a + 3 * weights + 2 * rows_out
    assert TINY_8_BIT.bytes_moved("dA", 1) == rows_out + 3 * weights + 2 * rows_a
    assert TINY_8_BIT.bytes_moved("dB", 1) == rows_a + rows_out + 2 * 4 * weights


def test_rows_are_chosen_by_the_beginning_of_their_names():
    def names(chosen):
        return [row.name for row in bench_rows.select(chosen)]

    assert names(["zipf128"]) == ["zipf128-up", "zipf128-down"]
    assert names(["decode", "equal12"]) == ["equal12", "decode256", "decode32"], "in the table's order"
    assert names(["zipf8"]) == ["zipf8"]
    assert len(names(None)) == 13
    with pytest.raises(ValueError, match="got 'equal21'; did you mean equal12"):
        bench_rows.select(["equal21"])
