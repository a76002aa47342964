# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown]
# # 07 · Autotuning and configuration
#
# The kernel of lesson 06 runs with any tile, any number of warps and any number of stages. It is right with all of
# them, and slow with most. Who chooses, and when, for a shape that nobody has seen before?
#
# **About 50 minutes. Afterwards you can**
#
# - rule out configurations by compiling them, without a GPU,
# - explain why large groups want large tiles and decoding wants low ones,
# - choose the key of an [autotuner](glossary.md#autotuner), and recognise a key that is too narrow or too exact,
# - judge a way to choose by what it loses (its *[regret](glossary.md#regret)*) on shapes that it has not seen.
#
# You need: lessons 05 and 06.

# %%
import gemm_course  # import first: without a GPU, kernels then run in the interpreter

import functools
import inspect
import itertools
import math
import random
import re
import statistics

import torch
import triton
import triton.language as tl
from IPython.display import display

# %%
from course_kernels import GemmConfig, codegen, runtime
from course_kernels.bench import record
from course_kernels.bench.rows import by_name
from course_kernels.lists import cost_model
from course_kernels.engine import backend_choice as choice
from course_kernels.engine.product import typical_rows
from course_kernels.engine.tuning import Extents, Kind, configs_by_kind as swept, choose, fallback_rules as rules
from course_kernels.engine.tuning import gpu_constants as constants
from course_kernels.schedule import CostModel
from gemm_course.figures import f07_budget as budget, f07_choices as lookup
from gemm_course.lessons.l07_budget import SM_REGISTERS, THREAD_REGISTERS, Use, rejection_reason
from gemm_course.lessons.listing import fold

# %matplotlib inline
device = runtime.device()

# %% [markdown]
# ## Try the obvious: one good configuration for everything
#
# A configuration is nine decisions. Even a short list of values for each makes more kernels than you can compile.
# (Lessons 02, 04 and 05 explain them, except `store_parts`: in how many pieces a tile is stored.)

# %%
best = GemmConfig(128, 256, 64, num_warps=8, num_stages=4, store_parts=2)
values = dict(block_m=5, block_n=4, block_k=3, num_warps=2, num_stages=4, group_m=4, programs_per_sm=2, store_parts=2,
              schedule=3)  # fmt: skip
for name, count in values.items():
    print(f"{name:15} {getattr(best, name)!s:12} one of {count} worth a try")
print(f"{functools.reduce(int.__mul__, values.values()):,} combinations")

# %% [markdown]
# So people pick one. The values above suit our layer of 8 experts in training, with thousands of tokens per expert. The
# same layer also generates text, and then an expert gets four tokens. Count what a [tile](glossary.md#tile) does in
# both cases, with N = K = 4096.
#
# **Guess** before you open the output: which share of the large tile's multiplications is useful with four rows?


