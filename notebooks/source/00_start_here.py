# %% [markdown]
# # 00 · Start here
#
# A layer of a language model holds eight experts, and each token goes to one of them. Some experts get many
# tokens, some few, some none. How does a GPU multiply them all, when every product has another size?
#
# You will call a kernel (a program that runs on a GPU) that does it, see what your machine can run, and repair a
# first mistake. Five minutes.

# %%
import gemm_course  # noqa: F401 (first: without a GPU, it has kernels run in the interpreter)

import torch

from course_kernels import group_gemm, runtime, testing
from course_kernels.testing import reference
from gemm_course.figures.overview import overview

device = runtime.device()  # a GPU where there is one, else the CPU

# %% [markdown]
# ## The problem in eight lines
#
# A *router* chose an expert for each of 40 tokens. Sorted by expert, the tokens form eight groups, the last of
# them empty:

# %%
expert_of = testing.route("zipf", tokens=40, experts=8, s=1.2, seed=4)
sizes = torch.bincount(expert_of, minlength=8).tolist()

print("first tokens go to experts", expert_of[:12].tolist())
print("tokens of each expert     ", sizes)

# %% [markdown]
# The obvious thing is a stack: put the groups into one tensor and multiply once. Run it and see it
# fail.

# %% tags=["raises-exception"]
group_A = [testing.integers((size, 64), generator=g, device=device) for g, size in enumerate(sizes)]
group_B = [testing.integers((64, 48), generator=8 + g, device=device) for g in range(8)]

torch.stack(group_A) @ torch.stack(group_B)

# %% [markdown]
# Matrices of different sizes do not stack. A loop works, and on a GPU it launches eight small kernels one after
# another, each of which leaves most of the chip idle. A **grouped GEMM** (GEMM: general matrix multiplication)
# computes all of them in one launch:

# %%
group_C = group_gemm(group_A, group_B, method="round_robin")
expected = reference.group_gemm(group_A, group_B, out_dtype=torch.float16)

for g, (c, e) in enumerate(zip(group_C, expected)):
    print(f"expert {g}: result {c.shape[0]:2} × {c.shape[1]}   exact: {torch.equal(c, e)}")

# %% [markdown]
# The inputs are small whole numbers, so every product and sum is exact, and *exact* is what the course asks for.
#
# ## The idea in one picture

# %%
overview(expert_of)

# %% [markdown]
# Left to right: tokens arrive in any order; the router sends each to its expert; each expert multiplies its rows
# by its own weights; every result is cut into **tiles**; and one launch deals all tiles, whatever expert they
# belong to, to the GPU's processors (**SMs**). The rest of the course is about the right-hand side: which tiles,
# in what order, how fast.
#
# ## What your machine can do
#
# The doctor says what is here and what will run how. In a terminal it also runs and compiles a kernel to prove
# it: `.venv/bin/python -m gemm_course.cli.doctor`.

# %% tags=["nbval-ignore-output"]
from gemm_course.cli import doctor

print(doctor.report(doctor.examine(trials=False)))

# %% [markdown]
# Without a GPU, kernels run in Triton's *interpreter*: the same source, computed on the CPU, slowly, with the
# same answers. Speeds are then shown from records of an H200, and compiled code can be read for any GPU.
#
# ## The map
#
# | lesson | question |
# | --- | --- |
# | [01 The grouped problem](01_the_grouped_problem.ipynb) | what does padding cost, and how are groups described? |
# | [03 One launch per problem](03_one_launch_per_problem.ipynb) | how does a tile work, and why is a loop slow? |
# | [04 Static round-robin](04_static_round_robin.ipynb) | how does one launch find its way through many problems? |
# | [05 Scheduling](05_scheduling.ipynb) | who should compute which tile, and when? |
# | [06 TMA descriptors](06_tma_descriptors.ipynb) | what does Hopper's hardware take over? |
# | [07 Autotuning](07_autotuning.ipynb) | which configuration is fast, and how does a call find it? |
# | [08 Contiguous offsets](08_contiguous_offsets.ipynb) | when all groups lie in one matrix, what becomes simpler? |
# | [09 CUTLASS operators](09_cutlass_operators.ipynb) | what is on NVIDIA's shelf, and how does a kernel get there? |
# | [10 A Hopper kernel](10_a_hopper_kernel.ipynb) | which warp does what, and how do they work together? |
# | [11 Training](11_training.ipynb) | which products is a backward pass made of, and what can go wrong in them? |
# | [12 Masked groups and FP8](12_masked_and_fp8.ipynb) | how does one launch serve all steps of decoding? |
# | [13 Helion](13_helion.ipynb) | what does a language above Triton write, and what does it leave to you? |
# | [15 Performance](15_performance.ipynb) | how is a rate measured so that one may believe it? |
#
# Read in order; each lesson takes half an hour to an hour. Run a cell with Shift+Enter, change it, run it again:
# nothing can break. Some cells fail **on purpose**, to show a mistake; the text before them says so.
#
# ## How checks work: a first exercise
#
# A check compares your answer with the right one on several inputs, and says *what* is wrong, not only that
# something is. Here is one for this task: from the sizes of the groups, compute the row at which each group
# **ends** (exclusive), without a loop.

