"""Every draw has the cases that its exercise needs, so a wrong answer fails with every seed."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
import torch

from gemm_course.exercises import manifest

SEEDS = range(200)


def drawn(name, seeds=SEEDS):
    """The inputs of every case, for each seed."""
    (exercise,) = manifest.find(name)
    return [[case.inputs for case in exercise.module().draw(random.Random(seed))] for seed in seeds]


def test_01_has_empty_groups_tails_and_ends_past_what_short_types_hold():
    for cases in drawn("01"):
        sizes = [each["sizes"] for each in cases]
        assert any(each[0] == 0 and each[-1] == 0 and (each[1:-1] == 0).any() and each.any() for each in sizes)
        assert any(not each.any() and not case["total_m"] for each, case in zip(sizes, cases))
        assert any(not each.any() and case["total_m"] for each, case in zip(sizes, cases))
        assert any(each.any() and each.sum() < case["total_m"] for each, case in zip(sizes, cases))
        ends = torch.cat([each.cumsum(0) for each in sizes])
        assert ((ends > 127) & (ends < 2048)).any()
        assert ((ends > 2048) & (ends < 4096) & (ends % 2 == 1)).any()
        assert (ends > 32767).any()


def test_02_has_whole_blocks_tails_of_two_sizes_and_numbers_that_overflow_either_way():
    for cases in drawn("02"):
        found = [(case["x"].shape, case["block_m"], 1 << (case["x"].shape[1] - 1).bit_length()) for case in cases]
        assert any(m % block_m == 0 and n == block_n for (m, n), block_m, block_n in found)
        short = [
            (block_m, block_n) for (m, n), block_m, block_n in found if m > block_m and -m % block_m > 1 < block_n - n
        ]
        assert len({block_m for block_m, _ in short}) > 1
        assert len({block_n for _, block_n in short}) > 1
        top = torch.cat([case["x"].amax(1) for case in cases])
        assert top.max() > 88.8, "exp is infinite in float32"
        assert top.min() < -103.98, "exp is 0, the smallest denormal number included"
        assert all(case["x"].isfinite().all() for case in cases)


def test_03_has_whole_tiles_all_tails_and_three_blocks_of_k():
    for cases in drawn("03"):
        shapes = [(*case["a"].shape, case["b"].shape[1]) for case in cases]
        assert any(not any(extent % 16 for extent in shape) for shape in shapes)
        assert any(all(extent % 16 for extent in shape) and shape[0] > 32 for shape in shapes)
        assert {m > n for _, m, n in shapes if m % 16} == {True, False}


def test_04a_has_every_kind_of_empty_problem_one_program_and_many_tiles():
    for cases in drawn("04a"):
        for batch in [case["problems"] for case in cases if any(m * n == 0 for m, n, _ in case["problems"])]:
            assert {(m > 0, n > 0) for m, n, _ in batch} >= {(False, True), (True, False), (False, False)}
        tiles = [[-(-m // 32) * -(-n // 16) for m, n, _ in case["problems"]] for case in cases]
        programs = [case["programs"] for case in cases]
        assert any(count > sum(each) > 0 for count, each in zip(programs, tiles))
        assert any(count == 1 and sum(each[:-1]) > 127 and each[-1] for count, each in zip(programs, tiles))


def test_04b_has_every_layout_of_every_matrix():
    for cases in drawn("04b"):
        for case in cases:
            for which in range(3):
                assert {each["layouts"][which] for each in case["problems"]} == {"row", "col"}
            assert any(each["skips"] for each in case["problems"])


def test_05_has_one_program_no_tiles_fewer_tiles_and_equal_ones():
    for cases in drawn("05"):
        assert any(case["programs"] == 1 and len(case["costs"]) > 1 for case in cases)
        assert any(not case["costs"] for case in cases)
        assert any(0 < len(case["costs"]) < case["programs"] for case in cases)
        assert any(len(set(case["costs"])) == 1 and len(case["costs"]) % case["programs"] for case in cases)


def test_06_has_parts_of_blocks_three_of_them_long_groups_and_sums_that_half_rounds():
    for cases in drawn("06", range(40)):
        depths = {case["a"].shape[1] for case in cases}
        assert any(depth % 64 for depth in depths if depth > 64)
        assert max(depths) >= 3 * 64
        sizes = [[end - start for start, end in pairwise([0, *case["ends"]])] for case in cases]
        assert any(0 in each for each in sizes)
        assert max(map(max, sizes)) > 2 * 16
        long = next(case for case in cases if case["a"].shape[1] == max(depths))
        assert (long["a"].double() @ long["b"].double().T).min() > 2048


def test_07_has_large_batches_equal_bytes_and_other_centres_than_the_picture():
    for cases in drawn("07"):
        calls = [[tuple(call) for call in case["calls"]] for case in cases]
        assert all(len(each) > len(set(each)) for each in calls), "some calls are repeated"
        assert max(total / groups for total, groups, *_ in calls[2]) > 2 * 8192
        for each in calls[:2]:
            middle = sorted(total / groups for total, groups, *_ in each)[len(each) // 2]
            assert all(abs(middle - centre) > 0.1 * centre for centre in (1024, 1536, 2048))
        types = {(K, name) for *_, K, name in calls[4]}
        assert any((2 * K, "float16") in types for K, name in types if name == "float32")


def test_08_has_two_types_of_c_tails_and_numbers_that_each_rounds():
    for cases in drawn("08"):
        assert {case["dtype"] for case in cases} == {"float16", "float32"}
        for case in cases:
            product = case["a"].double() @ case["b"].double().T
            assert (product > 2048).any()
            assert (product < torch.finfo(torch.float16).max).all()
        sizes = [[end - start for start, end in pairwise([0, *case["ends"]])] for case in cases]
        assert any(each[g] == 0 for each, case in zip(sizes, cases) for g in case["groups"])


@pytest.mark.parametrize("seed", range(6))  # drawing takes longer
def test_09_has_both_types_of_offsets_asked_for_in_both_and_empty_groups(seed):
    (cases,) = drawn("09", [seed])
    fitting = [
        (case["offsets"], each[-1])
        for case in cases
        for each in case["catalogue"]
        if case["target"] in each[0] and each[1] == str(case["mat_a"].dtype).removeprefix("torch.")
    ]
    assert {tuple(map(str, pair)) for pair in fitting} >= {
        (given, wanted) for given in ("int32", "int64") for wanted in ("int32", "int64")
    }
    assert any(0 in case["sizes"] for case in cases)
