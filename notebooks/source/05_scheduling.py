# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown]
# # 05 · Scheduling
#
# Round-robin gives every program the same number of tiles. If tiles are not equally long, is that fair? And of two
# schedules that take equally long, can one read half as much memory?
#
# You will simulate four schedules in plain Python, break and repair a dynamic one, predict how many bytes come from
# memory, and hold all predictions against timelines recorded on an H200. About 45 minutes.

# %%
import gemm_course  # noqa: F401 (first: without a GPU, it has kernels run in the interpreter)

import dataclasses
import heapq
import statistics

import torch
import triton
import triton.language as tl

from course_kernels import GemmConfig, GroupGemmPlan, codegen, runtime, testing
from course_kernels.bench import record
from course_kernels.kernels import round_robin
from course_kernels.schedule import CostModel, bytes_moved, simulate, tile_counts
from gemm_course.figures import listing, schedules, timeline

# %matplotlib inline
device = runtime.device()

# %% [markdown]
# ## Try the obvious: deal the tiles like cards
#
# Six problems with two tiles each, on four programs. Every other problem has a long K. `simulate` runs the walk of
# lesson 04 under a simple cost model: a tile takes a fixed time plus a time per step of its K loop.

# %%
cards = [(256, 256, 2048), (256, 256, 256)] * 3
dealt = simulate(cards, "round_robin", programs=4)
bounds = {"round-robin": dealt.lower_bounds.work}
timeline.compare({"round-robin": timeline.simulated_bars(dealt)}, rows=4, bounds=bounds)

# %%
print("tiles per program:     ", [len(line) for line in dealt.programs])
print("µs of work per program:", [round(busy) for busy in dealt.busy])

# %% [markdown]
# Three tiles each, and yet half of the programs got every long one. Round-robin balances the *number* of tiles; here
# the pattern of the batch and the number of programs conspire.
#
# ## Two bounds, and the smallest scheduler
#
# No schedule ends before all work, spread evenly, is done (the dashed line), nor before its longest tile. Two
# schedulers in a line or two each:


# %%
def round_robin_end(costs, programs):
    return max(sum(costs[p::programs]) for p in range(programs))


def first_free_end(costs, programs):
    free = [0.0] * programs
    for cost in costs:  # the program that is free first takes the next tile
        heapq.heapreplace(free, free[0] + cost)
    return max(free)


# %%
model = CostModel()
costs = [model.tile_us(k) for _, _, k in cards for _ in range(2)]
print(f"bounds:      {sum(costs) / 4:.1f} µs of work each, {max(costs):.1f} µs for the longest tile")
print(f"round-robin: {round_robin_end(costs, 4):.1f} µs")
print(f"first free:  {first_free_end(costs, 4):.1f} µs")
print(f"first free, longest tiles first: {first_free_end(sorted(costs, reverse=True), 4):.1f} µs")

# %% [markdown]
# Taking tiles when free helps; taking the long ones first helps more, but somebody has to know and sort all costs
# before the launch. Keep that thought.
#
# ## The layer: when are tiles unequal?
#
# In the forward pass of our 8 experts the tokens are rows: M differs, K does not, so every tile costs the same. In
# the weight gradient the tokens are *summed over*: K differs. Three routers, 8,192 tokens:

# %%
routers = {"uniform": "uniform", "skewed": "zipf", "one-hot": "one_hot"}
tokens = {name: testing.routed_sizes(router, 8192) for name, router in routers.items()}
batches = {name: [(2048, 1536, n) for n in counts] for name, counts in tokens.items()}
for name, counts in tokens.items():
    summed = [model.tile_us(k) for k in counts]
    print(f"{name:8} tokens {counts}")
    print(f"         µs per tile: forward {model.tile_us(2048):.0f}, gradient {min(summed):.0f} to {max(summed):.0f}")

# %% [markdown]
# An expert without tokens still has a gradient. It is zero, and the zeros must be written: the shortest tiles.
#
# ## Four schedules on three batches
#
# *Round-robin* steps by the number of programs, *chunks* gives each program one contiguous run, *swizzled* is
# round-robin over another order of tiles, *dynamic* lets a free program take the next tile.

