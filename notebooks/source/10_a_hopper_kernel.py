# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown]
# # 10 · A Hopper kernel
#
# Lesson 08's Triton kernel and the fastest kernels on Hopper use the same instructions: TMA copies and `wgmma`. Still
# the fastest ones win: in them, each [warp](glossary.md#warp) has a role of its own. Which roles are there, and how do
# warps that never call each other work together?
#
# **About 45 minutes. Afterwards you can**
#
# - read a kernel in CuTe DSL, from its producer warp to its epilogue,
# - explain a ring of stages and its two barriers,
# - compile such a kernel without a GPU and find its parts in the PTX,
# - say what ping-pong, clusters and multicast gain, and when.
#
# You need: lesson 06 (TMA) and lesson 09.

# %%
from gemm_course.notebook.extras import need

need("cutlass", "cutlass")

import statistics
from dataclasses import replace

import cutlass
from cutlass import cute
from IPython.display import display

from course_kernels.bench import record
from course_kernels.kernels.cute_sm90.config import CONFIGS, COOPERATIVE, PINGPONG, CuteConfig
from course_kernels.kernels.cute_sm90.form import Form
from gemm_course.figures import f10_clusters as cute_clusters, f10_kernel as picture
from gemm_course.lessons import hopper_kernel as small, records
from gemm_course.lessons.l10_ring import simulate
from gemm_course.lessons.listing import fold, show

# %% [markdown]
# ## One language lower
#
# In Triton you write what a [program](glossary.md#program) does, and the compiler decides what its warps do. In [CuTe
# DSL](glossary.md#CuTe-DSL) you write what each warp does. CuTe is the part of NVIDIA's [CUTLASS](glossary.md#CUTLASS)
# library that describes layouts: where each element of a tile is. DSL means *domain-specific language*. It is Python
# syntax, compiled for the GPU:
#
# - `@cute.kernel` marks a kernel, `@cute.jit` a function that it calls.
# - `cutlass.range` makes a loop on the GPU. `cutlass.range_constexpr` is unrolled while the kernel is compiled.
# - `cutlass.Constexpr` is Triton's `tl.constexpr`: a value that is fixed when the kernel is compiled.
# - A `cute.Tensor` is a pointer with a layout. The memory is global, shared, or a thread's registers.
# - An index `None` takes a whole dimension, as `:` does in NumPy. CuTe calls a dimension a *mode*.
#
# A program of Triton is a [CTA](glossary.md#CTA) here: *cooperative thread array*, CUDA's name for a block of threads.
#
# ## Three roles
#
# Our small kernel computes C = A Bᵀ, in 79 lines on the GPU and 22 on the host. This lesson shows all of them. They are
# in [one file](../src/gemm_course/lessons/hopper_kernel.py). A CTA computes one tile of C. Its 384 threads are three
# [warp groups](glossary.md#warp-group) of 128 threads, because `wgmma` is issued by 128 threads together:
#
# - **[Producer](glossary.md#producer)**: one warp of the first group copies blocks of A and B to shared memory. Its
#   other warps do nothing here.
# - **[Consumers](glossary.md#consumer)**: the second and the third group multiply. Each has 64 rows of the tile, and
#   keeps its sums in registers.
# - **[Epilogue](glossary.md#epilogue)**: at the end, both consumer groups round their sums and store them.
#
# **Guess** before you open the picture: a thread of Hopper can have at most 255 registers, and an SM has 65,536. Are
# they shared equally among the 384 threads?

# %% tags=["hide-output"]
together = CuteConfig(128, 256, 64, cluster=2, stages=4, schedule=COOPERATIVE)
picture.roles([together], loading=40, multiplying=232)

# %% [markdown]
# <details><summary>Answer</summary>
#
# No: a thread of the producer's group keeps 40, a consumer's has 232.
#
# </details>
#
# In the picture an area is a number of registers, and the dashed line is an equal share. Dark registers hold sums; pale
# ones hold everything else. The producer only computes addresses, so it gives registers away:
# `setmaxregister_decrease`. The consumers take them, because 128 of their registers hold sums. This is the production
# kernel, with a tile of 256 columns. In it, the three other warps of the producer's group also have work: they write
# zeros to the tail.
#
# ## The ring of stages
#
# Producer and consumers meet in shared memory. It has room for four pairs of blocks, the [stages](glossary.md#stage).
# Each stage has two [barriers](glossary.md#barrier) in shared memory, `mbarrier`s:
#
# - **full**: the block has arrived. The hardware reports it, when it has counted the bytes of both copies.
# - **empty**: the consumers have read the stage. Their warps report it.
#
# The producer waits for *empty*, then copies. The consumers wait for *full*, then multiply. After the last stage comes
# the first one again: a ring. This is the whole producer:

