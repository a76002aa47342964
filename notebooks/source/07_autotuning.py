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
# **About 80 minutes. Afterwards you can**
#
# - rule out configurations by compiling them, without a GPU,
# - explain why large groups want large tiles and decoding wants low ones,
# - choose the key of an [autotuner](glossary.md#autotuner), and recognise a key that is too narrow or too exact,
# - judge a way to choose, such as a model of time, by what it loses (its *[regret](glossary.md#regret)*) on shapes that
#   it has not seen.
#
# You need: lessons 05 and 06. The lesson has two parts. The second, from *Second reading* on, takes about 30 of the
# minutes and also needs lesson 10. Skip it now, and come back after lesson 10.

# %%
import gemm_course  # noqa: F401 (first: without a GPU, it has kernels run in the interpreter)

import functools
import inspect
import itertools
import json
import math
import random
import re
import statistics
from dataclasses import replace

import torch
import triton
import triton.language as tl
from IPython.display import display

# %%
from course_kernels import GemmConfig, codegen, runtime
from course_kernels.bench import record, zoo
from course_kernels.bench.tuning import fit as fitting
from course_kernels.bench.rows import by_name
from course_kernels.kernels.cute_sm90.config import PINGPONG, CuteConfig
from course_kernels.lists import cost_model
from course_kernels.engine import offers as choice
from course_kernels.engine.product import typical_rows
from course_kernels.engine.tuning import Extents, Kind, candidates as swept, choose, fallback_rules as rules
from course_kernels.engine.tuning import explain, measured as constants, time_model
from course_kernels.schedule import CostModel
from gemm_course.figures import f07_budget as budget, f07_choices as lookup, f07_predicted_times as predicted
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
# both cases.
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
# - **4 warps** leave 256 sums to each thread. The red part is spilled. With 8 warps a thread has 128 sums.
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
# tune` measures many shapes once on a GPU, and fits a model of time to them: the second part of this lesson. A call
# computes its choice from the shape, and measures nothing:

# %%
h200 = constants.read(constants.CONSTANTS / "h200.json").gpu
forward = Kind("m", "k")  # groups along M; the depth of B is contiguous
for rows in (4096, 512, 4):
    print(choose(forward, Extents(rows, 4096, 4096, 8), h200))

# %% [markdown]
# The choice is for the *average* group: the rows of single groups are known to the GPU alone, and reading them would
# make the host wait. The average is rounded to a quarter of a power of two, so that batches of about one size share a
# choice.
#
# **Guess:** how many different averages, and how many choices, do a thousand batches have?

# %% tags=["hide-output"]
totals = [round(32768 * draw.uniform(0.8, 1.2)) for _ in range(1000)]
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
# The picture shows the choices over all shapes of this layer.


# %%
def chosen(rows, K):
    tile = choose(forward, Extents(rows, 4096, round(K), 8), h200).config
    block, rest = budget.short_name(tile)
    return f"{block} {rest.split()[0]} {tile.programs_per_sm}/SM"


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
# A lead of less than 1 % may be chance. So count how much a choice loses, not how often it is the best. **Regret** is
# the time of the choice over the time of the best candidate. We compare three ways to choose, in per cent lost:
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
#    <details><summary>Answer</summary>Nearly all with 128 sums a thread or more spill: without TMA, addresses and masks
#    take registers again. Its 163 KiB of shared memory rule out only the candidate with five stages.</details>
# 2. Give 8 warps to the tile of 16 rows. How many sums does a thread have then, and does it help?
#    <details><summary>Answer</summary>Eight, and it does not help: this tile has registers to spare. It waits for
#    bytes, and more threads do not fetch more.</details>
# 3. In `nearest_power_of_two`, round down: `1 << size.bit_length() - 1`. How many keys do the twenty batches make?
#    <details><summary>Answer</summary>Two for each type: some batches have fewer than 4096 rows a group, some more. Put
#    a bucket's edge where few sizes are.</details>
# 4. One expert has 32,000 rows and seven have 100. Which average is that, and does its tile suit? And 4,000 groups of 4
#    rows with one of 30,000?
#    <details><summary>Answer</summary>The first averages to about 4,100, and nearly all work is in the one expert, so
#    the tile suits. The second averages to about 11, so its one large group gets low tiles: slow, and still
#    correct.</details>
#
# ## Summary of the first part
#
# - A configuration has to fit: sums in registers, stages and result in shared memory. Compiling shows it, without a
#   GPU.
# - Large groups want the largest tile that fits, for reuse. Few rows want a low tile, for more bytes on their way.
# - An autotuner remembers by key. With too narrow a key it keeps a wrong choice. With too exact a key it never hits.
# - Tuning at call time stalls a program for seconds. Measure before, and compute the choice when called.
#
# Go on with [lesson 08](08_contiguous_offsets.ipynb), and read the rest of this lesson after lesson 10.

