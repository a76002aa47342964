"""Every figure of the course, drawn with the arguments of its lesson, or with some of their size: `CASES`.

A key is "module.function" of `gemm_course.figures`. Its value draws one figure, or a list of them.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from course_kernels import GemmConfig, schedule, testing
from course_kernels.bench import record, zoo
from course_kernels.kernels.cute_sm90.config import COOPERATIVE, PINGPONG, CuteConfig
from course_kernels.masked.shuffle import unshuffle_weight
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
    f07_predicted_times,
    f08_modes,
    f08_packed_rows,
    f08_pipelines,
    f09_clusters,
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
    f15_measurements,
    instructions,
    matrices,
    record_analysis,
    roofline,
    timeline,
    walk_costs,
)
from gemm_course.lessons import l08_pipeline, l10_ring, records, timelines
from gemm_course.lessons.l07_budget import Use
from gemm_course.lessons.l12_decoding import Step, Work
from gemm_course.lessons.l13_group_walks import slots_of
from gemm_course.lessons.l13_helion_code import Generated
from gemm_course.lessons.l15_simulated_gpu import SimulatedGpu

AT = np.arange(70)
RNG = np.random.default_rng(0)
ZIPF = testing.routed_sizes("zipf", 200)
SQUARES = [(n, n, n) for n in (128, 64, 32, 16)]
ROWS = {f"{count} × {n}³": (n, count) for n, count in ((128, 4), (512, 8), (1024, 4), (2048, 8), (4096, 8))}
MODELS = ("qwen3-30b-a3b", "mixtral-8x7b", "granite-3.0-3b", "deepseek-v3", "phi-3.5-moe")


def once(name):
    """A record of the benchmarks."""
    return record.load(name)


def buffer_of(rows, cols, margin=4, past=2):
    """A matrix of ones in a buffer of canaries, written a few rows too far; its want is a matrix of ones."""
    buffer = np.full((rows + 2 * margin, cols + 2 * margin), -999.0)
    buffer[margin : margin + rows + past, margin : margin + cols] = 1
    return buffer, (margin, margin), np.ones((rows, cols)), -999.0


def wrong_product(rows=50, cols=80):
    """A result with errors of both signs, a NaN among them, and what it should be."""
    want = RNG.integers(-9, 9, (rows, cols)).astype(float)
    got = want.copy()
    got[32:, 10:20] += RNG.integers(-40, 60, (rows - 32, 10))
    got[3, 5] = np.nan
    return got, want


def loop_of_ptx(addresses, copies=8):
    """PTX of a loop that multiplies, about as long as that of a kernel with pointers or with descriptors."""
    lines = ["$L__BB0_1:", *["add.s64 %rd1, %rd1, 64;"] * addresses, *["setp.lt.s32 %p1, %r1, %r2;"] * (addresses // 3)]
    lines += ["cp.async.cg.shared.global [%r1], [%rd1], 16;"] * copies + ["cp.async.commit_group;"] * 6
    lines += ["wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {%r448}, %rd160, %rd161, %p51, 1, 1;"] * 8
    return "\n".join([*lines, "@%p1 bra $L__BB0_1;"])


def nested_ptx(fused):
    """PTX of a kernel with descriptors whose loop over K is in a loop over tiles, or in one with it."""
    copy = "cp.async.bulk.tensor.2d.shared::cta.global [%r1], [%rd1, {%r2, %r3}], [%r4];"
    multiply = "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {%r448}, %rd160, %rd161, %p51, 1, 1;"
    store = "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%rd1, {%r1}], [%r5];"
    steps = [*[multiply] * 4, copy, copy]
    if fused:
        lines = [*[copy] * 6, "$L__BB0_1:", *steps, "@%p1 bra $L__BB0_2;", store, "$L__BB0_2:", "@%p2 bra $L__BB0_1;"]
    else:
        inner = ["$L__BB0_3:", *steps, "@%p2 bra $L__BB0_3;"]
        lines = ["$L__BB0_2:", *[copy] * 6, *inner, *[multiply] * 4, store, "bra.uni $L__BB0_2;"]
    return "\n".join([*lines, "ret;"])


def bars(order, problems=SQUARES, programs=132, block=(128, 256, 64)):
    """A simulated timeline."""
    return timelines.simulated_bars(schedule.simulate(problems, order, programs, block))


def recorded_bars(batch, orders):
    """A batch's timelines of an H200."""
    found = {t["schedule"]: t for t in once("sm_timelines")["timelines"] if t["batch"] == batch}
    return {f"H200, {order}": timelines.recorded_bars(found[order], by="program") for order in orders}


