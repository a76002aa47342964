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
# Round-robin gives every program the same number of tiles. Is that fair if tiles take different times? And can the
# order of tiles change how much memory a kernel reads?
#
# **About 50 minutes. Afterwards you can**
#
# - give two lower bounds for the time of any schedule,
# - say which of four schedules suits a batch,
# - write a dynamic scheduler with one atomic counter, and avoid its two traps,
# - estimate from the order of tiles how many bytes come from memory,
# - test a cost model against recorded timelines.
#
# You need: the walk of [lesson 04](04_static_round_robin.ipynb).

# %%
import gemm_course  # import first: without a GPU, kernels then run in the interpreter

import dataclasses
import heapq
import statistics

import torch
import triton
import triton.language as tl

from course_kernels import GemmConfig, GroupGemmPlan, codegen, runtime, testing
from course_kernels.bench import record
from course_kernels.kernels import round_robin
from course_kernels.schedule import CostModel, bytes_moved, simulate, tile_counts, tiles
from gemm_course.figures import f05_schedules as schedules, timeline
from gemm_course.lessons import listing, timelines

# %matplotlib inline
device = runtime.device()

# %% [markdown]
# ## The first idea: deal the tiles like cards
#
# The batch has six problems with two tiles each. Every other problem has a long K. Four programs compute them in
# [round-robin](glossary.md#round-robin) order. `simulate` follows the walk of lesson 04 with a simple cost model: a
# tile takes a fixed time plus a time for each step of its K loop. (The next section explains the dashed line.)

# %%
cards = [(256, 256, 2048), (256, 256, 256)] * 3
dealt = simulate(cards, "round_robin", programs=4)
bounds = {"round-robin": dealt.lower_bounds.work}
timeline.compare({"round-robin": timelines.simulated_bars(dealt)}, rows=4, bounds=bounds)

# %%
print("tiles per program:     ", [len(line) for line in dealt.programs])
print("µs of work per program:", [round(busy) for busy in dealt.busy])

# %% [markdown]
# Each program got three tiles, but two of the programs got all the long ones. Round-robin balances the *number* of
# tiles. Here the kinds of tiles repeat every four tiles, and there are four programs. So a program always gets the same
# kind.
#
# ## Two bounds, and the smallest scheduler
#
# A schedule cannot end before all work is done, even if it is spread evenly: the dashed line. And it cannot end before
# its longest tile. The time at which a schedule ends is its [makespan](glossary.md#makespan). Two schedulers in a few
# lines:


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
# It helps if the program that is free takes the next tile. It helps more if the longest tiles come first. But for that
# somebody must know and sort all costs before the launch. We return to this.
#
# ## When are tiles unequal?
#
# In the forward pass of a layer with 8 experts, the tokens are rows: M differs between experts, K does not. So every
# tile costs the same. In the weight gradient the sum runs over the tokens: K differs. Three routers, 8,192 tokens:

# %%
routers = {"uniform": "uniform", "skewed": "zipf", "one-hot": "one_hot"}
tokens = {name: testing.routed_sizes(router, 8192) for name, router in routers.items()}
batches = {name: [(2048, 1536, n) for n in counts] for name, counts in tokens.items()}
for name, counts in tokens.items():
    summed = [model.tile_us(k) for k in counts]
    print(f"{name:8} tokens per expert: {counts}")
    print(f"         µs per tile: forward {model.tile_us(2048):.0f}, gradient {min(summed):.0f} to {max(summed):.0f}")

# %% [markdown]
# An expert without tokens has a gradient, too. It is zero, and the kernel must write the zeros. These are the shortest
# tiles.
#
# ## Four schedules on three batches
#
# - *Round-robin*: from one tile to the next, a program steps by the number of programs.
# - *Chunks*: each program gets a run of tiles whose numbers follow each other.
# - *[Swizzled](glossary.md#swizzle)*: round-robin, but the tiles of each matrix are numbered in another order, in
#   strips.
# - *Dynamic*: the program that is free takes the next tile.

