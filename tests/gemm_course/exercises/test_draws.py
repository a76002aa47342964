"""Every draw has the cases that its exercise tests, so a wrong answer fails with every seed."""

from __future__ import annotations

import importlib
import itertools
import random
from itertools import pairwise

import pytest
import torch

from gemm_course.exercises import manifest
from gemm_course.exercises.e09_pick_operator.examine import EQUAL, IN_ORDER
from gemm_course.exercises.e09_pick_operator.operators import MISTAKES, best
from gemm_course.exercises.e09_pick_operator.run import from_plain
from gemm_course.exercises.e10_own_epilogue import examine as epilogue
from gemm_course.judging.exercise import COMPILES

SEEDS = range(200)
HALF = torch.finfo(torch.float16).max
ODD = 2048  # above it float16 holds no odd number


def drawn(name):
    """The cases of each seed. Each property of an answer has an input, and other seeds give other inputs."""
    (exercise,) = manifest.find(name)
    wanted, labels = {check.name for check in exercise.checks} - {COMPILES}, set()
    for seed in SEEDS:
        cases = manifest.examiner(exercise).draw(random.Random(seed))
        assert {check for case in cases for check in case.checks} == wanted
        labels.add(tuple(case.label for case in cases))
        yield cases
    assert len(labels) > 1


def inputs(name):
    """The inputs of every case, for each seed."""
    return ([case.inputs for case in cases] for cases in drawn(name))


def sizes_of(ends):
    return [end - start for start, end in pairwise([0, *ends])]


def short(extent, block):
    """Whether a last block lacks two elements at least. With one, a missing mask reads as far as `<=` does."""
    return -extent % block > 1


def sums(case, along):
    """Bounds of all sums of products of `a` and `b`, whose numbers are positive; `along`: the dimension that is K."""
    a, b = (case[name].double() for name in "ab")
    return max(a.sum(along).min() * b.min(), b.sum(along).min() * a.min()), a.sum(along).max() * b.max()


def test_every_exercise_has_its_draw_looked_at():
    tested = {name.split("_")[1] for name in globals() if name.startswith("test_")}
    assert {exercise.id for exercise in manifest.exercises()} <= tested


def test_01_has_empty_groups_tails_and_ends_past_what_short_types_hold():
    for cases in drawn("01"):
        assert all("device" in case.checks for case in cases)
        sizes = [case.inputs["sizes"] for case in cases]
        tails = [case.inputs["total_m"] - int(each.sum()) for case, each in zip(cases, sizes)]
        assert any(each.all() and each[0] > 1 and not tail for each, tail in zip(sizes, tails))
        assert any(each[0] == 0 and each[-1] == 0 and (each[1:-1] == 0).any() and each.any() for each in sizes)
        assert {(bool(each.any()), tail > 0) for each, tail in zip(sizes, tails)} == {
            (rows, tail) for rows in (False, True) for tail in (False, True)
        }
        ends = torch.cat([each.cumsum(0) for each in sizes])
        assert ((ends > 127) & (ends < ODD)).any()
        assert ((ends > ODD) & (ends < 2 * ODD) & (ends % 2 == 1)).any()
        assert (ends > 32767).any()


def test_02_has_whole_blocks_tails_of_two_sizes_and_numbers_that_overflow_either_way():
    for cases in inputs("02"):
        found = [(case["x"].shape, case["block_m"], 1 << (case["x"].shape[1] - 1).bit_length()) for case in cases]
        assert any(m % block_m == 0 and n == block_n for (m, n), block_m, block_n in found)
        tails = [blocks for (m, n), *blocks in found if m > blocks[0] and short(m, blocks[0]) and short(n, blocks[1])]
        assert len(tails) > 1
        assert all(len(set(sizes)) > 1 for sizes in zip(*tails))
        top = torch.cat([case["x"].amax(1) for case in cases])
        assert top.max() > 88.8, "exp is infinite in float32"
        assert top.min() < -103.98, "exp is 0, the smallest denormal number included"
        spans = torch.cat([case["x"].amax(1) - case["x"].float().mean(1) for case in cases])
        assert (spans > 88.8).any(), "exp is infinite if a row's average is subtracted, or its smallest number"
        blocks = [block for case in cases for block in case["x"].split(case["block_m"])]
        lower = torch.cat([block.max() - block.amax(1) for block in blocks])
        assert lower.max() > 103.98, "exp is 0 if a block's maximum is subtracted"
        assert not ((lower > 80) & (lower < 104)).any(), "nor is it nearly 0"
        assert all(case["x"].isfinite().all() for case in cases)