# %%
show(small.load)

# %% [markdown]
# - `state` counts stages: `state.index` runs 0, 1, 2, 3, 0, 1, …
# - A copy starts and the warp goes on. The copy's last argument is the barrier to which TMA reports the bytes.
# - `producer_tail` waits until all stages are empty: a CTA must not end while copies still arrive.
#
# And the consumers. `sums` is in registers; `a` and `b` describe the stages:

# %%
show(small.multiply)

# %% [markdown]
# `wgmma` reads both operands from shared memory, and returns before it is done. `fence` makes the `wgmma`s wait for
# earlier writes to the sums. `commit_group` closes a batch of `wgmma`s, and `wait_group(0)` waits until no batch is
# left. Then the stage is given back.
#
# **Guess** before you open the picture: a copy takes 2.5 times as long as the multiplication of a block. A CTA computes
# two tiles, one after the other. How much faster is it with four stages than with two?

# %% tags=["hide-output"]
picture.ring({f"{n} stages": simulate(replace(together, stages=n), tiles=2, blocks=7, copy=2.5) for n in (2, 4)})

# %% [markdown]
# <details><summary>Answer</summary>
#
# It needs little more than half the time, as the titles of the panels say.
#
# </details>
#
# Follow one stage from left to right. The numbers are blocks along K.
#
# - Two stages: most multiplications wait for a copy. These are the gaps in the lowest line.
# - Four stages: while one block is multiplied, the next ones arrive. Now blocks wait for the tensor cores (dark blue),
#   as they should.
# - While a tile is stored, copies go on: the producer is already at the next tile. (This is the production kernel. In
#   the small one each CTA has a single tile.)
#
# The times come from a small model, `simulate`. The unit is the time in which one block is multiplied. They are not
# measured. The model keeps a stage (pale green) until the `wgmma`s of the next block have been issued. So does the
# production kernel: its `wait_group(1)` waits for all batches but the newest.
#
# ## The kernel
#
# The roles are one branch. Read it from `if thread < WARP_GROUP`:

# %%
show(small.kernel)

# %% [markdown]
# - `local_tile` cuts A, B and C into blocks. `block_idx` says which tile of C is this CTA's.
# - `copy_of` pairs a TMA descriptor with the blocks in global memory and their places in shared memory.
# - `mma.get_slice`, `partition_A`, `make_fragment_A` say which part of a block a thread multiplies.
# - `epilogue` is a function that the caller gives. It gets the float32 sums of one thread, and fills 16-bit registers.
#
# The epilogue and the store: registers → shared memory → C. The second step is again a TMA copy, by one warp. It does
# not write past the end of C, so the kernel has no masks.

# %%
show(small.round_sums)
show(small.store)

# %% [markdown]
# The rest is set-up. On the GPU: shared memory with its barriers, and the copies.

# %%
show(small.share_memory)
show(small.copy_of)

# %% [markdown]
# On the host: the layout of the stages, and the descriptors. In shared memory the pieces of a row are
# [swizzled](glossary.md#swizzle), as TMA writes them.

# %%
show(small.stages_layout)
show(small.product)

# %% [markdown]
# ## Compile it without a GPU
#
# `compile_product` compiles for `sm_90a`, Hopper with its own instructions. Count its parts in the
# [PTX](glossary.md#PTX):

# %%
KINDS = {
    "TMA copies to shared memory": "cp.async.bulk.tensor.2d.shared",
    "TMA copies to C": "cp.async.bulk.tensor.2d.global",
    "barriers": "mbarrier.init", "waits for a barrier": "mbarrier.try_wait", "wgmma": "wgmma.mma_async",
    "conversions to 16 bits": "cvt.rn.bf16x2", "stores to local memory": "st.local",
}  # fmt: skip


def count(ptx):
    for kind, text in KINDS.items():
        print(f"{ptx.count(text):4} {kind}")


_, ptx = small.compile_product()
count(ptx)

# %% [markdown]
# - Two copies, one of A and one of B, in a loop. One copy of the tile.
# - Eight barriers: two for each of four stages.
# - Six waits: one in the producer's loop, one in the consumers' loop, four at the producer's end, one for each stage.
# - Four `wgmma`: each is 16 deep, and a block 64.
# - 32 conversions, of two numbers each: a thread has 128 × 128 / 256 = 64 sums.
#
# ## Goes wrong: a register has no address
#
# An epilogue that doubles the sums, written as a loop over them. The loop runs on the GPU, `cutlass.range`.
#
# **Guess** before you open the output: which two lines of the count change?