# %% tags=["hide-output"]
def used(rows, tile):
    """Share of a tile's multiplications that are for rows of the group."""
    return rows / (-(-rows // tile.block_m) * tile.block_m)


small = GemmConfig(16, 128, 128, num_warps=4, num_stages=4)
for rows in (4096, 4):
    for tile in (best, small):
        asked = tile.tiles(rows, 4096) * (tile.block_m + tile.block_n) * 4096 * 2
        print(f"{rows:4} rows, tile {tile.block_m:3}×{tile.block_n}: {used(rows, tile):4.0%} of the multiplications "
              f"used, {2 * rows * 4096 * 4096 / asked:5.1f} FLOP per byte fetched")  # fmt: skip

# %% [markdown]
# <details><summary>Answer</summary>
#
# 3 %: 4 of its 128 rows.
#
# </details>
#
# Neither tile suits both cases. With four rows, nearly all work of the large tile is wasted. With thousands of rows,
# the small tile fetches six times as many bytes, as the last column shows.
#
# ## The idea as a picture
#
# The picture shows one step of the K loop, to scale. Filled parts are needed by the group. Hatched parts are wasted.

# %%
budget.tile_step([(4096, best), (4, best), (4, small)])

# %% [markdown]
# So a large group wants a large tile. How large? While a tile is computed, its data is on one [SM](glossary.md#SM): the
# sums in registers, the fetched blocks of A and B in shared memory. Both are limited.
#
# ## The budget
#
# Two lines compute what a tile needs:


# %%
def sums_per_thread(tile):
    return tile.block_m * tile.block_n // (tile.num_warps * 32)


def shared_bytes(tile, itemsize=2):
    stages = tile.num_stages * tile.block_k * (tile.block_m + tile.block_n) * itemsize
    return stages + tile.block_m * tile.block_n * itemsize // tile.store_parts  # the result, before it is stored


print(f"{sums_per_thread(best)} of a thread's {THREAD_REGISTERS} registers for sums")
print(f"{shared_bytes(best) / 1024:.0f} KiB of a program's {codegen.TARGETS['sm_90'].shared_limit // 1024}")

# %% [markdown]
# Here are twelve candidates. The five numbers are `block_m`, `block_n`, `block_k`, warps and stages.
# `programs_per_sm=2` means that two programs share an SM.

# %%
shortlist = [
    GemmConfig(16, 128, 128, 4, 4),
    GemmConfig(64, 64, 64, 4, 3, programs_per_sm=2),
    GemmConfig(64, 128, 128, 4, 3),
    GemmConfig(64, 256, 64, 4, 4),
    GemmConfig(128, 128, 64, 4, 3, programs_per_sm=2, store_parts=2),
    GemmConfig(128, 128, 64, 4, 4, programs_per_sm=2, store_parts=2),
    GemmConfig(128, 256, 64, 4, 3),
    GemmConfig(128, 256, 64, 8, 4),
    GemmConfig(128, 256, 64, 8, 4, store_parts=2),
    GemmConfig(128, 256, 64, 8, 5, store_parts=2),
    GemmConfig(128, 256, 128, 8, 2, store_parts=2),
    GemmConfig(256, 256, 32, 8, 4, store_parts=2),
]

# %% [markdown]
# ## What the compiler made of it
#
# We compile all of them for an H200, here, as the descriptor kernel of lesson 06. The compiler reports how many
# registers a thread gets, how many bytes did not fit into them, and how much shared memory a program takes.
#
# **Guess:** which of the twelve exceed a limit?

# %% tags=["hide-output", "nbval-ignore-output"]
builds = [codegen.build("tma", dtype="bfloat16", config=tile) for tile in shortlist]
compiled = codegen.compile_many((build, "sm_90") for build in builds)
uses = [Use(tile, one.registers, one.spills.bytes, one.shared_bytes) for tile, one in zip(shortlist, compiled)]
print("block        warps stages per SM   sums  registers  spilled B  shared B")
for use in uses:
    tile = use.config
    print(f"{'×'.join(map(str, tile.block)):12}{tile.num_warps:6}{tile.num_stages:7}{tile.programs_per_sm:7}"
          f"{use.sums:7.0f}{use.registers:11}{use.spilled:11}{use.shared:10}")  # fmt: skip

# %% [markdown]
# <details><summary>Answer</summary>
#
# Five, as the pictures below show.
#
# </details>
#
# Read the `sums` column first. A thread has 255 registers, so 256 sums cannot fit. The compiler does not complain. It
# keeps the rest in memory, and stores and loads it inside the loop. In the machine code, `HGMMA` multiplies, `STL`
# stores and `LDL` loads such values:

# %% tags=["nbval-ignore-output"]
for one in (compiled[6], compiled[8]):
    pieces = re.split(r"^\.L_x_\d+:", one.sass, flags=re.MULTILINE)
    loop = next(piece for piece in pieces if "HGMMA" in piece)
    runs = itertools.groupby(re.findall(r"\b(?:HGMMA|STL|LDL)\b", loop))
    print(
        f"{one.build.num_warps} warps, a step of the loop:",
        ", ".join(f"{name} × {len(list(run))}" for name, run in runs),
    )

# %% [markdown]
# Such a value is a [spill](glossary.md#spill). Nothing warns you: the result is right, and the kernel is slow. Now all
# twelve against both limits:

# %%
budget.limits(uses)

# %%
dead = {use.config: rejection_reason(use) for use in uses}
for tile, cause in dead.items():
    if cause:
        print(f"{'×'.join(map(str, tile.block)):10} {tile.num_warps} warps, {tile.num_stages} stages, "
              f"{tile.programs_per_sm} per SM, store in {tile.store_parts}: {cause}")  # fmt: skip

# %% [markdown]
# Five candidates are gone, and nothing has run. Only two of them would have failed at their launch. Two spill and run
# slowly. One asks for two programs per SM, which do not fit together, so they would run one after the other.
#
# ## Why 128×256×64 with 8 warps
#
# First the tile. Each byte from the [L2](glossary.md#L2) cache must feed enough arithmetic, or the tensor cores wait.
# The rates are those of lesson 05's cost model.

# %%
model = CostModel()
needed = model.tflops_per_program * 1e3 / model.load_gb_per_s
print(f"an SM multiplies at full rate from {needed:.0f} FLOP per byte on")
for m, n in ((64, 64), (64, 128), (128, 128), (128, 256), (256, 256)):
    share = m * n / SM_REGISTERS
    print(f"{m:3}×{n:3}: {m * n / (m + n):4.0f} FLOP per byte, sums fill {share:4.0%} of an SM's registers")

# %% [markdown]
# 256×256 would be better still, but its sums fill all registers of an SM. 128×256 is the largest of these tiles that
# leaves registers for anything else. The next picture shows the registers of a thread and the shared memory of an SM
# for five candidates. (The lowest bar belongs to the next section.)

# %%
budget.sm_budget([uses[i] for i in (6, 7, 8, 4, 0)])

# %% [markdown]
# From the top:
#
# - **4 warps** leave 256 sums to each thread. The part in dark orange is spilled. With 8 warps a thread has 128 sums.
# - **The whole result** needs shared memory before it is stored, more than a stage does. With 4 stages it does not fit.
#   Stored in two parts (`2p`) it does. With four stages, a block is fetched three steps before it is needed, so the
#   program waits less for memory.
# - **Two programs of 128×128** fill the SM as well. While one stores its tile, the other multiplies. That gives fewer
#   FLOP per byte and no pause between tiles. Compiling cannot tell which of the two is faster.
# - **BLOCK_K = 64** elements of 16 bits are 128 bytes, the widest row that TMA arranges in shared memory. With 128, two
#   stages fill the same room, and only one block is fetched ahead.
#
# ## Why four rows want 16×128×128
#
# With four rows nothing is reused: each weight is read once and multiplied with four rows. Compare two times for a
# decoding step of a large layer. One is the time in which memory delivers the weights. The other is the time in which
# the tensor cores multiply full tiles.

# %%
layer = by_name()["decode256"]
rows = layer.total_m // layer.groups
read_us = layer.bytes_moved() / 4.8e6  # the H200's data sheet: 4.8 TB/s
print(f"{layer.title}: {read_us:,.0f} µs to read")
for tile in (best, shortlist[2], small):
    rate = 132 * model.tflops_per_program
    multiply_us = 2 * layer.groups * tile.block_m * layer.N * layer.K / rate / 1e6
    print(f"tiles of {tile.block_m:3} rows: {multiply_us:5,.0f} µs to multiply, {used(rows, tile):4.0%} of it used")

# %% [markdown]
# With tiles of 128 rows, the multiplications take almost as long as the memory does, and nearly all are wasted. The two
# would have to overlap perfectly. 16 rows is the smallest tile that tensor cores take. The compiler even changes the
# instruction: `wgmma` takes 64 rows at a time, so for 16 it uses Ampere's `mma.sync`.

# %%
for tile, one in zip(shortlist, compiled):
    if tile in (best, shortlist[2], small):
        found = next(name for name in ("wgmma", "mma.sync") if one.instructions[name])
        print(f"{tile.block_m:3} rows: {found}")

# %% [markdown]
# Without reuse, speed depends on how many bytes are being fetched at a time. In the picture above, the lowest bar is
# nearly all orange: blocks of B of 32 KiB each, several at a time. (We asked for four stages. With `mma.sync` the
# compiler keeps one fewer, as you can count.)
#
# ## Measure when called: `triton.autotune`
#
# Compiling rules out some candidates; the others have to be measured. `triton.autotune` runs all candidates when it
# meets a new **key**, keeps the fastest and remembers it under that key. Which arguments belong in the key?
#
# To watch it, we use a kernel that computes nothing and only reports its configuration. Instead of a clock we use the
# library's cost estimate, so every machine prints the same.

# %%
choices = cost_model.candidates("round_robin", 2, "ieee")
seen = torch.zeros(3, dtype=torch.int32, device=device)
measured = []


def stopwatch(call, quantiles):
    call()
    size, groups, choice = seen.tolist()
    measured.append(estimate(size, choices[choice], groups))
    return [measured[-1]] * 3


@triton.jit
def report(addresses, seen, size, group_size, itemsize, CHOICE: tl.constexpr):
    tl.store(seen, size)
    tl.store(seen + 1, group_size)
    tl.store(seen + 2, CHOICE)


# %%
def autotuned(*key):
    measured.clear()
    candidates = [triton.Config({"CHOICE": i}) for i in range(len(choices))]
    return triton.autotune(candidates, list(key), do_bench=stopwatch)(report)


def estimate(size, choice, groups=4):
    return cost_model.estimate_us(((size, size, size),) * groups, "round_robin", choice, num_sms=132)


# %% [markdown]
# A tutorial tunes its grouped kernel under the number of problems. This looks natural: it is the kernel's only integer
# argument, and everything else is in tables. We call it with four problems of 128³ first, then with larger ones.
#
# **Guess:** how many times slower than the best configuration will 2048³ be?


# %% tags=["hide-output"]
addresses = torch.zeros(4, dtype=torch.int64, device=device)
by_count = autotuned("group_size")
print("              measured so far   runs with   best would be   times slower")
for size in (128, 256, 512, 1024, 2048):
    by_count[(1,)](addresses, seen, size, 4, 2)
    got, fastest = choices[seen[2].item()], min(choices, key=lambda choice: estimate(size, choice))
    slower = estimate(size, got) / estimate(size, fastest)
    blocks = ["×".join(map(str, choice.config.block)) for choice in (got, fastest)]
    print(f"4 × {size:4}³ {len(measured):18}   {blocks[0]:11} {blocks[1]:15} {slower:12.0f}")

# %% [markdown]
# <details><summary>Answer</summary>
#
# About 28 times, by the library's estimate.
#
# </details>
#
# The first shape decided for all others, and no test of results can find that. So far this is an estimate. A kernel as
# in the tutorial was also measured on an H200 with each of its three configurations. The picture shows it tuned for
# each shape, and with the configuration that won at 128³:

# %%
recorded = record.load("group_gemm")
squares = {name: row["us"] for name, row in recorded["rows"].items() if "^3" in name}
names = {"cublas loop": "cuBLAS loop", "tutorial": "tuned for each", "tutorial, key=group_size": "keyed on group_size"}
shown = {
    row.replace(" x ", " × ").replace("^3", "³"): {names[provider]: us[provider]["median_us"] for provider in names}
    for row, us in squares.items()
}
lookup.stale_key(shown, "cuBLAS loop", "tuned for each", "keyed on group_size")

# %%
print("keyed on group_size:  over its own choice   over the cuBLAS loop")
for name, us in shown.items():
    loop, own, keyed = us.values()
    print(f"{name:20} {keyed / own:19.1f}× {keyed / loop:21.1f}×")

# %% [markdown]
# ## What goes wrong: a key that is too exact
#
# Suppose that we put the whole shape into the key, so every shape gets its own choice. But our layer has another number
# of tokens in each batch. Take twenty batches with about 4096 rows for each of 8 experts.
#
# **Guess:** how many candidates are measured in these twenty calls, and how many different answers result?

# %% tags=["hide-output"]
draw = random.Random(0)
batches = [round(4096 * draw.uniform(0.8, 1.2)) for _ in range(20)]


def choose_for(batches, *key):
    kernel = autotuned(*key)
    for rows in batches:
        kernel[(1,)](addresses, seen, rows, 8, 2)
    different = {str(choice) for choice in kernel.cache.values()}
    counts = f"keys: {len(kernel.cache)}, measurements: {len(measured)}, different answers: {len(different)}"
    print(f"{len(batches)} batches; {counts}")


choose_for(batches, "size", "group_size")

# %% [markdown]
# <details><summary>Answer</summary>
#
# All candidates in each of the twenty calls, and one answer.
#
# </details>
#
# This key never hits. Every batch measures all candidates again, the cache grows as long as the training runs, and the
# answer is always the same.
#
# How long does a measurement take? `triton.testing.do_bench` warms a candidate up and repeats it for this long:

# %%
defaults = inspect.signature(triton.testing.do_bench).parameters
warmup_us, rep_us = (defaults[name].default * 1000 for name in ("warmup", "rep"))
print(f"{warmup_us / 1000:.0f} ms of warm-up and {rep_us / 1000:.0f} ms of repetitions for each candidate")

# %% [markdown]
# The candidates of the next cell were measured on an H200, for eight experts with fewer rows: Mixtral's first product
# with 1,024 tokens. (For groups of 4096 rows only one Triton candidate was left to measure.) The picture shows the
# twenty calls on one time axis, three times: with the exact shape as the key, with a rounded key, and with a choice
# that was made before the program started.


# %%
def tuning_us(times):
    """What the first call under a new key spends on its candidates, kernels compiled already."""
    return sum((5 + max(1, int(warmup_us / us)) + max(1, int(rep_us / us))) * us for us in times)


swept_rows = record.load("configurations")


def triton_us(row, pass_name="forward"):
    """µs of each Triton configuration on a row of the record."""
    us = swept_rows["rows"][row][pass_name]["us"]
    return {name: time for name, time in us.items() if name.startswith("triton")}


times = triton_us("mixtral-8x7b-1024-zipf-up")
pause, call = tuning_us(times.values()), min(times.values())
calls = {"key is the exact shape": [(pause, call)] * 20, "key is rounded": [(pause, call)] + [(0, call)] * 19,
         "chosen before": [(0, call)] * 20}  # fmt: skip
print(f"{swept_rows['provenance']['gpu']}: {len(times)} candidates, {call:.0f} µs for the fastest")
lookup.stalls(calls)

# %% [markdown]
# A stall of this length in the middle of training is hard to explain: the GPU is busy, and nothing gets done. With one
# process per GPU it is worse, because all processes wait for the one that met a new shape. Compiling the candidates
# takes time as well. And other work may share the GPU during the measurement, so two processes may choose differently.
#
# ## What goes wrong: a key without the type
#
# Triton adds the type of every tensor argument to your key. Does that help here? We run the report with tables of
# float16 matrices, then with tables of float32 matrices.
#
# **Guess:** how many keys are there after both calls?

# %% tags=["hide-output"]
by_size = autotuned("size", "group_size")
for dtype in (torch.float16, torch.float32):
    by_size[(1,)](addresses, seen, 2048, 4, dtype.itemsize)
    types = [part for part in list(by_size.cache)[0] if str(part).startswith("torch.")]
    print(f"{dtype!s:14} {len(by_size.cache)} key, {len(measured)} measurements so far; types in the key: {types}")

# %% [markdown]
# <details><summary>Answer</summary>
#
# One.
#
# </details>
#
# The types in the key are those of the *tables*. They hold addresses, which are int64 for any matrix. So float32 runs
# with the choice for float16. For the large tile of the descriptor kernel, that means:

# %%
limit = codegen.TARGETS["sm_90"].shared_limit
for dtype in (torch.float16, torch.float32):
    reason = best.valid_for("tma", dtype.itemsize, capability=(9, 0), shared_limit=limit)
    print(f"{dtype!s:14} {'fits' if reason is None else 'does not suit ' + reason}")

# %% [markdown]
# The launch fails, if you are lucky. In the other order, float16 runs with a tile for float32, half of the shared
# memory stays empty, and nobody notices.
#
# Now repair both mistakes: round the sizes, and add the size of an element to the key.
#
# **Guess:** how many keys do the twenty batches make now, with two types?


# %% tags=["hide-output"]
def nearest_power_of_two(size):
    return 1 << ((size * size).bit_length() // 2)  # nearest by ratio: the edges are at √2 times a power


general = autotuned("size", "group_size", "itemsize")


def choose_rounded(batches, itemsize):
    for rows in batches:
        general[(1,)](addresses, seen, nearest_power_of_two(rows), 8, itemsize)
    print(
        f"{len(batches)} batches, {itemsize}-byte elements; keys: {len(general.cache)}, measurements: {len(measured)}"
    )


choose_rounded(batches, 2)
choose_rounded(batches, 4)

# %% [markdown]
# <details><summary>Answer</summary>
#
# Two, one for each type.
#
# </details>
#
# Twenty shapes share one key. All shapes that are rounded to the same key are a **bucket**. (Its edges matter. Rounding
# down would have split these batches at 4096, because real sizes vary around round numbers.)
#
# ## Measure before, compute when called
#
# The stall at the first call under each key is still there. So the library never measures when it is called. `course
# tune` measures many shapes once on a GPU, and fits a model of time to them: lesson 17. A call computes its choice from
# the shape, and measures nothing:

# %%
h200 = constants.read(constants.CONSTANTS / "h200.json").gpu
forward = Kind("m", "k")  # groups along M; B is contiguous along K
for rows in (4096, 512, 4):
    made = choose(forward, Extents(rows, 4096, 4096, 8), h200)
    print(f"{rows:4} rows: {'×'.join(map(str, made.config.block)):11} {made.us:5,.0f} µs expected: {made.why}")

# %% [markdown]
# The choice is for the *average* group: the rows of single groups are known to the GPU alone, and reading them would
# make the host wait. The average is rounded, in four steps from one power of two to the next. So batches of about one
# size share a choice.
#
# **Guess:** how many different averages, and how many choices, do a thousand batches have?

# %% tags=["hide-output"]
totals = [round(32768 * random.Random(seed).uniform(0.8, 1.2)) for seed in range(1000)]
averages = {typical_rows(total, 8) for total in totals}
answers = {choose(forward, Extents(rows, 4096, 4096, 8), h200).config for rows in averages}
print(f"{len(set(totals))} different totals, {len(averages)} averages, {len(answers)} configuration")

# %% [markdown]
# <details><summary>Answer</summary>
#
# A few averages, and one choice.
#
# </details>
#
# The picture shows the chosen tiles over all shapes of this layer. (Neighbours that differ in warps or stages only have
# one colour.)


# %%
def chosen(rows, K):
    tile = choose(forward, Extents(rows, 4096, round(K), 8), h200).config
    return f"{tile.block_m}×{tile.block_n}"


rows = [2 ** (i / 4) for i in range(4 * 14 + 1)]
depths = [2 ** (i / 4) for i in range(4 * 9, 4 * 13 + 3)]
title = "forward product of 8 experts, N = 4096"
lookup.choices({title: [[chosen(m, k) for m in rows] for k in depths]}, rows, depths, ("rows per group", "K"))

# %% [markdown]
# ## What the record says
#
# The record keeps the times of all candidates, here those of Triton over the time of the best one, for the layers of
# one model. A frame marks the choice. Grey was not measured. In the names of candidates, `8w` is 8
# [warps](glossary.md#warp), `4s` is 4 [stages](glossary.md#stage), `2p` a store in two parts and `2/SM` two programs
# per SM.


# %% tags=["hide-input"]
def label(tile):
    return "\n".join([*budget.short_name(tile), f"strips of {tile.group_m}"])


names_of = swept.by_name(forward)
panels, frames = {"first product of Mixtral": {}, "second product": {}}, {}
for name, entry in swept_rows["rows"].items():
    if name.startswith("mixtral-8x7b") and "-of-" not in name:
        title = list(panels)[name.endswith("down")]
        mean = sum(entry["sizes"]) / len(entry["sizes"])
        row = f"{mean:,.0f} rows"
        panels[title][row] = {label(names_of[each]): us for each, us in triton_us(name).items()}
        asked = Extents(mean, entry["N"], entry["K"], len(entry["sizes"]))
        frames[title, row] = label(choose(forward, asked, h200).config)
panels = {
    title: dict(sorted(found.items(), key=lambda each: float(each[0].split()[0].replace(",", ""))))
    for title, found in panels.items()
}
lookup.slowdowns(panels, frames)

# %% [markdown]
# A lead of a hundredth may be chance. So count how much a choice loses, not how often it is the best. **Regret** is the
# time of the choice over the time of the best candidate. We compare three ways to choose, in per cent lost:
#
# - one configuration for all,
# - rules that were written by hand,
# - the winner of the nearest shape that was measured: a table of winners, as if the shape itself had not been measured.
#
# Products on which the large tile of the first way was not run, those of few rows, are left out.


# %%
def winner(us):
    return min(us, key=us.get)


def nearest(name, extents, known):
    """The winner of the measured shape that is nearest, by the ratios of extents."""
    away = {
        other: sum(abs(math.log2(a / b)) for a, b in zip(extents, known[other][0])) for other in known if other != name
    }
    return winner(known[min(away, key=away.get)][1])


# %%
known = {}
for name, entry in swept_rows["rows"].items():
    extents = Extents(sum(entry["sizes"]) / len(entry["sizes"]), entry["N"], entry["K"], len(entry["sizes"]))
    if "forward" in entry and swept.name_of(best) in (us := triton_us(name)):
        known[name] = extents, us
ways = {"128×256 for all": [], "rules by hand": [], "the nearest shape's winner": []}
for name, (extents, us) in known.items():
    by_rule = swept.name_of(rules.by_hand(forward, extents, h200, uses_tma=True)[0])
    for way, name_chosen in zip(ways, (swept.name_of(best), by_rule, nearest(name, extents, known))):
        if name_chosen in us:
            ways[way].append(us[name_chosen] / min(us.values()))
for way, ratios in ways.items():
    print(f"{way:27} {len(ratios)} products: +{statistics.geometric_mean(ratios) - 1:.1%} on average, "
          f"+{max(ratios) - 1:.0%} at worst")  # fmt: skip

# %% [markdown]
# A table knows which configuration won. Between two of its shapes, a neighbour's winner may be far from the best.

# %% [markdown]
# ## Try it here
#
# [Exercise 07](../exercises/07_general_key.ipynb), a key that generalises: neither too narrow nor too exact. Or change
# a cell and run it again:
#
# 1. Compile the shortlist for `"sm_80"` as `"round_robin"`. Which candidates fail on an A100, and why?
#    <details><summary>Answer</summary>The two with 256 sums a thread spill kilobytes: without TMA, addresses and masks
#    take registers again. Five stages exceed its 163 KiB, and two programs with four stages do not fit on an
#    SM.</details>
# 2. Give 8 warps to the tile of 16 rows. How many sums does a thread have then, and does it help?
#    <details><summary>Answer</summary>Eight. It frees registers that this tile has to spare. (Its time with 8 warps
#    was not measured.)</details>
# 3. In `nearest_power_of_two`, round down: `1 << size.bit_length() - 1`. How many keys do the twenty batches make?
#    <details><summary>Answer</summary>Two for each type: some batches have fewer than 4096 rows a group, some more. Put
#    a bucket's edge where few sizes are.</details>
# 4. One expert has 32,000 rows and seven have 100. Which average is that, and does its tile suit? And 4,000 groups of 4
#    rows with one of 30,000?
#    <details><summary>Answer</summary>The first averages to about 4,100, and nearly all work is in the one expert, so
#    the tile suits. The second averages to about 11, so its one large group gets low tiles: slow, and still
#    correct.</details>
#
# ## The production code
#
# `choose` of `engine.backend_choice` selects a backend, and a configuration for it: on Hopper from a model of time,
# elsewhere from rules. Lesson 17 opens the model.

# %%
display(fold(choice.choose), fold(choose))

# %% [markdown]
# ## Summary
#
# - A configuration has to fit: sums in registers, stages and result in shared memory. Compiling shows it, without a
#   GPU.
# - Large groups want the largest tile that fits, for reuse. Few rows want a low tile, for more bytes on their way.
# - An autotuner remembers by key. With too narrow a key it keeps a wrong choice. With too exact a key it never hits.
# - Tuning at call time stalls a program for seconds. Measure before, and compute the choice when called.
# - Judge a choice by its regret on shapes that it has not seen.
#
# ## References
#
# - Triton: [autotune](https://triton-lang.org/main/python-api/generated/triton.autotune.html) and
#   [do_bench](https://triton-lang.org/main/python-api/generated/triton.testing.do_bench.html). The tutorial with the
#   narrow key is [Group GEMM](https://triton-lang.org/main/getting-started/tutorials/08-grouped-gemm.html).
# - Limits of registers and shared memory for each GPU: [CUDA Programming Guide, compute
#   capabilities](https://docs.nvidia.com/cuda/cuda-programming-guide/05-appendices/compute-capabilities.html).
# - [QuACK](https://github.com/Dao-AILab/quack), a library with its own table of configurations for CuTe kernels.
#
# ## What to read next
#
# The library chooses for a kernel that reads all groups from one packed matrix, through one descriptor. The next
# lesson, 08, builds that kernel. Lesson 15 shows how to measure candidates without fooling yourself. Lesson 17 shows
# the model that chooses: read it after lesson 10.