# %%
orders = ["round_robin", "chunks", "swizzled", "dynamic"]
runs = {(batch, order): simulate(batches[batch], order) for batch in batches for order in orders}
print(" " * 9, *(f"{order:>12}" for order in orders), "  bounds: work, longest tile")
for batch in batches:
    ends = [f"{runs[batch, order].makespan:9.0f} µs" for order in orders]
    work, longest = runs[batch, "round_robin"].lower_bounds
    print(f"{batch:9}", *ends, f"  {work:.0f} µs, {longest:.0f} µs")

# %%
skewed = {order: timelines.simulated_bars(runs["skewed", order]) for order in orders}
bound = runs["skewed", "dynamic"].lower_bounds.work
timeline.compare(skewed, rows=132, bounds=dict.fromkeys(orders, bound))

# %% [markdown]
# With chunks, the tiles of a problem go to few programs. All problems have 96 tiles here, so an eighth of the programs
# gets all of the longest problem. Swizzled looks like round-robin: within a problem all tiles cost the same, so in this
# model their order changes no time. It will matter for memory traffic, below.
#
# ## Waves that are not full
#
# Even equal tiles leave programs idle at the end, unless their number is a multiple of the number of programs. The last
# [wave](glossary.md#wave) takes as long as a full one.

# %%
one_problem = tile_counts(batches["uniform"], 128, 256)[0]
schedules.waves(132, (one_problem, 133, 8 * one_problem))

# %% [markdown]
# One of these problems has 96 tiles and fills less than one wave. All eight together fill almost six waves. This is the
# second gain of grouping, after the saved launches. How much time is lost at the end, from the first idle program on?

# %%
for (batch, order), run in runs.items():
    if order in ("round_robin", "dynamic"):
        print(f"{batch:8} {order:12} {run.tail_us:5.1f} µs, {run.tail_share:4.0%} of the programs' time")

# %% [markdown]
# ## Dynamic: one counter
#
# The whole scheduler is one number in memory. A program takes a ticket with an atomic addition. The number on the
# ticket is its tile. This kernel multiplies nothing; it only counts how often each tile is taken.


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
print("tickets per tile:", drawn.tolist())
print("counter after:   ", counter.item())

# %% [markdown]
# Twelve tiles need sixteen tickets: each of the four programs takes one that is too high, and so learns that no tile is
# left. On a GPU the programs compete for tickets. In the [interpreter](glossary.md#interpreter) they run one after
# another, so the first takes every tile.
#
# ### What goes wrong: the second launch
#
# Training launches this kernel again and again.
#
# **Guess** before you open the output: how often is each tile taken in the second launch?

# %% tags=["hide-output"]
again = torch.zeros(12, dtype=torch.int32, device=device)
draw[(4,)](counter, again, 12)
print("tickets per tile, second launch:", again.tolist())

# %% [markdown]
# <details><summary>Answer</summary>
#
# Never: the counter is still 16.
#
# </details>
#
# No error follows, and the outputs keep the result of the first launch. So a test that launches once passes. Repair it:
# put `counter.zero_()` at the top of the cell above.
#
# That repair is a launch of its own, before each launch. There is a better one. The number of tickets is known: tiles
# plus programs. The program that takes the very last ticket can set the counter back to 0: by then every other program
# has taken its last ticket.


# %%
@triton.jit
def draw_and_reset(counter_ptr, drawn_ptr, total):
    ticket = tl.atomic_add(counter_ptr, 1)
    while ticket < total:
        tl.atomic_add(drawn_ptr + ticket, 1)
        ticket = tl.atomic_add(counter_ptr, 1)
    if ticket == total + tl.num_programs(0) - 1:
        tl.store(counter_ptr, 0)


# %%
own_counter = torch.zeros(1, dtype=torch.int32, device=device)
for launch in range(2):
    drawn.zero_()
    draw_and_reset[(4,)](own_counter, drawn, 12)
    print(f"launch {launch}: tickets per tile {drawn.tolist()}, counter after {own_counter.item()}")