# %%
orders = ["round_robin", "chunks", "swizzled", "dynamic"]
runs = {(batch, order): simulate(batches[batch], order) for batch in batches for order in orders}
print(" " * 9, *(f"{order:>12}" for order in orders), "  bounds: work, longest tile")
for batch in batches:
    ends = [f"{runs[batch, order].makespan:9.0f} µs" for order in orders]
    work, longest = runs[batch, "round_robin"].lower_bounds
    print(f"{batch:9}", *ends, f"  {work:.0f} µs, {longest:.0f} µs")

# %%
skewed = {order: timeline.simulated_bars(runs["skewed", order]) for order in orders}
bound = runs["skewed", "dynamic"].lower_bounds.work
timeline.compare(skewed, rows=132, bounds=dict.fromkeys(orders, bound))

# %% [markdown]
# Chunks hand whole problems to neighbouring programs, so the first eighth of them gets the longest problem, all of it.
# Swizzled draws the same picture as round-robin: inside one problem all tiles cost the same, so their order cannot
# change a time in this model. Its turn comes below.
#
# ## The tail, and waves that are not full
#
# Even equal tiles leave programs idle at the end, when their number is no multiple of the number of programs.

# %%
one_problem = tile_counts(batches["uniform"], 128, 256)[0]
schedules.waves(132, (one_problem, 133, 8 * one_problem))

# %% [markdown]
# One of these problems alone fills less than one wave; all eight together fill almost six. That is the second gift
# of grouping, after the saved launches. What the tail costs in each case:

# %%
for (batch, order), run in runs.items():
    if order in ("round_robin", "dynamic"):
        print(f"{batch:8} {order:12} tail {run.tail_us:5.1f} µs, {run.tail_share:4.0%} of the machine's time")

# %% [markdown]
# ## Dynamic: one counter
#
# The whole scheduler is one number in memory. A program draws a ticket with an atomic addition; the ticket is its
# tile. This kernel computes nothing and only counts how often each tile was drawn.


# %%
@triton.jit
def draw(counter_ptr, drawn_ptr, total):
    ticket = tl.atomic_add(counter_ptr, 1)
    while ticket < total:
        tl.atomic_add(drawn_ptr + ticket, 1)
        ticket = tl.atomic_add(counter_ptr, 1)


# %%
counter = torch.zeros(1, dtype=torch.int32, device=device)
drawn = torch.zeros(12, dtype=torch.int32, device=device)
draw[(4,)](counter, drawn, 12)
print("tiles drawn:  ", drawn.tolist())
print("counter after:", counter.item())

# %% [markdown]
# Twelve tiles, sixteen tickets: each of the four programs learns that it is done by drawing one that is too high.
# On a GPU they race for tickets; in the interpreter programs run one after another, and the first draws every tile.
#
# ### What goes wrong: the second launch
#
# Training launches this kernel again and again. Guess what the second launch computes, then run:

# %%
drawn.zero_()
draw[(4,)](counter, drawn, 12)
print("tiles drawn by the second launch:", drawn.tolist())

# %% [markdown]
# Nothing, silently: the outputs keep what the first launch left in them, so a test that launches once passes. Repair
# it: put `counter.zero_()` at the top of the cell above.
#
# That repair is one more kernel before every launch. The library's kernel needs none. The number of tickets is known,
# tiles plus programs, so whoever draws the very last one can put the counter back:

# %%
listing.show(round_robin.next_dynamic_tile)

# %%
problems = testing.reference_problems(8)
A = [testing.integers((m, k), generator=1, device=device) for m, _, k in problems]
B = [testing.integers((k, n), generator=2, device=device) for _, n, k in problems]
config = GemmConfig(32, 32, 32, schedule="dynamic")
plan = GroupGemmPlan(A, B, method="round_robin", config=config, programs=4)
for attempt in range(3):
    for c in plan.out:
        c.fill_(float("nan"))
    plan.run()
    print("launch", attempt, all(torch.equal(c, (a.float() @ b.float()).half()) for a, b, c in zip(A, B, plan.out)))

# %% [markdown]
# ## What the compiler made of it
#
# Compiled for an H200, here: the kernels differ in how the next tile number is found, and in nothing else that
# matters.