# %% [markdown]
# ## Second reading: tuned on thirteen rows, beaten on the fourteenth
#
# On Hopper the library has a second kernel, in CuTe DSL (lesson 10), with configurations of its own. For a while a few
# thresholds chose the kernel and its configuration. They came from thirteen shapes, the rows of our benchmark. On
# these, their choices were the best or nearly so. Here is the rule. (Up to 64 rows, a table of measured winners chose
# among Triton's configurations. It no longer exists, so the rule by hand stands in for it, and loses more.)

# %%
SQUARE = CuteConfig(tile_m=128, tile_n=128, tile_k=64, cluster=2, stages=6, schedule=PINGPONG)
WIDE = replace(SQUARE, tile_n=192, stages=4)
FITTED = replace(WIDE, stages=5, last_tile_n=128, tail_tile_n=256)


def thresholds(kind, M, N, K, G):
    """The old rule. ``kind``: "m,k" forward, "m,n" the rows' gradient, "k,n" the weights'; M or K is an average."""
    rows, unused = (K if kind == "k,n" else M), -N % WIDE.tile_n
    if rows <= 64:  # to Triton, by a rule
        return rules.by_hand(Kind.parse(kind), Extents(M, N, K, G), h200, uses_tma=True)[0]
    if kind == "m,k" and K > 512 and (rows <= 1024 or 40 * unused <= N):
        return replace(WIDE, split_last_wave=True) if rows > 4096 and not unused else FITTED
    if kind == "m,n" and rows <= 512 and 64 * unused <= N:
        return replace(WIDE, split_last_wave=True)
    if kind == "k,n":
        down, across = math.ceil(M / WIDE.tile_m), math.ceil(N / WIDE.tile_n)
        pairs = down // 2 * across + down % 2 * math.ceil(across / 2)
        return WIDE if 16 * unused <= N and pairs % 66 == 0 else SQUARE
    return replace(SQUARE, split_last_wave=True)


# %%
def model_of(row):
    """The published model that a row is of; a random row is its own."""
    return max((each.name for each in zoo.MODELS if row.startswith(each.name)), key=len, default=row)


def products(name):
    """The products of a record: their kind, extents, and µs of each configuration."""
    rows = record.load(name)["rows"]
    return fitting.samples(rows, {row: model_of(row) for row in rows})


# %% [markdown]
# Each number had its reason. Then somebody ran a fourteenth shape. So we measured the expert layers of fifteen
# published models with 16 to 16,384 tokens, and random shapes, with *every* candidate of both kernels. Now we can
# compute the regret of the rule.
#
# **Guess:** how much does the rule lose on average, and at worst?


# %% tags=["hide-output"]
def loss_of_thresholds(product):
    """The rule's time over the best one's; None where its configuration was not measured."""
    us = product.us.get(swept.name_of(thresholds(str(product.kind), *product.extents)))
    return us and us / min(product.us.values())


def loss_in_words(ratios):
    return f"+{statistics.geometric_mean(ratios) - 1:.1%} on average, +{max(ratios) - 1:.0%} at worst"


passes = {"m,k": "forward", "m,n": "gradient of the rows", "k,n": "gradient of the weights"}
for gpu_name, name in (("H200", "configurations"), ("H100", "configurations_h100")):
    for kind, title in passes.items():
        found = [loss_of_thresholds(product) for product in products(name) if str(product.kind) == kind]
        known = [ratio for ratio in found if ratio]
        print(f"{gpu_name}, {title:23} {loss_in_words(known)} ({len(known)} of {len(found)} products)")

