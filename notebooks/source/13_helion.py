# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown]
# # 13 · Helion
#
# In every lesson so far, half of a kernel was bookkeeping: pointers, strides, masks, block sizes, warps. Helion is a
# language above Triton that leaves this to a compiler. You write loops over tiles; Helion writes the Triton kernel. Its
# *autotuner* searches for a fast configuration. What does Helion write, how fast is it, and what is left for you to
# decide?
#
# **About 40 minutes. Afterwards you can**
#
# - write a grouped product in Helion, and tell which of its loops becomes the launch grid;
# - read the Triton kernel that Helion writes, and compile it for an H200 without a GPU;
# - replace a walk that scans the tiles of other programs;
# - tell a kernel from its configuration, and name what the autotuner searches;
# - see when a grouped product is an ordinary one, and needs no kernel of its own.
#
# You need: lessons [04](04_static_round_robin.ipynb) (persistent kernels, round-robin) and
# [08](08_contiguous_offsets.ipynb) (packed groups). Helion is an extra of the course. If it is missing, the next cell
# shows how to install it.

# %%
import gemm_course  # import first: without a GPU, kernels then run in the interpreter
from gemm_course.notebook.extras import need

need("helion", extra="helion")

# %%
import difflib
import statistics

import torch
import helion
import helion.language as hl
from IPython.display import display
from torch import Tensor

from course_kernels import GemmConfig, codegen, grouped_gemm_jagged_persistent, runtime, schedule, testing
from course_kernels.bench import helion_peer, record
from course_kernels.bench.rows import title_of
from course_kernels.codegen.jagged import build_jagged
from course_kernels.jagged import helion_kernels, tuned
from course_kernels.kernels import jagged
from course_kernels.codegen import ptx
from gemm_course.figures import f13_group_walks, f13_helion_code, timeline, walk_costs
from gemm_course.lessons import l13_group_walks as group_walks, l13_helion_code as helion_code, records, timelines
from gemm_course.lessons.listing import fold, show

device = runtime.device()

# %% [markdown]
# ## One B for all groups
#
# The example is Helion's own. Groups of rows of different lengths ([jagged](glossary.md#jagged) groups) are packed one
# below the other, and **one** matrix B serves all of them. `group_offsets` holds the first row of each group, and the
# number of all rows at the end: G + 1 numbers.

# %%
sizes, K, N = testing.routed_sizes("zipf", 200), 64, 64
A_packed = testing.integers((200, K), torch.float16, 1, device=device)
B = testing.integers((K, N), torch.float16, 2, device=device)
group_offsets = torch.tensor([0, *sizes], device=device).cumsum(0).int()
print("rows of each group:", sizes)
print("group_offsets:     ", group_offsets.tolist())

# %% [markdown]
# Look at the problem before you write a kernel. Each row is multiplied by the same B, whatever its group.
#
# **Guess:** what is the fastest way to compute this?

# %% tags=["hide-output"]
expected = (A_packed.double() @ B.double()).half()
pieces = [rows.double() @ B.double() for rows in A_packed.split(sizes)]
print("group by group equals one product:", torch.equal(torch.cat(pieces).half(), expected))

# %% [markdown]
# <details><summary>Answer</summary>
#
# As one ordinary product, `A_packed @ B`.
#
# </details>
#
# With one B for all groups, **this is a dense GEMM**. It does not need the offsets. By default, the library's
# `grouped_gemm_jagged` gives all rows to its packed kernels (lesson 08) as one group. The record below compares
# everything with cuBLAS on all rows.
#
# The groups matter when anything else differs from group to group: B itself (lesson 08), a scale, a bias, an
# activation. Still, this product is good to study. Whatever it costs more than cuBLAS is the cost of the groups.
#
# ## The smallest kernel
#
# `hl.grid` counts. `hl.tile` cuts an extent into tiles, and masks the last one. `hl.zeros`, `torch.addmm` and indexing
# work on tiles. This is the whole kernel, with its launch:


