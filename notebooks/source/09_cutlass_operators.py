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
# NVIDIA's library [CUTLASS](glossary.md#CUTLASS) has many kernels, and a catalogue of them: describe the operands, name
# the GPU, and get the [operators](glossary.md#operator) that multiply them. Can you choose a kernel by its description?
# And what do you do when the catalogue has none for your GPU?
#
# **About 30 minutes. Afterwards you can**
#
# - find operators by describing operands, without data and without a GPU,
# - read an operator's tile, cluster and stages, and say what a choice wastes,
# - compile one kernel for Hopper and one for Blackwell, and tell them apart in the PTX,
# - add an operator of your own to the catalogue.
#
# You need: lesson 08 (contiguous offsets).

# %%
import gemm_course  # import first: without a GPU, kernels then run in the interpreter
from gemm_course.notebook.extras import need

need("cutlass", "cutlass")

import itertools

import cutlass.operators as ops
import torch
from IPython.display import display

from course_kernels import GroupLayout, testing
from course_kernels.testing import reference
from gemm_course.figures import f09_clusters as draw, instructions
from gemm_course.lessons.l09_clusters import cluster_of
from gemm_course.lessons.listing import fold, show, side_by_side
# %% [markdown]
# ## Describe a product
#
# The problem is that of NVIDIA's own example: 8192 tokens, 12 experts, K = 1024, N = 2048. This loop says what is
# computed. torch's `grouped_mm` computes the same. Here in a smaller size:


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
# The catalogue needs no numbers, only shapes, strides and dtypes. Tensors on torch's "meta" device have these, and no
# memory:

# %%
total_m, G, K, N = 8192, 12, 1024, 2048


def blank(*shape, dtype=torch.bfloat16):
    return torch.empty(shape, dtype=dtype, device="meta")


A, B, out, offs = blank(total_m, K), blank(G, N, K).mT, blank(total_m, N), blank(G, dtype=torch.int32)
args = ops.IndexPtrGroupedGemmArguments(A, B, out, accumulator_type=torch.float32, offsets=offs, offsets_along="m")
for target in ("100f", "90a"):
    found = [type(each).__module__ for each in ops.get_operators(args, target_sm=target)]
    print(target, "some" if any(name.startswith("cutlass.") for name in found) else "none", "of NVIDIA's own")

# %% [markdown]
# `"100f"` is Blackwell's family (B200 and its relatives). `"90a"` is Hopper (H100, H200), with the instructions that
# only Hopper has. NVIDIA has operators for Blackwell and none for Hopper. Later in the lesson we add some.
#
# ## Read the metadata
#
# `course_kernels.cutlass_ops` asks the same catalogue, and prints how its answers differ:

# %% tags=["nbval-ignore-output"]
from course_kernels import cutlass_ops

args = cutlass_ops.arguments(A, B, offs=offs)
blackwell = cutlass_ops.discover(args, "100f")
print(blackwell.where(cluster=lambda shape: max(shape) <= 2))

# %% [markdown]
# - **tile**: rows and columns of C that are computed at a time, and the depth of a block along K.
# - **cluster**: numbers of [CTAs](glossary.md#CTA) (thread blocks) along M and along N. A
#   [cluster's](glossary.md#cluster) CTAs run at the same time on neighbouring SMs, and can exchange data.
# - **CTAs**: on Blackwell, two CTAs can share one instruction. Then the tile belongs to the pair, and each CTA has half
#   of its rows.
# - **stages**: blocks that are fetched ahead. "auto" means as many as fit into shared memory.
# - **targets**: the GPUs that it is for. 110f is Blackwell in Jetson Thor.
#
# Which one is best? The metadata do not say how fast an operator is. They do say how much it fetches. CTAs in one row
# of a cluster need the same rows of A. CTAs in one column need the same columns of B.
# [Multicast](glossary.md#multicast) delivers such a block to all of them at once.

# %%
choices = {
    "alone\n128×128, 1×1": blackwell.where(tile=(128, 128, 64), cluster=(1, 1)),
    "in a cluster\n128×128, 2×2": blackwell.where(tile=(128, 128, 64), cluster=(2, 2), ctas=1),
    "a pair\n256×256, 2×1": blackwell.where(tile=(256, 256, 64), cluster=(2, 1), ctas=2),
    "pairs\n256×256, 4×2": blackwell.where(tile=(256, 256, 64), cluster=(4, 2), ctas=2),
}
draw.clusters({title: found.designs[0] for title, found in choices.items()})

