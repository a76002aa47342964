# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown]
# # 09 · CUTLASS operators
#
# Seven lessons wrote kernels. NVIDIA has written many, in CUTLASS, and offers a catalogue: describe the operands, name
# the GPU, and get the operators that multiply them. Can a kernel be ordered like that? What does the catalogue say
# about one, what does it keep to itself, and what if it has none for your GPU?
#
# You will find operators for a GPU that you do not have, compile them here, read Hopper's and Blackwell's machine code
# side by side, ask for things that nobody offers, put a kernel of your own on the shelf, and take it apart in seven
# pictures. About an hour.

# %%
import gemm_course  # noqa: F401 (first: without a GPU, it has kernels run in the interpreter)

import itertools

import cutlass.operators as ops
import torch

from course_kernels import GroupLayout, testing
from course_kernels.testing import reference
from gemm_course.figures import descriptors as loops, operators as draw, ptx
from gemm_course.figures.listing import show
# %% [markdown]
# ## Order a product
#
# The problem is the one of NVIDIA's own example: 8192 tokens, 12 experts, K = 1024, N = 2048. What has to be computed,
# as a loop, in a smaller size, and torch's name for it:


# %%
def loop(A, B, offs):
    out, start = A.new_zeros(A.shape[0], B.shape[2]), 0
    for g, end in enumerate(offs.tolist()):
        out[start:end] = A[start:end] @ B[g]
        start = end
    return out


few = GroupLayout.from_sizes(torch.tensor([16, 0, 40, 8], dtype=torch.int32)).ends
x = testing.integers((64, 32), torch.bfloat16, 1)
w = testing.integers((4, 48, 32), torch.bfloat16, 2).mT  # stored (G, N, K), seen as (G, K, N)
print("torch's is the loop:", torch.equal(torch.nn.functional.grouped_mm(x, w, offs=few), loop(x, w, few)))
print("the reference, too: ", torch.equal(reference.grouped_mm(x, w, few, out_dtype=torch.bfloat16), loop(x, w, few)))

# %% [markdown]
# An order needs no numbers, only shapes, strides and dtypes. Tensors on torch's "meta" device have these and no memory:

# %%
total_m, G, K, N = 8192, 12, 1024, 2048


def blank(*shape, dtype=torch.bfloat16):
    return torch.empty(shape, dtype=dtype, device="meta")


A, B, out, offs = blank(total_m, K), blank(G, N, K).mT, blank(total_m, N), blank(G, dtype=torch.int32)
args = ops.IndexPtrGroupedGemmArguments(A, B, out, accumulator_type=torch.float32, offsets=offs, offsets_along="m")
for target in ("100f", "90a"):
    found = ops.get_operators(args, target_sm=target)
    print(target, "some" if found else "none", "from", {type(each).__module__.partition(".")[0] for each in found})

# %% [markdown]
# `"100f"` is Blackwell's family (B200 and its relatives); `"90a"` is Hopper, with the instructions that it alone has.
# For Blackwell there are operators; for an H100 or H200, the GPU that this course measures on, there are none. Hold
# that thought: later in the lesson you will change it. (Run again after that, this cell finds some.)
#
# ## Read the metadata
#
# `course_kernels.cutlass_ops` asks the same catalogue, and shows what tells one answer from another.

# %% tags=["nbval-ignore-output"]
from course_kernels import cutlass_ops

args = cutlass_ops.arguments(A, B, offs=offs)
blackwell = cutlass_ops.discover(args, "100f")
print(blackwell.where(cluster=lambda shape: max(shape) <= 2))

# %% [markdown]
# - **tile**: the rows and columns of C that one instruction stream works on, and how deep a block of K is.
# - **cluster**: CTAs, along M and N, that run at the same time on neighbouring SMs and can hand each other data.
# - **CTAs**: on Blackwell two CTAs may share one instruction. Then the tile is the pair's: each has half of its rows.
# - **stages**: "auto": the operator fills the shared memory that is left when it is compiled.
#
# Which is best? Metadata cannot say; but they say what must be fetched. A cluster's CTAs in a row need the same rows of
# A, those in a column the same columns of B, and **multicast** delivers a block to all of them at once.

# %%
choices = {
    "alone\n128×128, 1×1": blackwell.where(tile=(128, 128, 64), cluster=(1, 1)),
    "in a cluster\n128×128, 2×2": blackwell.where(tile=(128, 128, 64), cluster=(2, 2), ctas=1),
    "a pair\n256×256, 2×1": blackwell.where(tile=(256, 256, 64), cluster=(2, 1), ctas=2),
    "pairs\n256×256, 4×2": blackwell.where(tile=(256, 256, 64), cluster=(4, 2), ctas=2),
}
draw.clusters({title: found.designs[0] for title, found in choices.items()})