def recorded_launches():
    """Timelines of 64 small products on an H200, in three ways."""
    names = ["one launch per problem", "one launch per problem, CUDA graph", "one launch"]
    panels = timelines.launch_panels(once("launches"), names)
    return [
        timeline.compare(panels, rows=132, row_name="SM, sorted", until=200),
        timeline.compare({n: panels[n] for n in names[1:]}, rows=132, row_name="SM, sorted", until=20, shades=64),
    ]


def simulated_timelines():
    """A short timeline with a bound, a skewed batch in three orders, and one beside its record."""
    cards, orders = [(256, 256, 2048), (256, 256, 256)] * 3, ("round_robin", "chunks", "dynamic")
    few = {"round-robin": bars("round_robin", cards, 4)}
    skewed = [(2048, 1024, rows) for rows in testing.routed_sizes("zipf", 32768)]
    beside = {f"model, {order}": bars(order, skewed) for order in orders} | recorded_bars("skewed", orders)
    return [
        timeline.compare(few, rows=4, bounds={"round-robin": 21.0}),
        timeline.compare({o: bars(o, skewed) for o in orders}, rows=132, bounds=dict.fromkeys(orders, 90.0)),
        timeline.compare(beside, rows=132, columns=2, title="The skewed batch, a row per program"),
    ]


def shortlist():
    """Twelve candidates, as compiled for Hopper."""
    shapes = [((16, 128, 128, 4, 4), 102, 0, 114712), ((64, 64, 64, 4, 3), 90, 0, 57360)]
    shapes += [((64, 128, 128, 4, 3), 128, 0, 163864), ((64, 256, 64, 4, 4), 200, 0, 196640)]
    shapes += [((128, 128, 64, 4, 3), 162, 0, 114712), ((128, 128, 64, 4, 4), 166, 0, 147488)]
    shapes += [((128, 256, 64, 4, 3), 255, 640, 213016), ((128, 256, 64, 8, 4), 159, 0, 262176)]
    shapes += [((128, 256, 64, 8, 4), 162, 0, 229408), ((128, 256, 64, 8, 5), 162, 0, 278560)]
    shapes += [((128, 256, 128, 8, 2), 170, 0, 229392), ((256, 256, 32, 8, 4), 255, 700, 196640)]
    two = {1, 4, 5}
    return [Use(GemmConfig(*c, programs_per_sm=1 + (i in two), store_parts=1 + (i > 7 or i in (4, 5))), *rest)
            for i, (c, *rest) in enumerate(shapes)]  # fmt: skip


def decoding_steps():
    """Steps of 256 experts, in two dtypes."""
    peaks, found = {"bfloat16": 740.0, "float8": 1400.0}, {}
    for name, size in (("bfloat16", 2), ("float8", 1)):
        for rows in (2**i for i in range(13)):
            flops, moved = 2 * 256 * rows * 4096 * 7168, size * 256 * (rows * 7168 + 4096 * 7168) + 512 * rows * 4096
            step = Step(rows, flops, moved, max(flops / peaks[name], moved / 4.2) / 1e6)
            found.setdefault(name, []).append(step)
    return f12_decoding.under_the_roof(found, peaks, 4.2, {n: [(1, 4000.0), (4, 4100.0)] for n in found})


def masked_results():
    """Slots of two steps of decoding: one right, one with wrong, missing and forbidden rows."""
    sizes = [3, 0, 17, 1, 0, 5, 24, 2]
    want = torch.arange(8 * 24 * 4).view(8, 24, 4).float()
    result = torch.full_like(want, -7.0)
    for g, size in enumerate(sizes):
        result[g, :size] = want[g, :size]
    broken = result.clone()
    broken[1, 0], broken[2, 3], broken[5, 1] = 1.0, 0.5, -7.0
    runs = {"one step": (result, want, sizes), "the next step, same launch": (broken, want, sizes)}
    return f12_decoding.written_rows(runs, -7.0)