# %%
static = GemmConfig(128, 256, 64, num_warps=8, num_stages=3, group_m=1)
compiled = {}
for order in ("round_robin", "dynamic"):
    config = dataclasses.replace(static, schedule=order)
    compiled[order] = codegen.compile_kernel("tma", "sm_90", dtype="float16", config=config)
    used = compiled[order].instructions
    print(
        f"{order:12} atomics: {'atom.' in compiled[order].ptx}, wgmma: {used['wgmma'] > 0}, "
        f"bulk tensor loads: {used['bulk tensor load'] > 0}"
    )

# %% tags=["nbval-ignore-output"]
print(compiled["dynamic"].excerpt(r"\batom\.", before=2, after=4))

# %% [markdown]
# One thread draws the ticket (the predicate `@%p`), leaves it in shared memory, and everyone waits at a barrier to
# read it. The loop over tiles contains the same lines again: a trip to the L2 cache, with nothing else to do. What it
# costs, from the record:


# %%
def gaps(batch, order, same_problem):
    """µs from the end of a tile to the start of the next of the same program, as recorded."""
    found, last = [], {}
    for _, problem, _, _, program, _, start, end in sorted(recorded[batch, order]["tiles"], key=lambda row: row[6]):
        if program in last and (last[program][0] == problem) == same_problem:
            found.append((start - last[program][1]) / 1e3)
        last[program] = problem, end
    return statistics.median(found)


timelines = record.load("sm_timelines")
recorded = {(entry["batch"], entry["schedule"]): entry for entry in timelines["timelines"]}
fetch_us = gaps("one-hot", "dynamic", same_problem=True) - gaps("one-hot", "chunks", same_problem=True)
print(f"{timelines['provenance']['gpu']}: {fetch_us:.2f} µs a ticket; the model assumes {model.atomic_us} µs")

# %% [markdown]
# So dynamic costs a little per tile when the batch is uniform and buys balance when it is not.
#
# ### What goes wrong: dynamic with the long problem last
#
# The skewed batch, with its experts in the opposite order. Which schedule would you choose now?

# %%
backwards = batches["skewed"][::-1]
late = {order: simulate(backwards, order) for order in ("round_robin", "dynamic", "largest_first")}
timeline.compare(
    {order: timeline.simulated_bars(run) for order, run in late.items()},
    rows=132,
    bounds={order: run.lower_bounds.work for order, run in late.items()},
)

# %% [markdown]
# A counter hands out tiles in the order of the list, and what comes last is the tail. `largest_first` needs every
# cost in advance. Find a repair that any caller of a grouped GEMM can make without touching the kernel, then compare
# with the next cell.

# %%
repaired = simulate(sorted(backwards, key=lambda problem: problem[2], reverse=True), "dynamic")
print(f"as listed: {late['dynamic'].makespan:.0f} µs, problems sorted by K: {repaired.makespan:.0f} µs")

# %% [markdown]
# ## Reuse: who runs at the same time
#
# Swizzling changed no time above. Look at one problem that does not fit into the cache, and at the tiles that run
# first. Every tile needs its row panel of A and its column panel of B; tiles that run together share them.

# %%
large = (8192, 8192, 4096)
schedules.working_set(large, (128, 256, 64), 132, (1, 8, 16))

# %% [markdown]
# `group_m` is the height of a strip of tiles that is walked column by column. A patch that is closer to a square
# needs fewer panels. Below, `bytes_moved` follows every piece of A and B through a cache that drops what was used
# longest ago; the blue bars were counted on an H200 by Nsight Compute.