# %% [markdown]
# ## The production kernel
#
# The library's kernel is that of lesson 04. Its `next_tile` takes tickets in the same way if the configuration says
# `schedule="dynamic"`. The addition is `relaxed`: a program waits for its own ticket, but not for its other reads and
# writes. A program's tickets only grow, so it still goes through the problems in one direction. Click a line to read
# the source.

# %%
from IPython.display import display

parts = (round_robin.next_dynamic_tile, round_robin.first_tile, round_robin.next_tile, round_robin.round_robin_kernel)
display(*map(listing.fold, parts))

# %% [markdown]
# A [plan](glossary.md#plan) with this schedule can be launched any number of times:

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
    print(
        f"launch {attempt}, right:",
        all(torch.equal(c, (a.float() @ b.float()).half()) for a, b, c in zip(A, B, plan.out)),
    )

# %% [markdown]
# ## What the compiler makes of it
#
# Compiled for an H200, the static and the dynamic kernel differ only in how a program finds its next tile:

# %%
static = GemmConfig(128, 256, 64, num_warps=8, num_stages=3, group_m=1)
compiled = {}
for order in ("round_robin", "dynamic"):
    config = dataclasses.replace(static, schedule=order)
    compiled[order] = codegen.compile_kernel("tma", "sm_90", dtype="float16", config=config)
    used = compiled[order].instructions
    print(
        f"{order:12} atomics: {'atom.' in compiled[order].ptx}, wgmma: {used['wgmma'] > 0}, "
        f"TMA loads (lesson 06): {used['bulk tensor load'] > 0}"
    )

# %% tags=["nbval-ignore-output"]
print(compiled["dynamic"].excerpt(r"\batom\.", before=2, after=4))

# %% [markdown]
# One thread takes the ticket (`@%p` marks the condition) and puts it into [shared memory](glossary.md#shared-memory).
# All threads wait at a [barrier](glossary.md#barrier), and then read it there. The same lines are in the loop over
# tiles. So each ticket costs a trip to the [L2](glossary.md#L2) cache, during which the program does nothing else. How
# long does it take? In the one-hot batch, we compare the gaps between tiles of one problem, with tickets (dynamic) and
# without (chunks):

# %%
stored = record.load("sm_timelines")
recorded = {(entry["batch"], entry["schedule"]): entry for entry in stored["timelines"]}
gap = {
    order: statistics.median(timelines.tile_gaps(recorded["one-hot", order], same_problem=True))
    for order in ("dynamic", "chunks")
}
fetch_us = gap["dynamic"] - gap["chunks"]
print(f"{stored['provenance']['gpu']}: {fetch_us:.2f} µs per ticket; the model assumes {model.atomic_us} µs")

# %% [markdown]
# So a dynamic schedule costs a little per tile. On a uniform batch this is a loss. On a skewed one the gain is larger,
# as the table after the next section shows.
#
# ### What goes wrong: the long problem comes last
#
# This is the skewed batch with its experts in the opposite order: the longest problem is the last.
#
# **Guess** before you open the output: which ends earlier now, round-robin or dynamic?

# %% tags=["hide-output"]
backwards = batches["skewed"][::-1]
late = {order: simulate(backwards, order) for order in ("round_robin", "dynamic", "largest_first")}
timeline.compare(
    {order: timelines.simulated_bars(run) for order, run in late.items()},
    rows=132,
    bounds={order: run.lower_bounds.work for order, run in late.items()},
)

# %% [markdown]
# <details><summary>Answer</summary>
#
# Round-robin.
#
# </details>
#
# In both, the longest tiles start last. So the dynamic schedule gains nothing, and its tickets cost time.
# (`largest_first` needs to know every cost before the launch.)
#
# **Guess** before you open the next cell: what can a caller of a grouped GEMM do, without a change to the kernel?

