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
# language above Triton that leaves this to a compiler. You write loops over tiles; Helion writes the Triton kernel, and
# its *autotuner* searches for a configuration. What does it write, how good is it, and what is left for you to decide?
#
# After this lesson you can
#
# - write a grouped product in Helion, and say which of its loops becomes the launch grid;
# - read the Triton kernel that Helion writes, and compile it for an H200 without a GPU;
# - count what a persistent walk looks at, and replace a walk that scans other workers' tiles;
# - say what belongs to the kernel and what to its configuration, and what the autotuner searches;
# - tell when a grouped product is an ordinary one, and not write a kernel at all.
#
# About 40 minutes. You need lessons [04](04_static_round_robin.ipynb) (persistent kernels, round-robin) and
# [08](08_contiguous_offsets.ipynb) (packed groups). Helion has an extra of its own. If it is missing, the next cell
# says how to install it.

# %%
import gemm_course  # noqa: F401 (first: without a GPU, it has kernels run in the interpreter)
from gemm_course.extras import need

need("helion", extra="helion")

# %%
import difflib
import statistics

import torch
import helion
import helion.language as hl
from torch import Tensor

from course_kernels import GemmConfig, codegen, grouped_gemm_jagged_persistent, runtime, schedule, testing
from course_kernels.bench import helion_peer, record
from course_kernels.codegen.jagged import build_jagged
from course_kernels.jagged import helion_kernels, tuned
from course_kernels.kernels import jagged
from gemm_course.figures import group_walks, helion_code, pipelines, timeline, walk_costs
from gemm_course.figures.listing import fold, show

device = runtime.device()

# %% [markdown]
# ## One B for all groups
#
# The example is Helion's own: groups of rows of different lengths (*jagged* groups), packed one below the other, and
# **one** matrix B for all of them. `group_offsets` has the first row of each group, and the number of all rows at the
# end: G + 1 numbers.

# %%
sizes, K, N = testing.routed_sizes("zipf", 200), 64, 64
A_packed = testing.integers((200, K), torch.float16, 1, device=device)
B = testing.integers((K, N), torch.float16, 2, device=device)
group_offsets = torch.tensor([0, *sizes], device=device).cumsum(0).int()
print("rows of each group:", sizes)
print("group_offsets:     ", group_offsets.tolist())

# %% [markdown]
# Before you write a kernel, look at the problem. Each row is multiplied by the same B, whichever group it belongs to.
# What is the fastest way to compute this?
#
# <details><summary>Answer</summary>One ordinary product, <code>A_packed @ B</code>. It does not need the offsets at
# all.</details>

# %%
expected = (A_packed.double() @ B.double()).half()
pieces = [rows.double() @ B.double() for rows in A_packed.split(sizes)]
print("group by group equals one product:", torch.equal(torch.cat(pieces).half(), expected))

# %% [markdown]
# So let us be honest: with a shared B, **this is one dense GEMM**. The library's `grouped_gemm_jagged` computes it that
# way by default. cuBLAS on all rows is the yardstick in the record below. The groups matter as soon as anything else
# differs from group to group: B itself (lesson 08), a scale, a bias, an activation. Still, this product is a good one
# to study. The whole cost of the groups is visible, because nothing else is there.
#
# ## The smallest kernel
#
# `hl.grid` counts. `hl.tile` cuts an extent into tiles, and knows where the last one ends. `hl.zeros`, `torch.addmm`
# and indexing work on tiles.


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
# No pointer, no stride, no mask, no launch. It is shorter than the kernel of lesson 03, and that one had no groups.
# What runs on the GPU is still a Triton kernel. `to_triton_code` returns it (this lesson's `generated` calls it, and
# leaves out comments and copies):

# %% tags=["nbval-ignore-output"]
written = helion_code.generated(by_group, A_packed, B, group_offsets)
print(written.text)