# %%
@helion.kernel(static_shapes=False, config=helion.Config(block_sizes=[32, 32, 32]))
def by_group(A_packed: Tensor, B: Tensor, group_offsets: Tensor) -> Tensor:
    (rows, K), N = A_packed.shape, B.size(1)
    out = torch.empty(rows, N, dtype=A_packed.dtype, device=A_packed.device)
    for g in hl.grid(group_offsets.size(0) - 1):
        start, end = group_offsets[g], group_offsets[g + 1]
        for tile_m, tile_n in hl.tile([end - start, N]):
            acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
            for tile_k in hl.tile(K):
                acc = torch.addmm(acc, A_packed[start + tile_m.index, tile_k], B[tile_k, tile_n])
            out[start + tile_m.index, tile_n] = acc.to(out.dtype)
    return out


print("exact:", torch.equal(by_group(A_packed, B, group_offsets), expected))

# %% [markdown]
# There is no pointer, no stride, no mask and no launch. It is shorter than the kernel of lesson 03, and that one had no
# groups. But a Triton kernel runs on the GPU. Helion's `to_triton_code` returns it. (The course's `generated` calls it,
# and leaves out comments and copies of variables.)

# %% tags=["nbval-ignore-output"]
written = helion_code.generated(by_group, A_packed, B, group_offsets)
print(written.text)

# %% [markdown]
# You know every line of it:
#
# - `offset_0` is the number of the program. The **outermost loop** of a Helion kernel becomes the launch grid. All
#   other loops stay loops in the program.
# - `indices_1` and `mask_1`: each `hl.tile` becomes a range, with a mask where its extent ends (lesson 03).
# - `tl.load` with strides and two masks comes from one expression, `A_packed[...]`.
#
# The picture counts the Triton lines for each Helion line:

# %% tags=["nbval-ignore-output"]
f13_helion_code.expansion(written)

# %% [markdown]
# **Guess:** how many programs does a launch have here? How many of the 132 [SMs](glossary.md#SM) of an H200 have work?

# %% tags=["hide-output"]
print("programs:", written.programs)
print("rows of the busiest program:", max(sizes), "of", sum(sizes))

# %% [markdown]
# <details><summary>Answer</summary>
#
# 8 programs, one for each group. So at most 8 SMs have work.
#
# </details>
#
# The largest group has a third of the rows, and one program computes them all. So the kernel is right and short, but
# slow on a large GPU.
#
# **Helion writes the code of your loops. It does not choose the loops.** You still decide which programs there are, and
# which tiles they compute.
#
# ## A persistent kernel, group by group
#
# Take a fixed number of programs, as in lesson 04. Helion's example calls them *workers*. In the example, every worker
# goes through all groups. In each group the worker counts *slots* (turns of a loop, not lesson 12's slots), and
# computes the tile of a slot if there is one. This is our own version of that walk:

# %%
show(helion_peer.scanning, "for worker in", "if tile < tiles")

# %% [markdown]
# The innermost loop over slots runs `tiles` times, for *every* worker. Take four workers, and the groups of Helion's
# example: 64, 128, 192 and 256 rows of 128 columns, in tiles of 64 × 64.
#
# **Guess:** how many slots does one worker look at, and how many of these are tiles of its own?

# %% tags=["hide-output"]
document, block = (64, 128, 192, 256), (64, 64, 64)
walks = {
    "group by group: a square is a slot that the worker looks at; dotted: no tile of its own":
        group_walks.slots_of(document, 128, 4, block, one_index=False),
    "one index over all tiles": group_walks.slots_of(document, 128, 4, block, one_index=True),
}  # fmt: skip
f13_group_walks.slots(walks)

# %% [markdown]
# <details><summary>Answer</summary>
#
# All 20. Of these, 4 or 6 are the worker's own tiles.
#
# </details>
#
# A colour is a group. The walk group by group has two disadvantages:
#
# 1. Each worker looks at all slots, also at those of other workers.
# 2. Each group starts again with worker 0. Group 0 has two tiles, for workers 0 and 1. Group 2 has six, and the two
#    that are left over go to workers 0 and 1 again. These two end up with six tiles each, the others with four.
#
# The same counts for 132 workers, on the batches of the record below, in tiles of 128 × 128:

# %%
batches = record.load("jagged")["rows"]
for row in batches.values():
    found = group_walks.scanned_slots(row["sizes"], row["N"], 132, (128, 128))
    print(f"{title_of(row):54} {found.tiles:6,} tiles, {found.group_by_group:9,} slots;", end=" ")
    print(f"most tiles of a worker: {found.busiest_group_by_group:3}; with one index {found.busiest:2}")

