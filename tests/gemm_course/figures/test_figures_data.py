"""Figures draw the data that they are given: to scale, in the order of the schedule, with the numbers that it has."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from itertools import accumulate

import matplotlib as mpl
import numpy as np
import pytest
import torch
from matplotlib.colors import to_hex
from matplotlib.patches import FancyArrowPatch

from course_kernels import GemmConfig, schedule, testing
from course_kernels.kernels.cute_sm90.config import COOPERATIVE, PINGPONG, CuteConfig
from drawn import boxes, rectangles, texts, title
from figure_cases import GROUPED_MM, HELION, loop_of_ptx, nested_ptx
from gemm_course.figures import (
    f00_overview,
    f01_ragged_groups,
    f02_gpu_parts,
    f03_launches,
    f04_ownership,
    f05_schedules,
    f06_descriptors,
    f07_budget,
    f07_choices,
    f08_modes,
    f08_packed_rows,
    f08_pipelines,
    f10_clusters,
    f10_kernel,
    f11_gradients,
    f11_rounding,
    f11_training_costs,
    f12_decoding,
    f12_fp8,
    f12_shuffled_weight,
    f13_group_walks,
    f13_helion_code,
    f14_layer,
    f15_layers,
    f15_measurements,
    f16_ranks,
    f17_predicted_times,
    instructions,
    matrices,
    record_analysis,
    roofline,
    timeline,
    walk_costs,
)
from gemm_course.figures.style import BLUE, GREEN, RED, color_of
from gemm_course.lessons import records
from gemm_course.lessons.l07_budget import Use
from gemm_course.lessons.l10_clusters import pairs
from gemm_course.lessons.l12_decoding import Work
from gemm_course.lessons.records import ProgramTimes

SIZES = [4, 0, 6, 3]
PROBLEMS = [(64, 64, 64)] * 2 + [(32, 32, 64)]
WALKS = {order: schedule.walk(PROBLEMS, order, 4, (32, 32)) for order in ("round_robin", "chunks")}
WIDE = CuteConfig(128, 256, 64, 2, 4, COOPERATIVE, swizzle_size=4)
CUT = CuteConfig(128, 192, 64, 2, 5, PINGPONG, last_tile_n=128, tail_tile_n=256)
FITS = Use(GemmConfig(128, 256, 64, 8, 4, store_parts=2), 162, 0, 229408)
SPILLS = Use(GemmConfig(128, 256, 64, 4, 3), 255, 640, 213016)


def colors(patches):
    return Counter(to_hex(patch.get_facecolor()).upper() for patch in patches)


def widths(axes, gid):
    return [box[2] for box in boxes(axes, gid)]


def line(axes, gid):
    return next(each for each in axes.lines if gid in (each.get_gid(), each.get_label()))


# ---- order and place: what the schedule says


def test_every_tile_is_computed_once_by_some_processor():
    (axes,) = f00_overview.overview(testing.route("zipf", 64, seed=1), programs=7).axes
    lanes = [rectangles(axes, f"SM{program}") for program in range(7)]
    outputs = [rectangles(axes, f"C{g}") for g in range(8)]
    assert sum(map(colors, lanes), Counter()) == sum(map(colors, outputs), Counter())
    assert max(map(len, lanes)) - min(map(len, lanes)) <= 1


def test_a_tile_has_its_programs_colour_and_number_and_the_extent_that_exists():
    problems = [(50, 96, 32), (32, 64, 32), (64, 40, 32)]
    tiles = schedule.tiles(problems, 32, 32)
    (axes,) = f04_ownership.owners(problems, (32, 32), [tile.index % 4 for tile in tiles]).axes
    drawn = [patch for patch in axes.patches if patch.get_fill()]
    assert [to_hex(patch.get_facecolor()).upper() for patch in drawn] == [color_of(tile.index % 4) for tile in tiles]
    assert [(patch.get_width(), patch.get_height()) for patch in drawn] == [(tile.cols, tile.rows) for tile in tiles]
    assert [text for text in texts(axes) if text.isdigit()] == [str(tile.index % 4) for tile in tiles]


def test_descriptors_are_made_where_a_program_changes_its_problem():
    figure = f06_descriptors.switches(WALKS, programs=3)
    for axes, walk in zip(figure.axes, WALKS.values()):
        assert len(boxes(axes, "made")) == sum(len(schedule.problem_starts(own)) for own in walk[:3])
        for problem in range(3):
            expected = sum(tile.problem == problem for own in walk[:3] for tile in own)
            assert len(boxes(axes, f"problem {problem}")) == expected
    titles = ["round_robin: 9 switches of all programs", "chunks: 5 switches of all programs"]
    assert [title(axes) for axes in figure.axes] == titles


def test_a_wave_in_strips_reads_fewer_lines_than_a_wave_row_by_row():
    by_row, strips = f10_clusters.order(WIDE, 2048, 4096, 16).axes  # 8 rows of clusters, 16 columns
    assert title(by_row) == f"row by row: a wave reads {2 * 128 + 16 * 256:,} lines"
    assert title(strips) == f"in strips of 4 rows of clusters: a wave reads {8 * 128 + 4 * 256:,} lines"
    assert texts(by_row) == texts(strips) == [str(number) for number in range(128)]


@pytest.mark.parametrize(("rows", "columns"), [(682, 2048), (257, 1920), (40, 700), (127, 120)])
def test_cut_to_fit_shows_all_that_is_multiplied_and_its_share_of_c(rows, columns):
    figure = f10_clusters.cut_to_fit(CUT, rows, columns)
    for axes, each in zip(figure.axes, (CUT.shapes[0], CUT)):
        areas = Counter()
        for patch in axes.patches:
            areas[patch.get_gid()] += patch.get_width() * patch.get_height()
        found = pairs(each, rows, columns)
        multiplied = sum(tile.height * tile.width for both in found for tile in both)
        assert sum(areas[f"cluster {number}"] for number in range(len(found))) == rows * columns
        assert areas["wasted"] == multiplied - rows * columns
        assert f": {1 - rows * columns / multiplied:.1%} of the products wasted; " in title(axes)


def test_a_bar_of_a_timeline_is_where_and_as_long_as_its_tile():
    found = [(0, 0.0, 4.0, 0), (1, 0.0, 1.0, 1), (1, 2.0, 3.0, 2)]
    (axes,) = timeline.timeline(found, rows=3, title="three rows", bound=2.0).axes
    drawn = next(each for each in axes.collections if each.get_label() == "tiles")
    for (row, start, end, problem), path, face in zip(found, drawn.get_paths(), drawn.get_facecolors(), strict=True):
        (left, low), (right, high) = path.vertices.min(axis=0), path.vertices.max(axis=0)
        assert (left, right, tuple(face)) == (start, end, mpl.colors.to_rgba(color_of(problem)))
        assert row - 0.5 <= low < row < high <= row + 0.5
    assert title(axes) == "three rows: 4 µs, 50% busy (dashed: no schedule ends before 2 µs)"


def test_tiles_at_the_same_time_on_one_row_do_not_hide_each_other():
    (axes,) = timeline.timeline([(0, 0, 3, 0), (0, 1, 2, 1), (0, 3, 4, 2)]).axes
    tiles = next(each for each in axes.collections if each.get_label() == "tiles")
    first, second, third = ((p.vertices[:, 1].min(), p.vertices[:, 1].max()) for p in tiles.get_paths())
    assert first[1] <= second[0] or second[1] <= first[0]
    assert third == first, "the lane is free again"


def test_timelines_share_their_axis_and_say_where_they_are_cut():
    short, long = timeline.compare({"short": [(0, 0, 2, 0)], "long": [(0, 0, 90, 1)]}, until=10).axes
    assert short.get_xlim() == long.get_xlim() == (0, 10)
    assert (title(short), title(long)) == ("short: 2 µs, 100% busy", "long: 90 µs, 100% busy (cut at 10 µs)")
    (many,) = timeline.compare({"many": [(0, i, i + 1, i) for i in range(9)]}).axes
    assert "repeat every 8" in many.get_xlabel()


def test_a_load_takes_one_piece_of_shuffled_memory_and_sixteen_of_plain():
    order = [16 * (place % 4) + place // 4 for place in range(64)]
    _, memory = f12_shuffled_weight.lanes_of_a_load(order, lines=16, lanes=16).axes
    words = texts(memory)
    assert "plain memory: one load takes 4 pieces of 64 bytes" in words
    assert "shuffled memory: one load takes 1 piece of 256 bytes" in words


def test_skipped_slots_are_empty():
    (axes,) = f13_group_walks.slots({"a": [[0, None, 1], [None, None, 1]]}).axes
    assert len(rectangles(axes, "skipped")) == 3
    assert colors(rectangles(axes, "group 1")) == {color_of(1): 2}


# ---- to scale: rows, bytes, shares


def test_padding_fills_every_group_up_to_the_largest():
    (axes,) = f01_ragged_groups.padded_batches({"odd": [6, 0, 3]}).axes
    assert [bar.get_height() for bar in axes.patches] == [6, 0, 3, 0, 6, 3]
    assert title(axes) == "odd\n9 rows + 9 padding: +100%"


def test_descriptions_have_their_numbers_at_the_rows_that_they_describe():
    (axes,) = f01_ragged_groups.descriptions(SIZES, tail=2).axes
    owners = [g for g, size in enumerate(SIZES) for _ in range(size)]
    assert [colors(rectangles(axes, f"row{i}")) for i in range(13)] == [{color_of(g): 1} for g in owners]
    ends = list(accumulate(SIZES))
    for y, wanted in ((-0.6, [*owners, -1, -1]), (-1.5, SIZES), (-2.4, ends), (-3.3, [0, *ends])):
        found = [text for text in axes.texts if text.get_position()[1] == y and text.get_text().lstrip("-").isdigit()]
        assert [int(text.get_text()) for text in sorted(found, key=lambda text: text.get_position()[0])] == wanted


def test_misread_rows_are_framed():
    (axes,) = f01_ragged_groups.misread([0, 0, 1, 1, 2], [-1, 0, 1, 0, 2]).axes
    assert [box[0] for box in boxes(axes, "wrong")] == [0, 3]


def test_each_element_of_a_vector_has_its_programs_colour():
    (axes,) = f02_gpu_parts.vector_blocks(10, 4).axes
    for program, count in enumerate((4, 4, 2)):
        assert colors(rectangles(axes, f"program {program}")) == {color_of(program): count}
    assert len(rectangles(axes, "masked")) == 2


def test_offsets_follow_both_strides_and_what_a_mask_must_switch_off_is_counted():
    (axes,) = matrices.tile_offsets((3, 4), (2, 2), (2, 3), (6, 1)).axes
    assert [text for text in texts(axes) if text.isdigit()][:6] == ["0", "1", "2", "3", "4", "5"]
    assert {"next row: +6", "next column: +1"} <= set(texts(axes))
    assert title(axes).endswith(", 3 of its elements outside A")
    (axes,) = matrices.tile_offsets((2, 3), (1, 1), strides=(1, 2), name="B").axes
    assert [text for text in texts(axes) if text.isdigit()] == ["0", "2", "4", "1", "3", "5"]


def test_an_error_map_holds_the_errors_and_counts_them():
    want = torch.zeros(4, 6, dtype=torch.float16)
    got = want.clone()
    got[1, 2], got[3, 5], got[0, 0] = 3, -8, float("nan")
    axes, scale = matrices.error_map(got, want, title="case").axes
    drawn = np.ma.filled(axes.images[0].get_array(), np.nan)
    np.testing.assert_array_equal(drawn, (got - want).double().numpy())
    assert (title(axes), scale.get_ylabel()) == ("case: 3 of 24 wrong", "got − want, black: NaN")
    (alone,) = matrices.error_map([[np.inf, 1.0]], [[np.inf, 1.0]]).axes
    assert title(alone) == "0 of 2 elements wrong", "equal infinities are no error"


def test_elements_written_outside_are_counted_and_the_output_is_outlined():
    buffer = np.full((6, 7), -999.0)
    buffer[2:5, 2:5] = 1  # a row too many
    (axes,) = matrices.written_map(buffer, (2, 2), np.ones((2, 3)), -999.0).axes
    assert title(axes) == "3 elements written outside C"
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    assert labels == ["canary, untouched: 33", "right: 6", "written outside: 3"]
    (axes,) = f04_ownership.canary({"a": np.where(buffer > 0, 1, np.nan)}, (2, 3), (2, 2), (2, 2)).axes
    assert title(axes) == "a: 3 overwritten past the end"


def test_a_step_of_a_tile_is_drawn_to_scale_and_the_used_rows_are_filled():
    (axes,) = f07_budget.tile_step([(4, FITS.config)]).axes
    sizes = {gid: boxes(axes, gid)[0][2:] for gid in ("A block", "A used", "B used", "sums block", "sums used")}
    assert sizes == {"A block": (64, 128), "A used": (64, 4), "B used": (256, 64), "sums block": (256, 128),
                     "sums used": (256, 4)}  # fmt: skip


def test_the_budget_adds_up_to_what_the_compiler_said():
    registers, shared = f07_budget.sm_budget([FITS, SPILLS]).axes
    for y, use in enumerate((FITS, SPILLS)):
        of_thread, of_sm = (
            sum(bar.get_width() for bar in axes.patches if round(bar.get_y() + bar.get_height() / 2) == y)
            for axes in (registers, shared)
        )
        assert of_sm * 1024 == pytest.approx(use.sm_shared)
        assert of_thread == pytest.approx(use.registers + use.spilled / 4)


def test_rejected_candidates_are_red():
    (axes,) = f07_budget.limits([FITS, SPILLS]).axes
    assert {each.get_gid(): each.get_color() for each in axes.lines if each.get_gid()} == {"fits": BLUE, "spills": RED}
    assert title(axes) == "2 candidates; crosses: 1 spills"


def test_modes_divide_the_dimension_of_their_definition():
    def divided(axes, gid):
        found = [boxes(axes, f"{gid} {g}")[0] for g in range(3)]
        if len({box[2:] for box in found}) == 1:
            return "stack"
        return "rows" if len({box[0] for box in found}) == 1 else "columns"

    panels = dict(zip(("m", "n", "k", "batch"), f08_modes.four_modes({}).axes))
    assert {mode: [divided(axes, f"{mode} {name}") for name in "ABC"] for mode, axes in panels.items()} == {
        "m": ["rows", "stack", "rows"], "n": ["stack", "columns", "columns"], "k": ["columns", "rows", "stack"],
        "batch": ["stack"] * 3,
    }  # fmt: skip


def test_a_boundary_tile_reads_a_whole_tile_and_stores_its_groups_part():
    (axes,) = f08_packed_rows.boundary_tile([10, 6, 0, 13], 5, block=8, group=0).axes
    assert [boxes(axes, gid)[0][1::2] for gid in ("read", "stored", "wasted")] == [(8, 8), (8, 2), (10, 6)]
    (axes,) = f08_packed_rows.whole_units([10, 6, 0, 13], unit=4, group=1, block=8).axes
    assert [[box[0] for box in boxes(axes, gid)] for gid in ("left out", "stored")] == [[8, 9], [*range(10, 16)]]


def test_loops_are_drawn_as_they_run():
    nested, fused = f08_pipelines.structure({"nested": nested_ptx(False), "fused": nested_ptx(True)}).axes
    assert texts(nested)[-2:] == ["loop over tiles", "loop over K"]
    assert texts(fused) == ["6 copies", "4 multiplies", "2 copies", "1 store", "one loop over tiles and K"]
    (axes,) = instructions.loop_instructions({"a": loop_of_ptx(9)}).axes
    counts = Counter(patch.get_gid() for patch in axes.patches)
    assert counts == {"address": 9, "mask": 4, "copy": 8, "wait": 6, "multiply": 8}


def test_stages_and_registers_are_those_of_the_configuration():
    left, right = f10_kernel.roles([WIDE], 40, 232).axes
    assert [box[2:] for box in boxes(left, "registers")] == [(128, 40), (128, 232), (128, 232)]
    assert [box[3] for box in boxes(left, "sums")] == [128, 128]
    assert [[box[1] for box in boxes(right, f"rows of {g}")] for g in (1, 2)] == [[0], [64]]
    for axes, shared in zip(f10_clusters.multicast(WIDE).axes, (2 * (128 + 256), 2 * 128 + 256)):
        assert sum(widths(axes, "loads 0")) == shared / 2
        assert sum(widths(axes, "receives 1")) == 128 + 256
    with pytest.raises(ValueError, match="cluster of 2 CTAs, got 1"):
        f10_clusters.multicast(replace(WIDE, cluster=1))


def test_packed_and_masked_have_the_same_rows_in_other_places():
    left, right = f12_decoding.packed_and_masked(SIZES, 6, group=2).axes
    for g, size in enumerate(SIZES):
        assert len(boxes(left, f"packed {g}")) == len(boxes(right, f"used {g}")) == size
    assert [text for text in texts(left) if text.isdigit()] == ["4", "4", "10", "13"], "offs"
    assert "Masked, it starts at slot 2 × 6 = 12, whatever the others hold." in texts(right)


def test_scale_shapes_cover_the_tensor_once():
    names = ("tensor", "group", "row", "1 × 128 block")
    for axes, name in zip(f12_fp8.scale_shapes(6, [2, 4], 256).axes, names, strict=True):
        assert sum(width * height for *_, width, height in boxes(axes, name)) == 6 * 256


def test_the_numbers_of_float8_are_the_type_s():
    values = f12_fp8.positive_values()
    assert (len(values), values[0].item(), values[-1].item()) == (126, f12_fp8.SMALLEST, f12_fp8.LARGEST)
    assert int((values < f12_fp8.SMALLEST_NORMAL).sum()) == 7
    x, stored = torch.tensor([[2.0, 4.0, 0.0, 1.0, 0.0]]), torch.tensor([[1.0, 4.0, 0.0, 9.0, 1.0]])
    assert f12_fp8.relative_error(x, stored).tolist() == [[0.5, 0.0, 0.0, 1.0, 1.0]]


def test_a_bit_too_many_is_lost_and_the_same_bit_alone_is_not():
    (axes,) = f11_rounding.aligned_bits({"": {"so far": 2048, "next": 1, "sum": 2049}}, kept=11).axes
    assert [box[0] for box in boxes(axes, "2 lost")] == [11.05], "the last of twelve places"
    assert not boxes(axes, "1 lost")


def test_an_expert_shows_the_worst_of_its_elements():
    want = torch.ones(3, 2, 2)
    want[1] = 0
    found = want.clone()
    found[1, 0] = torch.tensor([torch.nan, 7])
    found[2, 1, 1] = 5
    figure = f11_gradients.expert_matrices({"broken": found, "right": want}, want, [2, 0, 1])
    words = [texts(axes)[0] for axes in figure.axes]
    assert words == ["right", "NaN", "wrong", "right", "0, right", "right"]


def test_lines_of_helion_have_as_many_lines_of_triton():
    (axes,) = f13_helion_code.expansion(HELION).axes
    assert [bar.get_width() for bar in axes.patches] == [0, 0, 2, 3, 7, 0]


# ---- measured: times, rates, ratios


def test_a_cell_says_how_many_times_faster():
    us = {"ours": 2.0, "loop": 4.0, "bmm": 1.0}
    left, right = f03_launches.speedups([{"count": 2, "n": 16, "us": us}], "ours", against=["loop", "bmm"]).axes
    assert (texts(left), texts(right)) == (["2.0"], ["0.50"])
    (axes,) = f03_launches.sm_fill({"small": 1, "one more": 133}, 132).axes
    assert sorted(bar.get_width() for bar in axes.patches)[:2] == pytest.approx([1 / 132, 133 / 264])


def test_bars_are_in_the_units_of_their_axis():
    (axes,) = f05_schedules.traffic({"one": {"model": 4e6, "measured": 5e6}}, compulsory=1e6).axes
    assert [bar.get_width() for bar in axes.patches] == [4, 5]
    (axes,) = f11_training_costs.copied_gradients({"row": {"forward": 1.0, "dA": 1.0, "dB": 2.0, "copy": 1.0}}).axes
    assert boxes(axes, "copy")[0][::2] == (1.0, 0.25)
    (axes,) = f12_decoding.waste({"bmm": {"FLOP": Work(2.0, 10.0)}}, {"FLOP": "{:.0f}"}).axes
    assert (widths(axes, "needed bmm"), widths(axes, "wasted bmm")) == ([2], [8])
    (axes,) = f15_measurements.claims({"published": 4.0, "repaired": 0.8}, "mine", "theirs").axes
    assert [bar.get_width() for bar in axes.patches] == pytest.approx([3.0, -0.2])
    first, _ = f05_schedules.working_set((8192, 8192, 4096), (128, 256, 64), 132, (1, 8)).axes
    assert "72 MB of A and B\n5 row panels, 32 column panels" in texts(first)[0]


def test_a_fusion_has_its_bytes_and_the_time_that_was_recorded():
    plans = {"all": {"gather": 2e9, "product 1": 1e9}, "less": {"gather": 0, "product 1": 1e9}}
    (axes,) = f14_layer.fusions(plans, {"less": 2.54, "other": 1.0}).axes
    assert [text for text in texts(axes) if "GB" in text] == ["3.0 GB", "1.0 GB, 2.5 ms"]
    assert widths(axes, "0 gather") == [2.0]


def test_layers_are_drawn_beside_their_peers():
    rows = {"a": {"its products alone": 3.0, "this library": 2.5, "Liger": 1.5}, "b": {"this library": 0.5}}
    left, right = f15_layers.beside_peers({"forward": rows, "step": rows}, "(H200)").axes
    for axes, part in ((left, "forward"), (right, "step")):
        assert widths(axes, f"{part} a this library") == [2.5]
        assert widths(axes, f"{part} a Liger") == [1.5]
        assert list(line(axes, f"{part} a products").get_xdata()) == [3.0, 3.0]
        assert widths(axes, f"{part} b Liger") == []
        assert [text for text in texts(axes) if "×" in text] == ["2.5 ×", "0.5 ×"]
    (axes,) = f15_layers.rates({"forward": {"its products alone": {1: 2.0, 64: 9.0}, "Liger": {64: 3.0}}}).axes
    assert list(line(axes, "forward its products alone").get_ydata()) == [2.0, 9.0]
    assert list(line(axes, "forward Liger").get_xdata()) == [64]


def test_several_gpus_are_drawn_over_one():
    (axes,) = f15_layers.scaling({"step": {"by hand": {1: 1.0, 2: 0.7, 4: 1.1}}}).axes
    assert list(line(axes, "step by hand").get_ydata()) == [1.0, 0.7, 1.1]
    assert list(line(axes, "step ideal").get_ydata()) == [1, 2, 4]


def test_a_way_to_exchange_has_one_colour_in_both_lessons():
    ways = ("by hand", "all_to_all", "symmetric")
    (lines,) = f15_layers.scaling({"step": {way: {1: 1.0, 2: 0.7} for way in ways}}).axes
    (bars,) = f16_ranks.recorded_layers({"a": {"2 GPUs": dict.fromkeys(ways, 1000.0)}}).axes
    for way in ways:
        (bar,) = (patch for patch in bars.patches if patch.get_gid() == f"a 2 GPUs {way}")
        assert to_hex(line(lines, f"step {way}").get_color()) == to_hex(bar.get_facecolor())


def test_a_layer_without_exchange_has_its_time_and_a_model_one_scale():
    layers = {"2 GPUs": {"no exchange": 10770.0, "symmetric": 10630.0}}
    left, right = f16_ranks.recorded_layers(
        {"a, uniform": layers, "a, Zipf": layers | {"4 GPUs": {"by hand": 3e4}}}
    ).axes
    assert texts(left) == ["10.8", "10.6"]
    assert left.get_ylim() == right.get_ylim()


def test_both_experts_of_a_rank_get_the_row_and_are_summed():
    (axes,) = f16_ranks.journey().axes
    arrows = sum(isinstance(patch, FancyArrowPatch) for patch in axes.patches)
    assert arrows == 2 * 2 + 3 * 2, "there and back for two ranks, in and out of three experts"


def test_a_rank_that_waits_says_how_long():
    (axes,) = f16_ranks.loads({"uniform": [100, 98]}).axes
    assert (title(axes), texts(axes)) == ("uniform: slowest rank 1.01 × the mean", ["waits 2%"])


def test_the_line_of_the_experts_is_a_line_in_the_legend():
    (legend,) = f16_ranks.clusters({16: {"rank": (0.3, 2.5, 1.1)}}).legends
    assert [handle.get_linestyle() for handle in legend.get_lines()] == ["--"]


def test_losses_are_over_the_best_candidate():
    times = {"8 × 128": {"a": 10.0, "b": 12.0}, "8 × 256": {"a": 20.0, "b": 19.0, "c": 60.0}}
    (axes,) = f07_choices.slowdowns({"t": times}, {("t", "8 × 128"): "a"}).axes
    assert texts(axes) == ["1.00", "1.20", "1.05", "1.00", "3.16"]
    faces = [to_hex(patch.get_facecolor()).upper() for patch in rectangles(axes, "cell")]
    assert (faces[0], faces[3], faces[4]) == (GREEN, GREEN, RED)
    (axes,) = f07_choices.regrets({"one": {("r", "16"): 1.0, ("r", "32"): 1.21, ("s", "16"): None}}, ("a", "b")).axes
    assert title(axes) == "one, 2 buckets\nmean +10.0%, worst +21%"
    (axes,) = f17_predicted_times.losses_by_model({"f": {"m": {"old": [1.0, 1.21], "new": [1.0]}}}).axes
    assert line(axes, "old m").get_xdata()[0] == pytest.approx(10.0)


def test_program_counts_have_the_times_of_model_and_record():
    (axes,) = walk_costs.program_counts({"t": ProgramTimes({1: 20.0, 2: 10.0}, {1: 45.0, 2: 20.0})}, scaled_at=2).axes
    assert list(line(axes, "simulated, times 2.0 to meet the record at 2").get_ydata()) == [40.0, 20.0]
    assert list(line(axes, "recorded on an H200").get_ydata()) == [45.0, 20.0]


def test_points_are_times_over_those_of_the_base():
    us = {"small": {"loop": 16.0, "ours": 8.0, "peer": 32.0}, "large": {"loop": 100.0, "ours": 110.0}}
    (axes,) = walk_costs.time_ratios(us, {"loop": "the loop", "ours": "ours", "peer": "peer"}, base="loop").axes
    points = [(p.get_xdata()[0], round(p.get_ydata()[0]), p.get_color()) for p in axes.lines if p.get_marker() == "o"]
    assert points == [(0.5, 0, color_of(1)), (2.0, 0, color_of(2)), (pytest.approx(1.1), 1, color_of(1))]
    legend = axes.get_legend()
    named = {text.get_text(): dot.get_color() for text, dot in zip(legend.texts, legend.legend_handles)}
    assert named == {"ours": color_of(1), "peer": color_of(2)}


def test_recorded_bars_are_shares_of_the_ceiling_and_carry_their_rates():
    name, entry = next((name, row) for name, row in GROUPED_MM["rows"].items() if row["kind"] == "compute")
    one = GROUPED_MM | {"rows": {name: entry}}
    shown = [p for p in roofline.provider_colors(one) if p in entry["rate"]["forward"]]
    (axes,) = roofline.against_peers(one).axes
    bars = [bar.get_width() for bar in axes.patches if bar.get_width()]
    top = records.ceiling(one, name)
    assert bars == pytest.approx([entry["rate"]["forward"][p] / top for p in shown])
    assert texts(axes)[1:] == [f"{entry['rate']['forward'][p]:.0f}" for p in shown]


def test_the_roofline_has_every_row_at_its_intensity():
    axes, key = roofline.roofline(GROUPED_MM).axes
    rings = [(p.get_xdata()[0], p.get_ydata()[0]) for p in axes.lines if p.get_markersize() == 9]
    ours = next(name for name, about in GROUPED_MM["providers"].items() if about["role"] == "ours")
    rows = [row for row in GROUPED_MM["rows"].values() if row["us"]["forward"].get(ours)]
    wanted = [(row["flops"] / row["bytes"]["forward"], row["flops"] / row["us"]["forward"][ours]["median_us"] / 1e6)
              for row in rows]  # fmt: skip
    assert rings == [pytest.approx(point) for point in wanted]
    assert len("\n".join(texts(key)).splitlines()) == len(rows)


def test_a_dot_right_of_one_is_a_slower_peer():
    figure = record_analysis.speedups_over_peers(GROUPED_MM, "cute", ["forward"])
    drawn = [dot for dot in figure.axes[0].lines if dot.get_marker() == "o" and len(dot.get_xdata())]
    dots = {(dot.get_xdata()[0], int(dot.get_ydata()[0])) for dot in drawn}
    for row, entry in enumerate(GROUPED_MM["rows"].values()):
        us = entry["us"]["forward"]
        if "torch" in us and "cute" in us:
            ratio = us["torch"]["median_us"] / us["cute"]["median_us"]
            assert any(at == row and math.isclose(x, ratio) for x, at in dots)


def test_shares_of_time_are_bars():
    explained = records.shares(GROUPED_MM, "triton", (128, 256), 132)
    (axes,) = record_analysis.where_time_goes(GROUPED_MM, explained).axes
    first = [bar.get_width() for bar in axes.patches[:4]]
    assert first == pytest.approx(list(next(iter(explained.values())).parts.values()))


def test_masked_rates_are_bars_beside_a_copy():
    rate = {"triton": {"tb_s": 4.0, "tflops": 80.0}, "torch.bmm, all rows": {"tb_s": 1.0, "tflops": 20.0}}
    cell = {"groups": 32, "rows": 20, "N": 64, "K": 16, "kinds": {"bfloat16": {"rates": rate}}}
    (axes,) = f12_decoding.masked_rates({"copy_tb_s": 4.25, "cells": {"a": cell}}, 20, "tb_s").axes
    assert (widths(axes, "triton"), widths(axes, "torch.bmm, all rows")) == ([4.0], [1.0])
    assert line(axes, "copy").get_xdata()[0] == 4.25


def test_gains_have_their_median():
    axes, _ = f10_kernel.gains({"clusters": [(512, 1.5), (1024, 1.1), (64, 1.2)]}).axes
    assert title(axes) == "clusters: median 1.20, 3 products"


# ---- bad input is named


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: f02_gpu_parts.vector_blocks(47, 32), "at most 48 places in whole blocks, got 64"),
        (lambda: f02_gpu_parts.gpu_parts(3), "num_warps must be 1, 2, 4 or 8, got 3"),
        (lambda: f03_launches.speedups([], "ours", ["loop"]), "cells must have times"),
        (lambda: f04_ownership.owners([(32, 32, 32)], (32, 32), []), "one entry for each of 1 tiles, got 0"),
        (lambda: f04_ownership.canary({"a": np.ones((4, 4))}, (9, 9), (2, 2)), r"\(9, 9\) at \(0, 0\) must lie within"),
        (lambda: f17_predicted_times.losses_by_model({"f": {"m": {"old": [1.0]}}}), r"two ways, got \['old'\]"),
        (lambda: f08_modes.four_modes({"x": ""}), "modes m, n, k, batch, got x"),
        (lambda: f08_packed_rows.boundary_tile([10], 0, 5, group=0), "group 0 has 10 rows in tiles of 5"),
        (lambda: f08_packed_rows.overwritten([3], 0, {"a": np.ones((1, 4))}, np.ones((3, 4))), r"'a' has \(1, 4\)"),
        (lambda: f11_rounding.error_growth({"exact": [0.1, 0.0]}), "'exact' has one that is not"),
        (lambda: f12_decoding.packed_and_masked(SIZES, 4, group=0), "at least the largest size, 6, got 4"),
        (lambda: f12_decoding.masked_rates({"cells": {"a": {"rows": 20}}}, 4, "tb_s"), r"one of \[20\], got 4"),
        (lambda: f12_fp8.number_line(13.1), r"got 13\.1"),
        (lambda: f12_shuffled_weight.lanes_of_a_load([0] * 128, lines=8), "order must be a permutation"),
        (lambda: f15_measurements.lanes([], {}), "spans"),
        (lambda: f15_measurements.claims({"x": 0.0}, "a", "b"), "positive"),
        (lambda: matrices.tile_offsets((50, 50), (2, 2)), "small enough to label"),
        (lambda: matrices.tile_of_product((4, 4, 4), (2, 2, 2), step=2), "step must be from 0 to 1"),
        (lambda: matrices.error_map(np.zeros((2, 2)), np.zeros((2, 3))), "matrices of one shape"),
        (lambda: record_analysis.as_called(GROUPED_MM, ["nobody"]), "'nobody' is not"),
        (lambda: roofline.against_peers(GROUPED_MM, "dC"), "of must be one of forward, called, dA, dB, got 'dC'"),
        (lambda: timeline.timeline([(1, 0, 1, 0)], rows=1), "rows 1 to 1; want 0 to 0"),
        (lambda: timeline.compare({}), "panels is empty"),
        (lambda: walk_costs.time_ratios({"a": {"ours": 1.0}}, {"ours": "ours"}, base="loop"), "row 'a'"),
    ],
)  # fmt: skip
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