# %% [markdown]
# Read it from the top. You know every line:
#
# - `offset_0` is the program's number. The **outermost loop** of a Helion kernel became the launch grid. All other
#   loops are loops in the program.
# - `indices_1`, `mask_1`: each `hl.tile` became a range and a mask where its extent ends (lesson 03).
# - `tl.load` with strides and two masks: one line of `A_packed[...]`.
#
# Each Helion line, and the number of Triton lines that came of it:

# %% tags=["nbval-ignore-output"]
helion_code.expansion(written)

# %% [markdown]
# Now the important question. How many programs does a launch have here, and how many SMs of an H200 have work?
#
# <details><summary>Answer</summary>One for each group: 8 programs, so at most 8 of 132 SMs. The largest group has a
# third of the rows, and one program computes them all.</details>

# %%
print("programs:", written.programs)
print("rows of the busiest program:", max(sizes), "of", sum(sizes))

# %% [markdown]
# The kernel is right, short, and slow on a large GPU. **Helion writes the code of your loops. It does not choose the
# loops.** Which programs there are, and which tiles they compute, is still yours to say.
#
# ## A persistent kernel, group by group
#
# Take a fixed number of programs, as in lesson 04 (Helion's example calls them *workers*). The example's document lets
# every worker go through all groups. In each group the worker counts slots, and computes a slot's tile if there is one:

# %%
show(helion_peer.scanning, "for worker in", "if tile < tiles")

# %% [markdown]
# This is our own version of that walk, for comparison; the whole kernel:

# %%
fold(helion_peer.scanning)

# %% [markdown]
# The condition `if tile < tiles` is in the innermost loop over tiles, and that loop runs `tiles` times, for *every*
# worker. Four workers, and the document's groups of 64, 128, 192 and 256 rows, in tiles of 64 × 64. How many slots does
# one worker look at? How many of them are its own?

# %%
document, block = (64, 128, 192, 256), (64, 64, 64)
walks = {
    "group by group: a square is a slot that the worker looks at; dotted: no tile of its own":
        group_walks.slots_of(document, 128, 4, block, one_index=False),
    "one index over all tiles": group_walks.slots_of(document, 128, 4, block, one_index=True),
}  # fmt: skip
group_walks.slots(walks)

# %% [markdown]
# A colour is a group. The upper walk has two faults:
#
# 1. Each worker looks at all 20 slots, to find the 4 to 6 tiles that are its own.
# 2. Each group starts again with worker 0. Group 0 has two tiles, for workers 0 and 1. Group 2 has six, and the two
#    left over go to workers 0 and 1 again. They end up with six tiles each, the others with four.
#
# With 132 workers, on the batches of the record below, in the tiles of 128 × 128 that a large product gets:

# %%
batches = record.load("jagged")["rows"]
for row in batches.values():
    found = group_walks.scanned_slots(row["sizes"], row["N"], 132, (128, 128))
    print(f"{row['title']:42} {found.tiles:6} tiles, {found.group_by_group:8} slots scanned;", end=" ")
    print(f"most tiles of a worker: {found.busiest_group_by_group:3}, by one index {found.busiest}")

# %% [markdown]
# `slots scanned` is 132 times the number of tiles, whatever the batch. Skipping one slot is cheap: a comparison and a
# turn of a loop. The second fault is worse. With many small groups, the first workers get several times their share.
#
# ## One index over all tiles
#
# Lesson 08 has the remedy. Call the tiles of the same rows a *strip*. Count the strips of all groups, and number all
# tiles through. Worker w computes the tiles w, w + workers, w + 2 · workers, … and looks at no other. To find a tile's
# group, compare its strip with all groups at once. Helper functions are ordinary Python. Helion inlines them:


# %%
def count_strips(group_offsets, width, BLOCK_M):
    """The end of each group, and the number of strips up to there; both repeat after the last group."""
    groups, G = hl.arange(width), group_offsets.size(0) - 1
    starts = hl.load(group_offsets, [torch.clamp(groups, 0, G)])
    ends = hl.load(group_offsets, [torch.clamp(groups + 1, 0, G)])
    return ends, hl.cumsum((ends - starts + BLOCK_M - 1) // BLOCK_M, 0)


def find_group(strip, ends, strip_ends, total_m):
    """The first strip of a strip's group, the group's first row, and the row after its last."""
    passed = strip_ends <= strip
    first = torch.amax(torch.where(passed, strip_ends, 0))
    start = torch.amax(torch.where(passed, ends, 0))
    return first, start, torch.amin(torch.where(passed, total_m, ends))


# %% [markdown]
# `width` is a power of two that is not less than G: Triton's ranges must be one, and Helion cannot change that.
#
# The rows of a tile now are *computed*, not cut by `hl.tile`. So Helion no longer knows where they end, and the masks
# are yours again: `extra_mask`. Block sizes no longer follow from `hl.tile`, either: `hl.register_block_size(16, 256)`
# asks the configuration for one from 16 to 256.


# %%
@helion.kernel(static_shapes=False, config=helion.Config(block_sizes=[32, 32, 32]))
def by_one_index(A_packed: Tensor, B: Tensor, group_offsets: Tensor, workers: int, width: hl.constexpr) -> Tensor:
    BLOCK_M, BLOCK_N = hl.register_block_size(16, 256), hl.register_block_size(16, 256)
    (total_m, K), N = A_packed.shape, B.size(1)
    out = torch.empty(total_m, N, dtype=A_packed.dtype, device=A_packed.device)
    for worker in hl.grid(workers):
        ends, strip_ends = count_strips(group_offsets, width, BLOCK_M)
        tiles_n = (N + BLOCK_N - 1) // BLOCK_N
        for tile in hl.grid(worker, torch.amax(strip_ends) * tiles_n, workers):
            first, start, end = find_group(tile // tiles_n, ends, strip_ends, total_m)
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
# Look at the loops that Helion wrote for both walks, the outer ones first. How many loops are around the loop over K?

# %% tags=["nbval-ignore-output"]
scanning = helion.kernel(helion_peer.scanning, static_shapes=False, config=helion.Config(block_sizes=[32, 32, 32]))
for kernel, extra in ((scanning, (4,)), (by_one_index, (4, 8))):
    found = helion_code.generated(kernel, A_packed, B, group_offsets, *extra)
    print(found.name, *found.loops(), sep="\n    for … in tl.range of ")

# %% [markdown]
# Group by group there are two, over groups and over slots. By one index there is one: it starts at the worker's number,
# and its step, the last of the three numbers, is the number of workers. The library's kernel is the same walk. It also
# orders tiles for the L2 cache (lesson 05), accepts offsets that end before the last row, and writes zeros there:

# %%
fold(helion_kernels.jagged_persistent)

# %%
ours = grouped_gemm_jagged_persistent(A_packed, B, group_offsets, implementation="helion")
print("exact:", torch.equal(ours, expected))

# %% [markdown]
# ## Beside lessons 04 and 08
#
# Now the kernels side by side, all compiled for an H200, here, in tiles of 128 × 128 × 64, with eight warps:
#
# - lesson 04's kernel, which reads lists through tables of pointers;
# - lesson 08's kernel, which reads through TMA descriptors;
# - the walk of this lesson in Triton, written by hand, and in Helion.

# %%
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

# %% tags=["nbval-ignore-output"]
kinds = {"wgmma": "wgmma", "cp.async": "cp.async", "TMA load": "bulk tensor load"}
kinds |= {"load": "ld.global", "store": "st.global"}
print(f"{'':20}", *(f"{kind:>9}" for kind in (*kinds, "all", "registers")))
for name, one in compiled.items():
    counts = [one.instructions[kind] for kind in kinds.values()]
    print(f"{name:20}", *(f"{count:9}" for count in (*counts, pipelines.count_instructions(one.ptx), one.registers)))

# %%
print("all multiply with wgmma:", all(one.instructions["wgmma"] for one in compiled.values()))
tma = [name for name, one in compiled.items() if one.instructions["bulk tensor load"]]
print("with copies by descriptor:", *tma)
hand, helions = compiled["13, jagged in Triton"], compiled["13, jagged in Helion"]
print("same wgmma by hand and by Helion:", hand.instructions["wgmma"] == helions.instructions["wgmma"])

# %% [markdown]
# Helion's kernel multiplies with the same tensor-core instructions as the one written by hand, and copies as that one
# does: `cp.async` through pointers. Lesson 08's kernel needs far fewer copies, by descriptor, for the same blocks.
# (Counting all instructions it is the longest: it serves more cases, and has more ways to store.) Helion can use
# descriptors, too (`indexing="tensor_descriptor"` in a configuration), but only for what `hl.tile` cuts. Computed rows
# go through pointers. This is the price of choosing the walk yourself.
#
# And how much did a person write? Lines of source, without comments and documentation:


# %%
def source_lines(*functions):
    import ast
    import inspect

    trees = [ast.parse(inspect.getsource(getattr(one, "fn", one))) for one in functions]
    for tree in trees:
        body = tree.body[0].body
        tree.body[0].body = body[1:] if isinstance(body[0], ast.Expr) and len(body) > 1 else body
        tree.body[0].decorator_list = []
    return sum(len(ast.unparse(tree).splitlines()) for tree in trees)


walk = (jagged.count_tiles, jagged.find_group, jagged.multiply_tile, jagged.jagged_persistent_kernel)
parts = (helion_kernels.count_tiles, helion_kernels.find_group, helion_kernels.jagged_persistent)
print("one index, in Triton, without its launch:", source_lines(*walk))
print("one index, in Helion, with its launch:   ", source_lines(*parts))
print("by_group, in Helion, with its launch:    ", source_lines(by_group))

# %% [markdown]
# `by_group` is short because `hl.tile` does its work. As soon as you choose the walk yourself, Helion is hardly shorter
# than Triton. What remains is worth having: the launch, the strides, the widths of integers, and the configuration.

# %% [markdown]
# ## A kernel and its configurations
#
# A `helion.Config` is everything that may change without changing the result. Same function, other configurations: the
# lines of the generated kernel that change. Guess before each what it does.


# %% tags=["nbval-ignore-output"]
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
# The first one exchanges the loops over rows and columns of tiles. The second one makes the kernel persistent: its grid
# becomes a loop over groups, with the number of programs as its step. A lesson's worth of work in one word. But a group
# is still one program's: the configuration cannot cut the group into tiles of a grid.
#
# Guess: can a configuration change the walk from "group by group" to "one index"?
#
# <details><summary>Answer</summary>No. The two walks are different loops, and loops are the kernel. A configuration
# chooses how the loops run.</details>
#
# ### What the autotuner searches
#
# These are the values of one configuration of `by_one_index`, with their defaults:

# %% tags=["nbval-ignore-output"]
untuned = helion.kernel(by_one_index.fn, static_shapes=False)
for name, value in untuned.bind((A_packed, B, group_offsets, 4, 8)).config_spec.default_config().items():
    print(f"{name:24} {value}")

# %% [markdown]
# Five values of each block size make 125 choices. With warps, stages and the rest there are millions. Helion's
# autotuner starts with a few, keeps the fast ones, and changes these step by step. Each attempt is compiled and
# measured: hundreds of attempts, about ten minutes, its authors say. Called without a configuration, a kernel searches
# *at the first call*, and again for each new kind of shape (lesson 07 shows what such a stall does). So the
# library ships a table, and a program searches ahead of time to fill it (`benchmarks/helion_tune.py`). It begins at
# eight configurations that are known to be good: from tiles of 16×16×16, Helion's default, a minute does not get far.
# The table says what was found, and where:

# %%
table = record.read(tuned.TABLES / "sm_90.json")
if table["provenance"]:
    print(f"Helion {table['helion']} on {table['provenance']['gpu']}: {table['seconds']} s for each row and kernel")
else:
    print("Nobody has run the tuner yet: these configurations are a person's choice.")
for entry in tuned.read_table("sm_90"):
    total_m, columns, depth, G = entry.shape
    blocks = "×".join(map(str, entry.config["block_sizes"]))
    launch = f"{entry.config.get('num_warps', 4)} warps, {entry.config.get('num_stages', 1)} stages"
    us = "" if entry.us is None else f"{entry.us:8.1f} µs"
    print(f"{entry.kernel:10} {total_m:6} over {G:3}, {columns:4}, {depth:4}: {blocks:11} {launch}{us}")

# %% [markdown]
# ## What it costs
#
# First the model of lesson 05, for both walks. The batch is a layer's: 128 experts, Zipf, 132 workers. (Two numbers are
# assumptions: 0.01 µs to skip a slot, 0.7 µs to start a group.)

# %%
layer = batches["qwen3-up"]
problems = [(rows, layer["N"], layer["K"]) for rows in layer["sizes"]]
shape = (128, 128, 64)
scanned = group_walks.group_by_group(problems, 132, shape)
indexed = schedule.simulate(problems, "round_robin", 132, shape)
runs = {"group by group": scanned, "one index": indexed}
bounds = dict.fromkeys(runs, indexed.lower_bounds.work)
timeline.compare(
    {name: timeline.simulated_bars(run) for name, run in runs.items()}, rows=132, bounds=bounds, height=1.9
)

# %%
for name, run in runs.items():
    print(f"{name:15} {run.makespan:6.0f} µs simulated")
slots, groups = sum(map(len, indexed.programs)), len(problems)
slots_us, groups_us = slots * group_walks.SLOT_US, groups * group_walks.GROUP_US
print(f"group by group: of these, {slots_us:.0f} µs for slots, {groups_us:.0f} µs for starting groups")
us = {}
for row in batches.values():
    us[row["title"]] = {name: found["median_us"] for name, found in row["us"]["forward"].items()}
pair = us[layer["title"]]
ratio = pair["helion-scanning"] / pair["helion-persistent"]
print("recorded on:", record.load("jagged")["provenance"]["gpu"])
print(f"simulated: {scanned.makespan / indexed.makespan:.2f} times as long group by group; recorded: {ratio:.2f} times")

# %% [markdown]
# Look at the upper timeline. Few tiles of a group mean few workers, always the first ones: the later workers wait.
# Slots and groups cost little beside that. The model knows tiles, slots and groups. It does not know the order for the
# L2 cache, which only one of the two recorded kernels has.
#
# Then all rows and all ways, over cuBLAS on the packed rows. (Helion untuned is too slow for this axis; the numbers
# below include it.)

# %%
names = {
    "cublas": "dense product of cuBLAS", "auto": "ours (auto)", "triton-persistent": "Triton",
    "helion-persistent": "Helion", "helion-persistent-default": "untuned", "helion-scanning": "group by group",
}  # fmt: skip
drawn = {name: label for name, label in names.items() if label != "untuned"}
known = {title: {name: times[name] for name in drawn if name in times} for title, times in us.items()}
walk_costs.time_ratios(known, drawn, base="cublas")

# %%
for name, label in names.items():
    ratios = [times[name] / times["cublas"] for times in us.values() if name in times]
    print(f"{label:24} {statistics.geometric_mean(ratios):.2f} × the time of cuBLAS (geometric mean)")

# %% [markdown]
# Read it in three steps. *Untuned to Helion* is what a configuration gives, even one that a person guessed: the default
# is where a search starts. *Group by group to Helion* is what the walk gives, with the same blocks. *Helion to cuBLAS*
# is what is left for a search to find, and what groups cost that this product does not need. The row with K = 768 shows
# the guess at its worst: Helion takes about twice as long as the Triton kernel, which walks in the same way.
#
# ## What goes wrong
#
# ### A kernel for every batch
#
# Helion's own default is `static_shapes=True`: the compiler knows all extents, so it can leave out masks. Three batches
# arrive, with 200, 199 and 150 rows. How many kernels does Helion compile, with `True` and with `False`?


# %%
def kernels_for(static):
    kernel = helion.kernel(by_one_index.fn, static_shapes=static, config=by_one_index.configs[0])
    return len({id(kernel.bind((A_packed[:rows], B, group_offsets, 4, 8))) for rows in (200, 199, 150)})


print("static_shapes=True: ", kernels_for(True), "kernels")
print("static_shapes=False:", kernels_for(False), "kernel")

# %% [markdown]
# One for each number of rows, and without a configuration one *search* for each. A router rarely sends the same numbers
# twice. For jagged groups always say `static_shapes=False`.
#
# ### A name of the notebook
#
# Helion reads your function's source, and the names around it. Suppose that another cell has a variable `tile`:

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
# In Python, the kernel's `tile` would be a local name. For Helion it is the notebook's variable, which a kernel may not
# change. Rename one of the two.
#
# ## Try it here
#
# [Exercise 13](../exercises/13_persistent_helion.ipynb), the persistent tile assignment: tiles of jagged groups to
# workers, column by column. Or change a cell and run it again:
#
# 1. Let `find_group` return `total_m` as the row after the group's last one, and run `by_one_index`'s cell again. Which
#    rows are wrong? And which would be wrong if each group had a B of its own?
#    <details><summary>Answer</summary>None: a tile that crosses its group's end computes the neighbour's rows, with the
#    same B, so it stores the right values, twice. With a B for each group these rows would be wrong (lesson 08). The
#    masks at the groups' ends are only needed because the groups matter.</details>
# 2. Draw `group_walks.slots` for eight groups of 64 rows and four workers. Who is idle, and why?
#    <details><summary>Answer</summary>With N = 128, each group has two tiles, always for workers 0 and 1. Group by
#    group, workers 2 and 3 compute nothing. By one index all have four tiles.</details>
# 3. `changed(block_sizes=[64, 32, 32])`: which lines of the kernel change? Why so few?
#    <details><summary>Answer</summary>None. Block sizes are constants above the kernel, such as
#    <code>_BLOCK_SIZE_1 = tl.constexpr(64)</code>, and its loops only name them.</details>
# 4. In the simulation take `square` instead of `qwen3-up`. Which of the two faults of the walk group by group
#    is left?
#    <details><summary>Answer</summary>The slots: 8,320 for each worker, 83 µs at 0.01 µs each. The uneven start hardly
#    matters here, because each of the eight groups has a thousand tiles, enough for all workers.</details>
#
# ## Summary
#
# - With one B for all groups this is a dense GEMM: use `A_packed @ B`, or `grouped_gemm_jagged`, which does.
# - Helion's outermost loop is the launch grid; every `hl.tile` brings its range and its mask; the rest is
#   configuration.
# - Helion writes the code of your loops and does not choose them: the walk is yours.
# - One index over all tiles lets a worker look at its own tiles alone, and balances small groups.
# - A table of configurations, measured ahead of time, beats a search in the first call; say `static_shapes=False` where
#   shapes change with every batch.
#
# ## References
#
# - [Helion](https://github.com/pytorch/helion), and its [example of a grouped
#   GEMM](https://github.com/pytorch/helion/blob/main/examples/grouped_gemm.py), which the walk group by group follows.
# - Tillet, Kung, Cox, [Triton: an intermediate language and compiler for tiled neural network
#   computations](https://doi.org/10.1145/3315508.3329973), 2019.
# - [TritonBench](https://github.com/pytorch-labs/tritonbench), whose operator `grouped_gemm` has this product:
#   `course_kernels.jagged.tritonbench` has adapters for it.
# - Compared with, in the records: cuBLAS on the packed rows, torch's `grouped_mm`.
#
# To read next: a ceiling such as cuBLAS is only as good as its measurement. Lesson 15 shows what can be wrong with one.
# Next: [15 Performance](15_performance.ipynb).