# %% [markdown]
# <details><summary>Answer</summary>
#
# On the H200 8 to 10 % on average, and 46 % at worst. On the H100 10 to 16 % on average, and at worst
# twice the time.
#
# </details>
#
# (The other products are left out: there the rule chooses a configuration that this record does not have.)
#
# Thirteen rows were too few, and one GPU was too few: on an H100, whose memory is slower, the same thresholds lose
# more.
#
# ### The limits of a table
#
# More rows in the table would help, but only near those rows. Between two of them the time is not smooth. The SMs take
# tiles in [waves](glossary.md#wave), and a wave takes its time whether it is full or not. Here are six shapes of one
# layer in one bucket. (The names list a configuration of the CuTe kernel, its tile first. Lesson 10 explains the rest.)

# %%
scout = dict(N=5120, K=8192, G=2)  # Llama 4 Scout: the second product of two experts, on one GPU of eight
measured_candidates = constants.read(constants.CONSTANTS / "h200.json").candidates
of_bucket = time_model.fastest(forward, Extents(256, **scout), h200).config
for rows in (192, 208, 224, 256, 272, 350):
    ranked = time_model.ranking(forward, Extents(rows, **scout), h200)
    kept = next(each.us for each in ranked if each.config == of_bucket)
    bucket = nearest_power_of_two(rows)
    print(f"{rows} rows, bucket {bucket}: {ranked[0].us:3.0f} µs expected, {swept.name_of(ranked[0].config)}; "
          f"that of 256 rows loses {kept / ranked[0].us - 1:.1%}")  # fmt: skip

# %% [markdown]
# The bucket is the same in all lines, and the best choice is not. A table stores which configuration won. It does not
# store why. The reason would carry over to the next shape, and to a GPU with other memory.
#
# ### A model of time
#
# The reason can be counted from the shape: tiles, waves, blocks of K, bytes. The host does not know the rows of single
# groups. So it counts twice: for groups of nearly the same size, and for groups as in a layer of experts of unequal
# load. Each of these spreads has eight sizes, as multiples of the average.

# %%
layer = dict(N=2048, K=2048, G=64)
one = next(each for each in measured_candidates[forward] if each.config == CuteConfig())  # 128×256
for rows in (32, 112, 2048):
    for name, spread in zip(("even", "skewed"), time_model.SPREADS):
        parts = time_model.work(one.config, forward, Extents(rows, **layer), spread)
        tiles, moved = sum(part.tiles for part in parts), sum(part.bytes for part in parts)
        print(f"{rows:4} rows, {name:6}: {tiles:6,.0f} tiles, {tiles / h200.sms:4.1f} waves, {parts[0].blocks:.0f} "
              f"blocks each; {moved / 1e6:5,.0f} MB, {moved / h200.bandwidth / 1e6:3.0f} µs of memory")  # fmt: skip

# %% [markdown]
# Six constants c₁ to c₆ for each configuration turn these counts into time:
#
# - t = tiles / 132 · (c₁ · blocks + c₂) is the time of the tiles on 132 SMs. Fewer than 132 tiles all run at
#   once: then divide by their number,
# - b = bytes / (c₄ · bandwidth) is the time of the bytes,
# - both overlap: together they take (tᵖ + bᵖ)¹ᐟᵖ with p = c₅. With p = 1 that is t + b, with a large p the longer one.
# - The empty part of the last wave adds c₃ of its time, and the launch adds c₆.
#
# The first three lines are computed for each of a spread's eight sizes, and added. The estimate is the mean of the two
# spreads. The cell below does so by hand:

# %%
meanings = ("µs for a block of K", "µs for a tile beside its blocks", "of an empty place in the last wave counts",
            "of the memory's rate is reached", "how well tiles and bytes overlap", "µs for the launch")  # fmt: skip
for value, meaning in zip(one.constants, meanings):
    print(f"{value:5.2f} {meaning}")
# %%
c1, c2, c3, c4, p, c6 = one.constants


def by_hand(spread):
    parts = time_model.work(one.config, forward, Extents(256, **layer), spread)  # one for each size of groups
    each = c1 * parts[0].blocks + c2  # µs of a tile
    times = [(part.tiles / 132 * each, part.bytes / (c4 * h200.bandwidth * 1e6)) for part in parts]
    waves = sum(part.tiles for part in parts) / 132
    return sum((t**p + b**p) ** (1 / p) for t, b in times) + c3 * (math.ceil(waves) - waves) * each + c6