# %%
from course_kernels import GroupLayout


def mistake(got, sizes, want):
    """What is wrong with these ends; None when nothing is."""
    if got is None:
        return "the function returned None: is there a `return`?"
    got = torch.as_tensor(got, device=device)
    if got.dtype == torch.bool or got.is_floating_point():
        return f"an end is a row number, an integer; these are {got.dtype}"
    if got.shape != want.shape:
        return f"one number for each of {len(want)} groups, please; the shape is {tuple(got.shape)}"
    known = {
        "these are the sizes: an end also counts the rows of all groups before": sizes,
        "these are the rows at which groups start": want - sizes,
        "these are the last rows themselves: an exclusive end is one further": want - 1,
    }
    if torch.equal(got.long(), want):
        return None
    return next((why for why, wrong in known.items() if torch.equal(got.long(), wrong)), "some ends are wrong")


# %%
def check_ends(ends_of):
    for sizes in ([3, 0, 5, 2], [7], [0, 0, 0]):
        sizes = torch.tensor(sizes, device=device)
        want, got = GroupLayout.from_sizes(sizes.int()).ends.long(), ends_of(sizes)
        if why := mistake(got, sizes, want):
            got = got.tolist() if isinstance(got, torch.Tensor) else got
            print(f"not yet: sizes {sizes.tolist()} gave {got},")
            print(f"not {want.tolist()}: {why}")
            return
    print("pass: every group ends where it should, empty ones too")


# %% [markdown]
# The function below is wrong. Run it, read the message, replace the line, run it again.


# %%
def ends_of(sizes):
    return sizes  # replace this line


check_ends(ends_of)

# %% [markdown]
# <details><summary>Hint</summary>An end is a running total; torch has a function for that.</details>
# <details><summary>Answer</summary><code>return torch.cumsum(sizes, dim=0)</code></details>
#
# An answer that is nearly right gets a message of its own. This one forgot each group's own rows:

# %%
check_ends(lambda sizes: torch.cumsum(sizes, dim=0) - sizes)

# %% [markdown]
# ## Try it
#
# - Draw `overview(testing.route("one_hot", 40))`: what do the processors do when one expert gets everything?
#   <details><summary>Answer</summary>All ten work, on six tiles each: tiles are dealt, not experts.</details>
# - Route 5 tokens instead of 40 and run the notebook again. Which experts have no tile at all, and does
#   `group_gemm` mind?
#   <details><summary>Answer</summary>All five tokens go to expert 0; the other seven have no tile.
#   <code>group_gemm</code> does not mind: their results are matrices of no rows.</details>
# - Take `method="naive"`, then `"tma"`, in the call above. The answers must not change; lessons 03 and 06 say
# what does.
#
# ## Summary
#
# - A grouped GEMM is many matrix products of different sizes in one launch.
# - Different sizes do not stack; a loop launches once for each and leaves the GPU idle.
# - One launch deals the tiles of all products to the processors.
# - Everything runs without a GPU, with the same answers; the doctor says how.
# - Checks say what is wrong and where.
#
# Next: [01 The grouped problem](01_the_grouped_problem.ipynb), what padding costs and how groups are described.