# %% tags=["hide-input", "hide-output"]
repaired = simulate(sorted(backwards, key=lambda problem: problem[2], reverse=True), "dynamic")
print(f"dynamic, as listed: {late['dynamic'].makespan:.0f} µs; longest K first: {repaired.makespan:.0f} µs")

# %% [markdown]
# <details><summary>Answer</summary>
#
# The caller can sort the problems by K, the longest first.
#
# </details>
#
# ## Which schedule?
#
# The answer first, from a record: the times of these schedules on an H200, launch included. (The timelines below show
# only the time from the first tile to the last, so theirs are shorter.)

# %%
print(" " * 9, *(f"{order:>12}" for order in orders))
for batch in batches:
    print(f"{batch:9}", *(f"{recorded[batch, order]['median_us']:9.0f} µs" for order in orders))

# %% [markdown]
# No schedule wins every row. If all tiles cost the same, take chunks: a program stays in one problem, and a change of
# problem costs time. Under skew they are the worst choice, and dynamic is the best. So the library uses chunks only
# where K is equal.
#
# ## Reuse: which tiles run at the same time
#
# The swizzled order changed no time above. Now take one problem that does not fit into the cache, and look at the 132
# tiles that run first. Each tile needs a *row panel* of A (the rows beside it, over all of K) and a *column panel* of B
# (the columns above it). Tiles that run at the same time share panels through the L2 cache. `group_m` is the height of
# a strip in tiles. The order goes through a strip column by column.

# %%
large = (8192, 8192, 4096)
schedules.working_set(large, (128, 256, 64), 132, (1, 8, 16))

# %% [markdown]
# The closer these tiles are to a square, the fewer panels they need. `bytes_moved` simulates a cache: it follows every
# piece of A and B, and when the cache is full, it drops the piece that was not used for the longest time. The blue bars
# were measured on an H200 with Nsight Compute, NVIDIA's profiler.

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
print(f"all tiles together load {whole.requested / 1e9:.1f} GB, in any order; most of it comes from the cache")
for row in counted["rows"]:
    print(f"group_m = {row['group_m']:2}: {row['dram_read_bytes'] / 1e9:.2f} GB from memory in {row['us']:.0f} µs")

# %% [markdown]
# You can estimate these bytes by hand: multiply the number of waves by the panels that one wave reads. The picture of
# the working set has the panels:

# %%
for row in counted["rows"]:
    order = tiles([row["problem"]], *row["block"][:2], row["group_m"])
    down, across = (len({getattr(tile, axis) for tile in order[:132]}) for axis in ("m", "n"))
    wave, waves = (down * 128 + across * 256) * 4096 * 2, len(order) / 132
    print(
        f"group_m = {row['group_m']:2}: {waves:.1f} waves × {wave / 1e6:.0f} MB = {waves * wave / 1e9:.2f} GB,", end=" "
    )
    print(f"the profiler counted {row['dram_read_bytes'] / 1e9:.2f} GB")

# %% [markdown]
# The GPU behaves as if it had half of its L2. A possible reason: the L2 consists of two partitions, and data that SMs
# on both sides use is stored in both. Nobody proved this. Half of the L2 is still a good rule for choosing `group_m`.
#
# The time changed less than the bytes. This product is limited by arithmetic, so most of the traffic happened while the
# [tensor cores](glossary.md#tensor-core) worked. Bytes decide the time where memory is the limit.
#
# ## Simulated and recorded
#
# The descriptor kernel of lesson 06 recorded the program, SM, start and end of each tile on an H200. Batches, block and
# number of programs are those of the simulation.

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
        panels[f"model, {order}"] = timelines.simulated_bars(runs[batch, order])
        bars = timelines.recorded_bars(recorded[batch, order], by="program")
        panels[f"H200, {order}"] = timelines.sorted_rows(bars) if order == "dynamic" else bars
    return panels


timeline.compare(beside("skewed"), rows=132, columns=2, title="The skewed batch, a row per program")