# %% tags=["hide-output"]
@cute.jit
def doubled(sums: cute.Tensor, rounded: cute.Tensor):
    for i in cutlass.range(cute.size(sums), unroll=1):
        rounded[i] = (2.0 * sums[i]).to(rounded.element_type)


count(small.compile_product(doubled)[1])

# %% [markdown]
# <details><summary>Answer</summary>
#
# Stores to local memory appear, and the conversions of pairs disappear: the loop converts one number at a time, with
# another instruction. (33 = 16 stores that zero 64 sums, four at a time + 16 that write them + 1 in the loop.)
#
# </details>
#
# `sums[i]` has to find a register by a number that is known only at run time. No instruction does that. So the compiler
# puts the sums into *local memory*, which is global memory of the thread's own, and is slow. The compiler gives no
# warning. With `cutlass.range_constexpr`, or with all sums at once as in `round_sums`, they stay in registers. Look for
# `st.local` whenever you write an epilogue.
#
# ## Ping-pong against cooperative
#
# Our two consumer groups share a tile: the [cooperative](glossary.md#cooperative) schedule. While they store, the
# tensor cores have nothing to do. In [ping-pong](glossary.md#ping-pong), each consumer group has a tile of its own, and
# they take turns: one stores while the other multiplies. FlashAttention-3 uses the same schedule, and hides its softmax
# with it.
#
# **Guess** before you open the picture: a tile's K is 16 blocks long, and one warp group's store takes as long as the
# multiplication of four blocks. Which share of the time do the tensor cores multiply, cooperative and in ping-pong?

# %% tags=["hide-output"]
in_turn = CuteConfig(128, 192, 64, cluster=2, stages=4, schedule=PINGPONG)
schedules = {"cooperative": replace(in_turn, schedule=COOPERATIVE), "ping-pong": in_turn}
picture.warp_group_turns({name: simulate(config, tiles=4, blocks=16) for name, config in schedules.items()})

# %% [markdown]
# <details><summary>Answer</summary>
#
# In ping-pong all of it, from the first block to the last; the panels' titles have both shares. Two warp groups share
# the store of a cooperative tile, so it takes only the time of two blocks.
#
# </details>
#
# A colour is a tile; where it is pale, the tile is stored. In ping-pong one warp group always waits or stores, and the
# tensor cores do not notice. The two groups take turns by a barrier, so blocks are multiplied in the order in which
# they were loaded.
#
# The cost is registers. A warp group with a tile of its own has twice as many sums in each thread:

# %%
print("ping-pong, 256 columns:", replace(together, schedule=PINGPONG).why_not(Form()))
print("ping-pong, 192 columns:", in_turn.why_not(Form()) or "fits")

# %% [markdown]
# So ping-pong has the smaller tile, which reads more for each multiplication. Both were measured for the same matrix
# products on an H200. Above 1, ping-pong is faster:

# %%
rows = record.load("hopper_steps")["rows"]
smaller = replace(in_turn, tile_n=128, stages=6)
by_turns = {
    f"cooperative 128 × 256 → ping-pong 128 × {each.tile_n}": records.ratios(rows, "forward", together, each)
    for each in (in_turn, smaller)
}
picture.gains(by_turns)

# %%
for name, points in by_turns.items():
    short, long = (statistics.median(factor for K, factor in points if low <= K < high)
                   for low, high in ((0, 700), (8000, 1e9)))  # fmt: skip
    print(f"{name}: median {short:.2f} for K below 700, {long:.2f} for K of 8,000 and more")

# %% [markdown]
# A dot is one matrix product, the darker the longer its K. Where K is short, a store follows after few blocks, and
# hiding it helps most, as the medians say. Where K is long, each of the two wins on some matrix products. There it also
# matters how well a tile's height and width fit the groups.
#
# ## Clusters and multicast
#
# On Hopper two CTAs can form a [cluster](glossary.md#cluster). They run at the same time on neighbouring SMs, and can
# write to each other's shared memory. Two tiles, one below the other, need the same columns of B. Each CTA asks for
# half of them, and TMA delivers them to both: [multicast](glossary.md#multicast). A colour is the CTA that asks:

# %%
cute_clusters.multicast(together)

# %% [markdown]
# L2 sends a third less. The cost: before a stage is overwritten, the consumers of *both* CTAs must have read it. So the
# two SMs wait for each other. Recorded, one CTA alone against two in a cluster:

# %%
low = CuteConfig(64, 256, 64, cluster=2, stages=4, schedule=PINGPONG)
picture.gains({
    f"one CTA → cluster of two, tile {each.tile_m} × {each.tile_n}":
        records.ratios(rows, "forward", replace(each, cluster=1), each)
    for each in (in_turn, low)
})  # fmt: skip