def test_03_has_whole_tiles_all_tails_and_three_blocks_of_k():
    for cases in inputs("03"):
        shapes = [(*case["a"].shape, case["b"].shape[1]) for case in cases]
        assert any(not any(extent % 16 for extent in shape) for shape in shapes)
        assert any(all(short(extent, 16) for extent in shape) and shape[0] > 2 * 16 for shape in shapes)
        assert {m > n for _, m, n in shapes if short(m, 16) and short(n, 16)} == {True, False}
        assert any(m < 16 for _, m, _ in shapes)
        for case in cases:
            assert len(case["a"]) <= 16 or sums(case, 0)[0] > ODD
            assert sums(case, 0)[1] < HALF


def test_04a_has_small_problems_between_others_and_more_programs_than_their_tiles():
    for cases in drawn("04a"):
        counts = [
            [-(-m // 32) * -(-n // 16) for m, n, _ in case.inputs["problems"] if m * n] for case in cases
        ]  # fmt: skip
        ((tiles, case),) = [(tiles, case) for tiles, case in zip(counts, cases) if sum(t < 4 for t in tiles) > 3]
        assert {1, 2, 3} <= set(tiles[1:-1])
        assert min(tiles[0], tiles[-1], max(tiles[1:-1]), case.inputs["programs"]) > 3


# One block taken for another has to give a wrong result.
ONE_BLOCK = {"03"}  # its tile is BLOCK by BLOCK: the answer is given one number
NO_BLOCK = {"04b"}  # its answer is given none


@pytest.mark.parametrize("name", [exercise.id for exercise in manifest.exercises()])
def test_blocks_differ_from_one_another(name):
    (exercise,) = manifest.find(name)
    run = importlib.import_module(exercise.run if name != "13" else exercise.run.replace(".run", ".language"))
    blocks = [each for each in vars(run) if each.startswith("BLOCK")]
    assert (blocks == ["BLOCK"]) is (name in ONE_BLOCK)
    assert len({getattr(run, each) for each in blocks}) == len(blocks) or name in NO_BLOCK
    if name == "02":
        assert all(case.inputs["block_m"] != case.expected["block_n"] for cases in drawn(name) for case in cases)


def test_04a_has_every_kind_of_empty_problem_one_program_and_many_tiles():
    few, more = set(), set()
    for cases in drawn("04a"):
        told = set()
        for case in cases:
            problems, programs = case.inputs["problems"], case.inputs["programs"]
            tiles = [-(-m // 32) * -(-n // 16) for m, n, _ in problems]
            if 0 in tiles:
                assert {(m > 0, n > 0) for m, n, _ in problems} >= {(False, True), (True, False), (False, False)}
            begins = [sum(tiles[:g]) for g in range(1, len(tiles)) if tiles[g] and sum(tiles[:g])]
            assert programs == 1 or all(begin % programs for begin in begins), "none begins with program 0"
            assert begins or not any(tiles)
            told |= set(case.checks) if begins else set()
        assert told >= {"turn", "programs", "empty"}
        assert any(not any(m * n for m, n, _ in case.inputs["problems"]) for case in cases)
        tiles = [[-(-m // 32) * -(-n // 16) for m, n, _ in case.inputs["problems"]] for case in cases]
        programs = [case.inputs["programs"] for case in cases]
        assert any(count > sum(each) > 0 for count, each in zip(programs, tiles))
        assert any(count == 1 and sum(each[:-1]) > 127 and each[-1] for count, each in zip(programs, tiles))
        grids = [[(-(-m // 32), -(-n // 16)) for m, n, _ in case.inputs["problems"]] for case in cases]
        for height, each in ((8, grids[0]), (64, itertools.chain(*grids))):  # of a strip, as GROUP_SIZE_M gives
            assert any(rows > height and cols > 1 for rows, cols in each)
        few.add(programs[0])
        more.add(programs[1])
        wholes = [[(m % 32 == 0, n % 16 == 0) for m, n, _ in case.inputs["problems"]] for case in cases[:2]]
        assert all(sorted(each) == [(False, False)] * 2 + [(True, True)] for each in wholes)
    assert (few, more) == ({3, 4, 5}, {6, 7, 8})


def test_04b_has_every_layout_of_every_matrix():
    for cases in inputs("04b"):
        for case in cases:
            for which in range(3):
                assert {each["layouts"][which] for each in case["problems"]} == {"row", "col"}
            assert any(each["skips"] for each in case["problems"])
            sizes = [(len(each["x"]), *each["w"].shape) for each in case["problems"]]
            assert all(len(set(size)) == 3 for size in sizes), "one extent in place of another shows"
            assert len(set(sizes)) == len(sizes), "the first problem's in place of another's, too"


def test_05_has_one_program_no_tiles_fewer_tiles_and_equal_ones():
    for cases in inputs("05"):
        assert any(case["programs"] == 1 and len(case["costs"]) > 1 for case in cases)
        assert any(not case["costs"] for case in cases)
        assert any(0 < len(case["costs"]) < case["programs"] for case in cases)
        equal = [case for case in cases if len(set(case["costs"])) == 1 and len(case["costs"]) > case["programs"]]
        assert {len(case["costs"]) % case["programs"] > 0 for case in equal} == {True, False}
        assert any(costs[-1] > 2 * max(costs[:-1]) for case in cases if len(costs := case["costs"]) > 9)
        much = [case for case in cases if sum(costs := case["costs"]) < max(costs, default=0) * case["programs"] > 0]
        assert any(
            len(case["costs"]) > 3 * case["programs"] > len(case["costs"]) % case["programs"] == 0 for case in much
        )
        (paired,) = [case for case in cases if len(costs := case["costs"]) > 8 and costs[0] > 2 * max(costs[1:3])]
        costs, programs = paired["costs"], paired["programs"]
        assert all(costs[tile] > 2 * max(costs[tile + 1 : tile + 3]) for tile in range(0, len(costs), programs))


def test_06_has_parts_of_blocks_three_of_them_long_groups_and_sums_that_half_rounds():
    for cases in inputs("06"):
        depths = {case["a"].shape[1] for case in cases}
        assert any(depth % 64 for depth in depths if depth > 64)
        assert max(depths) >= 3 * 64
        widths = {case["b"].shape[0] // 4 for case in cases}
        assert any(width % 32 for width in widths if width > 32)
        assert any(case["b"].shape[0] // 4 == case["a"].shape[1] for case in cases), "B may be read as (K, N)"
        found = [sizes_of(case["ends"]) for case in cases]
        assert any(0 in each and len(case["groups"]) == 4 for each, case in zip(found, cases))
        assert any(len(case["groups"]) == 2 for case in cases), "rows of the others show what is written past an end"
        assert all(short(size, 16) for each in found for size in each if size)
        assert max(map(max, found)) > 2 * 16
        assert all(len(case["a"]) - case["ends"][-1] >= 16 for case in cases)
        assert all(sums(case, 1)[1] < HALF for case in cases)
        assert any(sums(case, 1)[0] > ODD and case["a"].shape[1] == max(depths) for case in cases)


def test_07_has_large_batches_equal_bytes_and_other_centres_than_the_picture():
    for cases in drawn("07"):
        calls = {case.checks[0]: [tuple(call) for call in case.inputs["calls"]] for case in cases}
        assert all(len(each) > len(set(each)) for each in calls.values()), "some calls are repeated"
        assert max(total / groups for total, groups, *_ in calls["rows"]) > 2 * 8192
        for check in ("hits", "between"):
            middle = sorted(total / groups for total, groups, *_ in calls[check])[len(calls[check]) // 2]
            assert all(abs(middle - centre) > 0.1 * centre for centre in (1024, 1536, 2048))
        types = {(K, name) for *_, K, name in calls["types"]}
        assert len({(total // groups, groups, N) for total, groups, N, *_ in calls["types"]}) == 1
        assert any((2 * K, "float16") in types for K, name in types if name == "float32")
        assert any("8" in name for _, name in types)
        layers = {(groups, N, K) for _, groups, N, K, _ in calls["layer"]}
        # Another number of groups, N or K, each alone; N and K exchanged; equal groups times N.
        assert len({"".join(map(str, layer)) for layer in layers}) == len(layers) - 2, "equal digits in a row"
        assert len({(N, K) for _, N, K in layers}) == len(layers) - 1
        assert len({(groups, N * K) for groups, N, K in layers}) == len(layers) - 2
        assert len({(groups * N, K) for groups, N, K in layers}) == len(layers) - 1
        assert len({total // groups for total, groups, *_ in calls["layer"]}) == 1
        totals = {total: groups for total, groups, *_ in calls["empty"]}
        assert {0, 1} < totals.keys()
        assert any(1 < total < groups for total, groups in totals.items())


def test_08_has_two_types_of_c_tails_and_numbers_that_each_rounds():
    for cases in inputs("08"):
        assert {case["dtype"] for case in cases} == {"float16", "float32"}
        assert all(sums(case, 1)[1] < HALF for case in cases)
        assert all(len(rows := case["a"]) and rows.double().sum(1).max() * case["b"].min() > ODD for case in cases)
        sizes = [sizes_of(case["ends"]) for case in cases]
        assert any(each[g] == 0 for each, case in zip(sizes, cases) for g in case["groups"])
        assert any(all(each[g] == 0 for g in case["groups"]) for each, case in zip(sizes, cases))
        tails = {len(case["a"]) - case["ends"][-1] for case in cases}
        assert 0 in tails
        assert max(tails) >= 2 * 16
        assert all(short(size, 16) for each in sizes for size in each if size % 16)
        written = [each[g] for each, case in zip(sizes, cases) for g in case["groups"] if each[g]]
        assert any(size > 16 and size % 16 for size in written)
        assert any(size < 16 for size in written)
        assert any(size % 16 == 0 for size in written)
        assert any(len(case["groups"]) < len(each) and any(each) for each, case in zip(sizes, cases))
        widths = [case["b"].shape[0] // len(each) for each, case in zip(sizes, cases)]
        assert any(width > 32 and short(width, 32) for width in widths)


def test_09_tells_mistakes_apart_and_asks_for_every_layout_and_both_types_of_offsets():
    for cases in inputs("09"):
        asked, layouts = set(), set()
        for case, names in zip(cases, [*IN_ORDER, EQUAL, (), ()]):
            dtype, (_, K, columns) = case["mat_a"].dtype, case["mat_b"].shape
            fitting = [
                each for each in from_plain(case["catalogue"]) if case["target"] in each.targets and each.dtype == dtype
            ]
            assert bool(fitting) == bool(names)
            if not names:
                continue
            right = best(fitting, case["sizes"], columns)
            picks = [min(fitting, key=lambda each: MISTAKES[name][0](each, case["sizes"], columns)) for name in names]
            assert len(set(picks)) == len(names)
            assert not set(picks) & set(right)
            ((b_stride, divisibility, offsets),) = {
                (each.b_stride, each.divisibility, each.offsets) for each in fitting
            }
            asked.add((case["offsets"], str(offsets).removeprefix("torch.")))
            layouts.add((b_stride[1] == 1) == case["along_k"])
            asked.add(K % divisibility > 0)
            asked |= {"a single unit"} if K % divisibility == 0 < K % (2 * divisibility) else set()
            asked.add(divisibility)
            asked.add(0 in case["sizes"])
        assert layouts == {True, False}
        assert asked >= {True, False, 8, 16, "a single unit"}
        assert asked >= {(given, wanted) for given in ("int32", "int64") for wanted in ("int32", "int64")}


def test_10_has_tiles_of_two_widths_whose_numbers_tell_mistakes_apart():
    for cases in drawn("10"):
        narrow, wide = (case.inputs["tile_n"] for case in cases)
        assert narrow == 64
        assert wide > 128
        assert wide % 32 == 0
        for case in cases:
            assert (case.expected["sums"].aminmax(dim=1).min < 0).all()
            assert (case.expected["sums"].aminmax(dim=1).max > 0).all()
            some = case.expected["sums"][:8].double()  # rounding to 11 bits first changes one of 25 results
            results = [epilogue.silu(some).bfloat16().double(), *(each(some) for _, _, each in epilogue._MISTAKES)]
            assert not any(torch.equal(one, other) for i, one in enumerate(results) for other in results[:i])
            assert (len(case.inputs["a"]) % 128, len(case.inputs["b"]) % narrow) > (0, 0), "C ends inside of a tile"


def test_11a_has_every_kind_of_group_and_sums_that_half_rounds():
    for cases in inputs("11a"):
        full, ragged, empty = cases
        kinds_of_groups(full["ends"], ragged["ends"], empty["ends"])
        extents = {extent for case in cases for extent in (len(case["a"]), case["b"].shape[1])}
        assert {extent > 16 for extent in extents if short(extent, 16)} == {True, False}
        for case in cases:
            for after in (case["a"][:, case["ends"][-1] :], case["b"][case["ends"][-1] :].T):
                assert after.shape[1] >= 16
                assert after.isnan().all()
            for start, end in pairwise([0, *case["ends"]]):
                group = {"a": case["a"][:, start:end].T, "b": case["b"][start:end]}
                assert end - start < 16 or sums(group, 0)[0] > ODD
                assert start == end or sums(group, 0)[1] < HALF


def kinds_of_groups(full, ragged, empty):
    """Ends without empty groups; with one first, in the middle and last, and parts of blocks; of empty groups alone."""
    sizes = sizes_of(ragged)
    assert sizes[0] == sizes[-1] == 0 in sizes[1:-1]
    assert {1, 32} <= set(sizes)
    assert any(short(size, 16) and size > 32 for size in sizes)
    assert 0 not in sizes_of(full)
    assert set(empty) == {0}


def test_11b_has_every_kind_of_group_and_sums_that_half_rounds():
    for cases in inputs("11b"):
        kinds_of_groups(*(case["ends"] for case in cases))
        widths = {case["grad"].shape[1] for case in cases}
        assert 32 in widths
        assert {width > 32 for width in widths if short(width, 32)} == {True, False}
        for case in cases:
            after = case["grad"][case["ends"][-1] :]
            assert len(after) >= 16
            assert after.isnan().all()
        for case in cases[:2]:
            start, end = max(pairwise([0, *case["ends"]]), key=lambda each: each[1] - each[0])
            total = case["grad"][start:end].double().sum(0)
            assert (total.half().double() != total).any()


def test_12a_has_scales_that_tell_tokens_and_groups_apart():
    for cases in inputs("12a"):
        for case in cases:
            sizes, (_, max_m, K) = case["sizes"], case["a"].shape
            assert K > 32
            assert K % 32, "the last block of K is not whole"
            assert sizes[0] == max_m, "of group 0 all rows are there, so its scales can be told from NaN"
            assert len(set(case["scale_b"].tolist())) == len(sizes)
            # If all scales were above 1, lowering them to 1 would look like leaving them out.
            assert case["scale_b"].min() < 1 < case["scale_b"].max()
            for g, size in enumerate(sizes):
                scales = case["scale_a"][g, :size]
                assert 1 not in scales
                assert (scales.diff() != 0).all()
                assert case["scale_a"][g, size:].isnan().all()
                assert case["a"][g, size:].float().isnan().all()
                places = case["scale_a"].flatten().unfold(0, size, 1) if size else torch.empty(0, 1)
                assert (places == scales).all(1).sum() == (size > 0), "they stand nowhere else"
                if size:
                    a, b = case["a"][g, :size].double(), case["b"][g].double()
                    assert a.sum(0) @ b.sum(0) > ODD * len(a) * len(b), "the average sum"
        sizes = [case["sizes"] for case in cases]
        assert any(0 < size < each[0] for each in sizes for size in each)
        assert 0 in sizes[1]
        assert any(size > 16 and short(size, 16) for size in sizes[1]), "its last tile reaches into the next group"
        assert any(short(case["b"].shape[1], 64) for case in cases)


def test_12b_has_square_wide_high_and_several_weights_of_every_type():
    for cases in drawn("12b"):
        weights = {
            check: [case.inputs["weight"] for case in cases if check in case.checks]
            for check in ("undone", "shapes", "bytes", "groups")
        }
        assert [each.shape[0] == each.shape[1] for each in weights["undone"]] == [True]
        assert {each.shape[0] > each.shape[1] for each in weights["shapes"]} == {True, False}
        assert {each.dtype for each in weights["undone"] + weights["shapes"]} == {torch.float16, torch.bfloat16}
        assert {each.dtype for each in weights["bytes"]} == {torch.float8_e4m3fn, torch.int8}
        assert {each.element_size() for each in weights["groups"]} == {1, 2}
        assert all(each.dim() == 3 and len(each) > 1 for each in weights["groups"])
        assert any(each.shape[1] // 16 % 2 for each in weights["groups"]), "an odd number of blocks"


def test_13_has_every_kind_of_batch_and_of_workers():
    (exercise,) = manifest.find("13")
    module = manifest.examiner(exercise)
    for cases in inputs("13"):
        kinds = set()
        for case in cases:
            sizes, N, workers = (case[name] for name in ("sizes", "N", "workers"))
            rows = [-(-size // module.BLOCK_M) for size in sizes]
            columns = -(-N // module.BLOCK_N)
            tiles = sum(rows) * columns
            kinds |= {"none"} if not any(sizes) else set()
            kinds |= {"one worker"} if workers == 1 else set()
            kinds |= {"idle workers"} if 0 < tiles < workers else set()
            if 1 < workers < tiles:
                kinds |= {"left over"} if tiles % workers > 1 else set()
                begins = [sum(rows[:g]) * columns for g in range(1, len(rows)) if rows[g] and sum(rows[:g])]
                assert all(begin % workers for begin in begins), "no later group begins with worker 0"
                assert len(set(rows) - {0}) == len([each for each in rows if each]), "groups differ in tile rows"
            if any(sizes) and not sizes[0] and not sizes[-1] and 0 in sizes[2:-2]:
                kinds.add("empty everywhere")
            whole = [size % module.BLOCK_M == 0 for size in sizes if size]
            assert not all(whole) or not any(sizes), "some group has a tail"
            assert N % module.BLOCK_N or workers == 1
            kinds |= {"more tile rows than a strip of 8"} if max(rows) > 8 and columns > 1 < workers else set()
            kinds |= {"a whole group"} if 1 < workers < tiles and any(whole) else set()
            kinds |= {"a whole N"} if N % module.BLOCK_N == 0 else set()
            assert workers != module.HARD_CODED or tiles < workers
        assert kinds == {
            "none", "one worker", "idle workers", "left over", "empty everywhere", "a whole group", "a whole N",
            "more tile rows than a strip of 8",
        }  # fmt: skip


def test_14a_has_every_kind_of_expert_and_tokens_past_32_bits():
    for cases in inputs("14a"):
        whole, ragged, far, none = cases
        sizes = sizes_of(ragged["ends"])
        assert sizes[0] == sizes[-1] == 0 in sizes[1:-1]
        assert {1, 16} <= set(sizes)
        assert any(short(size, 16) and size > 32 for size in sizes)
        assert set(none["ends"]) == {0}
        tokens, starts = whole["tokens"], [0, whole["ends"][0]]
        assert whole["first"] == 0 < len(whole["x"]) - len(tokens), "x[r] exists for each position r"
        assert tokens != list(range(len(tokens))), "position r is not token r"
        assert tokens[starts[1] : starts[1] + 16] != tokens[:16], "experts have different tokens"
        assert far["first"] * (far["x"].shape[1] + 128) > 2**31, "128: twice the margin that `Watch` adds to a row"
        assert max(max(case["tokens"]) * (case["x"].shape[1] + 128) for case in (whole, ragged)) < 2**31
        for case in (ragged, far, none):
            last, first = case["ends"][-1], case["first"]
            ours = {token - first for token in case["tokens"][:last]}
            others = [row for row in range(len(case["x"])) if row not in ours]
            assert case["x"][others].isnan().all()
            assert case["x"][sorted(ours)].isfinite().all()
            assert len(case["tokens"]) > last + 1, "a row too many exists"
            assert max(case["tokens"][last:]) < 0, "no row of x"
            assert short(case["w"].shape[1], 64)
            assert short(case["w"].shape[2], 32)
        assert len(far["tokens"]) - far["ends"][-1] < 16 - sizes_of(far["ends"])[-1] % 16, "inside of the last tile"
        assert len(none["tokens"]) > 16, "more than a tile"


def test_14b_has_others_positions_and_activations_that_half_rounds():
    for cases in inputs("14b"):
        for case in cases:
            (positions, i), count = case["grad"].shape, case["count"][0]
            assert sorted(case["places"]) == list(range(positions))
            assert case["shape"][0] * case["shape"][1] == positions
            assert case["places"][:count] != list(range(count)) or not count, "position r is not at place r"
            assert case["pre"][count:].isnan().all()
            assert case["grad"][count:].isnan().all()
            gate, up, grad = (each[:count].double() for each in (case["pre"][:, :i], case["pre"][:, i:], case["grad"]))
            activation = gate.clamp(min=0) * up
            assert ((grad * activation).abs().sum(1) < 2**24).all(), "exact in float32, in any order"
            assert ((grad * activation.half()).sum(1) != (grad * activation).sum(1)).any() or not count
            assert (gate < 0).any() or not count
            assert (up < 0).any() or not count
        (whole, ragged, none), counts = cases, [case["count"][0] for case in cases]
        assert counts[0] == len(whole["places"]) == 32
        assert 0 == counts[2] < len(none["places"])
        assert counts[1] + 16 < len(ragged["places"]), "a block is wholly the others'"
        assert short(counts[1], 16)
        assert short(len(ragged["places"]), 16)
        assert ragged["grad"].shape[1] > 64
        assert short(ragged["grad"].shape[1], 32)
        assert [case["shape"][1] for case in cases] == [2, 3, 1]


def test_16_has_every_kind_of_rank_and_of_token():
    for cases in inputs("16"):
        several, again, one_goal, empty, none, alone, strange = cases
        for case in (several, again, one_goal, empty, none, strange):
            each = case["experts"] // len(case["ids"])
            assert each not in (1, len(case["ids"])), "id // ranks and id % ranks are no owners"
        owners = [ids // (several["experts"] // 3) for ids in several["ids"]]
        assert all(((each[:, 0] == each[:, 2]) & (each[:, 0] != each[:, 1])).any() for each in owners), "apart"
        assert all((each[:, 0] != each[:, 2]).any() for each in owners)
        assert len({len(each) for each in owners}) == 3, "unequal batches"
        assert all((each.sort(1).values.diff(dim=1) == 0).any() for each in again["ids"]), "an id twice"
        assert len({int(each) // 5 for ids in one_goal["ids"] for each in ids.flatten()}) == 1
        sizes = [len(each) for each in empty["ids"]]
        assert sizes[0] > 0
        assert 0 in sizes
        assert not any(len(each) for each in none["ids"])
        assert len(alone["ids"]) == 1
        ids = torch.cat(strange["ids"])
        known = (ids >= 0) & (ids < strange["experts"])
        assert (ids < 0).any()
        assert (ids >= strange["experts"]).any()
        assert {0, 1, 2} == set(known.sum(1).tolist())
        assert ((ids // 4).masked_fill(~known, -1).sort(1).values.diff(dim=1) != 0)[known.all(1)].all()
