"""Every figure of the course, with the arguments of its lesson or with similar ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from importlib import import_module

import numpy as np
import torch
from matplotlib.figure import Figure

from course_kernels import GemmConfig, schedule, testing
from course_kernels.bench import record, zoo
from course_kernels.kernels.cute_sm90.config import COOPERATIVE, PINGPONG, CuteConfig
from course_kernels.masked.shuffle import unshuffle_weight
from gemm_course.lessons import l08_pipeline, l10_clusters, l10_ring, records, timelines
from gemm_course.lessons.l07_budget import Use
from gemm_course.lessons.l12_decoding import Step, Work
from gemm_course.lessons.l13_group_walks import slots_of
from gemm_course.lessons.l13_helion_code import Generated
from gemm_course.lessons.l15_simulated_gpu import SimulatedGpu

# "module.function" of `gemm_course.figures` → the positional and named arguments of each of its cases, or a function
# that returns the named ones.
CASES: dict[str, list[tuple[tuple, dict] | Callable[[], dict]]] = {}


def draw(name: str) -> list[Figure]:
    """Draw the cases of a figure."""
    module, _, function = name.partition(".")
    function = getattr(import_module(f"gemm_course.figures.{module}"), function)
    cases = [((), each()) if callable(each) else each for each in CASES[name]]
    return [function(*args, **kwargs) for args, kwargs in cases]


def case(name: str, /, *args, **kwargs) -> None:
    CASES.setdefault(name, []).append((args, kwargs))


def later(name: str):
    """Decorate a function that returns the named arguments of a case, which takes a while."""
    return lambda make: CASES.setdefault(name, []).append(make)


def buffer_of(rows, cols, margin=4, past=2):
    """A matrix of ones in a buffer of canaries, written a few rows too far; its want is a matrix of ones."""
    buffer = np.full((rows + 2 * margin, cols + 2 * margin), -999.0)
    buffer[margin : margin + rows + past, margin : margin + cols] = 1
    return buffer, (margin, margin), np.ones((rows, cols)), -999.0


def wrong_product(rows=50, cols=80):
    """A result with errors of both signs and a NaN, and the right result."""
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
    """PTX of a kernel with descriptors whose loop over K is inside the loop over tiles, or fused with it."""
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


def bars(order, problems, programs=132):
    """A simulated timeline."""
    return timelines.simulated_bars(schedule.simulate(problems, order, programs, (128, 256, 64)))


def step(rows, name):
    """A step of decoding of 256 experts."""
    flops, moved = 2 * 256 * rows * 4096 * 7168, SIZE[name] * 256 * (rows + 4096) * 7168 + 512 * rows * 4096
    return Step(rows, flops, moved, max(flops / PEAKS[name], moved / 4.2) / 1e6)


def use(block, warps, stages, registers, spilled, shared, per_sm=1, parts=1):
    """A configuration, as compiled for Hopper."""
    config = GemmConfig(*block, warps, stages, programs_per_sm=per_sm, store_parts=parts)
    return Use(config, registers, spilled, shared)


AT, RNG = np.arange(70), np.random.default_rng(0)
POWERS = [2.0**i for i in range(13)]
ZIPF = testing.routed_sizes("zipf", 200)
SQUARES = [(n, n, n) for n in (128, 64, 32, 16)]
EXPERTS = [(rows, 96, 32) for rows in testing.routed_sizes("zipf", 256)]
CARDS = [(256, 256, 2048), (256, 256, 256)] * 3
SKEWED = [(2048, 1024, rows) for rows in testing.routed_sizes("zipf", 32768)]
GROUPED_MM = record.load("grouped_mm")
PEAKS, SIZE = {"bfloat16": 740.0, "float8": 1400.0}, {"bfloat16": 2, "float8": 1}
TOGETHER = CuteConfig(128, 256, 64, cluster=2, stages=4, schedule=COOPERATIVE)
IN_TURN = CuteConfig(128, 192, 64, cluster=2, stages=4, schedule=PINGPONG)
FITTED = CuteConfig(128, 192, 64, cluster=2, stages=5, schedule=PINGPONG, last_tile_n=128, tail_tile_n=256)
SHORTLIST = [
    use((16, 128, 128), 4, 4, 102, 0, 114712), use((64, 64, 64), 4, 3, 90, 0, 57360, 2),
    use((64, 128, 128), 4, 3, 128, 0, 163864), use((64, 256, 64), 4, 4, 200, 0, 196640),
    use((128, 128, 64), 4, 3, 162, 0, 114712, 2, 2), use((128, 128, 64), 4, 4, 166, 0, 147488, 2, 2),
    use((128, 256, 64), 4, 3, 255, 640, 213016), use((128, 256, 64), 8, 4, 159, 0, 262176),
    use((128, 256, 64), 8, 4, 162, 0, 229408, 1, 2), use((128, 256, 64), 8, 5, 162, 0, 278560, 1, 2),
    use((128, 256, 128), 8, 2, 170, 0, 229392, 1, 2), use((256, 256, 32), 8, 4, 255, 700, 196640, 1, 2),
]  # fmt: skip
HELION = Generated(
    "_helion_by_group",
    ((None, "def _helion_by_group():"), *((at, "x = y + 1") for at in (2, 2, 3, 3, 3, 4, 4, 4, 4, 4, 4, 4))),
    (
        "def by_group(A_packed: Tensor, B: Tensor, group_offsets: Tensor) -> Tensor:",
        "    out = torch.empty(rows, N, dtype=A_packed.dtype, device=A_packed.device)",
        "    for g in hl.grid(group_offsets.size(0) - 1):",
        "        for tile_m, tile_n in hl.tile([end - start, N]):",
        "            acc = torch.addmm(acc, A_packed[start + tile_m.index, tile_k], B[tile_k, tile_n])",
        "    return out",
    ),
    "", 1, {}, {}, (), 4, 3,
)  # fmt: skip


@later("f12_decoding.written_rows")
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
    return dict(runs=runs, canary=-7.0)


@later("f12_fp8.lost")
def float8_errors():
    """Numbers with an outlier under three kinds of scales."""
    x = torch.randn(24, 512, generator=torch.Generator().manual_seed(12), dtype=torch.float64)
    x[11, 300] = 1e5
    scales = {"one scale": x.abs().max(), "a scale per row": x.abs().amax(1, keepdim=True)}
    scales["a scale per 1 × 128 block"] = x.view(24, 4, 128).abs().amax(2).repeat_interleave(128, 1)
    kept = {name: (x / top * 448).float().to(torch.float8_e4m3fn).double() * top / 448 for name, top in scales.items()}
    return dict(x=x, attempts=kept, sizes=[8, 8, 8])


@later("f12_shuffled_weight.lanes_of_a_load")
def shuffled_weight():
    """The first load of a wave of 64 lanes from a weight of 32 × 64."""
    number = (torch.arange(32 * 64) // 8).half().view(32, 64)
    return dict(order=unshuffle_weight(number)[:, ::8].flatten().argsort().tolist(), lines=32)


@later("f15_measurements.lanes")
def launches():
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
    return dict(spans=gpu.spans[first:], brackets=brackets)


@later("timeline.compare")
def beside_the_record():
    """A skewed batch in three orders, simulated and recorded on an H200."""
    recorded = {t["schedule"]: t for t in record.load("sm_timelines")["timelines"] if t["batch"] == "skewed"}
    panels = {}
    for order in ("round_robin", "chunks", "dynamic"):
        panels[f"model, {order}"] = bars(order, SKEWED)
        panels[f"H200, {order}"] = timelines.recorded_bars(recorded[order], by="program")
    return dict(panels=panels, rows=132, columns=2, title="The skewed batch, a row per program")


@later("timeline.compare")
def launch_by_launch():
    """64 small products on an H200, in two ways."""
    names = ["one launch per problem, CUDA graph", "one launch"]
    panels = timelines.launch_panels(record.load("launches"), names)
    return dict(panels=panels, rows=132, row_name="SM, sorted", until=20, shades=64)


# fmt: off
# ---- lessons 00 to 06

case("f00_overview.overview", testing.route("zipf", 40, 8, s=1.2, seed=4))
case("f00_overview.overview", testing.route("zipf", 64, s=1.2, seed=1), height=3.0)
case("f01_ragged_groups.padded_batches", {router: testing.routed_sizes(router, 512) for router in testing.ROUTERS})
case("f01_ragged_groups.waste_curve", [i / 20 for i in range(61)], [7 - 7 * 0.96**i for i in range(61)], groups=8)
case("f01_ragged_groups.descriptions", [4, 0, 6, 3], tail=2)
case("f01_ragged_groups.misread", [0] * 4 + [2] * 6 + [3] * 3, [-1] * 4 + [0] * 6 + [2] * 3)
case("f01_ragged_groups.intensity_curve", POWERS, [n / (1 + n / 900) for n in POWERS], 206.1, [1, 16, 256, 4096])
case("f02_gpu_parts.vector_blocks", 10, block=4)
case("f02_gpu_parts.gpu_parts", num_warps=4)
case("f03_launches.sm_fill", {f"{n} × {n}": (n // 128) ** 2 for n in (128, 256, 512, 1024, 1536, 2048)}, sms=132)
case("f03_launches.speedups", record.load("when_to_group")["cells"], "group_gemm", against=["cublas loop", "bmm"])
case("f04_ownership.pointer_tables", SQUARES, [(n, 1) for n, *_ in SQUARES])
case("f04_ownership.tile_strip", [(50, 96, 32), (32, 64, 32), (64, 40, 32)], (32, 32), programs=4)
case("f04_ownership.owners", SQUARES, (32, 32), [i % 4 for i in range(22)], title="Which of 4 programs")
case("f04_ownership.owners", EXPERTS, (32, 32), [i % 7 for i in range(36)], title="8 experts, 7 programs")
case("f04_ownership.canary", {title: np.where((AT[:, None] < m) & (AT < n), 1.0, np.nan)
                              for title, m, n in (("every tile full", 64, 64), ("masked", 50, 40))}, (50, 40), (32, 32))
case("f05_schedules.waves", 132, (128, 133, 1024))
case("f05_schedules.working_set", (8192, 8192, 4096), (128, 256, 64), 132, (1, 8, 16))
case("f05_schedules.traffic", {f"group_m = {m}": {"model, all of L2": 4e8, "model, half of it": 6e8, "measured": 5e8}
                               for m in (1, 8, 16)}, compulsory=1.3e8)
case("f05_schedules.model_against_record", {f"{batch}, {order}": (95.0, 102.0, 100.0) for batch in ("skewed", "uniform")
                                            for order in schedule.ORDERS}, ("model", "model, corrected", "H200"))
case("f05_schedules.tile_times", [(k, 2 + 0.3 * k + i % 7 / 10) for i in range(40) for k in (8, 16, 64)],
     {"model": (2.5, 0.15), "fit": (2.1, 0.31)})
case("f06_descriptors.descriptor", shape=(40, 56), leading=64, block=(16, 16), at=(30, 48))
case("f06_descriptors.descriptor", shape=(56, 104), leading=112, block=(32, 64), at=(32, 64))
case("f06_descriptors.switches", {order: schedule.walk([(2048, 2048, 64)] * 8, order, 132, group_m=1)
                                  for order in ("round_robin", "chunks")})
case("f06_descriptors.recorded_ratio", {name: row["us"] for name, row in record.load("group_gemm")["rows"].items()})
case("f06_descriptors.reach", [40, 24, 56, 8], 32, {"C ends with the tensor": [i % 40 > 30 for i in range(128)],
                                                    "C ends with the group": [False] * 128})

# ---- lessons 07 to 11

case("f07_budget.tile_step", [(4096, SHORTLIST[8].config), (4, SHORTLIST[8].config), (4, SHORTLIST[0].config)])
case("f07_budget.limits", SHORTLIST)
case("f07_budget.sm_budget", [SHORTLIST[i] for i in (6, 7, 8, 4, 0)])
case("f07_choices.stale_key", {f"{count} × {n}³": {"cuBLAS loop": 10.0, "tuned for each": 9.0 + i, "keyed": 8 * 1.7**i}
                               for i, (count, n) in enumerate(((4, 128), (8, 512), (4, 1024), (8, 2048), (8, 4096)))},
     "cuBLAS loop", "tuned for each", "keyed")
case("f07_choices.stalls", {"key is the exact shape": [(9e6, 1500.0)] * 20, "looked up": [(0, 1500.0)] * 20,
                            "key is rounded": [(9e6, 1500.0)] + [(0, 1500.0)] * 19})
case("f07_choices.choices", {"8 experts, N = 4096": [
    [f"{64 << (i + k) // 12}×128×64 8w {1 + i % 2}/SM" for i in range(57)] for k in range(19)]},
     [2 ** (i / 4) for i in range(57)], [2 ** (i / 4) for i in range(36, 55)], ("rows per group", "K"))
case("f07_choices.slowdowns", {title: {row: {f"{64 + 64 * c}×128×64\n4w 3s\nstrips of {c}": 100.0 + 9 * c
                                             for c in range(9)} for row in rows}
                               for title, *rows in (("8 experts", "256 rows", "4,096 rows"), ("few rows", "8 × 4096"))},
     {("8 experts", "256 rows"): "64×128×64\n4w 3s\nstrips of 0"})
case("f07_choices.regrets", {title: {(f"{g} × 4096 × 4096", rows): 1.0 + (g + i) % 9 / 40 if i else None
                                     for g in (8, 64, 256) for i, rows in enumerate(("4", "16", "256", "4k"))}
                             for title in ("128×256 for all", "defaults by hand", "nearest neighbour's")},
     ("groups × N × K", "rows per group"))
case("f16_ranks.splits", [[[4, 1, 0], [2, 5, 3]], [[3, 0, 2]], [[1, 4, 7], [0, 5, 4]]], experts=6)
case("f16_ranks.journey")
case("f16_ranks.matrices", {"by hand": [[1028, 991, 30, 4]] * 4, "once for each rank": [[512, 40, 3, 0]] * 4})
case("f16_ranks.timelines", {name: schedule.layer_time(schedule.ExpertLayer(2048, 768, 128, 8), 16384,
                                                       schedule.Cluster(2), copies=copies, chunks=chunks)
                             for name, copies, chunks in (("by hand", "choice", 1), ("deduplicated", "rank", 1),
                                                          ("overlapped", "rank", 4))}, {"by hand": 7460.0})
case("f16_ranks.recorded_layers", {
    f"{model}, {routing}": {f"{gpus} GPUs": {"by hand": 9950.0 / gpus, "all_to_all": 7200.0, "overlapped": 6800.0,
                                             "symmetric": 5600.0 + gpus, "no exchange": 4100.0} for gpus in (2, 4, 8)}
    for model in ("qwen3-30b-a3b", "mixtral-8x7b", "deepseek-v3") for routing in ("uniform", "Zipf")})
case("f16_ranks.loads", {"uniform": [300, 310, 290, 316], "Zipf": [800, 120, 210, 86]})
case("f16_ranks.clusters", {ranks: dict.fromkeys(("choice", "rank", "node"), (0.3, 2.5, 1.1))
                            for ranks in (2, 8, 16, 64)})
case("f17_predicted_times.expected_times", {f"CuTe 128×{n}×64, fitted": [(m, 5 + n / 50 + m / n) for m in POWERS]
                                            for n in (64, 128, 192)},
     {"CuTe 128×64×64, fitted": [(4, 8.0), (64, 9.0)]}, [(16, 20.0), (256, 25.0)], [(4, 8.0)])
case("f17_predicted_times.losses_by_model", {
    title: {model: {"thresholds": [1.05, 1.2], "time model": [1.0, 1.02]} for model in ("qwen3-30b-a3b", "deepseek-v3")}
    for title in ("forward", "gradient of the rows", "gradient of the weights")})
case("f08_packed_rows.lists_and_packed", ZIPF, 24)
case("f08_packed_rows.boundary_tile", ZIPF, 24, 32, group=3)
case("f08_packed_rows.overwritten", ZIPF, 24, {"mask at the matrix's end": np.ones((224, 4)),
                                               "mask at the group's end": np.zeros((224, 4))}, np.zeros((224, 4)))
case("f08_packed_rows.sliding_window", ZIPF, group=1, block=32)
case("f08_packed_rows.whole_units", ZIPF, unit=8, group=1, block=32)
case("f08_packed_rows.whole_units", [11, 9, 3, 12], unit=1, group=1, block=16, what="the first block")
case("f08_pipelines.structure", {"groups found by walking": nested_ptx(False), "by comparing": nested_ptx(True)})
case("f08_pipelines.overlap", {name: l08_pipeline.pipeline(4, 6, fused=name == "fused")
                               for name in ("loop in a loop", "fused")})
case("f08_modes.four_modes", {"m": "rows: the forward product, and the gradient of A", "n": "columns: the same",
                              "k": "the summed dimension: the gradient of B", "batch": "none: equal groups, no offs"})
case("f08_modes.undefined_rows", {owner: [np.vstack([np.ones((16, 4)), np.full((4, 4), tail)])] * 2
                                  for owner, tail in (("torch", np.nan), ("course_kernels", 0.0))},
     [6, 4, 4, 2], ["result", "gradient of A"])
case("f09_clusters.clusters", {title: type("Design", (), dict(tile=(*tile, 64), cluster=cluster, ctas=ctas))
                               for title, tile, cluster, ctas in (("alone\n128×128, 1×1", (128, 128), (1, 1), 1),
                                                                  ("in a cluster\n128×128, 2×2", (128, 128), (2, 2), 1),
                                                                  ("a pair\n256×256, 2×1", (256, 256), (2, 1), 2),
                                                                  ("pairs\n256×256, 4×2", (256, 256), (4, 2), 2))})
case("f10_kernel.roles", [TOGETHER], loading=40, multiplying=232)
case("f10_kernel.ring", {f"{n} stages": l10_ring.simulate(replace(TOGETHER, stages=n), 2, 7) for n in (2, 4)})
case("f10_kernel.warp_group_turns", {each: l10_ring.simulate(replace(IN_TURN, schedule=each), tiles=4, blocks=16)
                                     for each in (COOPERATIVE, PINGPONG)})
case("f10_kernel.gains", {f"cooperative 128 × 256 → ping-pong 128 × {each.tile_n}": records.ratios(
    record.load("hopper_steps")["rows"], "forward", TOGETHER, each)
    for each in (IN_TURN, replace(IN_TURN, tile_n=128, stages=6))})
case("f10_clusters.multicast", TOGETHER)
case("f10_clusters.order", replace(IN_TURN, swizzle_size=4), rows=1024, columns=2304, clusters=12)
case("f10_clusters.handed_out", l10_clusters.hand_out(replace(TOGETHER, dynamic=True),
     zoo.rows(["granite"], tokens=[8192], routings=["zipf"], projections=["down"])[0].sizes, 1536, 512, clusters=66))
case("f10_clusters.cut_to_fit", FITTED, rows=682, columns=2048)
case("f11_gradients.layer", [5, 3, 0, 4])
case("f11_gradients.products", [5, 3, 0, 4])
case("f11_gradients.expert_matrices", {name: np.full((8, 4, 4), value) for name, value in (
    ("empty experts skipped, memory of NaN", np.nan), ("skipped, memory of the step before", 1.0), ("written", 0.0))},
     np.zeros((8, 4, 4)), [20, 9, 0, 4, 0, 1, 0, 2])
case("f11_gradients.one_writer", (3, 4), [0.1 + 1e-6 * (i % 7 - 3) for i in range(100)], alone=0.1)
case("f11_rounding.aligned_bits", {
    "a small number is added to a large one": {"so far": 2048, "the next gradient": 1, "stored": 2048},
    "two large numbers cancel": {"so far": -2048, "the next gradient": 2049, "rounded twice: −2048 + 2048": 0}},
     kept=11)
case("f11_rounding.error_growth", {name: [scale * (i + 1) ** 0.5 for i in range(64)] for name, scale in (
    ("bfloat16 += bfloat16", 2e-3), ("float32 += bfloat16", 1e-3), ("float32, added in the kernel", 1e-8))})
case("f11_training_costs.copied_gradients", records.step_times(GROUPED_MM))

# ---- lessons 12 to 15

case("f12_decoding.under_the_roof", {name: [step(2**i, name) for i in range(13)] for name in PEAKS}, PEAKS, 4.2,
     {name: [(1, 4000.0), (4, 4100.0)] for name in PEAKS})
case("f12_decoding.packed_and_masked", [3, 0, 17, 1, 0, 5, 24, 2], 24, group=5)
case("f12_decoding.waste", {"bmm over 32 slots": {"GFLOP": Work(15, 480), "MB of weights": Work(9e3, 15e3)},
                            "tiles of used rows": {"GFLOP": Work(15, 150), "MB of weights": Work(9e3, 9e3)}},
     {"GFLOP": "{:,.0f}", "MB of weights": "{:,.0f}"})
case("f12_decoding.masked_rates", record.load("masked"), rows=20, unit="tb_s")
case("f12_decoding.masked_rates", record.load("masked"), rows=192, unit="tflops")
case("f12_fp8.number_line", example=13.0)
case("f12_fp8.outlier_sweep", [10 ** (i / 4) for i in range(4, 28)], {
    name: [min(1, 1e-3 * growth**i) for i in range(24)] for name, growth in (("int8", 1.9), ("float8_e4m3fn", 1.4))},
     {"100,000 times": 1e5})
case("f12_fp8.accumulators", [128, 512, 2048, 7168, 16384], {
    "one sum": [1e-4, 5e-4, 2e-3, 1e-2, 3e-2], "float32 takes over\nafter every 128": [1e-4] * 5}, [(7168, 9e-3)])
case("f12_fp8.scale_shapes", 24, [8, 8, 8], 512)
case("f12_fp8.block_rates", record.load("block_scaled"))
case("f13_group_walks.slots", {
    f"{how}: a square is a slot that the worker looks at; dotted: no tile of its own":
    slots_of((64, 128, 192, 256), 128, 4, (64, 64, 64), one_index=how == "one index")
    for how in ("group by group", "one index")})
case("f13_helion_code.expansion", HELION)
case("f14_layer.operations", [("sort", 2e6, 4e6, 0), ("convert", 2e6, 1e6, 0), ("gather", 1.1e9, 1.1e9, 1.1e9),
                              ("product", 1.9e9, 0.8e9, 0.8e9), ("running sum", 512, 512, 0), ("sum", 1e9, 0.1e9, 0)])
MOVED = {"routing": 2e7, "gather": 2.1e9, "product 1": 2.7e9, "activation": 2e9, "product 2": 1.9e9, "combine": 5.5e9}
case("f14_layer.fusions", {"fifteen operations": MOVED, "gather in the load": MOVED | {"gather": 0},
                           "activation in the epilogue": MOVED | {"gather": 0, "activation": 0},
                           "four kernels": MOVED | {"gather": 0, "activation": 0, "combine": 1.2e9}},
     {"fifteen operations": 10.5, "four kernels": 3.8})
case("f14_layer.kept", {
    "fifteen operations": {"gathered rows, results": 2.1e9, "gate and up": 8e8, "silu, activation": 8e8},
    "fused": {"x": 1.3e8, "gate and up (pre-activation)": 8e8}})
case("f14_layer.backward_epilogue")
case("f14_layer.gains", {"four kernels, predicted": {2**i: 1 + 1.4 / 2**i + i / 30 for i in range(16)}})
case("f14_layer.gains", {"four kernels, predicted": {2**i: 1 + 1.4 / 2**i + i / 30 for i in range(16)},
                         "Zipf, recorded": {512: 1.2, 4096: 2.1}, "equal, recorded": {512: 1.3, 4096: 2.2}})
case("f14_layer.overheads", {
    part: {"fifteen operations": {1: 20.0, 64: 4.0, 4096: 3.6, 32768: 3.7}, "Liger": {4096: 3.1, 32768: 2.4},
           "this library": {1: 1.4, 64: 1.1, 4096: 1.2, 32768: 1.15}} for part in ("forward", "forward and backward")})
case("f14_layer.losses", {"eager": [3.3 * 0.9**i for i in range(50)],
                          "course_kernels": [3.3 * 0.9**i + 1e-6 * (i % 5) for i in range(50)]})
case("f15_layers.rates", {
    part: {"its products alone": {1: 2.0, 64: 16.0, 4096: 600.0, 32768: 750.0},
           "this library": {1: 1.4, 64: 15.0, 4096: 530.0, 32768: 680.0}, "Liger": {4096: 230.0, 32768: 310.0},
           "transformers": {4096: 190.0, 32768: 230.0}} for part in ("forward", "forward and backward")})
case("f15_layers.beside_peers", BESIDE := {
    part: {f"{model}, 4,096 tokens{routing}": {"its products alone": 3.2, "this library": 2.8, "Liger": 1.2}
           for model in ("qwen3-30b-a3b", "mixtral-8x7b", "deepseek-v3") for routing in ("", " (Zipf)")}
    for part in ("forward", "forward and backward")}, "(H200, bfloat16)")
case("f15_layers.beside_peers", BESIDE, "(H200, bfloat16)", width=7.5, row=0.225)
case("f15_layers.beside_peers", BESIDE | {"forward": {"m, 1 token": {"its products alone": 2.0, "this library": 1.9}} |
                                          BESIDE["forward"]}, "(H200, bfloat16)")
case("f15_layers.scaling", {
    part: {"by hand": {1: 1.0, 2: 0.8, 4: 1.2}, "all_to_all": {1: 1.0, 2: 1.1, 4: 1.7},
           "symmetric": {1: 1.0, 2: 1.3, 4: 1.9}, "symmetric, in a graph": {1: 1.0, 2: 1.8, 4: 3.5}}
    for part in ("forward", "forward and backward")})
case("f15_measurements.call_by_call", {"zeros": [700.0 + i % 9 for i in range(200)], "random": [520.0] * 200}, 800.0)
case("f15_measurements.cache_curve", [8, 16, 32, 64, 128, 400], {"warm": [4.0, 6, 8, 7, 4, 3.6],
                                                                 "flushed": [2.0, 2.8, 3.1, 3.4, 3.5, 3.6]}, 60.0, 4.0)
case("f15_measurements.spread", {how: {name: [base + i % 11 / 5 for i in range(60)] for name, base in (
    ("this", 180.0), ("the same", 182.0))} for how in ("in sequence", "in turn")})
case("f15_measurements.claims", {"as published": 2.4, "… and needed FLOP": 0.9, "… and a flushed L2": 0.8},
     "padded bmm", "grouped")

# ---- of several lessons

case("instructions.loop_instructions", {"pointers": loop_of_ptx(90), "descriptors": loop_of_ptx(24, copies=2)})
case("matrices.tile_offsets", (6, 10), block=(4, 4), at=(0, 4), strides=(12, 1))
case("matrices.tile_offsets", (6, 10), block=(4, 4), at=(4, 8))
case("matrices.tile_of_product", (64, 96, 64), block=(32, 32, 32), tile=(1, 2))
case("matrices.tile_of_product", (50, 80, 72), block=(32, 32, 32), tile=(1, 2), step=2)
case("matrices.error_map", *wrong_product(), block=(32, 32), title="no masks")
case("matrices.error_map", np.full((64, 96), np.nan), np.zeros((64, 96)), block=(32, 32), title="first try")
case("matrices.error_map", np.ones((16, 16)), np.ones((16, 16)), title="sums in float16")
case("matrices.written_map", *buffer_of(50, 80), block=(32, 32), title="K masked")
case("matrices.written_map", *buffer_of(8, 20), title="no mask on the store", name="Y")
case("record_analysis.speedups_over_peers", GROUPED_MM, "cute")
case("record_analysis.as_called", GROUPED_MM, ["triton", "torch", "loop"])
case("record_analysis.where_time_goes", GROUPED_MM, records.shares(GROUPED_MM, "triton", (128, 256), 132))
case("roofline.against_peers", GROUPED_MM)
case("roofline.roofline", GROUPED_MM)
case("timeline.timeline", bars("round_robin", SQUARES), rows=132, title="round-robin", bound=4.0)
case("timeline.compare", {"round-robin": bars("round_robin", CARDS, 4)}, rows=4, bounds={"round-robin": 21.0})
case("walk_costs.program_counts", {
    name: records.program_times(record.load("programs")["rows"]["4 x 1024^3"], kernel, [(1024,) * 3] * 4)
    for kernel, name in (("round_robin", "pointer kernel"), ("tma", "descriptor kernel (lesson 06)"))}, scaled_at=66)
case("walk_costs.time_ratios", {row: {p: t["median_us"] for p, t in entry["us"].items()}
                                for row, entry in record.load("group_gemm")["rows"].items()},
     {"cublas loop": "cuBLAS loop", "tutorial": "tutorial, best", "naive": "lesson 03", "round_robin": "this lesson"})
case("walk_costs.time_ratios", records.jagged_times(record.load("jagged")["rows"]),
     {"cublas": "cuBLAS product", "auto": "ours (auto)", "triton-persistent": "Triton", "helion-persistent": "Helion",
      "helion-scanning": "group by group"}, base="cublas")
