# %% [markdown]
# # 00 · Start here
#
# A layer of a language model has eight experts, and each token goes to one of them. (In most models it goes to several;
# lesson 01 has them.) Some experts get many tokens, some few, some none. How does a GPU multiply them all, if every
# product has another size?
#
# **About 10 minutes. Afterwards you can**
#
# - say what a grouped GEMM is,
# - compute one with this library and test the result,
# - find out what your machine supports,
# - solve an exercise with the help of its check.
#
# You need: Python and PyTorch. The course explains Triton, and you need no GPU.

# %%
import gemm_course  # import first: without a GPU, kernels then run in the interpreter

import torch

from course_kernels import group_gemm, runtime, testing
from course_kernels.testing import reference
from gemm_course.figures.f00_overview import overview

device = runtime.device()  # a GPU where there is one, else the CPU

# %% [markdown]
# ## The problem in eight lines
#
# A *router* chose an expert for each of 40 tokens. Sorted by expert, the tokens form eight groups. The last group is
# empty:

# %%
expert_of = testing.route("zipf", tokens=40, experts=8, s=1.2, seed=4)
sizes = torch.bincount(expert_of, minlength=8).tolist()

print("experts of first tokens:", expert_of[:12].tolist())
print("tokens per expert:     ", sizes)

# %% [markdown]
# Can we stack the groups into one tensor and multiply once? This cell fails **on purpose**:

# %% tags=["raises-exception"]
group_A = [testing.integers((size, 64), generator=g, device=device) for g, size in enumerate(sizes)]
group_B = [testing.integers((64, 48), generator=8 + g, device=device) for g in range(8)]

torch.stack(group_A) @ torch.stack(group_B)

# %% [markdown]
# Matrices of different sizes do not stack. A loop works, but on a GPU it starts eight small kernels one after another,
# and each leaves most of the GPU idle. (A *[kernel](glossary.md#kernel)* is a function that runs on the GPU. To start
# it is to *[launch](glossary.md#launch)* it.) A **[grouped GEMM](glossary.md#grouped-GEMM)** computes all products in
# one launch. GEMM means general matrix multiplication. We take the kernel of lesson 04, `round_robin`:

# %%
group_C = group_gemm(group_A, group_B, method="round_robin")
expected = reference.group_gemm(group_A, group_B, out_dtype=torch.float16)

for g, (c, e) in enumerate(zip(group_C, expected)):
    print(f"expert {g}: result {c.shape[0]:2} × {c.shape[1]}   exact: {torch.equal(c, e)}")

# %% [markdown]
# The inputs are small whole numbers, so all sums are exact. Nearly all tests of the course ask for *equal* results, not
# for close ones.
#
# ## The idea in one picture
#
# From left to right: tokens arrive in any order. The [router](glossary.md#router) sends each to its
# [expert](glossary.md#expert). Each expert multiplies its rows by its own weights. Every result is cut into
# [tiles](glossary.md#tile). One launch deals all tiles to the GPU's processors, the [SMs](glossary.md#SM):

# %%
overview(expert_of)

# %% [markdown]
# The rest of the course is about the right half: which tiles, in which order, how fast.
#
# ## What your machine supports
#
# The doctor lists what it found, and how kernels will run. In a terminal, `course doctor` also compiles and runs a
# kernel as a test.

# %% tags=["nbval-ignore-output"]
from gemm_course.cli import doctor

print(doctor.report(doctor.examine(trials=False)))