# %% [markdown]
# A tile of 64 × 256 reads four times as many columns of B as rows of A, so sharing B helps it most. A tile of 128 × 192
# gains less. The many dots at 1 in the second panel are nearly all groups of few rows: there is no second tile below
# the first. (Panels differ in the products that were measured with both.)
#
# ## The order of tiles
#
# The production kernel is **[persistent](glossary.md#persistent)**, as in lesson 04: as many clusters are launched as
# the GPU holds, 66 of two CTAs on an H200, and each takes tile after tile. The tiles that are computed at the same time
# are a *wave*. What they share comes from [L2](glossary.md#L2). So the order decides how much a wave reads. Here 12
# clusters compute one group. A rectangle is a cluster with its two tiles; a colour is a wave, a number the order. A
# *line* is a row of A or a column of B:

# %%
cute_clusters.order(replace(in_turn, swizzle_size=4), rows=1024, columns=2304, clusters=12)

# %% [markdown]
# Row by row, a wave is wide and flat, and reads all of B. In strips it is closer to a square, and reads less.
#
# **Guess** before you open the output: is a strip of four rows of clusters better than one of eight? And one of
# sixteen?

# %% tags=["hide-output"]
for height in (4, 16):
    found = records.ratios(rows, "forward", replace(in_turn, swizzle_size=height), in_turn)
    factors = sorted(factor for _, factor in found)
    print(f"{height:2} rows against 8: median {factors[len(factors) // 2]:.3f}, {factors[0]:.2f} to {factors[-1]:.2f}")

# %% [markdown]
# <details><summary>Answer</summary>
#
# Neither: both medians are 1.
#
# </details>
#
# For nearly all matrix products, any strip of a few rows is square enough for L2. A few differ more, as the last two
# numbers say. (Below 1, the other height is faster than 8.)
#
# So far the first cluster takes tiles 0, 66, 132 and so on. Forward, that is fair, because all tiles have the same K.
# In the gradient of a weight it is not: lesson 17 hands out tiles in another order.
#
# ## The production kernel
#
# The library's kernel has the same roles. Beyond the small one it walks the groups: each role computes its next tile
# from `offs` by itself, so in a fixed order no warp has to send tile numbers to another. It stores in pieces while the
# next tile is multiplied, takes ping-pong, clusters, FP8 and scales, and writes zeros to rows that belong to no group.
# Its stores end where the group ends, by lesson 08's window.
#
# It is also launched early: its CTAs may begin while the stream's kernel before still runs (*programmatic dependent
# launch*). They set up barriers, and then wait for that kernel's end (`griddepcontrol_wait`), before anything is read.
# A CTA that loads no further tile lets the next kernel's begin. So a kernel's first steps are hidden behind the end of
# the one before it, as where a layer's two products follow one another.

# %%
from course_kernels.kernels.cute_sm90 import kernel, mainloop, scheduler
from course_kernels.kernels.cute_sm90.epilogues import store
from course_kernels.kernels.cute_sm90.loads import tma

display(fold(kernel.HopperGroupedGemm), fold(tma.load_tile), fold(mainloop.multiply_tile))
display(fold(store.Store), fold(scheduler.find_tile))

# %% [markdown]
# ## What it costs
#
# The record of an H200 has everybody's times in one run, each result verified first. [QuACK](glossary.md#QuACK) is a
# library of CuTe DSL kernels by the authors of FlashAttention; it has its best of 18 configurations here, and of six
# for gradients. Right of 1, our kernel is faster.

# %%
from gemm_course.figures import record_analysis

results = record.load("grouped_mm")
passes = [of for of in ("forward", "dA", "dB") if any("cute" in r["us"].get(of, {}) for r in results["rows"].values())]
record_analysis.speedups_over_peers(results, "cute", passes) if passes else None