# %%
counted = record.load("traffic")
l2_bytes = counted["provenance"]["l2_bytes"]
rows = {}
for row in counted["rows"]:
    run = simulate([row["problem"]], "swizzled", block=row["block"], group_m=row["group_m"])
    whole, half = (bytes_moved(run, l2_bytes=size) for size in (l2_bytes, l2_bytes // 2))
    rows[f"group_m = {row['group_m']}"] = {
        "model, all of the L2": whole.from_memory, "model, half of it": half.from_memory,
        "measured": row["dram_read_bytes"]}  # fmt: skip
schedules.traffic(rows, compulsory=whole.compulsory)

# %%
print(f"A tile asks for its panels: {whole.requested / 1e9:.1f} GB in all, whatever the order.")
for row in counted["rows"]:
    print(f"group_m = {row['group_m']:2}: {row['dram_read_bytes'] / 1e9:.2f} GB from memory in {row['us']:.0f} µs")

# %% [markdown]
# The chip behaves as if half of its L2 were there. It is built as two partitions, and a line that SMs on both sides
# use occupies both: a fit, not a proof, but a good rule for choosing `group_m`.
#
# Note what is *not* proportional: time. This product is bound by arithmetic, so most of the traffic was hidden
# already. Bytes turn into time where memory is the limit.
#
# ## Simulated beside recorded
#
# The descriptor kernel of the next lesson logged program, SM, start and end of each tile on an H200: the same
# batches, block and number of programs.

# %%
same = all([list(problem) for problem in batches[b]] == recorded[b, o]["problems"] for b, o in recorded)
sms = {(row[4], row[5]) for row in recorded["skewed", "dynamic"]["tiles"]}
print("the same batches:", same)
print("one program per SM:", len(sms) == len({sm for _, sm in sms}) == 132)


# %%
def beside(batch):
    """Simulated and recorded bars of three schedules, next to each other."""
    panels = {}
    for order in ("round_robin", "chunks", "dynamic"):
        panels[f"model, {order}"] = timeline.simulated_bars(runs[batch, order])
        panels[f"H200, {order}"] = timeline.recorded_bars(recorded[batch, order], by="program")
    return panels


timeline.compare(beside("skewed"), rows=132, columns=2, title="The skewed batch, a row per program")

# %% [markdown]
# **Where the model is right:** the shape. Who computes what, which programs run dry, which schedule wins under skew.
# (Dynamic rows mix on the H200: tickets go in the order in which programs happen to ask.)
#
# The same for the other two batches. Before you scroll: which schedule has no grey between its tiles when the batch is
# uniform, and how many of 132 programs work to the end under chunks when one expert gets everything?

# %%
timeline.compare(beside("uniform"), rows=132, columns=2, title="The uniform batch", height=1.6)

# %%
timeline.compare(beside("one-hot"), rows=132, columns=2, title="The one-hot batch", height=1.6)

# %% [markdown]
# **Where it lies:** the recorded bars are shorter, and there is grey *between* them. Closer, six programs:

# %%
panels = beside("skewed")
close = {name: [bar for bar in panels[name] if bar.row < 6] for name in ("model, round_robin", "H200, round_robin")}
timeline.compare(close, rows=6, title="Programs 0 to 5 of round-robin on the skewed batch")

# %% [markdown]
# First lie: the gaps. With round-robin nearly every tile is in another problem, and the kernel makes three new
# descriptors there. The model knows nothing of that; `switch.json` measured it.

# %%
switch = record.load("switch")
switch_us = switch["switch_us"]["median"]
print(f"to a tile of the next problem: {switch_us:.2f} µs")
print(f"to a tile of the same problem: {switch['same_problem_us']['median']:.2f} µs")

# %% [markdown]
# Second lie: the speed. The model's rate was read off one long dense product with all SMs busy, epilogues included.
# Fit a line to the recorded tiles instead:

# %%
taken = [
    (-(-entry["problems"][row[1]][2] // 64), (row[7] - row[6]) / 1e3)
    for (_, order), entry in recorded.items() if order == "round_robin" for row in entry["tiles"]
]  # fmt: skip
per_step, per_tile = statistics.linear_regression(*zip(*taken))
schedules.tile_times(taken, {"model": (model.tile_us(0), model.k_step_us()), "fit": (per_tile, per_step)})

# %%
bound = runs["one-hot", "dynamic"].lower_bounds.longest
true = timeline.measure(timeline.recorded_bars(recorded["one-hot", "dynamic"])).makespan
print(f"one-hot: the model's bound is {bound:.0f} µs, the H200 was done after {true:.0f} µs")

# %% [markdown]
# A bound is only as good as the costs it is made of. Put both into the model: the fitted rate, and a switch for every
# problem that a program visits. The line was fitted to round-robin alone, so chunks and dynamic put it to the test.

# %%
fitted = CostModel(
    tflops_per_program=2 * 128 * 256 * 64 / per_step / 1e6,
    startup_us=max(0.0, per_tile - model.epilogue_us()),
    atomic_us=fetch_us,
)


def corrected_end(batch, order):
    run = simulate(batches[batch], order, cost=fitted)
    visits = [len({span.tile.problem for span in line}) for line in run.programs]
    return max(end + switch_us * count for end, count in zip(run.finish, visits))


# %%
ends = {}
for batch, order in recorded:
    usage = timeline.measure(timeline.recorded_bars(recorded[batch, order]))
    ends[batch, order] = runs[batch, order].makespan, corrected_end(batch, order), usage.makespan
labels = {f"{batch}, {order}": times for (batch, order), times in ends.items()}
schedules.model_against_record(labels, ("model", "model, corrected", "H200"))

# %%
tested = {key: times for key, times in ends.items() if key[1] in ("chunks", "dynamic")}
off = {key: abs(corrected / true - 1) for key, (_, corrected, true) in tested.items()}
worst = max(off, key=off.get)
print(f"median error on chunks and dynamic: {statistics.median(off.values()):.0%}")
print(f"worst: {', '.join(worst)}, {off[worst]:.0%}")

# %% [markdown]
# ### What is left: the two effects meet
#
# On the uniform batch, chunks switch once and still take longer than the corrected model says. Look at which problems
# run at the *same time*: round-robin works on one or two, chunks on all eight at once. Ask the cache model:

# %%
for order in ("round_robin", "chunks"):
    run = runs["uniform", order]
    together = len({line[0].tile.problem for line in run.programs if line})
    read = bytes_moved(run, l2_bytes=l2_bytes // 2).from_memory
    print(f"{order:12} {together} problems at once, {read / 1e6:.0f} MB from memory")

# %% [markdown]
# If that is the reason, the first tiles of each program, which find a cold cache, must be the slow ones. The record
# can say. µs per step of the K loop, by position in the program:

# %%
for order in ("round_robin", "chunks"):
    entry, places = recorded["uniform", order], {}
    seen = [0] * entry["programs"]
    for row in sorted(entry["tiles"], key=lambda row: row[6]):
        steps = -(-entry["problems"][row[1]][2] // 64)
        places.setdefault(seen[row[4]], []).append((row[7] - row[6]) / 1e3 / steps)
        seen[row[4]] += 1
    print(f"{order:12}", " ".join(f"{statistics.median(times):.2f}" for times in places.values()))

# %% [markdown]
# The first tiles are the slowest, as predicted. The later ones gain on them and stay behind round-robin's: all eight
# problems stream from memory until the end. That fits the explanation; a proof would count the bytes.
#
# ## So, which schedule?
#
# Times without recording, from the same run on the H200:

# %%
print(" " * 9, *(f"{order:>12}" for order in orders))
for batch in batches:
    print(f"{batch:9}", *(f"{recorded[batch, order]['median_us']:9.0f} µs" for order in orders))

# %% [markdown]
# No column wins every row. Where all tiles cost the same, chunks save the switches; under skew they are the worst
# choice, and dynamic is the best. The library asks for equal K before it picks chunks, for this reason.
#
# ## Try it here
#
# [Exercise 05](../exercises/05_better_schedule.ipynb), a better schedule: tiles with known costs, each to a program.
# Or change a cell and run it again:
#
# 1. Give `cards` three programs instead of four. Why do fewer programs end earlier?
# 2. Make tickets expensive: `simulate(..., cost=CostModel(atomic_us=5))`. From which price on does round-robin win on
#    the skewed batch? What if one ticket bought two tiles?
# 3. In `beside`, draw the record with `by="sm"`. Which rows move, and do programs with neighbouring numbers stay
#    together?
#
# ## Summary
#
# - Equal numbers of tiles are equal work only where tiles cost the same: forward yes, weight gradient no.
# - Two bounds say when to stop improving: work over programs, and the longest tile. Last waves and long last tiles
#   are what separates you from them.
# - A dynamic schedule is one counter: a fraction of a microsecond per tile, a counter to reset, and only as good as
#   the order of its list.
# - The order of tiles also decides what runs together, and with it how much memory is read; count on half of the L2.
# - A simple model predicts shapes and winners; times need measured rates, switches and the cache.
#
# Each switch cost microseconds for descriptors. What are they, and why pay for them?
# Next: [06 TMA descriptors](06_tma_descriptors.ipynb).