# %% [markdown]
# There are 132 times as many slots as tiles, in every batch. Skipping one slot is cheap: a comparison, and one turn of
# a loop. The second disadvantage is worse. With many small groups, the first workers get several times their share.
#
# ## One index over all tiles
#
# Lesson 08 has the remedy. Count the [tile rows](glossary.md#tile-row) of all groups, and number all tiles from 0.
# Worker w computes the tiles w, w + workers, w + 2 · workers, … and looks at no others. To find the group of a tile,
# compare its tile row with the ends of all groups' tile rows at once. Helper functions are ordinary Python, and Helion
# inlines them:


# %%
def count_tile_rows(group_offsets, width, BLOCK_M):
    """The end of each group, and the number of tile rows up to there; both repeat after the last group."""
    groups, G = hl.arange(width), group_offsets.size(0) - 1
    starts = hl.load(group_offsets, [torch.clamp(groups, 0, G)])
    ends = hl.load(group_offsets, [torch.clamp(groups + 1, 0, G)])
    return ends, hl.cumsum((ends - starts + BLOCK_M - 1) // BLOCK_M, 0)


def find_group(tile_row, ends, tile_row_ends, total_m):
    """Of the group that has a tile row: its first tile row, its first row, and the row after its last one."""
    passed = tile_row_ends <= tile_row
    first = torch.amax(torch.where(passed, tile_row_ends, 0))
    start = torch.amax(torch.where(passed, ends, 0))
    return first, start, torch.amin(torch.where(passed, total_m, ends))


# %% [markdown]
# `width` is a power of two that is at least G, because Triton's ranges must have such a length.
#
# The rows of a tile are now *computed*, and not cut by `hl.tile`. So Helion no longer knows where they end, and you
# write the masks: `extra_mask`. You also ask for the block sizes: `hl.register_block_size(16, 256)` makes the
# configuration choose one from 16 to 256.


# %%
@helion.kernel(static_shapes=False, config=helion.Config(block_sizes=[32, 32, 32]))
def by_one_index(A_packed: Tensor, B: Tensor, group_offsets: Tensor, workers: int, width: hl.constexpr) -> Tensor:
    BLOCK_M, BLOCK_N = hl.register_block_size(16, 256), hl.register_block_size(16, 256)
    (total_m, K), N = A_packed.shape, B.size(1)
    out = torch.empty(total_m, N, dtype=A_packed.dtype, device=A_packed.device)
    for worker in hl.grid(workers):
        ends, tile_row_ends = count_tile_rows(group_offsets, width, BLOCK_M)
        tiles_n = (N + BLOCK_N - 1) // BLOCK_N
        for tile in hl.grid(worker, torch.amax(tile_row_ends) * tiles_n, workers):
            first, start, end = find_group(tile // tiles_n, ends, tile_row_ends, total_m)
            rows = start + (tile // tiles_n - first) * BLOCK_M + hl.arange(BLOCK_M)
            cols = tile % tiles_n * BLOCK_N + hl.arange(BLOCK_N)
            acc = hl.zeros([BLOCK_M, BLOCK_N], dtype=torch.float32)
            for tile_k in hl.tile(K):
                block_a = hl.load(A_packed, [rows, tile_k.index], extra_mask=(rows < end)[:, None])
                block_b = hl.load(B, [tile_k.index, cols], extra_mask=(cols < N)[None, :])
                acc = hl.dot(block_a, block_b, acc=acc)
            hl.store(out, [rows, cols], acc.to(out.dtype), extra_mask=(rows < end)[:, None] & (cols < N)[None, :])
    return out


for workers in (1, 4, 50):
    result = by_one_index(A_packed, B, group_offsets, workers, 8)
    print(f"{workers} workers, exact:", torch.equal(result, expected))

# %% [markdown]
# Now look at the loops that Helion writes for both walks, the outer ones first.
#
# **Guess:** how many loops are around the loop over K, in each of the two?

# %% tags=["nbval-ignore-output", "hide-output"]
scanning = helion.kernel(helion_peer.scanning, static_shapes=False, config=helion.Config(block_sizes=[32, 32, 32]))
for kernel, extra in ((scanning, (4,)), (by_one_index, (4, 8))):
    found = helion_code.generated(kernel, A_packed, B, group_offsets, *extra)
    print(found.name, *found.loops(), sep="\n    for … in tl.range of ")

# %% [markdown]
# <details><summary>Answer</summary>
#
# Group by group there are two: over groups and over slots. With one index there is one, over the worker's own tiles.
#
# </details>
#
# The loop over tiles starts at the number of the worker, and its step, the last of the three numbers, is the number of
# workers.
#
# ## The production kernel
#
# The library has this walk twice, in Helion and in Triton. Beyond yours, both order tiles for the [L2](glossary.md#L2)
# cache (lesson 05). They accept offsets that end before the last row, and write zeros to the rows after them. A_packed
# and B may have two dtypes.

# %%
display(fold(helion_kernels.jagged_persistent), fold(jagged.jagged_persistent_kernel))

# %%
ours = grouped_gemm_jagged_persistent(A_packed, B, group_offsets, implementation="helion")
print("exact:", torch.equal(ours, expected))

# %% [markdown]
# ## What the compiler made of it
#
# We compile four kernels for an H200, in tiles of 128 × 128 × 64, with eight warps:
#
# - the kernel of lesson 04, which reads lists through tables of pointers;
# - the kernel of lesson 08, which reads through TMA descriptors;
# - the walk of this lesson, in Triton and in Helion.

# %% tags=["hide-input"]
a, b = (torch.empty(extents, dtype=torch.float16, device=device) for extents in ((4096, 512), (512, 512)))
offsets = torch.empty(9, dtype=torch.int32, device=device)  # nothing reads the elements of these three
config = {"block_sizes": [128, 128, 64], "num_warps": 8, "num_stages": 3, "group_m": 8, "workers_per_sm": 1}
kernel = helion_kernels.make_kernel("persistent", a, b, config)
in_helion = helion_code.generated(kernel, *helion_kernels.arguments("persistent", a, b, offsets))
same = GemmConfig(128, 128, 64, 8, 3, 8)
compiled = {
    "04, round_robin": codegen.compile_kernel("round_robin", "sm_90", dtype="float16", config=same),
    "08, contiguous": codegen.compile_kernel("contiguous", "sm_90", dtype="float16", config=same),
    "13, jagged in Triton": codegen.compile_kernel(build_jagged(dtype="float16", config=same), "sm_90"),
    **helion_code.compile_all({"13, jagged in Helion": in_helion}),
}

# %% tags=["nbval-ignore-output", "hide-input"]
kinds = {"wgmma": "wgmma", "cp.async": "cp.async", "TMA load": "bulk tensor load"}
kinds |= {"load": "ld.global", "store": "st.global"}
print(f"{'':20}", *(f"{kind:>9}" for kind in (*kinds, "all", "registers")))
for name, one in compiled.items():
    counts = [one.instructions[kind] for kind in kinds.values()]
    print(f"{name:20}", *(f"{count:9}" for count in (*counts, ptx.count_instructions(one.ptx), one.registers)))

# %%
print("all multiply with wgmma:", all(one.instructions["wgmma"] for one in compiled.values()))
tma = [name for name, one in compiled.items() if one.instructions["bulk tensor load"]]
print("with copies by descriptor:", *tma)
hand, helions = compiled["13, jagged in Triton"], compiled["13, jagged in Helion"]
print("same wgmma by hand and by Helion:", hand.instructions["wgmma"] == helions.instructions["wgmma"])

# %% [markdown]
# Helion's kernel multiplies with the same tensor-core instructions as the kernel written by hand. It also copies in the
# same way: `cp.async` through pointers. The kernel of lesson 08 copies the same blocks with far fewer instructions,
# through descriptors. (In all it has the most instructions, because it serves more cases.)
#
# Helion can use descriptors, too (`indexing="tensor_descriptor"` in a configuration), but only for tiles that `hl.tile`
# cuts. Computed rows go through pointers. This is the price of a walk of your own.
#
# How much did a person write? Lines of source, without comments and documentation:

# %%
walk = (jagged.count_tiles, jagged.find_group, jagged.multiply_tile, jagged.jagged_persistent_kernel)
parts = (helion_kernels.count_tiles, helion_kernels.find_group, helion_kernels.jagged_persistent)
print("one index, in Triton, without its launch:", helion_code.source_lines(*walk))
print("one index, in Helion, with its launch:   ", helion_code.source_lines(*parts))
print("by_group, in Helion, with its launch:    ", helion_code.source_lines(by_group))

# %% [markdown]
# `by_group` is short because `hl.tile` cuts the rows and writes the masks. As soon as you choose the walk yourself,
# Helion is hardly shorter than Triton. It still does the launch, the strides, the widths of integers, and the
# configuration.
#
# ## A kernel and its configurations
#
# A `helion.Config` contains everything that may change without changing the result. We take the same function with two
# other configurations, and print the lines of the generated kernel that change.
#
# **Guess:** what does each of the two change?


# %% tags=["nbval-ignore-output", "hide-output"]
def changed(**values):
    options = {"block_sizes": [32, 32, 32], **values}
    other = helion.kernel(by_group.fn, static_shapes=False, config=helion.Config(**options))
    old, new = (helion_code.kernel_lines(each, A_packed, B, group_offsets) for each in (by_group, other))
    old, new = ([line.strip() for line in lines if "def " not in line] for lines in (old, new))
    print(values)
    for line in list(difflib.unified_diff(old, new, lineterm="", n=0))[2:]:
        if not line.startswith("@@"):
            print("   ", line[0], line[1:])


changed(loop_orders=[[1, 0]])
changed(pid_type="persistent_interleaved")

# %% [markdown]
# <details><summary>Answer</summary>
#
# The first one exchanges the loops over tile rows and tile columns. The second one makes the kernel persistent: its
# grid becomes a loop over groups, with the number of programs as its step.
#
# </details>
#
# The one word `persistent_interleaved` does what lesson 04 did by hand.
#
# But one program still computes a whole group. No configuration can change the walk from "group by group" to "one
# index". The two walks are different loops, and the loops are the kernel. A configuration only chooses how they run.
#
# ### What the autotuner searches
#
# These are the values in one configuration of `by_one_index`, with their defaults:

# %% tags=["nbval-ignore-output"]
untuned = helion.kernel(by_one_index.fn, static_shapes=False)
for name, value in untuned.bind((A_packed, B, group_offsets, 4, 8)).config_spec.default_config().items():
    print(f"{name:24} {value}")

# %% [markdown]
# Five values for each of two block sizes and three for that of K make 75 choices. With warps, stages and the rest there
# are millions. Helion's autotuner starts with a few, keeps the fast ones, and changes them step by step. It compiles
# and measures each attempt. Its authors give about ten minutes for a search of hundreds of attempts.
#
# Without a configuration, a kernel searches *at its first call*, and again for each new kind of shape. (Lesson 07 shows
# such a stall.) So the library ships a table, and a program fills it ahead of time (`benchmarks/helion_tune.py`). The
# search starts from eight configurations that are known to be good. A short search that started from Helion's default,
# tiles of 16×16×16, found nothing better than this default. Here is the table. A shape that is not in it takes the
# nearest entry.

# %% tags=["hide-input"]
table = record.read(tuned.TABLES / "sm_90.json")
if table["provenance"]:
    print(f"Helion {table['helion']} on {table['provenance']['gpu']}: {table['seconds']} s for each row and kernel")
else:
    print("The tuner has not been run yet: these configurations were chosen by hand.")
for entry in tuned.read_table("sm_90"):
    total_m, columns, depth, G = entry.shape
    blocks = "×".join(map(str, entry.config["block_sizes"]))
    launch = f"{entry.config.get('num_warps', 4)} warps, {entry.config.get('num_stages', 1)} stages"
    us = "" if entry.us is None else f"{entry.us:8.1f} µs"
    shape = f"{G} groups, {total_m:,} rows, N {columns}, K {depth}"
    print(f"{entry.kernel:10} {shape:40} {blocks:11} {launch}{us}")

# %% [markdown]
# ## What it costs
#
# First the simulation of lesson 05, for both walks. The batch is that of a layer: 128 experts, Zipf, 132 workers. (Two
# numbers are assumptions, the times to skip a slot and to start a group.)

# %%
layer = batches["qwen3-up"]
problems = [(rows, layer["N"], layer["K"]) for rows in layer["sizes"]]
shape = (128, 128, 64)
scanned = group_walks.group_by_group(problems, 132, shape)
indexed = schedule.simulate(problems, "round_robin", 132, shape)
runs = {"group by group": scanned, "one index": indexed}
bounds = dict.fromkeys(runs, indexed.lower_bounds.work)
timeline.compare(
    {name: timelines.simulated_bars(run) for name, run in runs.items()}, rows=132, row_name="worker", bounds=bounds,
    height=1.9,
)  # fmt: skip

# %%
for name, run in runs.items():
    print(f"{name:15} {run.makespan:6.0f} µs simulated")
slots, groups = sum(map(len, indexed.programs)), len(problems)
slots_us, groups_us = slots * group_walks.SLOT_US, groups * group_walks.GROUP_US
print(f"assumed: {group_walks.SLOT_US} µs for a slot, {group_walks.GROUP_US} µs to start a group")
print(f"group by group: of these, {slots_us:.0f} µs for slots, {groups_us:.0f} µs for starting groups")
us = records.jagged_times(batches)
pair = us[title_of(layer, lines=2)]
ratio = pair["helion-scanning"] / pair["helion-persistent"]
print("recorded on:", record.load("jagged")["provenance"]["gpu"])
print(f"simulated: {scanned.makespan / indexed.makespan:.2f} times as long group by group; recorded: {ratio:.2f} times")

# %% [markdown]
# Look at the upper timeline. A small group gives work only to the first workers. The others pass it by and finish
# early. Compared with that, slots and starts of groups cost little. The simulation knows tiles, slots and groups. It
# does not know the order for the L2 cache, which only one of the two recorded kernels has.
#
# Now all batches and all kernels, compared with cuBLAS on the packed rows. (Helion without tuning is too slow for this
# picture. The numbers below include it.)

# %%
names = {
    "cublas": "cuBLAS product", "auto": "ours (auto)", "triton-persistent": "Triton",
    "helion-persistent": "Helion", "helion-persistent-default": "untuned", "helion-scanning": "group by group",
}  # fmt: skip
drawn = {name: label for name, label in names.items() if label != "untuned"}
known = {title: {name: times[name] for name in drawn if name in times} for title, times in us.items()}
walk_costs.time_ratios(known, drawn, base="cublas")

# %%
for name, label in names.items():
    ratios = [times[name] / times["cublas"] for times in us.values() if name in times]
    print(f"{label:24} {statistics.geometric_mean(ratios):.2f} × the time of cuBLAS (geometric mean)")

# %%
small = [times for times in us.values() if times["cublas"] < 100]
large = [times for times in us.values() if times["cublas"] >= 100]
longer = [times["auto"] - times["cublas"] for times in small]
ratios = [times["auto"] / times["cublas"] for times in large]
print(f"ours over cuBLAS: {min(longer):.1f} to {max(longer):.1f} µs longer on the {len(small)} small batches,", end=" ")
print(f"{min(ratios):.2f} to {max(ratios):.2f} times as long on the {len(large)} large ones")
faster = [times["helion-persistent"] < times["triton-persistent"] for times in us.values()]
print(f"Helion is faster than Triton with the same walk on {sum(faster)} of {len(faster)} batches")

# %% [markdown]
# Compare the numbers in four steps:
#
# - *Ours (auto)* and *cuBLAS*: two dense products. Ours takes about a microsecond longer on a small batch, and about as
#   long on a large one.
# - *Untuned* and *Helion*: the gain of a configuration. The default is not meant to be used.
# - *Group by group* and *Helion*: the gain of the walk (and of the order for the L2 cache), with the same blocks.
# - *Helion* and *cuBLAS*: pointers in place of descriptors, the cost of groups, which this product does not need, and
#   perhaps what a search did not find.
#
# Of the two persistent kernels, which walk alike, Helion's is faster. Its configurations come from the table, for which
# a search was run. The Triton kernel takes one of three that were written by hand.
#
# ## What goes wrong
#
# ### A kernel for every batch
#
# Helion's default is `static_shapes=True`: the compiler knows all extents, so it can leave out masks. Suppose three
# batches arrive, with 200, 199 and 150 rows.
#
# **Guess:** how many kernels does Helion compile, with `True` and with `False`?


# %% tags=["hide-output"]
def kernels_for(static):
    kernel = helion.kernel(by_one_index.fn, static_shapes=static, config=by_one_index.configs[0])
    return len({id(kernel.bind((A_packed[:rows], B, group_offsets, 4, 8))) for rows in (200, 199, 150)})


print("static_shapes=True: ", kernels_for(True), "kernels")
print("static_shapes=False:", kernels_for(False), "kernel")

# %% [markdown]
# <details><summary>Answer</summary>
#
# With `True` three, one for each number of rows. With `False` one.
#
# </details>
#
# With `True` and without a configuration, there is also one *search* for each number of rows. A router rarely sends the
# same numbers twice. For jagged groups always write `static_shapes=False`.
#
# ### A name of the notebook
#
# Helion reads the source of your function, and the names around it. Suppose that another cell has a variable `tile`:

# %% tags=["nbval-ignore-output"]
tile = 0
try:
    helion.kernel(by_one_index.fn, static_shapes=False, config=by_one_index.configs[0]).bind(
        (A_packed, B, group_offsets, 4, 8)
    )
except helion.exc.CannotModifyHostVariableOnDevice as error:
    print(str(error).splitlines()[0])
del tile

# %% [markdown]
# In Python, the kernel's `tile` would be a local name. Helion takes it for the notebook's variable, which a kernel may
# not change. Rename one of the two.
#
# ## Try it
#
# [Exercise 13](../exercises/13_persistent_helion.ipynb): the persistent tile assignment, tiles of jagged groups for
# workers, column by column. Or change a cell and run it again:
#
# 1. Let `find_group` return `total_m` as the row after the group's last one, and run `by_one_index`'s cell again. Which
#    rows are wrong? And which would be wrong if each group had its own B?
#    <details><summary>Answer</summary>None. A tile that crosses the end of its group computes rows of the next group,
#    with the same B. So it stores the right values a second time. With a B for each group these rows would be wrong
#    (lesson 08).</details>
# 2. Draw `group_walks.slots` for eight groups of 64 rows and four workers. Which workers are idle, and why?
#    <details><summary>Answer</summary>With N = 128, each group has two tiles, always for workers 0 and 1. Group by
#    group, workers 2 and 3 compute nothing. With one index all have four tiles.</details>
# 3. `changed(block_sizes=[64, 32, 32])`: which lines of the kernel change, and why so few?
#    <details><summary>Answer</summary>None. Block sizes are constants above the kernel, such as <code>_BLOCK_SIZE_1 =
#    tl.constexpr(64)</code>. The kernel only names them.</details>
# 4. In the simulation take the batch `"square"`, the last one, instead of `"qwen3-up"`. Which of the two disadvantages
#    is left?
#    <details><summary>Answer</summary>Both, but they matter less: each of the eight groups has about a thousand tiles.
#    The slots, 8,320 for each worker, cost 83 µs at 0.01 µs each. The uneven start costs more: the busiest worker
#    has 68 tiles, not 64.</details>
#
# ## Summary
#
# - With one B for all groups, the product is a dense GEMM: use `A_packed @ B`, or `grouped_gemm_jagged`.
# - Helion's outermost loop is the launch grid. Every `hl.tile` brings its range and its mask.
# - Helion writes the code of your loops. It does not choose the loops, and no configuration changes them.
# - With one index over all tiles, a worker looks only at its own tiles, and small groups are balanced.
# - Measure configurations ahead of time and ship a table. Write `static_shapes=False` when shapes change with every
#   batch.
#
# ## References
#
# - [Helion](https://github.com/pytorch/helion), and its [example of a grouped
#   GEMM](https://github.com/pytorch/helion/blob/main/examples/grouped_gemm.py), the source of the walk group by group.
# - [Helion's documentation](https://helionlang.com).
# - Tillet, Kung, Cox, [Triton: an intermediate language and compiler for tiled neural network
#   computations](https://doi.org/10.1145/3315508.3329973), 2019.
# - [TritonBench](https://github.com/meta-pytorch/tritonbench) has this product as its operator `grouped_gemm`.
#   `course_kernels.jagged.tritonbench` has adapters for it.
# - Compared with, in the records: cuBLAS on the packed rows, torch's `grouped_mm`.
#
# ## What to read next
#
# To learn more Helion, read the examples in its repository. Lesson 14 builds the whole expert layer around such
# products. Lesson 15 shows when a ceiling such as cuBLAS can be trusted.