# %% [markdown]
# **The model is right** about the shape: which program computes what, which programs run out of work, which schedule
# wins under skew. (In a recorded dynamic schedule, tickets go to whichever program asks first. So its rows are sorted
# here: programs with the same problems are neighbours.)
#
# **Guess** before you open the output: on the uniform batch, which recorded schedule has no grey between its tiles?

# %% tags=["hide-output"]
timeline.compare(beside("uniform"), rows=132, columns=2, title="The uniform batch", height=1.6)

# %% [markdown]
# <details><summary>Answer</summary>
#
# Chunks.
#
# </details>
#
# With chunks each program stays in one problem. The others change the problem with nearly every tile, and lose time
# there.
#
# **Guess** before you open the output: in the one-hot batch one expert gets all tokens, and the other seven have only
# zeros to write. With chunks, how many of the 132 programs work to the end?

# %% tags=["hide-output"]
timeline.compare(beside("one-hot"), rows=132, columns=2, title="The one-hot batch", height=1.6, until=150)

# %% [markdown]
# <details><summary>Answer</summary>
#
# 16: the problem has 96 tiles, and a program gets six tiles.
#
# </details>
#
# **The model is wrong** in two ways. The recorded bars are shorter, and there is grey *between* them. Here are the
# first six programs:

# %%
panels = beside("skewed")
close = {name: [bar for bar in panels[name] if bar.row < 6] for name in ("model, round_robin", "H200, round_robin")}
timeline.compare(close, rows=6, title="Programs 0 to 5 of round-robin on the skewed batch")

# %% [markdown]
# First, the gaps. With round-robin, nearly every tile belongs to another problem than the one before, and the kernel
# then makes three new [descriptors](glossary.md#descriptor) (lesson 06). We call that a *switch*. The model does not
# contain it. A separate benchmark measured it:

# %%
switch = record.load("switch")
switch_us = switch["switch_us"]["median"]
print(f"to a tile of the next problem: {switch_us:.2f} µs")
print(f"to a tile of the same problem: {switch['same_problem_us']['median']:.2f} µs")

# %% [markdown]
# Second, the speed. The model's speed was measured on one large *dense* product (an ordinary one, without groups) that
# kept all SMs busy. The next picture has the recorded tiles: their time against their steps of the K loop. A line
# through them is less steep than the model's:

# %%
taken = [
    tile for (_, order), entry in recorded.items() if order == "round_robin" for tile in timelines.tile_lengths(entry)
]
per_step, per_tile = statistics.linear_regression(*zip(*taken))
schedules.tile_times(taken, {"model": (model.tile_us(0), model.k_step_us()), "fit": (per_tile, per_step)})

# %%
bound = runs["one-hot", "dynamic"].lower_bounds.longest
true = timelines.measure(timelines.recorded_bars(recorded["one-hot", "dynamic"])).makespan
print(f"one-hot: the model's lower bound is {bound:.0f} µs, but the H200 needed only {true:.0f} µs")

# %% [markdown]
# A bound is only as good as its costs. So we correct the model: with the fitted speed, and with a switch for each
# problem that a program visits. The line was fitted to round-robin only, so chunks test the corrected model. So does
# dynamic, but for its ticket's price, which is from the record.

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
    usage = timelines.measure(timelines.recorded_bars(recorded[batch, order]))
    ends[batch, order] = runs[batch, order].makespan, corrected_end(batch, order), usage.makespan
labels = {f"{batch}, {order}": times for (batch, order), times in ends.items()}
schedules.model_against_record(labels, ("model", "model, corrected", "H200"))

# %%
tested = {key: times for key, times in ends.items() if key[1] in ("chunks", "dynamic")}
off = {key: abs(corrected / true - 1) for key, (_, corrected, true) in tested.items()}
worst = max(off, key=off.get)
print(f"median error of the corrected model on chunks and dynamic: {statistics.median(off.values()):.0%}")
print(f"largest error: {', '.join(worst)}, {off[worst]:.0%}")

# %% [markdown]
# ### What the corrected model misses
#
# On the uniform batch, chunks switch once per program, but take longer than the corrected model says. Which problems
# run at the *same time*? Round-robin works on two or three, chunks on all eight. The cache model gives the traffic:

# %%
for order in ("round_robin", "chunks"):
    run = runs["uniform", order]
    together = len({line[0].tile.problem for line in run.programs if line})
    read = bytes_moved(run, l2_bytes=l2_bytes // 2).from_memory
    print(f"{order:12} {together} problems at once, {read / 1e6:.0f} MB from memory")

# %% [markdown]
# If traffic is the reason, then the first tiles of each program are the slowest, because the cache is still empty. The
# record has the answer. Median µs per step of the K loop, for a program's first tile, its second, and so on:

# %%
for order in ("round_robin", "chunks"):
    print(f"{order:12}", " ".join(f"{us:.2f}" for us in timelines.step_times(recorded["uniform", order])))

# %% [markdown]
# With chunks the first two tiles are slower than the next three, as predicted. Nearly all are slower than
# round-robin's, which differ little: with chunks, all eight problems are read from memory until the end. This agrees
# with the explanation. A proof would count the bytes.
#
# ## Try it
#
# 1. Give `cards` three programs instead of four. Why do fewer programs end earlier?
#    <details><summary>Answer</summary>The batch repeats every four tiles. With three programs, each gets two long tiles
#    and two short ones, so they all end after 73 µs instead of 90.</details>
# 2. Make tickets expensive: `simulate(..., cost=CostModel(atomic_us=5))`. From which price on does round-robin win on
#    the skewed batch? And if one ticket bought two tiles?
#    <details><summary>Answer</summary>From about 2 µs. Two tiles per ticket halve the price, but the work is dealt in
#    larger pieces: that helps from about 3 µs on, where round-robin is already faster.</details>
# 3. In `beside`, draw the record with `by="sm"`. Which rows move, and do programs with neighbouring numbers stay
#    together?
#    <details><summary>Answer</summary>Nearly all rows move. Neighbouring programs stay in pairs or fours, but the
#    groups are spread over the chip: with round-robin, programs 0 to 3 ran on four neighbours near the last SM, and
#    programs 8 and 9 on a pair near the first. The pair was another one in each batch.</details>
#
# In [exercise 05](../exercises/05_better_schedule.ipynb) you assign tiles with known costs to programs.

# %% [markdown]
# To drag the tokens of eight experts and see the timeline change, open the page [Explore a
# schedule](../site/explore.md) of the course's site.
#
# ## Summary
#
# - Equal numbers of tiles are equal work only where all tiles cost the same: in the forward pass, not in the weight
#   gradient.
# - Two bounds say when to stop improving: all work divided by the programs, and the longest tile.
# - A dynamic schedule is one counter. It costs a fraction of a microsecond per tile, needs a reset, and is only as good
#   as the order of its list.
# - The order of tiles decides which of them run together, and so how much memory is read. Count on half of the L2.
# - A simple model predicts shapes, and winners under skew. For times it needs measured speeds, switches and the cache.
#
# ## References
#
# - R. L. Graham, [Bounds on Multiprocessing Timing Anomalies](https://doi.org/10.1137/0117039), 1969: how far "the
#   first free program takes the next tile" is from the best schedule.
# - M. Osama and others, [Stream-K: Work-centric Parallel Decomposition for Dense Matrix-Matrix Multiplication on the
#   GPU](https://arxiv.org/abs/2301.03598), 2023: shares the steps of the K loop instead of tiles.
# - NVIDIA CUTLASS, [Grouped Kernel
#   Schedulers](https://docs.nvidia.com/cutlass/latest/media/docs/cpp/grouped_scheduler.html).
# - NVIDIA, [Matrix Multiplication Background User's
#   Guide](https://docs.nvidia.com/deeplearning/performance/dl-performance-matrix-multiplication/index.html): waves that
#   are not full.
#
# ## What to read next
#
# Each switch to another problem cost microseconds for new descriptors. Lesson 06 explains what a descriptor is, and why
# the kernel uses them all the same.