# %% [markdown]
# A box is one CTA's part of C. Boxes of one colour share an instruction. Grey is what the cluster fetches from
# [L2](glossary.md#L2) for each step along K. Larger clusters fetch less for each multiplication. (*Products per
# element* are the multiplications for each element of A or B that is fetched.) They also round the rows up to a larger
# block.
#
# **Guess** before you open the output: each of the 12 groups has about 683 rows. Which of the four wastes the most
# rows?

# %% tags=["hide-output"]
sizes = [total_m // G] * (G - 1) + [total_m - total_m // G * (G - 1)]
for title, found in choices.items():
    cluster = cluster_of(found.designs[0])
    computed = sum(-(-rows // cluster.rows) * cluster.rows for rows in sizes)
    name = title.replace("\n", ": ")
    print(f"{name:27} {cluster.reuse:3.0f} products per element, {1 - total_m / computed:4.0%} of the rows wasted")

# %% [markdown]
# <details><summary>Answer</summary>
#
# The last one, a third: it rounds 683 rows up to 1024. The other three round up to 768, by 128 or by 256 rows.
#
# </details>
#
# It is lesson 07's choice of a tile again: a larger block reads less, and may waste more.
#
# ## Goes wrong: an empty answer
#
# Three requests, each with one mistake:

# %%
requests = {
    "first": dict(mat_a=blank(total_m, K), mat_b=blank(G, K, N), offs=blank(G, dtype=torch.int32)),
    "second": dict(mat_a=blank(total_m, K), mat_b=blank(G, N, K).mT, offs=blank(G, dtype=torch.int64)),
    "third": dict(mat_a=blank(total_m, 1020), mat_b=blank(G, N, 1020).mT, offs=blank(G, dtype=torch.int32)),
}
for name, request in requests.items():
    print(f"{name:6}", ops.get_operators(cutlass_ops.arguments(**request), target_sm="100f"))

# %% [markdown]
# The catalogue answers with an empty list, and no reason. But each operator declares what it needs, in
# `operator.metadata.operands`. From that, `cutlass_ops.discover` finds the reasons.
#
# **Guess** before you open the output: what is the mistake in each of the three?

# %% tags=["hide-output"]
for request in requests.values():
    try:
        cutlass_ops.discover(cutlass_ops.arguments(**request), "100f")
    except cutlass_ops.NoOperator as error:
        print(error, end="\n\n")

# %% [markdown]
# <details><summary>Answer</summary>
#
# The first has B as (G, K, N), where the operators want K contiguous. The second has ends in 64 bits. The third has
# rows of 1020 numbers, 2040 bytes, which is no multiple of 16.
#
# </details>
#
# The reverse happens, too: an answer that should be empty. Listed without a request, no operator has float32 operands.

# %%
single = cutlass_ops.arguments(A.float(), B.float(), offs=offs)
print("the catalogue finds operators:", bool(ops.get_operators(single, target_sm="100f")))
try:
    cutlass_ops.discover(single, "100f")
except cutlass_ops.NoOperator as error:
    print(error.reasons[0])

# %% [markdown]
# Those operators even compile. Their instruction then reads only 10 of the 23 bits of each fraction (TF32), so results
# are less exact than float32's. `discover` refuses, because it compares the declared dtypes itself.
#
# ## Why layouts are restricted
#
# The first request failed because B was stored as (G, K, N). Do other operators have such rules? Here are the layouts
# that two classes declare: the one for groups, and NVIDIA's Hopper operator for a single product.

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
# A stride of 1 marks the contiguous dimension. So (…, 0, 1) is row-major, and (…, 1, 0) is column-major: stored
# transposed.

# %%
columns = {
    "single, 16 bits": declared(by_wgmma[0], cutlass.BFloat16),
    "single, 8 bits": declared(by_wgmma[0], cutlass.Float8E4M3FN),
    "groups, 16 bits": declared(blackwell[0], cutlass.BFloat16),
}  # fmt: skip
names = {(0, 0, 1): "row", (0, 1, 0): "col"}
print("A    B    C   ", *columns, sep="  ")
for strides in itertools.product(names, repeat=3):
    layouts = "  ".join(names[each] for each in strides)
    marks = ["yes" if strides in has else "-" for has in columns.values()]
    print(f"{layouts}     {marks[0]:17}{marks[1]:16}{marks[2]}")

# %% [markdown]
# Each column has its own reason:
#
# - **A single product, 16 bits: any layout.** Tensor cores can transpose a block of 16-bit numbers while they read it.
# - **A single product, 8 bits: K contiguous.** They cannot transpose 8-bit numbers, and TMA copies a block as it is.
# - **Groups: M not contiguous, in A and C.** Along the contiguous dimension TMA starts only at multiples of 16 bytes
#   (lesson 08), and a group starts at any row. B could have either layout. But linear layers store (G, N, K), and each
#   layout needs a kernel of its own.
#
# ## Add an operator
#
# NVIDIA ships no grouped operator for Hopper in this catalogue. But you can register your own. Our kernel is written in
# [CuTe DSL](glossary.md#CuTe-DSL), a Python language in which you write what each warp does; lesson 10 explains it. The
# catalogue needs a class that answers four questions.
#
# **1. What is it for?** The decorator registers the class, for one kind of arguments:

# %%
from course_kernels.cutlass_ops import hopper

show(hopper.HopperGroupedGemmOperator, "@ops.CuTeDSLProvider", "self.impl =")

# %% [markdown]
# **2. Which variants are there?** One for each configuration, and what each needs of its operands: dtype, contiguous
# dimension, alignment. The catalogue compares requests with this, and `discover` reads its reasons here.

# %%
show(hopper.HopperGroupedGemmOperator._generate_operators, "for operands, config in", "found.append")

# %%
show(hopper._operands, "dtypes =", "accumulator_type")

# %% [markdown]
# **3. How is it compiled? 4. How is it run?** The kernel is [persistent](glossary.md#persistent): it launches as many
# clusters as the GPU holds at a time. `get_max_active_clusters` asks the driver for that number.

# %%
show(hopper.HopperGroupedGemmOperator._compile)
show(hopper.HopperGroupedGemmOperator._run)

# %% [markdown]
# `cutlass_ops` has imported this module, so the class is registered. The request that found nothing, again, with
# NVIDIA's own function:

# %%
found = ops.get_operators(args, target_sm="90a")
print("for Hopper now:", sorted({type(each).__name__ for each in found}))
print("for Blackwell, still NVIDIA's alone:", {row.source for row in blackwell.designs} == {"cutlass"})

# %% tags=["nbval-ignore-output"]
ours = cutlass_ops.discover(args, "90a")
print(ours)

# %% [markdown]
# Our operators have two more columns. *Schedule* says how warps share the work: [cooperative](glossary.md#cooperative)
# warp groups share a tile, [ping-pong](glossary.md#ping-pong) ones take turns with a tile each. *Others* are further
# tile shapes of the same operator. Lesson 10 explains both. Which of them should you take? Lesson 17's model chooses.
#
# ## The production kernel
#
# The whole class, and the kernel that it compiles. Beyond the four answers, the class refuses what the kernel cannot
# do.

# %%
from course_kernels.kernels.cute_sm90 import kernel

display(fold(hopper.HopperGroupedGemmOperator), fold(kernel.HopperGroupedGemm))

# %% [markdown]
# ## Compile for both, without either
#
# A compiler needs no GPU. It needs two facts that usually the driver knows: the architecture, and how many clusters
# fit. `cutlass_ops.compile` takes both. An H200 has 132 SMs, a B200 148, and a cluster takes two in both operators.
# (Without `clusters`, it divides for you, or asks the driver where there is one.)

# %%
hopper_code = cutlass_ops.compile(ours.where(tile=(128, 256, 64), cluster=(2, 1))[0], args, "90a", clusters=132 // 2)
blackwell_code = cutlass_ops.compile(choices["a pair\n256×256, 2×1"][0], args, "100f", clusters=148 // 2)
reports = [cutlass_ops.report(code) for code in (hopper_code, blackwell_code)]
for report in reports:
    print(f"sm_{report.compiled.target}: {report.compiled.clusters} clusters, {report.spills.bytes} bytes spilled")

# %% [markdown]
# Both compute 256 × 256 of C with two CTAs. These are the instructions in their [PTX](glossary.md#PTX). (*multicast*
# and *2 CTAs* each count a part of the line above. Our kernel multiplies a tile's first block before its loop over K: 4
# `wgmma` are there, and 4 in the loop.)

# %% tags=["nbval-ignore-output"]
print(cutlass_ops.side_by_side(reports))

# %%
multiplies = ("wgmma", "tcgen05.mma")
for report in reports:
    print(report.compiled.target, "multiplies with", [name for name in multiplies if report.instructions[name]])
print("copies for several CTAs at once:", [report.instructions["TMA load, multicast"] > 0 for report in reports])

# %% [markdown]
# The multiplications themselves, Hopper on the left:

# %% tags=["nbval-ignore-output"]
left = reports[0].excerpt(r"wgmma\.mma_async", before=2, after=1)
right = reports[1].excerpt(r"tcgen05\.mma", before=2, after=1)
print(side_by_side(left, right, ("sm_90a: wgmma", "sm_100f: tcgen05.mma"), width=57))

# %% [markdown]
# - **Who issues it?** 128 threads together issue a `wgmma`, a [warp group](glossary.md#warp-group). *One* thread issues
#   `tcgen05.mma`, for two CTAs: `cta_group::2`.
# - **Where are the sums?** `wgmma` keeps them in registers, those in braces: 128 × 256 sums over 256 threads are 128
#   registers each. `tcgen05.mma` keeps them in [tensor memory](glossary.md#tensor-memory), and `tcgen05.ld` fetches
#   them, a part at a time. So registers no longer limit the tile.
# - **Where are the operands?** In shared memory, in both. The values in `%rd…` describe blocks there.
# - **What is fetched twice?** Nothing. On Hopper, multicast delivers one copy to both CTAs. On Blackwell, each CTA of a
#   pair fetches half of A and half of B, and the instruction reads the shared memory of both.
#
# In both, `setmaxnreg` moves registers from warps that only copy to warps that work on the sums. The machine code,
# disassembled:

# %% tags=["nbval-ignore-output"]
for report in reports:
    counts = [f"{n} {name}" for name, n in report.machine_instructions.items() if n]
    print(f"{report.compiled.target}: {'; '.join(counts)}")
print(reports[0].excerpt("HGMMA", 0, 0, stage="sass").strip())
print(reports[1].excerpt("UTCHMMA", 0, 0, stage="sass").strip())

# %% [markdown]
# The loop over K, as in lesson 06. Each square is one instruction, in the order of the text.

# %% tags=["nbval-ignore-output"]
instructions.loop_instructions({f"sm_{report.compiled.target}": report.ptx for report in reports})

# %% [markdown]
# Neither loop contains a copy. Another warp copies, in a loop of its own, and the two loops wait for each other at
# [barriers](glossary.md#barrier). In lesson 08's Triton kernel all warps did both. Lesson 10 is about such roles.
#
# ## Run it
#
# `run` launches on torch's current stream. It refuses if the GPU is another one than the target. `compare` compares the
# result with the loop in float64, element by element, and with torch's.

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
    print("No Hopper GPU here, so nothing is run.")

# %% [markdown]
# ## The reference notebook, end to end
#
# NVIDIA's example notebook was written for the first release of this API. It imports the package `cutlass_api`, which
# NVIDIA has renamed to `cutlass.operators`. So import `cutlass_api` from `course_kernels.cutlass_ops`, which has the
# old names. With this one line changed the notebook runs; with `cc=90`, on Hopper, too. (Its `compile` asks the driver,
# so it needs the GPU.)
#
# ```python
# from course_kernels.cutlass_ops import cutlass_api  # import cutlass_api
#
# args = cutlass_api.arguments.GroupedGemmArguments(A, B, out, accumulator_type=torch.float32, offsets=offsets)
# kernel = cutlass_api.get_kernels(args, cc=90)[0]  # cc=100
# kernel.run(args, compiled_artifact=kernel.compile(args))
# ```

# %% [markdown]
# The times of the same problem, on record from an H200: the example with our operator, and everybody else. The dense
# product has as many multiplications, without groups. Its time is not a hard limit: in other rows a grouped kernel is
# faster (lesson 15).
#
# **Guess** before you open the output: how many times as long as our operator does a loop of cuBLAS calls take, one for
# each of the 12 groups?

# %% tags=["hide-output"]
from course_kernels.bench import record

results = record.load("grouped_mm")
known, extents = results["providers"], (total_m, G, N, K)
print(results["provenance"]["gpu"], results["provenance"]["date"][:10])
for row in results["rows"].values():
    if (sum(row["sizes"]), len(row["sizes"]), row["N"], row["K"]) == extents:
        for name, us in row["us"]["forward"].items():
            rate = row["rate"]["forward"][name]
            print(f"{known[name]['label']:34} {us['median_us']:6.1f} µs {rate:5.0f} {row['unit']}")
        loop_us, our_us = (row["us"]["forward"][name]["median_us"] for name in ("loop", "cute"))
        print(f"the loop takes {loop_us / our_us:.1f} times as long as our operator's kernel")

# %% [markdown]
# <details><summary>Answer</summary>
#
# 1.6 times.
#
# </details>
#
# `grouped_mm (cute)` is our operator's kernel, and `grouped_mm (auto)` chooses between the library's two. QuACK is a
# library of kernels in the same language, by the Dao AI Lab.
#
# ## Try it
#
# [Exercise 09](../exercises/09_pick_operator.ipynb): pick the operator that wastes the fewest multiplications. Or
# change a cell and run it again:
#
# 1. For which of the targets "100a", "103a", "120a" and "90" are there operators? Ask `discover`, and read the reasons.
#    <details><summary>Answer</summary>"100a" and "103a" are members of the family "100f". "120a" has no `tcgen05`. "90"
#    promises code for every later GPU, and `wgmma` exists on "90a" only.</details>
# 2. Compile one of our ping-pong operators with tiles of 128 × 192. How many registers do the sums take in each thread?
#    Why does the report say 168?
#    <details><summary>Answer</summary>A tile belongs to one warp group of 128 threads: 128 × 192 / 128 = 192. And 168
#    is the share of each of 384 threads at launch: 65,536 / 384, in multiples of 8. Then <code>setmaxnreg</code> gives
#    232 to the threads that multiply.</details>
# 3. Rows wasted: use `testing.routed_sizes("zipf", total_m, 12)` instead of `sizes`. Which operator would you pick now?
#    <details><summary>Answer</summary>Wasted rows: alone 9 %, in a cluster or a pair 16 %, pairs 24 %. (Pairs wasted a
#    third before, because 682 rows were just over one block of 512.) The pair is a fair choice: it fetches half as much
#    as one CTA alone. Where each expert has thousands of rows, take the pairs: waste hardly matters there.</details>

# %% [markdown]
# ## Summary
#
# - An operator is found by a description of operands: shapes, strides and dtypes. No data and no GPU are needed.
# - The metadata tell how much a cluster fetches and how far it rounds up, but not its speed.
# - The catalogue gives no reasons, and sometimes takes what no operator declares. So compare with the declarations
#   yourself.
# - Compiling needs a target and a number of clusters. Hopper sums in registers, Blackwell in tensor memory.
# - The catalogue is open: a class says what it is for, its variants, how it is compiled and how it is run.
#
# ## References
#
# - [CUTLASS documentation](https://docs.nvidia.com/cutlass/latest/index.html), NVIDIA; with the CUTLASS Operator API.
# - [CUTLASS](https://github.com/NVIDIA/cutlass), with the example notebooks of the Operator API.
# - [PTX](https://docs.nvidia.com/cuda/parallel-thread-execution/), NVIDIA: the sections on asynchronous warpgroup-level
#   instructions (`wgmma`) and on tensor cores of the 5th generation (`tcgen05`).
# - [QuACK](https://github.com/Dao-AILab/quack), kernels in CuTe DSL.
#
# ## What to read next
#
# Lesson 10 opens the kernel that you have just added: which warp does what, in 80 lines. Lesson 11 uses it for a
# backward pass.