# %% [markdown]
# Without a GPU, kernels run in Triton's [interpreter](glossary.md#interpreter): it runs the same source on the CPU,
# slowly, with the same results. The lessons then show speeds that were recorded on an H200, a GPU of NVIDIA's
# [Hopper](glossary.md#Hopper) generation. Compiled code can be shown for any GPU.
#
# ## The map
#
# | lesson | question | time |
# | --- | --- | --- |
# | [01 The grouped problem](01_the_grouped_problem.ipynb) | What does padding waste? | about 45 min |
# | [02 Triton in fifteen minutes](02_triton_in_fifteen_minutes.ipynb) | How do you write a kernel? | about 55 min |
# | [03 One launch per problem](03_one_launch_per_problem.ipynb) | What does each launch cost? | about 45 min |
# | [04 Static round-robin](04_static_round_robin.ipynb) | How can one launch compute many sizes? | about 55 min |
# | [05 Scheduling](05_scheduling.ipynb) | Which program computes which tile, and when? | about 50 min |
# | [06 TMA descriptors](06_tma_descriptors.ipynb) | What does Hopper's copy hardware do for a kernel? | about 40 min |
# | [07 Autotuning and configuration](07_autotuning.ipynb) | Which configuration is fast? | about 50 min |
# | [08 Contiguous offsets](08_contiguous_offsets.ipynb) | What is simpler if all groups are packed? | about 55 min |
# | [09 CUTLASS operators](09_cutlass_operators.ipynb) | How do you compile and run NVIDIA's kernels? | about 30 min |
# | [10 A Hopper kernel](10_a_hopper_kernel.ipynb) | Which warp does what? | about 45 min |
# | [11 Training](11_training.ipynb) | Which products does a backward pass need? | about 50 min |
# | [12 Masked groups and FP8](12_masked_and_fp8.ipynb) | Can one launch serve every decoding step? | about 60 min |
# | [13 Helion](13_helion.ipynb) | What does a language above Triton generate, and what is left to you? | about 40 min |
# | [14 The MoE layer](14_the_moe_layer.ipynb) | How much of a layer is not its products? | about 60 min |
# | [15 Performance](15_performance.ipynb) | How do you measure a speed that others can trust? | about 70 min |
# | [16 Many GPUs](16_many_gpus.ipynb) | What travels if experts are on several GPUs? | about 45 min |
# | [17 Choosing a kernel](17_choosing_a_kernel.ipynb) | How does a library choose for an unseen shape? | about 45 min |
#
# Read the lessons in order. Run a cell with Shift+Enter, change it, and run it again: nothing can break. Some cells
# fail **on purpose**, to show a mistake; the text before them says so. Where a text says **Guess**, make a guess first,
# then open the hidden output with a click. The words of the course are explained in the [glossary](glossary.md).
#
# `make lab` opens your own copies of the lessons and exercises, in `my_course/`. After an update of the course, it
# replaces what you did not change and keeps your answers.
#
# ## A first exercise
#
# A check runs your function on several inputs. If an answer is wrong, it says what is wrong and for which input. Here
# is a first task: from the sizes of the groups, compute the row at which each group **ends**. An end is *exclusive*: it
# is the row after the last one of the group. So the sizes 3, 0, 5, 2 have the ends 3, 3, 8, 10.
#
# The function below is wrong. Run the cell and read the message. Replace one line, and run the cell again until it
# passes. Try it without a loop.


# %%
from gemm_course.lessons.warm_up import check_ends


def ends_of(sizes):
    return sizes  # replace this line


check_ends(ends_of)

# %% [markdown]
# <details><summary>Hint</summary>An end is a running total. PyTorch has a function for it.</details>
# <details><summary>Answer</summary><code>return torch.cumsum(sizes, dim=0)</code></details>
#
# Exercises of the later lessons are notebooks of their own, in `exercises/`. They work in the same way, give points,
# and have hints in several steps.
#
# ## Try it
#
# 1. Draw `overview(testing.route("one_hot", 40))`. What do the processors do when one expert gets all tokens?
#    <details><summary>Answer</summary>All ten work, on six tiles each. The launch deals tiles, not experts.</details>
# 2. Route 5 tokens instead of 40 and run the notebook again. Which experts have no tile? What does `group_gemm` return
#    for them?
#    <details><summary>Answer</summary>All five tokens go to expert 0, and the other seven have no tile.
#    <code>group_gemm</code> returns a matrix without rows for each of them.</details>
# 3. In the call of `group_gemm`, use `method="naive"`, then `"tma"`. Do the results change?
#    <details><summary>Answer</summary>No. Only the way changes: one launch per product (lesson 03), or loads through
#    descriptors (lesson 06).</details>

# %% [markdown]
# ## Summary
#
# - A grouped GEMM is many matrix products of different sizes in one launch.
# - Matrices of different sizes do not stack. A loop needs a launch for each product and leaves the GPU idle.
# - One launch deals the tiles of all products to the processors.
# - Everything runs without a GPU, with the same results.
# - A check says what is wrong, and for which input.
#
# ## References
#
# - N. Shazeer and others, [Outrageously Large Neural Networks: The Sparsely-Gated Mixture-of-Experts
#   Layer](https://arxiv.org/abs/1701.06538), 2017: the layer with a router and experts.
# - Triton, [Group GEMM](https://triton-lang.org/main/getting-started/tutorials/08-grouped-gemm.html): the tutorial that
#   this course begins with.
#
# ## What to read next
#
# Lesson 01 compares the three ways to compute the experts, and shows five ways to describe the groups. If you know
# both, and Triton, begin with lesson 03.