even, skewed = map(by_hand, time_model.SPREADS)
print(f"even {even:.0f} µs, skewed {skewed:.0f} µs, their mean {(even + skewed) / 2:.0f} µs; "
      f"{time_model.estimate(one, forward, Extents(256, **layer), h200):.0f} µs after a smooth correction")  # fmt: skip

# %% [markdown]
# The constants are fitted to the measured times by least squares of their logarithms. A choice needs no times, only
# differences between configurations. So the fit takes out the part of the error that all configurations of a product
# have in common, and a configuration counts less, the further it is behind the best. The remaining error is fitted by a
# smooth function of the extents. This correction can change the estimate of a configuration by some per cent for
# large or deep shapes, but it is too smooth to follow single shapes. The library reads the constants from a file for
# each GPU. It evaluates all configurations when it first sees a shape. Nothing runs on the GPU for that.
#
# ### Judge it on a model that it has not seen
#
# A model that is fitted to all rows and judged on the same rows may have learned them by heart, as the table did. So we
# leave out one published model with all its rows, fit to the others, and predict the one left out:

# %%
torch.set_num_threads(1)  # the matrices of a fit are small
record_us = products("configurations")
unseen = [product for product in record_us if product.source == "qwen3-30b-a3b" and product.kind == forward]
others = [product for product in record_us if product.source != "qwen3-30b-a3b"]
fitted = fitting.fit(others, h200, [forward])
judged = fitting.regret(unseen, fitted, h200)
print(f"fitted to {len({product.source for product in others} & {each.name for each in zoo.MODELS})} models "
      f"and random shapes: {loss_in_words([each.times for each in judged])}, {len(judged)} products")  # fmt: skip

# %% [markdown]
# The next picture is of one layer of the model left out: the second product of Qwen3-30B-A3B, for the 16 experts that
# one of eight GPUs has. Lines are predicted times of five configurations. Their constants come from other models
# only. Dots are measured times.
#
# **Guess:** which configuration wins at 4 rows, and which at 512? Where do the lines bend?

# %% tags=["hide-output"]
down = dict(N=2048, K=768, G=16)
lines, dots, grey, rings = {}, {}, [], []
shown = {"triton 16_128_128_4_4_1_1_1": "Triton 16×128×128", "cute 64x128x128_1_4_pingpong_8": "CuTe 64×128×128",
         swept.name_of(replace(SQUARE, split_last_wave=True)): "CuTe 128×128×64, halved",
         swept.name_of(replace(WIDE, split_last_wave=True)): "CuTe 128×192×64, halved",
         swept.name_of(replace(FITTED, dynamic=True)): "CuTe 128×192×64, fitted"}  # fmt: skip
for each in fitted[forward]:
    if label := shown.get(swept.name_of(each.config)):
        asked = [2 ** (i / 16) for i in range(16 * 11 + 1) if time_model.suits(each.config, forward, 2 ** (i / 16))]
        lines[label] = [(rows, time_model.estimate(each, forward, Extents(rows, **down), h200)) for rows in asked]
for product, each in zip(unseen, judged):
    rows, *rest = product.extents
    if rest == list(down.values()):
        rings.append((rows, product.us[each.chosen]))
        for config, us in product.us.items():
            (dots.setdefault(shown[config], []) if config in shown else grey).append((rows, us))
assert lines.keys() == set(shown.values())
predicted.expected_times(dict(sorted(lines.items(), reverse=True)), dots, grey, rings)

# %% [markdown]
# <details><summary>Answer</summary>
#
# A low tile at 4 rows, one of the largest at 512. Lines bend where the tiles begin to take longer than the bytes.
#
# </details>
#
# On the left all lines are nearly flat: reading the weights takes all the time, and low tiles waste least. A line
# bends where the tiles take longer than the bytes, and low tiles bend first. The steps are waves. Where a dot is off
# its line, the model is wrong. A ring marks its choice. It still chooses well if the ring is at the lowest dot or
# close to it. Here the choice loses at most 1 %, but 6 % at 128 rows: there the same tile in a dynamic order is
# faster.
#
# The library's file of constants has this judgement for every model, each left out in turn. The picture compares it
# with the thresholds on the same products. A dot is the mean of a model's products, and a line ends at the worst of
# them.