# %% [markdown]
# Grey is what comes from L2, for every step along K. One colour is one instruction. Larger clusters fetch less per
# product; they also round up. With 12 groups of ~683 rows, how much of each one's work is wasted?

# %%
sizes = [total_m // G] * (G - 1) + [total_m - total_m // G * (G - 1)]
for title, found in choices.items():
    cluster = draw.cluster_of(found.designs[0])
    computed = sum(-(-rows // cluster.rows) * cluster.rows for rows in sizes)
    name = title.replace("\n", ": ")
    print(f"{name:27} {cluster.reuse:3.0f} products per element, {1 - total_m / computed:4.0%} of the rows wasted")

# %% [markdown]
# That is the bargain in every tile shape since lesson 07, one level up. (A kernel may skip a CTA's tile that lies
# wholly past the end. Its SM is still taken. Ours mostly finds it other work: the lesson's fifth picture. And one
# variant of ours cuts what lies partly past the end: the sixth.)
#
# ## What goes wrong: silence
#
# Three orders, each with one mistake. Find it before you run the cell.

# %%
orders = {
    "first": dict(mat_a=blank(total_m, K), mat_b=blank(G, K, N), offs=blank(G, dtype=torch.int32)),
    "second": dict(mat_a=blank(total_m, K), mat_b=blank(G, N, K).mT, offs=blank(G, dtype=torch.int64)),
    "third": dict(mat_a=blank(total_m, 1020), mat_b=blank(G, N, 1020).mT, offs=blank(G, dtype=torch.int32)),
}
for name, order in orders.items():
    print(f"{name:6}", ops.get_operators(cutlass_ops.arguments(**order), target_sm="100f"))

# %% [markdown]
# An empty list is all that the catalogue says. Every operator declares what it needs (`operator.metadata.operands`), so
# the reasons can be worked out, which `cutlass_ops.discover` does:

# %%
for order in orders.values():
    try:
        cutlass_ops.discover(cutlass_ops.arguments(**order), "100f")
    except cutlass_ops.NoOperator as error:
        print(error, end="\n\n")

# %% [markdown]
# And the reverse: an order that it takes, and should not. Nobody in the catalogue declares float32 operands.

# %%
single = cutlass_ops.arguments(A.float(), B.float(), offs=offs)
print("the catalogue finds operators:", bool(ops.get_operators(single, target_sm="100f")))
try:
    cutlass_ops.discover(single, "100f")
except cutlass_ops.NoOperator as error:
    print(error.reasons[0])

# %% [markdown]
# Those operators even compile, without a message, into an instruction that reads 10 of the 23 bits of each fraction
# (TF32). Asked without arguments, an operator's class lists the dtypes that it is for; with arguments in hand, this one
# forgets to look.
#
# ## Why the layouts are what they are
#
# The first order failed because B was stored (G, K, N). Are the catalogue's other operators as picky? Ask the classes
# what they declare: the one for groups, and the one that NVIDIA has on Hopper, for a single product.

# %%
import cutlass

square = blank(256, 256)
single = ops.GemmArguments(square, square, square, accumulator_type=torch.float32)
by_wgmma = ops.get_operators(
    single, lambda metadata: metadata.design.mma_instruction_type is ops.mma.HopperWgmma, target_sm="90a"
)


def declared(operator, dtype):
    every = type(operator).generate_operators(lambda metadata: metadata.operands.A.dtype is dtype)
    operands = [each.metadata.operands for each in every]
    return {(each.A.stride, each.B.stride, each.out.stride) for each in operands}


# %% [markdown]
# A stride of 1 marks the contiguous dimension: (…, 0, 1) is row-major, (…, 1, 0) column-major, that is, stored
# transposed.

# %%
columns = {
    "one, 16 bits": declared(by_wgmma[0], cutlass.BFloat16), "one, 8 bits": declared(by_wgmma[0], cutlass.Float8E4M3FN),
    "groups, 16 bits": declared(blackwell[0], cutlass.BFloat16),
}  # fmt: skip
names = {(0, 0, 1): "row", (0, 1, 0): "col"}
print("A    B    C   ", *columns, sep="  ")
for strides in itertools.product(names, repeat=3):
    layouts = "  ".join(names[each] for each in strides)
    marks = ["yes" if strides in has else "-" for has in columns.values()]
    print(f"{layouts}     {marks[0]:14}{marks[1]:13}{marks[2]}")

# %% [markdown]
# Three different reasons stand behind those columns:
#
# - **16 bits: anything.** Tensor cores read their operands from shared memory, and can turn a block of 16-bit numbers
#   round while they read.
# - **8 bits: along K.** Narrower numbers they cannot turn. A and B must lie there with K contiguous, and TMA copies
#   them as it finds them.
# - **Groups: rows whole.** Lesson 08's one coordinate that is not free: along the contiguous dimension TMA starts at
#   multiples of 16 bytes only, and groups start at any row. So M must not be the contiguous dimension, neither of A
#   nor of C. That says nothing about B; but (G, N, K) is how linear layers store their weights, and one layout is one
#   kernel.
#
# ## Put your own on the shelf
#
# NVIDIA ships no such operator for Hopper, and the catalogue is open. `kernels/cute_sm90` has the kernel, in CuTe DSL:
# Python in which you say what each warp does. The class that offers it answers four questions. What is it for?

# %%
from course_kernels.cutlass_ops import hopper

show(hopper.HopperGroupedGemmOperator, "@ops.CuTeDSLProvider", "self.impl =")

# %% [markdown]
# The decorator puts the class on the shelf, under the kind of arguments that it takes. Which variants are there, and on
# which GPUs? One for each configuration. The targets follow from the instruction that the design names.

# %%
show(hopper.HopperGroupedGemmOperator._generate_operators, "for operands, config in", "found.append")

# %% [markdown]
# What must operands be like? Each has a dtype, a contiguous dimension and an alignment. With this the catalogue
# compares orders, and from this `discover` reads its reasons:

# %%
show(hopper._operands, "dtypes =", "accumulator_type")
print(hopper.STRIDES)

# %% [markdown]
# And how is it compiled, and run? `get_max_active_clusters` asks the driver how many clusters the GPU holds at a time,
# because a persistent kernel launches so many and no more. The rest is passing on.

# %%
show(hopper.HopperGroupedGemmOperator._compile)
show(hopper.HopperGroupedGemmOperator._run)

# %% [markdown]
# Importing `cutlass_ops` imported this module. The order that found nothing, once more, and in NVIDIA's own words:

# %%
found = ops.get_operators(args, target_sm="90a")
print("for Hopper now:", sorted({type(each).__name__ for each in found}))
print("for Blackwell, still NVIDIA's alone:", {row.source for row in blackwell.designs} == {"cutlass"})

# %% tags=["nbval-ignore-output"]
ours = cutlass_ops.discover(args, "90a")
print(ours)

# %% [markdown]
# Two columns more, because this design says what NVIDIA's do not. `others` are tiles of other shapes that an operator
# has besides; the sixth and the seventh picture below are of them. And how do its warps share the work? *Cooperative*
# warp groups multiply two halves of one tile; in *ping-pong*, each has a tile of its own, and one stores while the
# other multiplies.
#
# ## Compile for both, owning neither
#
# A compiler needs no GPU. An operator asks for two things that a GPU's driver knows: the architecture, and how many
# clusters there is room for. `cutlass_ops.compile` is told both, and answers in the driver's place. An H200 has 132
# SMs, a B200 148, and a cluster of ours takes two. (Leave `clusters` out, and it divides for you, or asks the driver
# where there is one.)

# %%
hopper_code = cutlass_ops.compile(ours.where(tile=(128, 256, 64), cluster=(2, 1))[0], args, "90a", clusters=132 // 2)
blackwell_code = cutlass_ops.compile(choices["a pair\n256×256, 2×1"][0], args, "100f", clusters=148 // 2)
reports = [cutlass_ops.report(code) for code in (hopper_code, blackwell_code)]
for report in reports:
    print(f"sm_{report.compiled.target}: {report.compiled.clusters} clusters, {report.spills.bytes} bytes spilled")

# %% [markdown]
# Both compute 256 × 256 of C with two CTAs. How differently, counted in the text of the PTX:

# %% tags=["nbval-ignore-output"]
print(cutlass_ops.side_by_side(reports))

# %%
multiplies = ("wgmma", "tcgen05.mma")
for report in reports:
    print(report.compiled.target, "multiplies with", [name for name in multiplies if report.instructions[name]])
print("descriptors changed on the device:", [report.instructions["tensormap.replace"] for report in reports])
print("copies for several CTAs at once:", [report.instructions["TMA load, multicast"] > 0 for report in reports])

# %% [markdown]
# The multiplications themselves, Hopper on the left:

# %% tags=["nbval-ignore-output"]
left = reports[0].excerpt(r"wgmma\.mma_async", before=2, after=1)
right = reports[1].excerpt(r"tcgen05\.mma", before=2, after=1)
print(ptx.side_by_side(left, right, ("sm_90a: wgmma", "sm_100f: tcgen05.mma"), width=57))

# %% [markdown]
# - `wgmma` is issued by 128 threads, and the list in braces is where the sums are: their registers. 128 × 256 sums over
#   the 256 threads that multiply are 128 registers each, before anything else. `m64n256k16`: a warp group has 64 rows.
# - `tcgen05.mma` is issued by *one* thread, for `cta_group::2`: two CTAs. The sums are in **tensor memory**, which
#   threads do not see until `tcgen05.ld` fetches them, a part at a time. Registers no longer limit the tile.
# - The operands in `%rd…` describe blocks in shared memory, in both: neither is loaded into registers.
# - Multicast on the left alone: a copy that arrives at both CTAs. Of the four copies a tile takes two; which two, the
#   pictures at the end will show.
# - On the right each CTA of a pair fetches half of A's rows and half of B's columns, and the instruction reads the
#   shared memory of both. Nothing has to be fetched twice.
#
# In both, `setmaxnreg` moves registers from warps that only copy to warps that work on the sums. And the machine's own
# code, disassembled:

# %% tags=["nbval-ignore-output"]
for report in reports:
    print(report.compiled.target, {name: n for name, n in report.machine_instructions.items() if n})
print(reports[0].excerpt("HGMMA", 0, 0, stage="sass").strip())
print(reports[1].excerpt("UTCHMMA", 0, 0, stage="sass").strip())

# %% [markdown]
# What the loop over K consists of, as in lesson 06: each square is one instruction, in the order of the text.

# %% tags=["nbval-ignore-output"]
loops.loop_instructions({f"sm_{report.compiled.target}": report.ptx for report in reports})

# %% [markdown]
# There is no copy in either. Copies are another warp's, in a loop that does nothing else, and the two meet at
# `mbarrier`s in shared memory, a pair for each stage: "filled", and "free again". Warps with roles of their own, which
# Triton's compiler did not make of lesson 08's kernel, are what this kernel was written in CuTe DSL for. (On Hopper all
# warps that multiply run this loop; on Blackwell one warp does, for two CTAs.)
#
# ## Run what fits
#
# `run` launches on torch's current stream, and refuses where the GPU is another. `compare` holds the result against the
# loop in float64, each element within its error bound, and against torch's.

# %% tags=["nbval-ignore-output"]
if not torch.cuda.is_available():
    for code in (hopper_code, blackwell_code):
        try:
            cutlass_ops.run(code, args)
        except RuntimeError as error:
            print(str(error).partition(";")[0])

# %% tags=["nbval-ignore-output"]
if torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0):
    ends = GroupLayout.from_sizes(torch.tensor(sizes, dtype=torch.int32, device="cuda")).ends
    tokens = torch.randn(total_m, K, device="cuda").bfloat16()
    weights = torch.randn(G, N, K, device="cuda").bfloat16().mT
    real = cutlass_ops.arguments(tokens, weights, offs=ends)
    cutlass_ops.run(hopper_code, real)
    print(cutlass_ops.compare(real))
else:
    print("No Hopper GPU here: what was compiled stays text.")

# %% [markdown]
# NVIDIA's example was written for the first release of this API, whose names have changed since. It runs with one line
# changed, and on Hopper now. (Its own `compile` asks the driver, so it needs the GPU; `cutlass_ops.compile` does not.)
#
# ```python
# from course_kernels.cutlass_ops import cutlass_api  # import cutlass_api
#
# args = cutlass_api.arguments.GroupedGemmArguments(A, B, out, accumulator_type=torch.float32, offsets=offsets)
# kernel = cutlass_api.get_kernels(args, cc=90)[0]  # cc=100
# kernel.run(args, compiled_artifact=kernel.compile(args))
# ```

# %% [markdown]
# ## The kernel in seven pictures
#
# What did we put on the shelf? Every picture below is drawn from a configuration: change it, and look again. Sizes are
# exact. Times come from a small model, `picture.simulate`, in units of one block's product; none of them is measured.
#
# ### 1. Who does what

# %%
from dataclasses import replace

from course_kernels.kernels.cute_sm90 import kernel, mainloop, scheduler, window
from course_kernels.kernels.cute_sm90.config import CONFIGS, COOPERATIVE, CuteConfig, PINGPONG
from gemm_course.figures import cute_clusters, cute_kernel as picture

together = CuteConfig(128, 256, 64, cluster=2, stages=4, schedule=COOPERATIVE)
in_turn = CuteConfig(128, 192, 64, cluster=2, stages=4, schedule=PINGPONG)
picture.roles([together, in_turn], kernel.LOADING_REGISTERS, kernel.MULTIPLYING_REGISTERS)

# %% [markdown]
# Width is threads and height is registers, so areas are parts of the SM's 65,536. Whoever copies needs few. Whoever
# multiplies keeps sums, and in the lower picture the sums alone would be more than an equal share. With 256 columns?

# %%
print(replace(together, schedule=PINGPONG).why_not())

# %% [markdown]
# That is the bargain between the two schedules: a tile of one's own, or a larger one. The blue side of the branch:

# %%
show(kernel.HopperGroupedGemm.kernel, "if group == 0:", "ring.producer_tail")

# %% [markdown]
# Each role finds its next tile by itself, from `offs`. Nobody tells anybody: all count alike. (What `loaded` counts is
# for the warps that write zeros. Where groups divide K, as in a weight's gradient, a group without depth is nothing but
# zeros, and they keep step with the loads. The loop over `shapes` is for configurations with tiles of several shapes,
# as in the sixth and the seventh picture; where there is one, the compiler removes it.)
#
# ### 2. The ring of stages
#
# The two sides meet in shared memory. Follow one stage from left to right, and find what the black triangles allow,
# and what the white ones do. The numbers are blocks along K.

# %%
picture.ring({f"{n} stages": picture.simulate(replace(together, stages=n), tiles=2, blocks=7) for n in (2, 4)})

# %% [markdown]
# - ▼ "Full" is reported by the hardware, when as many bytes have arrived as the two blocks have. Then they may be
#   multiplied.
# - ▽ "Empty" is reported by the warps that read the stage. Then it may be overwritten.
# - Two stages: most products wait for a copy, the gaps in the lowest line. Four: copies wait for products, dark blue,
#   which is what we want.
# - While a tile is stored, copies go on: the warp that loads is already at the next tile, as far as stages last.
#
# The whole loop of either side. (Three ways to copy: a CTA alone; a cluster with tiles side by side; one with tiles one
# below the other. The fourth and the fifth picture tell the last two apart.)

# %%
show(mainloop.load_tile, "for k in", "return")
show(mainloop.multiply_tile, "for _ in", "return")

# %% [markdown]
# `wgmma` returns before it is done. `wait_group(1)` waits for all but the newest, so that one product runs while the
# next is issued, and `done` follows one stage behind `state`. The pale green pieces are its price: a stage is given
# back once the *next* product is on its way. With a single stage?

# %%
print(replace(together, stages=1).why_not())
print("most stages that fit:", max(n for n in range(2, 12) if replace(together, stages=n).why_not() is None))

# %% [markdown]
# ### 3. Ping-pong against cooperative
#
# The same tile and the same K, two ways to divide the work. Who has nothing to do, and when?

# %%
schedules = {name: replace(in_turn, schedule=name) for name in (COOPERATIVE, PINGPONG)}
blocks = K // in_turn.tile_k
picture.warp_group_turns({name: picture.simulate(config, 4, blocks) for name, config in schedules.items()})

# %% [markdown]
# Pale is storing. Cooperative: two warp groups store in half the time, and nobody multiplies meanwhile. Ping-pong: one
# of them always idles or stores, and the tensor cores never notice. It is *their* line that counts. What does K do to
# it?

# %%
for depth in (256, 512, 1024, 4096):
    runs = {name: picture.simulate(config, 4, depth // config.tile_k)[0] for name, config in schedules.items()}
    print(f"K = {depth:4}: " + ", ".join(f"{name} {picture.busy(steps):4.0%}" for name, steps in runs.items()))

# %% [markdown]
# Where K is large a store is seldom, and then a larger tile weighs more: less traffic, as the next picture shows. (The
# model takes four products' time for one warp group's store. That is a guess: the shares depend on it, their order does
# not.)
#
# Why turns? Both warp groups read one ring, which is filled tile by tile. Each skips the other's blocks with
# `state.advance`, and two barriers keep the products in the order in which their blocks were loaded:

# %%
show(kernel.HopperGroupedGemm.compute_tile, "config.schedule == PINGPONG", "store_tile")

# %% [markdown]
# `other_turn.arrive()` stands before `finish_tile`: the other begins while the last products are still running. (The
# branches for operands of one byte are FP8's.)
#
# ### 4. Multicast
#
# Two CTAs, one below the other in C: other rows of A, the same columns of B. A colour is the CTA that asks.

# %%
cute_clusters.multicast(together)

# %% [markdown]
# Each asks for half of B, and the hardware hands it to both. Side by side they would share A instead
# (`multicast(together, beside=True)`). Which is better? KiB that leave L2 for one whole tile of C, all of K:

# %%
ways = {"each alone": dict(shared=False), "one below the other": {}, "side by side": dict(beside=True)}
for config in CONFIGS:
    if config.cluster == 2 and not config.tail_tile_n:
        steps = K // config.tile_k
        kib = {name: cute_clusters.bytes_from_l2(config, **way) * steps / 2 / 1024 for name, way in ways.items()}
        tile = f"{config.tile_m} × {config.tile_n}"
        print(tile, *(f"{name} {count:.0f}" for name, count in kib.items()), sep="  ")

# %% [markdown]
# No tile is higher than wide, so B's columns are what to share first. The code of both ways: what two CTAs use is asked
# for in halves, `rank` says which, and `ctas` has a bit for each that it goes to.

# %%
show(mainloop.load_tile, "rank =", "b_half =")
show(mainloop.load_block, "mask =", "cute.copy")
show(mainloop.make_ring, "# A stage is", "readers =")

# %% [markdown]
# The price is in the last line: before a stage is overwritten, the readers of *both* CTAs must have let go of it. Two
# SMs keep step.
#
# ### 5. The odd row
#
# A group of 600 rows has five rows of tiles, of which the last is not full: its C is the black frame. A colour is a
# cluster, its number their order. Tiles in which nothing of C lies are hatched. Which clusters would you take?

# %%
cute_clusters.odd_row(together, 600, N)

# %% [markdown]
# Left, eight tiles are loaded and multiplied, and nothing of them is stored. Right is what the kernel does. Only the
# last row can lack a partner, so only there do tiles lie side by side, and share what is second best. If the columns
# are odd in number, too, one tile is left over: one for a group, not one for each column. Groups end where `offs` says,
# which is known on the GPU alone; so it is decided there, tile by tile. `in_cols` counts clusters within two columns of
# tiles: first `high` of them down the left column, then as many down the right one, and then, where `odd` is 1, the odd
# row's; `rank` says which CTA of the cluster asks:

# %%
show(scheduler.full_tiles, "tiles_m, tiles_n")
show(scheduler.find_tile, "# Down the left", "row, col = tiles_m")

# %% [markdown]
# `beside` is `tile.beside` in the loop that loads. Nobody else has to know: whoever multiplies finds A and B in a stage
# and cannot tell who asked for them.
#
# ### 6. Cut to fit
#
# The 12 groups with which we began have no odd row: 682 rows are six rows of tiles. But of the sixth, 42 rows are C's
# and 86 are not. And where a tile has 192 columns, eleven of them are 2112, for an N of 2048. One configuration has
# tiles of three shapes, at the bottom. Hatched is now all wasted work. How was it avoided, and which
# two pieces remain?

# %%
fitted = CuteConfig(128, 192, 64, cluster=2, stages=5, schedule=PINGPONG, last_tile_n=128, tail_tile_n=256)
print("on the shelf:", fitted in CONFIGS)
cute_clusters.cut_to_fit(fitted, sizes[0], N)

# %% [markdown]
# - **Narrow**: ten columns of 192 and one of 128 are 2048 exactly. Of the columns of tiles the last are narrow, as many
#   as can be while all of C is covered: one here, for another N two, or none.
# - **Flat**: 42 rows are less than half a row of tiles, so they get tiles of half the rows, after all others of the
#   group. Below the last row there is no partner, so two of them lie side by side and share A.
# - What remains: 22 rows of the flat tiles; and a corner. Five rows of full height are odd in number, and so are eleven
#   columns: the last tile has no partner, as in the fifth picture.
#
# If a tile has half the rows, why not twice the columns? What do the three shapes take of the SM?

# %%
for shape in fitted.shapes:
    lines, sums = shape.tile_m + shape.tile_n, shape.accumulators(operand_bytes=2)
    print(f"{shape.tile_m:3} × {shape.tile_n}: {lines} lines in a stage, {sums} sums in a thread's registers")

# %% [markdown]
# `wgmma` has 256 columns at most. Then 64 + 256 lines are as many as 128 + 192: the ring stays as it is, and a stage
# holds a block of A and one of B of any shape. Registers are taken for the largest. Where a tile lies is found out
# first as if all had one shape. Then narrow ones move to the left, each by what those before it have `saved`; and the
# numbers behind those of all others are flat ones':

# %%
show(scheduler.find_tile, "row, shape, first_col", "row, first_col = first_row")

# %% [markdown]
# Both CTAs of a cluster come to the same `flat`, and `rank` tells their columns apart. And the price? `m64n256k16`: the
# width is part of the instruction's name, not an operand. So a shape is a piece of program of its own.
# `range_constexpr` counts while the kernel is compiled: what stands in this loop is written out three times, and a tile
# goes through one of the copies.

# %%
show(kernel.HopperGroupedGemm.kernel, "for i in cutlass.range_constexpr(len(shapes))", "next_to_load")
show(kernel.HopperGroupedGemm.__call__, "pitch =", "for each in config.shapes")

# %% [markdown]
# The warp groups that multiply have the same loop, around `compute_tile`. And a descriptor says how large a block is
# that it copies, so each shape brings its own. Three programs in one: here there is ten percent less to multiply. With
# an N of 1920 and groups of 640 rows nothing is gained, for tiles of one shape already fit.
#
# ### 7. The last wave
#
# A's gradient has A's shape: `K` is its columns now, 1024 of them, and 682 rows of a group are six rows of square
# tiles. How many cluster tiles is that, and how often do 66 clusters, two SMs each, take one?

# %%
square = next(config for config in CONFIGS if config.split_last_wave and config.tile_n == config.tile_m)
tiles = sum(len(cute_clusters.pairs(square, size, K)) for size in sizes)
print(f"{tiles} cluster tiles are {tiles // 66} for each of 66 clusters, and {tiles % 66} more")
cute_clusters.last_wave(tiles, clusters=66)

# %% [markdown]
# Above: for a fifth of the time, two clusters in three look on. Below, the last tiles are cut in two, and there is a
# cluster for each half. The picture takes half the time for a half. Really it is more: half the rows of A, but all
# columns of B, 192 lines in a stage where a whole tile has 256. What came of it is on record:

# %%
from course_kernels.bench import record

swept = record.load("sweep_cute")["rows"]["equal12"]  # these groups, this N and K
for name, config in {"whole": replace(square, split_last_wave=False), "in halves": square}.items():
    print(f"{name:10} {swept['us']['dA'][config.name]['median_us']:.1f} µs")

# %% [markdown]
# What else did it cost? A tile of half the rows: one more shape, as the flat ones were. And somebody has to know which
# wave is the last. Who, if each warp finds its tiles by itself? Its 32 lanes look at 32 groups at a time, a *window of
# groups* (`window`, no relation of the next section's). `passed` is how many cluster tiles there are up to the end of
# the lane's group, and one vote of all lanes (`vote_ballot`) tells which group has a given number. So a warp that has
# got to the last groups' window knows the number of all tiles: `passed` of the last lane.

# %%
show(scheduler.first_half, "clusters =", "return")
show(scheduler.find_group, "half = Int32(-1)", "return window")

# %% [markdown]
# A number from `first` on is a half's, so two numbers lead to one cluster tile. Nothing is written down and no one is
# asked, and yet no half is computed twice or left out, because every cluster comes to the same `first`. If more than
# half of the clusters are busy in the last wave, its tiles stay whole: cut in two they would take two turns of half the
# time. The other condition: all of the last wave has to lie in this window of 32 groups, for a warp that finds its tile
# in an earlier one has not learnt how many there are. Cut along K, tiles could be shared by all; but then somebody has
# to add the parts up, and how a row's sum is rounded would depend on how many rows the others have.
#
# ### And no mask anywhere
#
# The store knows nothing about boundary tiles, either. Lesson 08's window does it again, a bound that moves with the
# group, here for C:

# %%
show(window.make_window, "pitch =", "layout =")
show(window.open_at, "first =")

# %%
lines, end = window.LINES, sizes[0]
for before in (2, 1, 0, -1):
    coordinates, strides = (lines - before, lines, end), (N, 2**34 - N, N)
    address = sum(at * stride for at, stride in zip(coordinates, strides)) % 2**64
    print(f"line {lines - before:,} of the window is row {address // N} of C:", "in" if before > 0 else "out of bounds")

# %% [markdown]
# The last row of group 0 is 681. Row 682 is group 1's: a store to it is cut off by the hardware. So full tiles and
# boundary tiles of a shape take the same path, without a branch. A's next rows may come along: they make rows of C that
# are never stored. What lies behind K arrives as zeros, and what lies behind N is out of bounds anyway.
#
# ## What it costs
#
# The record of an H200 has everybody's times in one run, each result verified first. The table has this kernel's
# rates, then the others' times over ours: above 1, ours is faster. `triton` is lesson 08's kernel. The dense product is
# no peer but the ceiling. It was measured, too, with a kernel that is not perfect, so ours can be a little faster.
#
# Before you look: lesson 08's kernel neither hides the store nor shares what it reads. In which rows should the first
# make most of a difference, and in which the second? Think of K, and of the rows of a group.

# %%
from gemm_course.figures import record_analysis

results = record.load("grouped_mm")
about, rows, known = results["provenance"], results["rows"].values(), results["providers"]
passes = [of for of in ("forward", "dA", "dB") if any("cute" in row["us"].get(of, {}) for row in rows)]
others = [name for name in ("triton", "quack", "torch", "dense") if name in known]
print(f"{about['gpu']}, torch {about['torch']}, {about['date'][:10]}, {results['dtype']}")
if passes:
    print(" " * 58 + "".join(f"{name:>8}" for name in others))
    for row in rows:
        us = {name: each["median_us"] for name, each in row["us"]["forward"].items()}
        if "cute" in us:
            factors = "".join(f"{us[name] / us['cute']:8.2f}" if name in us else f"{'–':>8}" for name in others)
            print(f"{row['title']:42}{row['rate']['forward']['cute']:7.4g} {row['unit']:8}{factors}")
else:
    why = known.get("cute", {"absent": "it was not measured yet"})["absent"]
    print(f"This record has no times of our kernel: {why}.")
    print("On a Hopper GPU, `course bench --providers cute triton torch` measures them.")

# %% [markdown]
# <details><summary>Answer</summary>The store: where K is short, because it follows after few products; and groups of
# a few hundred rows are where narrow and flat tiles help, and smaller ones that make the waves even. What is read: in
# the large rows, where the clock depends on the power; a few percent. Where groups have few rows every weight is read
# once, and there is nothing to share.</details>
#
# Both gradients beside forward, and how far ahead of everybody (right of 1). QuACK has its best of twelve
# configurations, for the gradients of three:

# %%
record_analysis.speedups_over_peers(results, "cute", passes) if passes else None

# %% [markdown]
# One row is the problem with which this lesson began, NVIDIA's own example. Everybody's times that are on record:

# %%
extents = total_m, G, N, K
example = [row for row in rows if (sum(row["sizes"]), len(row["sizes"]), row["N"], row["K"]) == extents]
if not example:
    print("the record has no row of these extents:", *extents)
for row in example:
    for name, us in row["us"]["forward"].items():
        label, rate = known[name]["label"], row["rate"]["forward"][name]
        print(f"{label:34} {us['median_us']:6.1f} µs {rate:5.0f} {row['unit']}")

# %% [markdown]
# ## Try it here
#
# [Exercise 09](../exercises/09_pick_operator.ipynb), pick an operator: the one that wastes the fewest products.
# Or change a cell and run it again:
#
# 1. For which of the targets "100a", "103a", "120a" and "90" are there operators? Guess, ask `discover`, and read the
#    reasons.
#    <details><summary>Answer</summary>"100a" and "103a" are members of the family "100f". "120a" has no `tcgen05`; "90"
#    promises code for every later GPU, and `wgmma` exists on "90a" alone.</details>
# 2. Compile one of our ping-pong operators with tiles of 128 × 192. How many registers do its sums take from each
#    thread, and why does the report say 168?
#    <details><summary>Answer</summary>A tile belongs to one warp group of 128 threads: 128 × 192 / 128 = 192. And 168
#    is what each of 384 threads gets of 65,536 at launch, in multiples of 8; then <code>setmaxnreg</code> gives 232 to
#    those who multiply.</details>
# 3. `picture.simulate` has `copy=2.5`, the time until a copy arrives. How slow may it become before four stages are too
#    few? And six, of half the size? Draw it.
#    <details><summary>Answer</summary>A stage is filled while the other three are multiplied: up to
#    <code>copy=3</code>. A block of half the size is multiplied in half the time (<code>multiply=0.5</code>), and five
#    others last for 2.5. What counts is the bytes on their way.</details>
# 4. Shares of rows wasted: in the cell that prints them, go through `testing.routed_sizes("zipf", total_m, 12)`
#    instead of `sizes`. Which operator would you pick now?
#    <details><summary>Answer</summary>Alone the fewest rows are wasted, and with pairs fewer than before: equal
#    groups of 682 rows were just over one block of 512, the worst case. A pair of 256 × 256 lies between, and fetches
#    half of what one CTA alone does. Where each expert has thousands of rows it hardly matters, and what is fetched
#    decides.</details>
# 5. How many tiles of `odd_row` are wasted with `in_turn`, left and right? Say it before you draw it.
#    <details><summary>Answer</summary>2048 columns are 11 tiles of 192, the last of them not full. Left, each of
#    them has one below it: 11. Right, five clusters take two, and of the sixth one is left over: 1.</details>
# 6. With `fitted`: which shapes of tiles has a group of 705 rows, where N is 1984? Draw it with `cut_to_fit`.
#    <details><summary>Answer</summary>No flat ones: five rows of tiles leave 65 rows, more than half a row of
#    tiles. Two columns are narrow: 9 × 192 + 2 × 128. Six rows of tiles leave no corner.</details>
# 7. A's gradient for 12 groups of 900 rows: are the last wave's tiles cut in two?
#    <details><summary>Answer</summary>Eight rows and eight columns of square tiles are 32 cluster tiles, 384 in all.
#    That is 5 for each of 66 clusters and 54 more: too many, they stay whole.</details>
#
# ## Summary
#
# - An operator is found by describing operands: shapes, strides and dtypes, no data, no GPU.
# - Metadata tell designs apart; what a cluster fetches and what it rounds up follow from them, its speed does not.
# - The catalogue is silent about why it has nothing, and takes orders that no operator declares: ask for reasons.
# - Compiling needs a target and a number of clusters. Hopper sums in registers, Blackwell in tensor memory.
# - The shelf is open: a class that says what it takes, which variants it has, how it is compiled and how it is run.
# - One warp copies, eight multiply, and a ring of stages lets neither wait. Ping-pong hides the store, a cluster halves
#   what it shares, whichever way its tiles lie, and a window spares the mask.
# - Products outside of C are wasted. Tiles of other shapes waste fewer, for a copy of the program
#   each.
# - What is left for the last wave keeps few SMs busy. Cut in two it keeps twice as many, if everybody can count which
#   wave is the last.
#
# All of this was the forward pass. Next: [11 Training](11_training.ipynb), the products of a backward pass.