def float8_errors():
    """Numbers with an outlier under four kinds of scales."""
    x = torch.randn(24, 512, generator=torch.Generator().manual_seed(12), dtype=torch.float64)
    x[11, 300] = 1e5
    scales = {"one scale": x.abs().max(), "a scale per row": x.abs().amax(1, keepdim=True)}
    scales["a scale per group"] = torch.cat([rows.abs().max().expand(8, 1) for rows in x.split(8)])
    scales["a scale per 1 × 128 block"] = x.view(24, 4, 128).abs().amax(2).repeat_interleave(128, 1)
    kept = {name: (x / top * 448).float().to(torch.float8_e4m3fn).double() * top / 448 for name, top in scales.items()}
    return f12_fp8.lost(x, kept, [8, 8, 8])


def shuffled_weight():
    """The first load of a wave of 64 lanes from a weight of 32 × 64."""
    number = (torch.arange(32 * 64) // 8).half().view(32, 64)
    return f12_shuffled_weight.lanes_of_a_load(unshuffle_weight(number)[:, ::8].flatten().argsort().tolist(), 32)


def helion_kernel():
    """A kernel of Helion's with the lines that were made of each of its lines."""
    source = (
        "def by_group(A_packed: Tensor, B: Tensor, group_offsets: Tensor) -> Tensor:",
        "    out = torch.empty(rows, N, dtype=A_packed.dtype, device=A_packed.device)",
        "    for g in hl.grid(group_offsets.size(0) - 1):",
        "        for tile_m, tile_n in hl.tile([end - start, N]):",
        "            acc = torch.addmm(acc, A_packed[start + tile_m.index, tile_k], B[tile_k, tile_n])",
        "    return out",
    )
    lines = ((None, "def _helion_by_group():"), *((at, "x = y + 1") for at in (2, 2, 3, 3, 3, 4, 4, 4, 4, 4, 4, 4)))
    return Generated("_helion_by_group", lines, source, "", 1, {}, {}, (), 4, 3)


def lanes():
    """Three launches on the simulated GPU, measured in three ways."""
    gpu = SimulatedGpu()
    a, b, c = (gpu.randn(2048, 2048) for _ in range(3))
    gpu.launch("matmul", flops=2 * 2048**3, reads=[a, b], writes=[c])
    gpu.synchronize()
    begin, first, mark = gpu.now, len(gpu.spans), gpu.event()
    for _ in range(3):
        gpu.launch("matmul", flops=2 * 2048**3, reads=[a, b], writes=[c])
    launched, done = gpu.now, gpu.event()
    gpu.synchronize()
    brackets = {"stopwatch": (begin, launched), "events": (mark.at, done.at), "synchronised": (begin, gpu.now)}
    return f15_measurements.lanes(gpu.spans[first:], brackets)


def spreads():
    """Twins in two orders of measuring."""

    def times(base):
        return list(base * (1 + 0.02 * RNG.random(60)))

    return [
        f15_measurements.spread(
            {m: {"this": times(180.0), "the same": times(182.0)} for m in ("in sequence", "in turn")}
        ),
        f15_measurements.spread(
            {"Between events, flushed, in turn": {"padded bmm": times(400), "grouped": times(310)}}
        ),
    ]


def of_grouped_mm(draw):
    return draw(once("grouped_mm"))


TOGETHER = CuteConfig(128, 256, 64, cluster=2, stages=4, schedule=COOPERATIVE)
IN_TURN = CuteConfig(128, 192, 64, cluster=2, stages=4, schedule=PINGPONG)
FITTED = CuteConfig(128, 192, 64, cluster=2, stages=5, schedule=PINGPONG, last_tile_n=128, tail_tile_n=256)
CHANGES = {"cooperative 128 × 256 → ping-pong 128 × 192": IN_TURN,
           "cooperative 128 × 256 → ping-pong 128 × 128": replace(IN_TURN, tile_n=128, stages=6)}  # fmt: skip

CASES = {
    "f00_overview.overview": lambda: [
        f00_overview.overview(testing.route("zipf", 40, 8, s=1.2, seed=4)),
        f00_overview.overview(testing.route("zipf", 64, s=1.2, seed=1), height=3.0),
    ],
    "f01_ragged_groups.padded_batches": lambda: f01_ragged_groups.padded_batches(
        {router: testing.routed_sizes(router, 512) for router in testing.ROUTERS}
    ),
    "f01_ragged_groups.waste_curve": lambda: f01_ragged_groups.waste_curve(
        [i / 20 for i in range(61)], [7 * (1 - 0.96**i) for i in range(61)], groups=8
    ),
    "f01_ragged_groups.descriptions": lambda: f01_ragged_groups.descriptions([4, 0, 6, 3], tail=2),
    "f01_ragged_groups.misread": lambda: f01_ragged_groups.misread(
        [0] * 4 + [2] * 6 + [3] * 3, [-1] * 4 + [0] * 6 + [2] * 3
    ),
    "f01_ragged_groups.intensity_curve": lambda: f01_ragged_groups.intensity_curve(
        [2**i for i in range(13)], [2**i / (1 + 2**i / 900) for i in range(13)], 206.1, [1, 16, 256, 4096]
    ),
    "f02_gpu_parts.vector_blocks": lambda: f02_gpu_parts.vector_blocks(10, block=4),
    "f02_gpu_parts.gpu_parts": lambda: f02_gpu_parts.gpu_parts(num_warps=4),
    "f03_launches.sm_fill": lambda: f03_launches.sm_fill(
        {f"{n} × {n}": (n // 128) ** 2 for n in (128, 256, 512, 1024, 1536, 2048)}, sms=132
    ),
    "f03_launches.speedups": lambda: f03_launches.speedups(
        once("when_to_group")["cells"], "group_gemm", against=["cublas loop", "bmm"]
    ),
    "f04_ownership.pointer_tables": lambda: f04_ownership.pointer_tables(SQUARES, [(n, 1) for n, *_ in SQUARES]),
    "f04_ownership.tile_strip": lambda: f04_ownership.tile_strip(
        [(50, 96, 32), (32, 64, 32), (64, 40, 32)], (32, 32), programs=4
    ),
    "f04_ownership.owners": lambda: [
        f04_ownership.owners(problems, (32, 32), [i % programs for i in range(count)], title=f"{programs} programs")
        for problems, programs in ((SQUARES, 4), ([(m, 96, 32) for m in testing.routed_sizes("zipf", 256)], 7))
        for count in [sum(schedule.tile_counts(problems, 32, 32))]
    ],
    "f04_ownership.canary": lambda: f04_ownership.canary(
        {
            title: np.where(AT[:, None] < rows, 1.0, np.nan) * np.where(AT < columns, 1.0, np.nan)
            for title, (rows, columns) in {"every tile full": (64, 64), "masked": (50, 40)}.items()
        },
        (50, 40),
        (32, 32),
    ),
    "f05_schedules.waves": lambda: f05_schedules.waves(132, (128, 133, 1024)),
    "f05_schedules.working_set": lambda: f05_schedules.working_set((8192, 8192, 4096), (128, 256, 64), 132, (1, 8, 16)),
    "f05_schedules.traffic": lambda: f05_schedules.traffic(
        {
            f"group_m = {m}": {"model, all of the L2": 4e8, "model, half of it": 6e8 + m * 1e7, "measured": 5e8}
            for m in (1, 8, 16)
        },
        compulsory=1.3e8,
    ),
    "f05_schedules.model_against_record": lambda: f05_schedules.model_against_record(
        {
            f"{batch}, {order}": (95.0, 101.0 + i, 100.0)
            for batch in ("skewed", "uniform")
            for i, order in enumerate(schedule.ORDERS)
        },
        ("model", "model, corrected", "H200"),
    ),
    "f05_schedules.tile_times": lambda: f05_schedules.tile_times(
        [(k, 2.0 + 0.3 * k + 0.1 * (i % 7)) for i in range(40) for k in (8, 16, 64)],
        {"model": (2.5, 0.15), "fit": (2.1, 0.31)},
    ),
    "f06_descriptors.descriptor": lambda: [
        f06_descriptors.descriptor(shape=(40, 56), leading=64, block=(16, 16), at=(30, 48)),
        f06_descriptors.descriptor(shape=(56, 104), leading=112, block=(32, 64), at=(32, 64)),
    ],
    "f06_descriptors.switches": lambda: f06_descriptors.switches(
        {order: schedule.walk([(2048, 2048, 64)] * 8, order, 132, group_m=1) for order in ("round_robin", "chunks")}
    ),
    "f06_descriptors.recorded_ratio": lambda: f06_descriptors.recorded_ratio(
        {name: row["us"] for name, row in once("group_gemm")["rows"].items()}
    ),
    "f06_descriptors.fp8_rounding": f06_descriptors.fp8_rounding,
    "f06_descriptors.reach": lambda: f06_descriptors.reach(
        [40, 24, 56, 8],
        32,
        {"C ends with the tensor": [i % 40 > 30 for i in range(128)], "C ends with the group": [False] * 128},
    ),
    "f07_budget.tile_step": lambda: f07_budget.tile_step(
        [(4096, shortlist()[8].config), (4, shortlist()[8].config), (4, shortlist()[0].config)]
    ),
    "f07_budget.limits": lambda: f07_budget.limits(shortlist()),
    "f07_budget.sm_budget": lambda: f07_budget.sm_budget([shortlist()[i] for i in (6, 7, 8, 4, 0)]),
    "f07_choices.stale_key": lambda: f07_choices.stale_key(
        {
            row: {"cuBLAS loop": 10.0, "tuned for each": 9.0 + i, "keyed on group_size": 8.0 * 1.7**i}
            for i, row in enumerate(ROWS)
        },
        "cuBLAS loop",
        "tuned for each",
        "keyed on group_size",
    ),
    "f07_choices.stalls": lambda: f07_choices.stalls(
        {
            "key is the exact shape": [(9e6, 1500.0)] * 20,
            "key is rounded": [(9e6, 1500.0)] + [(0, 1500.0)] * 19,
            "looked up": [(0, 1500.0)] * 20,
        }
    ),
    "f07_choices.choices": lambda: f07_choices.choices(
        {
            "forward product of 8 experts, N = 4096": [
                [f"{64 << (i + k) // 12}×128×64 8w {1 + i % 2}/SM" for i in range(57)] for k in range(19)
            ]
        },
        [2 ** (i / 4) for i in range(57)],
        [2 ** (i / 4) for i in range(36, 55)],
        ("rows per group", "K"),
        {"forward product of 8 experts, N = 4096": [(256, 4096), (4096, 4096)]},
    ),
    "f07_choices.slowdowns": lambda: f07_choices.slowdowns(
        {
            title: {
                row: {f"{64 + 64 * c}×128×64\n4w 3s\nstrips of {c}": 100.0 + 9 * c + r for c in range(9)}
                for r, row in enumerate(rows)
            }
            for title, rows in (
                ("8 experts of 4096 × 4096", ("256 rows", "4,096 rows")),
                ("up to 16 rows", ("8 × 4096 × 7168", "64 × 2048 × 768")),
            )
        },
        {("8 experts of 4096 × 4096", "256 rows"): "64×128×64\n4w 3s\nstrips of 0"},
    ),
    "f07_choices.regrets": lambda: f07_choices.regrets(
        {
            title: {
                (f"{g} × 4096 × 4096", rows): 1.0 + (g + i) % 9 / 40 if i else None
                for g in (8, 64, 256)
                for i, rows in enumerate(("4", "16", "256", "4k"))
            }
            for title in ("128×256 for all", "defaults by hand", "nearest neighbour's")
        },
        ("groups × N × K", "rows per group"),
    ),
    "f07_predicted_times.expected_times": lambda: f07_predicted_times.expected_times(
        {f"CuTe 128×{n}×64, fitted": [(2.0**i, 5 + n / 50 + 2**i / n) for i in range(12)] for n in (64, 128, 192)},
        {"CuTe 128×64×64, fitted": [(4, 8.0), (64, 9.0)]},
        [(16, 20.0), (256, 25.0)],
        [(4, 8.0)],
    ),
    "f07_predicted_times.losses_by_model": lambda: f07_predicted_times.losses_by_model(
        {
            title: {m: {"thresholds": [1.05, 1.2], "time model": [1.0, 1.02]} for m in MODELS}
            for title in ("forward", "gradient of the rows", "gradient of the weights")
        }
    ),
    "f08_packed_rows.lists_and_packed": lambda: f08_packed_rows.lists_and_packed(ZIPF, 24),
    "f08_packed_rows.boundary_tile": lambda: f08_packed_rows.boundary_tile(ZIPF, 24, 32, group=3),
    "f08_packed_rows.overwritten": lambda: f08_packed_rows.overwritten(
        ZIPF,
        24,
        {"mask at the matrix's end": np.ones((224, 4)), "mask at the group's end": np.zeros((224, 4))},
        np.zeros((224, 4)),
    ),
    "f08_packed_rows.sliding_window": lambda: f08_packed_rows.sliding_window(ZIPF, group=1, block=32),
    "f08_packed_rows.whole_units": lambda: [
        f08_packed_rows.whole_units(ZIPF, unit=8, group=1, block=32),
        f08_packed_rows.whole_units([11, 9, 3, 12], unit=1, group=1, block=16, what="the first block"),
    ],
    "f08_pipelines.structure": lambda: f08_pipelines.structure(
        {"groups found by walking": nested_ptx(False), "groups found by comparing": nested_ptx(True)}
    ),
    "f08_pipelines.overlap": lambda: f08_pipelines.overlap(
        {name: l08_pipeline.pipeline(4, 6, fused=fused) for name, fused in (("loop in a loop", False), ("fused", True))}
    ),
    "f08_modes.four_modes": lambda: f08_modes.four_modes(
        {
            "m": "rows: the forward product, and the gradient of A",
            "n": "columns: the same, transposed",
            "k": "the summed dimension: the gradient of B",
            "batch": "none: equal groups, no offs",
        }
    ),
    "f08_modes.undefined_rows": lambda: f08_modes.undefined_rows(
        {
            owner: [np.vstack([np.ones((16, 4)), np.full((4, 4), tail)])] * 2
            for owner, tail in (("torch", np.nan), ("course_kernels", 0.0))
        },
        [6, 4, 4, 2],
        ["result", "gradient of A"],
    ),
    "f09_clusters.clusters": lambda: f09_clusters.clusters(
        {
            title: type("Design", (), {"tile": tile, "cluster": cluster, "ctas": ctas})
            for title, tile, cluster, ctas in (
                ("alone\n128×128, 1×1", (128, 128, 64), (1, 1), 1),
                ("in a cluster\n128×128, 2×2", (128, 128, 64), (2, 2), 1),
                ("a pair\n256×256, 2×1", (256, 256, 64), (2, 1), 2),
                ("pairs\n256×256, 4×2", (256, 256, 64), (4, 2), 2),
            )
        }
    ),
    "f10_kernel.roles": lambda: [f10_kernel.roles([c], loading=40, multiplying=232) for c in (TOGETHER, IN_TURN)],
    "f10_kernel.ring": lambda: f10_kernel.ring(
        {f"{n} stages": l10_ring.simulate(replace(TOGETHER, stages=n), tiles=2, blocks=7) for n in (2, 4)}
    ),
    "f10_kernel.warp_group_turns": lambda: f10_kernel.warp_group_turns(
        {
            name: l10_ring.simulate(replace(IN_TURN, schedule=s), tiles=4, blocks=16)
            for name, s in (("cooperative", COOPERATIVE), ("ping-pong", PINGPONG))
        }
    ),
    "f10_kernel.gains": lambda: f10_kernel.gains(
        {
            name: records.ratios(once("hopper_steps")["rows"], "forward", TOGETHER, each)
            for name, each in CHANGES.items()
        }
    ),
    "f10_clusters.multicast": lambda: f10_clusters.multicast(TOGETHER),
    "f10_clusters.order": lambda: f10_clusters.order(
        replace(IN_TURN, swizzle_size=4), rows=1024, columns=2304, clusters=12
    ),
    "f10_clusters.handed_out": lambda: f10_clusters.handed_out(
        replace(TOGETHER, dynamic=True),
        zoo.rows(["granite"], tokens=[8192], routings=["zipf"], projections=["down"])[0].sizes,
        rows=1536,
        columns=512,
        clusters=66,
    ),
    "f10_clusters.cut_to_fit": lambda: f10_clusters.cut_to_fit(FITTED, rows=682, columns=2048),
    "f11_gradients.layer": lambda: f11_gradients.layer([5, 3, 0, 4]),
    "f11_gradients.products": lambda: f11_gradients.products([5, 3, 0, 4]),
    "f11_gradients.expert_matrices": lambda: f11_gradients.expert_matrices(
        {
            name: np.full((8, 4, 4), value)
            for name, value in (
                ("empty experts skipped, memory of NaN", np.nan),
                ("empty experts skipped, memory of the step before", 1.0),
                ("empty experts written", 0.0),
            )
        },
        np.zeros((8, 4, 4)),
        [20, 9, 0, 4, 0, 1, 0, 2],
    ),
    "f11_gradients.one_writer": lambda: f11_gradients.one_writer(
        (3, 4), list(0.1 + 1e-6 * RNG.integers(-3, 3, 100)), alone=0.1
    ),
    "f11_rounding.aligned_bits": lambda: f11_rounding.aligned_bits(
        {
            "a small number is added to a large one": {
                "so far": 2048,
                "the next gradient": 1,
                "their sum": 2049,
                "stored": 2048,
            },
            "two large numbers cancel": {
                "so far": -2048,
                "the next gradient": 2049,
                "stored by the kernel": 2048,
                "rounded twice:  −2048 + 2048": 0,
                "rounded once:  −2048 + 2049": 1,
            },
        },
        kept=11,
    ),
    "f11_rounding.error_growth": lambda: f11_rounding.error_growth(
        {
            name: [scale * (i + 1) ** 0.5 for i in range(64)]
            for name, scale in (
                ("bfloat16 += bfloat16", 2e-3),
                ("float32 += bfloat16", 1e-3),
                ("float32, added in the kernel", 1e-8),
            )
        }
    ),
    "f11_training_costs.copied_gradients": lambda: f11_training_costs.copied_gradients(
        records.step_times(once("grouped_mm"))
    ),
    "f12_decoding.under_the_roof": decoding_steps,
    "f12_decoding.packed_and_masked": lambda: f12_decoding.packed_and_masked([3, 0, 17, 1, 0, 5, 24, 2], 24, group=5),
    "f12_decoding.waste": lambda: f12_decoding.waste(
        {
            "bmm over 32 slots": {
                "GFLOP": Work(15, 480.0),
                "MB of weights": Work(9000.0, 15000.0),
                "MB of rows": Work(4.0, 120.0),
            },
            "tiles of used rows": {
                "GFLOP": Work(15, 150.0),
                "MB of weights": Work(9000.0, 9000.0),
                "MB of rows": Work(4.0, 40.0),
            },
        },
        {"GFLOP": "{:,.0f}", "MB of weights": "{:,.0f}", "MB of rows": "{:,.0f}"},
    ),
    "f12_decoding.written_rows": masked_results,
    "f12_decoding.masked_rates": lambda: [
        f12_decoding.masked_rates(once("masked"), rows=20, unit="tb_s"),
        f12_decoding.masked_rates(once("masked"), rows=192, unit="tflops"),
    ],
    "f12_fp8.number_line": lambda: f12_fp8.number_line(example=13.0),
    "f12_fp8.lost": float8_errors,
    "f12_fp8.outlier_sweep": lambda: f12_fp8.outlier_sweep(
        [10 ** (i / 4) for i in range(4, 28)],
        {
            "int8": [min(1, 0.01 * 1.5**i) for i in range(24)],
            "float8_e4m3fn": [min(1, 1e-3 * 1.6**i) for i in range(24)],
        },
        {"100,000 times": 1e5},
    ),
    "f12_fp8.accumulators": lambda: f12_fp8.accumulators(
        [128, 512, 2048, 7168, 16384],
        {"one sum": [1e-4, 5e-4, 2e-3, 1e-2, 3e-2], "float32 takes over\nafter every 128": [1e-4] * 5},
        [(7168, 9e-3), (7168, 1.1e-4)],
    ),
    "f12_fp8.scale_shapes": lambda: f12_fp8.scale_shapes(24, [8, 8, 8], 512),
    "f12_fp8.block_rates": lambda: f12_fp8.block_rates(once("block_scaled")),
    "f12_shuffled_weight.lanes_of_a_load": shuffled_weight,
    "f13_group_walks.slots": lambda: f13_group_walks.slots(
        {
            "group by group: a square is a slot that the worker looks at; dotted: no tile of its own": slots_of(
                (64, 128, 192, 256), 128, 4, (64, 64, 64), one_index=False
            ),
            "one index over all tiles": slots_of((64, 128, 192, 256), 128, 4, (64, 64, 64), one_index=True),
        }
    ),
    "f13_helion_code.expansion": lambda: f13_helion_code.expansion(helion_kernel()),
    "f15_measurements.lanes": lanes,
    "f15_measurements.call_by_call": lambda: f15_measurements.call_by_call(
        {"zeros": list(700 + 5 * RNG.random(200)), "random": list(520 + 5 * RNG.random(200))}, 800.0
    ),
    "f15_measurements.cache_curve": lambda: f15_measurements.cache_curve(
        [8, 12, 16, 24, 32, 40, 50, 64, 80, 120, 200, 400],
        {
            "warm": [4, 5, 6, 7, 8, 8, 6, 4, 3.8, 3.7, 3.6, 3.6],
            "flushed": [2, 2.4, 2.8, 3, 3.1, 3.2, 3.3, 3.4, 3.5, 3.5, 3.6, 3.6],
        },
        60.0,
        4.0,
    ),
    "f15_measurements.spread": spreads,
    "f15_measurements.claims": lambda: f15_measurements.claims(
        {
            "as published": 2.4,
            "with events": 1.9,
            "… and needed FLOP": 0.9,
            "… and all packing": 0.8,
            "… and random data": 0.78,
            "… and a flushed L2": 0.76,
        },
        "padded bmm",
        "grouped",
    ),
    "instructions.loop_instructions": lambda: instructions.loop_instructions(
        {"pointers": loop_of_ptx(90), "descriptors": loop_of_ptx(24, copies=2)}
    ),
    "matrices.tile_offsets": lambda: [
        matrices.tile_offsets((6, 10), block=(4, 4), at=(0, 4), strides=(12, 1)),
        matrices.tile_offsets((6, 10), block=(4, 4), at=(4, 8)),
    ],
    "matrices.tile_of_product": lambda: [
        matrices.tile_of_product((64, 96, 64), block=(32, 32, 32), tile=(1, 2)),
        matrices.tile_of_product((50, 80, 72), block=(32, 32, 32), tile=(1, 2), step=2),
        matrices.tile_of_product((50, 80, 72), block=(128, 128, 32)),
    ],
    "matrices.error_map": lambda: [
        matrices.error_map(*wrong_product(), block=(32, 32), title="no masks"),
        matrices.error_map(np.full((64, 96), np.nan), np.zeros((64, 96)), block=(32, 32), title="first try"),
        matrices.error_map(np.ones((16, 16)), np.ones((16, 16)), title="sums in float16"),
    ],
    "matrices.written_map": lambda: [
        matrices.written_map(*buffer_of(50, 80), block=(32, 32), title="K masked"),
        matrices.written_map(*buffer_of(8, 20), title="no mask on the store", name="Y"),
    ],
    "record_analysis.speedups_over_peers": lambda: of_grouped_mm(
        lambda r: record_analysis.speedups_over_peers(r, "cute")
    ),
    "record_analysis.as_called": lambda: of_grouped_mm(
        lambda r: record_analysis.as_called(r, ["triton", "torch", "loop"])
    ),
    "record_analysis.where_time_goes": lambda: of_grouped_mm(
        lambda r: record_analysis.where_time_goes(r, records.shares(r, "triton", (128, 256), 132))
    ),
    "roofline.against_peers": lambda: of_grouped_mm(roofline.against_peers),
    "roofline.roofline": lambda: of_grouped_mm(roofline.roofline),
    "timeline.timeline": lambda: timeline.timeline(bars("round_robin"), rows=132, title="round-robin", bound=4.0),
    "timeline.compare": lambda: [*simulated_timelines(), *recorded_launches()],
    "walk_costs.program_counts": lambda: walk_costs.program_counts(
        {
            f"{label}, {times.tiles} tiles": times
            for kernel, label in (("round_robin", "pointer kernel"), ("tma", "descriptor kernel (lesson 06)"))
            for times in [records.program_times(once("programs")["rows"]["4 x 1024^3"], kernel, [(1024,) * 3] * 4)]
        },
        scaled_at=66,
    ),
    "walk_costs.time_ratios": lambda: [
        walk_costs.time_ratios(
            {
                row: {p: t["median_us"] for p, t in entry["us"].items()}
                for row, entry in once("group_gemm")["rows"].items()
            },
            {
                "cublas loop": "cuBLAS loop",
                "tutorial": "tutorial, best",
                "tutorial, key=group_size": "tutorial, as tuned first",
                "naive": "lesson 03",
                "round_robin": "this lesson",
            },
        ),
        walk_costs.time_ratios(
            records.jagged_times(once("jagged")["rows"]),
            {
                "cublas": "cuBLAS product",
                "auto": "ours (auto)",
                "triton-persistent": "Triton",
                "helion-persistent": "Helion",
                "helion-scanning": "group by group",
            },
            base="cublas",
        ),
    ],
}