# %% tags=["hide-input"]
def both(gpu, name):
    """Pass → model → way to choose → times over the best one's, for products on which both can be judged."""
    content = json.loads((constants.CONSTANTS / f"{gpu}.json").read_text())
    panels = {title: {} for title in passes.values()}
    for product in sorted(products(name), key=lambda product: product.source):
        old, new = loss_of_thresholds(product), content["regret"]["left out"].get(product.name)
        if old and new:
            ways = panels[passes[str(product.kind)]].setdefault(product.source, {"thresholds": [], "time model": []})
            ways["thresholds"].append(old)
            ways["time model"].append(new[1])
    return panels


predicted.losses_by_model(both("h200", "configurations"))

# %% [markdown]
# And on an H100, with constants of its own, fitted to a smaller record:

# %%
for title, by_model in both("h100", "configurations_h100").items():
    for way in ("thresholds", "time model"):
        print(f"{title:23} {way:10} {loss_in_words([ratio for ways in by_model.values() for ratio in ways[way]])}")

# %% [markdown]
# The means shrink, and the worst cases with them. Look at the largest loss of a gradient of the rows: Phi-3.5-MoE's
# first product for 1,024 tokens. Count its waves as the model does for even groups, and as its groups really need
# them:

# %%
row = "phi-3.5-moe-1024-random-up"
entry = record.load("configurations")["rows"][row]
content = json.loads((constants.CONSTANTS / "h200.json").read_text())
_, loss, chosen_name, best_name = content["regret"]["left out"][f"{row} dA"]
configs, sizes, columns = swept.by_name(Kind("m", "n")), entry["sizes"], entry["K"]
print(f"rows of the groups: {sorted(sizes)}")
for name in (chosen_name, best_name):
    tile = configs[name]
    places = h200.sms * time_model.slots(tile)
    parts = time_model.work(tile, Kind("m", "n"), Extents(128, columns, entry["N"], len(sizes)), time_model.SPREADS[0])
    expected = sum(part.tiles for part in parts) / places
    beside = math.ceil(columns / (tile.tile_n if name.startswith("cute") else tile.block_n))  # tiles
    needed = sum(math.ceil(size / time_model.height(tile)) for size in sizes) * beside / places
    print(f"{name}: {expected:.2f} waves expected, {needed:.2f} needed, {entry['dA']['us'][name]:.0f} µs")

# %% [markdown]
# On average a group has 128 rows, exactly a tile's height. Where groups are even, the model expects half of them to
# need a second row of tiles, and so not quite three waves. This batch has nine such groups, not eight. The ninth begins
# a fourth wave, nearly empty. Tiles of 64 rows need 4.97 waves: their fifth is full, and they are faster. Only the GPU
# knows the sizes, so any choice on the host takes that risk.
#
# ### Ask the model
#
# The library asks this model for the kernel and its configuration. `explain` shows why:

# %%
print(explain(forward, Extents(256, **layer), h200))
print(explain(forward, Extents(2, **layer), h200, others=1))

# %% [markdown]
# Three things to know when you use it:
#
# - The library asks for the average group rounded to a quarter of a power of two. So batches of about the same size
#   share one choice and one compiled kernel.
# - A GPU that nobody measured takes the constants of the measured GPU that is most like it, if both read operands in
#   the same way. It counts with its own SMs, clock and bandwidth. `explain` says whose constants they are.
#   `course tune` fits its own constants, in about three minutes.
# - The model knows 8-bit products, too. Rules by hand answer for everything else: GPUs without constants or a relative
#   (such as an A100), operands of 32 bits, and operands that a GPU with descriptors cannot describe.

# %% [markdown]
# ## The production code
#
# These are the functions that choose. `choose` selects a backend: it asks the model on Hopper, and falls back to Triton
# where the CuTe kernel does not support the operands. `ranking` is the model's answer: configurations of both kernels,
# the fastest first. The second `choose`, of `engine.tuning`, returns the first one for Triton, or that of a rule.

# %%
display(fold(choice.choose), fold(time_model.ranking), fold(choose))

# %% [markdown]
# ## Summary
#
# - The first part: a configuration has to fit, and the key of a choice is neither too narrow nor too exact.
# - Regret on shapes that were left out shows what a lookup is worth.
# - A table stores which configuration won. A model of tiles, waves and bytes also predicts shapes that nobody measured.
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
# The model chooses for a kernel that reads all groups from one packed matrix, through one descriptor. The next
# lesson, 08, builds that kernel. Lesson 10 shows the kernel in CuTe DSL. Lesson 15 shows how to measure candidates
# without fooling yourself.