# %% [markdown]
# ## Try it
#
# [Exercise 10](../exercises/10_own_epilogue.ipynb): write the epilogue that applies SiLU. Or change a cell and run it
# again:
#
# 1. Compile the small kernel with `tile_n=64`. How many conversions are there, and why? And why not 256 columns?
#    <details><summary>Answer</summary>16. A thread has 128 × 64 / 256 = 32 sums, and one instruction converts two. With
#    256 columns, four stages and the tile of C need 256 KiB of shared memory, and there are 227.</details>
# 2. Change the kernel itself: copy `src/gemm_course/lessons/hopper_kernel.py` to this folder as `my_kernel.py`, set
#    `STAGES = 5` there, `import my_kernel`, and count again. Which lines of the count change?
#    <details><summary>Answer</summary>10 barriers, two for each stage. And 7 waits: the producer waits for each stage
#    at its end.</details>
# 3. In the cell of the ring, pass `copy=3` to `simulate`. How slow may a copy become before four
#    stages are too few?
#    <details><summary>Answer</summary>A stage is filled while the other three are multiplied: up to
#    <code>copy=3</code>.</details>
# 4. Draw `cute_clusters.multicast(together, beside=True)`: two tiles side by side share A. Which is better?
#    <details><summary>Answer</summary>One below the other. A tile has 256 columns of B and 128 rows of A, so B is the
#    one to share.</details>
# 5. In the cell that draws ping-pong, pass `blocks=64` to `simulate`. Does ping-pong still help?
#    <details><summary>Answer</summary>A little. Stores are rare then: they cost cooperative groups 2 of 66 units of
#    time.</details>
# 6. What would go wrong without `producer_tail`?
#    <details><summary>Answer</summary>The CTA could end while a copy is on its way. Its shared memory may belong to
#    another CTA by then, and the copy overwrites that one's blocks.</details>
#
# ## Appendix: tiles cut to fit
#
# You can skip this. It explains the words `narrow`, `flat` and `halved` in the names of configurations.
#
# A tile that goes past the end of a group wastes multiplications. One configuration has tiles of three shapes, to waste
# fewer. A colour is a shape, hatched multiplications are wasted, and the black line is the group's C, 682 × 2048:

# %%
fitted = CuteConfig(128, 192, 64, cluster=2, stages=5, schedule=PINGPONG, last_tile_n=128, tail_tile_n=256)
assert fitted in CONFIGS
cute_clusters.cut_to_fit(fitted, rows=682, columns=2048)

# %% [markdown]
# - **Narrow**: ten columns of 192 and one of 128 are 2048 exactly.
# - **Flat**: the last 42 rows need less than half a [tile row](glossary.md#tile-row), so they get tiles of 64 × 256. A
#   flat tile takes no more registers or shared memory than the ordinary one.
#
# How does the kernel find a tile's position? It first computes the position as if every tile were 192 wide. Then it
# shifts each narrow tile left by the columns saved before it. Tile numbers past the last full tile denote flat tiles.
# The width is part of the `wgmma` instruction's name, so each shape has its own copy of the loops.
#
# Two more details of `find_tile`. If a group has an odd number of tile rows, the last one has no partner below it, so
# its tiles form clusters side by side: eleven columns are an odd number, so one CTA has no tile (the hatched block on
# the right). And the tiles of the last wave can be split in two (`halved`), if enough clusters are idle in that wave.
# Two panels: narrow and flat tiles together, and halved ones, against the plain 128 × 192. Above 1, they are faster:

# %%
halved = replace(in_turn, split_last_wave=True)
picture.gains({
    "narrow and flat": records.ratios(rows, "forward", in_turn, fitted),
    "halved": records.ratios(rows, "forward", in_turn, halved),
})  # fmt: skip

# %% [markdown]
# Both medians are close to 1, but single matrix products gain or lose much more. So the library chooses a configuration
# for each problem (lessons 07 and 17).

# %% [markdown]
# ## Summary
#
# - A warp has a role. One warp copies, two warp groups multiply and store.
# - They meet in a ring of stages. *Full* is reported by the hardware, *empty* by the consumers.
# - Ping-pong hides the store: the other warp group multiplies meanwhile. It helps most where K is short.
# - A cluster shares what two tiles both need. Multicast delivers it once.
# - A register has no address: an epilogue's loop must be unrolled.
#
# ## References
#
# - [CuTe DSL documentation](https://docs.nvidia.com/cutlass/latest/media/docs/pythonDSL/overview.html), NVIDIA.
# - [Efficient GEMM in CUDA](https://docs.nvidia.com/cutlass/latest/media/docs/cpp/efficient_gemm.html), CUTLASS
#   documentation: warp specialization, cooperative and ping-pong kernels.
# - [FlashAttention-3](https://arxiv.org/abs/2407.08608), Shah and others 2024: ping-pong between softmax and products.
# - [QuACK](https://github.com/Dao-AILab/quack): kernels in CuTe DSL.
# - [CUTLASS](https://github.com/NVIDIA/cutlass): `sm90_gemm_tma_warpspecialized_pingpong.hpp` is the same schedule in
#   C++.
#
# ## What to read next
#
# All of this was the forward pass. Lesson 11 is about the two gradients, which are grouped products themselves. Lesson
# 15 compares all kernels on whole layers.
