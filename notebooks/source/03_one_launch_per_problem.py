# %% [markdown]
# # 03 · One launch per problem
#
# A layer with eight experts needs eight matrix products. The obvious way is to launch a kernel once for each. How does
# such a kernel work, and what do the launches cost?
#
# **About 45 minutes. Afterwards you can**
#
# - write a tiled matrix product in Triton that is right for any M, N and K,
# - say which mask protects what,
# - explain why 64 launches leave most of a GPU idle, and when a loop of launches is good enough,
# - recognise three wrong kernels by the pattern of their errors, and test a kernel with an error bound.
#
# You need: the Triton of [lesson 02](02_triton_in_fifteen_minutes.ipynb).

# %%
import gemm_course  # import first: without a GPU, kernels then run in the interpreter

import torch
import triton
import triton.language as tl

import course_kernels
from course_kernels import testing
from course_kernels.testing import reference
from gemm_course.figures import matrices

device = course_kernels.runtime.device()

# %% [markdown]
# ## One program, one tile
#
# Cut C into [tiles](glossary.md#tile) and let each [program](glossary.md#program) compute one. For its tile, a program
# needs some rows of A and some columns of B. It reads them block by block along K. The dark blocks are those of one
# step:

# %%
matrices.tile_of_product((64, 96, 64), block=(32, 32, 32), tile=(1, 1))

# %% [markdown]
# A kernel gets no matrix, only the address of its first element. Element (i, j) is `i * stride_row + j * stride_column`
# elements after that address. In the picture, each row has 10 elements of A and 2 that are not A's. So the next row
# begins 12 elements later. This step is the [leading dimension](glossary.md#leading-dimension), `lda`:

# %%
matrices.tile_offsets((6, 10), block=(4, 4), at=(0, 4), strides=(12, 1))

# %% [markdown]
# The pointers of a tile are a column of row offsets plus a row of column offsets. The simplest kernel loads a tile of A
# and a tile of B, multiplies them and stores the product:


# %%
@triton.jit
def first_try(a_ptr, b_ptr, c_ptr, lda, ldb, ldc, BLOCK: tl.constexpr):
    rows = tl.arange(0, BLOCK)
    cols = tl.arange(0, BLOCK)
    depth = tl.arange(0, BLOCK)
    a = tl.load(a_ptr + rows[:, None] * lda + depth[None, :])
    b = tl.load(b_ptr + depth[:, None] * ldb + cols[None, :])
    c = tl.dot(a, b)
    tl.store(c_ptr + rows[:, None] * ldc + cols[None, :], c.to(c_ptr.dtype.element_ty))


# %% [markdown]
# The inputs are whole numbers from −2 to 2. Sums of their products are exact, so a right result is *equal* to the
# reference. C starts full of NaN: an element that is still NaN was never written.

# %%
even_A = testing.integers((64, 64), generator=1, device=device)
even_B = testing.integers((64, 96), generator=2, device=device)
even_C = torch.full((64, 96), float("nan"), dtype=torch.float16, device=device)
even_want = reference.gemm(even_A, even_B, torch.float16)

first_try[(1,)](even_A, even_B, even_C, even_A.stride(0), even_B.stride(0), even_C.stride(0), BLOCK=32)
matrices.error_map(even_C, even_want, block=(32, 32), title="first try")

# %% [markdown]
# Two things are missing. Five tiles are black: no program wrote them, because we launched one. The tile that we did
# write is not white, so it is wrong: each sum has 32 of its 64 terms.
#
# The next kernel repairs both. `tl.program_id` selects the tile. A loop over K adds each block's product to a float32
# [accumulator](glossary.md#accumulator).


# %%
@triton.jit
def no_masks(a_ptr, b_ptr, c_ptr, M, N, K, lda, ldb, ldc, BLOCK: tl.constexpr):
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    depth = tl.arange(0, BLOCK)
    acc = tl.zeros((BLOCK, BLOCK), dtype=tl.float32)
    for k in range(0, tl.cdiv(K, BLOCK)):
        a = tl.load(a_ptr + rows[:, None] * lda + (k * BLOCK + depth)[None, :])
        b = tl.load(b_ptr + (k * BLOCK + depth)[:, None] * ldb + cols[None, :])
        acc = tl.dot(a, b, acc)
    tl.store(c_ptr + rows[:, None] * ldc + cols[None, :], acc.to(c_ptr.dtype.element_ty))


# %%
def launch(kernel, A, B, C, lda, ldb):
    """One program for each 32 × 32 tile of C."""
    (M, K), N = A.shape, B.shape[1]
    grid = (triton.cdiv(M, 32), triton.cdiv(N, 32))
    kernel[grid](A, B, C, M, N, K, lda, ldb, C.stride(0), BLOCK=32)


launch(no_masks, even_A, even_B, even_C, lda=even_A.stride(0), ldb=even_B.stride(0))
print("right everywhere:", torch.equal(even_C, even_want))

# %% [markdown]
# ## The sizes that a router makes
#
# The kernel is right where M, N and K are multiples of 32. In a mixture-of-experts layer, M is the number of tokens
# that the [router](glossary.md#router) sent to one [expert](glossary.md#expert). That can be any number.

# %%
tokens = testing.routed_sizes("zipf", 400, experts=8)
M, N, K = tokens[2], 80, 72
print("tokens of the eight experts:", tokens)
print(f"we compute expert 2: ({M} × {K}) times ({K} × {N})")

# %% [markdown]
# Reading past a matrix is a quiet crime: there is nearly always *something* there. To make it visible, we put NaN
# around A and B, and the number −999 around C. Such a border is a [canary](glossary.md#canary). A NaN in C means that
# the kernel read outside of A or B. A changed −999 means that it wrote outside of C.

# %%
MARGIN = 32  # more than a tile can stick out
A, _ = testing.poisoned((M, K), margin=MARGIN, device=device)
B, _ = testing.poisoned((K, N), margin=MARGIN, device=device)
A.copy_(testing.integers((M, K), generator=3, device=device))
B.copy_(testing.integers((K, N), generator=4, device=device))
want = reference.gemm(A, B, torch.float16)


def run(kernel):
    """Launch on A and B; returns C and the buffer around it."""
    buffer = torch.full((M + 2 * MARGIN, N + 2 * MARGIN), -999.0, dtype=torch.float16, device=device)
    C = buffer[MARGIN : MARGIN + M, MARGIN : MARGIN + N]
    launch(kernel, A, B, C, lda=A.stride(0), ldb=B.stride(0))
    return C, buffer


# %% [markdown]
# **Guess** before you open the output: C has 50 × 80 elements. How many of them does `no_masks` compute correctly?

# %% tags=["hide-output"]
C, buffer = run(no_masks)
matrices.error_map(C, want, block=(32, 32), title="no masks")

# %% [markdown]
# <details><summary>Answer</summary>
#
# None.
#
# </details>
#
# K is 72, so the third block along K has 8 columns of A and 24 columns of NaN. These 24 enter every sum. In a real
# program they would be other numbers, and the result would look plausible.

# %%
matrices.tile_of_product((M, N, K), block=(32, 32, 32), tile=(M // 32, 2), step=2)

# %% [markdown]
# **Mask 1: along K, in both loads, with `other=0.0`.** An element outside counts as zero, and a zero adds nothing to a
# sum. Without `other`, a masked element has no defined value.


# %%
@triton.jit
def k_masked(a_ptr, b_ptr, c_ptr, M, N, K, lda, ldb, ldc, BLOCK: tl.constexpr):
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    acc = tl.zeros((BLOCK, BLOCK), dtype=tl.float32)
    for k in range(0, tl.cdiv(K, BLOCK)):
        depth = k * BLOCK + tl.arange(0, BLOCK)
        a = tl.load(a_ptr + rows[:, None] * lda + depth[None, :], mask=depth[None, :] < K, other=0.0)
        b = tl.load(b_ptr + depth[:, None] * ldb + cols[None, :], mask=depth[:, None] < K, other=0.0)
        acc = tl.dot(a, b, acc)
    tl.store(c_ptr + rows[:, None] * ldc + cols[None, :], acc.to(c_ptr.dtype.element_ty))


# %%
C, buffer = run(k_masked)
print("C is right everywhere:", torch.equal(C, want))
matrices.written_map(buffer, (MARGIN, MARGIN), want, canary=-999, block=(32, 32), title="K masked")

# %% [markdown]
# Every element of C is right, so a test that compares C passes. But the kernel overwrote memory outside of C. Without
# margins, the columns past N are the beginning of the *next row* of C, and the rows past M belong to the next expert.
#
# **Mask 2: rows and columns, in the store.** It protects the memory around C.
#
# **Mask 3: rows and columns, in the loads.** It changes no result, because those rows and columns are never stored. But
# at the end of an allocation, reading them is an illegal memory access. In the picture, the corner tile would read the
# orange elements: two of A's next row, and ten past its end:

# %%
matrices.tile_offsets((6, 10), block=(4, 4), at=(4, 8))


# %%
@triton.jit
def masked(a_ptr, b_ptr, c_ptr, M, N, K, lda, ldb, ldc, BLOCK: tl.constexpr):
    rows = (tl.program_id(0) * BLOCK + tl.arange(0, BLOCK))[:, None]
    cols = (tl.program_id(1) * BLOCK + tl.arange(0, BLOCK))[None, :]
    acc = tl.zeros((BLOCK, BLOCK), dtype=tl.float32)
    for k in range(0, tl.cdiv(K, BLOCK)):
        depth = k * BLOCK + tl.arange(0, BLOCK)
        ka, kb = depth[None, :], depth[:, None]
        a = tl.load(a_ptr + rows * lda + ka, mask=(rows < M) & (ka < K), other=0.0)
        b = tl.load(b_ptr + kb * ldb + cols, mask=(kb < K) & (cols < N), other=0.0)
        acc = tl.dot(a, b, acc)
    c = acc.to(c_ptr.dtype.element_ty)
    tl.store(c_ptr + rows * ldc + cols, c, mask=(rows < M) & (cols < N))


# %%
C, buffer = run(masked)
print("C is right everywhere:", torch.equal(C, want))
matrices.written_map(buffer, (MARGIN, MARGIN), want, canary=-999, block=(32, 32), title="all masks")

# %% [markdown]
# This is the whole kernel: thirteen lines, right for any M, N and K from 1 on. We try difficult sizes:

# %%
for m, n, k in testing.ragged_problems():
    a = testing.integers((m, k), generator=m, device=device)
    b = testing.integers((k, n), generator=n, device=device)
    c = torch.empty(m, n, dtype=torch.float16, device=device)
    launch(masked, a, b, c, lda=k, ldb=n)
    print(f"{m:3} × {n:3} × {k:3}: {torch.equal(c, reference.gemm(a, b, torch.float16))}")

# %% [markdown]
# ## The production kernel
#
# `naive_kernel` is the library's version of `masked`. It calls two functions that all pointer kernels of the library
# share: the loop over K and the masked store. Beyond `masked` it takes both [strides](glossary.md#stride) of each
# matrix, computes offsets in 64 bits (a matrix may have more than 2³¹ elements), has a choice of tile order (lesson
# 05), and can record each tile's time. Click a line to read its source.

# %%
from IPython.display import display

from course_kernels.kernels import common, naive
from gemm_course.lessons import listing

display(*map(listing.fold, (naive.naive_kernel, common.accumulate_tile, common.store_tile)))

# %% [markdown]
# ## What the compiler makes of it
#
# This cell compiles the library's kernel for Hopper (sm_90). It needs no GPU. The first version may assume that each
# row begins at a multiple of 16 bytes, the second may not.

# %%
from course_kernels import codegen

aligned = codegen.compile_kernel("naive", "sm_90")
unaligned = codegen.compile_kernel("naive", "sm_90", aligned=False)
print("both use tensor cores (wgmma):", all(c.instructions["wgmma"] > 0 for c in (aligned, unaligned)))
print("aligned: bytes per copy:", sorted(aligned.widths["cp.async"]))
print("unaligned: bytes per load:", sorted(unaligned.widths["ld.global"]))

# %% [markdown]
# `wgmma` is Hopper's [tensor core](glossary.md#tensor-core) instruction. What do the masks cost? The next lines are one
# load in [PTX](glossary.md#PTX), NVIDIA's assembly language. `cp.async` copies 16 bytes to [shared
# memory](glossary.md#shared-memory). Its last operand is the number of bytes to read. The bytes that are not read
# become zero. So a mask costs only `selp`, an instruction that selects 16 or 0, and `other=0.0` costs nothing more.

# %% tags=["nbval-ignore-output"]
print(aligned.excerpt(r"cp\.async\.cg", before=2, after=0))

# %% [markdown]
# So where rows are aligned, a mask adds hardly an instruction. An odd leading dimension adds many: eight loads of 2
# bytes in place of one copy of 16. Lesson 06 returns to alignment.
#
# ## What it costs: one launch per problem
#
# Eight experts need eight products. The method `"naive"` launches our kernel once for each. A [plan](glossary.md#plan)
# is a prepared call, and it lists its launches:

# %%
group_A = [testing.integers((m, 72), generator=m, device=device) for m in tokens]
group_B = [testing.integers((72, 80), generator=g, device=device) for g in range(8)]
plan = course_kernels.GroupGemmPlan(group_A, group_B, method="naive")
right = [torch.equal(c, reference.gemm(a, b, torch.float16)) for a, b, c in zip(group_A, group_B, plan.run())]
print(f"{len(plan.launches)} launches, all results right: {all(right)}")

# %% [markdown]
# An H200 has 132 [SMs](glossary.md#SM). If each SM computes one tile at a time, a launch runs in
# [waves](glossary.md#wave) of 132 tiles. A launch with fewer tiles leaves SMs idle. The picture counts tiles of 128 ×
# 128 for square problems:

# %%
from course_kernels import schedule
from gemm_course.figures import f03_launches as launches

sizes = (128, 256, 512, 1024, 1536, 2048)
tiles = {f"{n} × {n}": schedule.tile_counts([(n, n, n)], 128, 128)[0] for n in sizes}
launches.sm_fill(tiles, sms=132)

# %% [markdown]
# A product of 256 × 256 uses 4 SMs, and the next kernel waits until it is done: kernels run in the order of their
# launches. We simulate 64 such products, first with one launch each, then in one launch. A row is a program, a colour
# is a problem, grey is idle:

# %%
from gemm_course.figures import timeline
from gemm_course.lessons import timelines

problems = [(256, 256, 256)] * 64
block = (128, 128, 64)
one_each = schedule.one_launch_per_problem(problems, 132, block)
grouped = schedule.simulate(problems, "round_robin", 132, block)
runs = {"one launch per problem": one_each, "one launch": grouped}
bars = {name: timelines.simulated_bars(simulated) for name, simulated in runs.items()}
timeline.compare(bars, rows=132, until=40)

# %% [markdown]
# One launch per problem has two costs. *Between* kernels nothing runs. *During* a kernel most SMs have no tile. Smaller
# tiles help with the second cost only.
#
# Now the same 64 problems on a real H200. The library chose other tiles: a launch for one problem has 64 tiles of 32 ×
# 32, and the single launch has 4 tiles of 128 × 128 for each problem. Each tile recorded its SM, its start and its end.
# A row is an SM; those that the first launch used are at the top. The second panel uses a [CUDA
# graph](glossary.md#CUDA-graph): the launches were recorded once, and the [host](glossary.md#host), which is the CPU,
# starts them all with one call.

# %%
from itertools import pairwise
from statistics import median

from course_kernels.bench import record

recorded = record.load("launches")
names = ["one launch per problem", "one launch per problem, CUDA graph", "one launch"]
bars = timelines.launch_panels(recorded, names)
print("recorded on an", recorded["provenance"]["gpu"])
timeline.compare(bars, rows=132, row_name="SM, sorted", until=200)

# %% [markdown]
# The graph removes Python's time between launches. Gaps remain between a kernel's last tile and the next kernel's
# first:

# %%
for name in names[:2]:
    spans = timelines.problem_spans(bars[name])
    gaps = [start - end for (_, end, _), (start, _, _) in pairwise(spans)]
    print(f"{name}: {spans[-1][1]:.0f} µs, {sum(gaps):.0f} of them between kernels, {median(gaps):.1f} µs each time")

# %% [markdown]
# The simulation ranks the two ways correctly, but its times are wrong:

# %%
last = max(bar.end for bar in bars["one launch"])
done = sum(end <= last for _, end, _ in timelines.problem_spans(bars[names[1]]))
print(f"one launch: {grouped.makespan:.0f} µs simulated, {last:.0f} µs recorded")
print(f"by then the graph has finished {done} of its 64 problems")

# %% [markdown]
# Look closer at the time until then. Top: each launch has 64 small tiles, so half of the SMs stay idle. Bottom: no SM
# waits for another launch. But late problems (dark) start late: a program walks past all problems before its own.
# Lesson 04 shows how. The tiles of the one launch are also 16 times as large.

# %%
timeline.compare({name: bars[name] for name in names[1:]}, rows=132, row_name="SM, sorted", until=20, shades=64)

# %%
passed_us = timelines.time_to_pass(bars["one launch"])
print(f"a problem's first tile starts {passed_us:.1f} µs after the first tile of the problem before")

# %% [markdown]
# ## When not to group
#
# Grouping saves launches and fills idle SMs. Large problems fill the GPU by themselves, so there is little to save. The
# record has equal problems in CUDA graphs, computed by a loop of cuBLAS calls, by one `torch.bmm`, and grouped by
# `group_gemm`. A number above 1 (blue) means that grouping is faster. (64 problems of 4096 were not measured: one call
# would take many milliseconds, and at that size the number of problems changes the answer little.)

# %%
crossover = record.load("when_to_group")
launches.speedups(crossover["cells"], "group_gemm", against=["cublas loop", "bmm"])

# %% [markdown]
# Left: grouping speeds up small problems, and the more problems, the more. Two problems of 1024 are even slower grouped
# (0.80). From 2048 on both take about as long. Right: for problems of *equal* size, `torch.bmm` is faster throughout.
# It needs no tables, and no search for the tile's problem.
#
# For small problems, the time hardly depends on the size. An empty kernel alone takes more than half as long:

# %%
floor = record.load("group_gemm")["rows"]["4 x 128^3"]["us"]["empty"]["median_us"]
four = {cell["n"]: cell["us"]["group_gemm"] for cell in crossover["cells"] if cell["count"] == 4}
print(f"an empty kernel: {floor:.1f} µs")
for n in (16, 32, 64, 128):
    print(f"4 problems of {n:3}³, grouped: {four[n]:.1f} µs for {4 * 2 * n**3 / 1e6:6.2f} MFLOP")

# %% [markdown]
# From 16³ to 128³ the work grows by a factor of 8³ = 512, and the time by less than a tenth. Most of it is the launch.
# A faster kernel cannot save that. Only a kernel that does something else in the same launch can.
#
# The host needs time, too: `group_gemm` checks its operands and builds tables in Python. A plan does so once.

# %%
host = record.load("group_gemm")["rows"]["4 x 128^3"]["host_us"]
labels = {"cublas loop": "four cuBLAS calls", "group_gemm": "one group_gemm call", "plan.run": "a prepared plan"}
for name, label in labels.items():
    print(f"{label}: {host[name]:.0f} µs of host time")

# %% [markdown]
# ## What goes wrong
#
# Four mistakes that raise no error: three in a kernel, one in a test.
#
# ### 1. The leading dimension is taken to be K
#
# A is 72 columns of a matrix that is 96 wide. A layer has such slices where one wide matrix holds Q, K and V. To show
# where numbers come from, row r of the wide matrix holds the number r, and B holds ones. The launch passes K as `lda`.
#
# **Guess** before you open the output: which rows of C are wrong, and are they too large or too small?

# %% tags=["hide-output"]
wide = torch.arange(M, dtype=torch.float16, device=device)[:, None].repeat(1, 96)
slice_A = wide[:, :72]
ones_B = torch.ones(72, N, dtype=torch.float16, device=device)
slice_C = torch.empty(M, N, dtype=torch.float32, device=device)
slice_want = reference.gemm(slice_A, ones_B, torch.float32)
launch(masked, slice_A, ones_B, slice_C, lda=slice_A.shape[1], ldb=ones_B.shape[1])
matrices.error_map(slice_C, slice_want, title="lda = K")

# %% [markdown]
# <details><summary>Answer</summary>
#
# Row 0 is right, all others are too small.
#
# </details>
#
# The kernel looks for row 1 after 72 elements, but these are still in row 0 of `wide`. Each row is further behind, and
# the last ones are too small by a quarter. Remember the pattern: wrong from the second row on.
#
# Repair it: change the first line so that the last one prints True.

# %%
lda = slice_A.shape[1]  # replace: what is the step from one row to the next?
launch(masked, slice_A, ones_B, slice_C, lda=lda, ldb=ones_B.stride(0))
print("repaired:", torch.equal(slice_C, slice_want))

# %% [markdown]
# <details><summary>Answer</summary><code>lda = slice_A.stride(0)</code>. Ask a tensor for its strides; do not compute
# them from its shape.</details>
#
# ### 2. A transposed view is taken to be contiguous
#
# `torch.nn.Linear` stores its weight as (N, K), so B is `weight.T`. The view has the right shape, but its memory is
# still that of `weight`. Column j of B holds the number j, and A holds ones.

# %%
ones_A = torch.ones(M, 72, dtype=torch.float16, device=device)
weight = torch.arange(N, dtype=torch.float16, device=device)[:, None].repeat(1, 72)
view_B = weight.T
view_C = torch.empty(M, N, dtype=torch.float32, device=device)
view_want = reference.gemm(ones_A, view_B, torch.float32)
launch(masked, ones_A, view_B, view_C, lda=ones_A.stride(0), ldb=view_B.shape[1])
print("B has shape", tuple(view_B.shape), "and strides", view_B.stride())
matrices.error_map(view_C, view_want, title="B = weight.T")

# %% [markdown]
# Every column is nearly the same mixture of all columns: too large on the left, too small on the right. With ordinary
# weights the result would look like noise of the right size. One leading dimension cannot describe B, because B's
# *second* stride is 72. There are two repairs: copy B, or pass both strides, as the library's kernel does.

# %%
launch(masked, ones_A, view_B.contiguous(), view_C, lda=ones_A.stride(0), ldb=N)
print("a contiguous copy:", torch.equal(view_C, view_want))
(by_library,) = course_kernels.group_gemm([ones_A], [view_B], method="naive", out_dtype=torch.float32)
print("both strides, no copy:", torch.equal(by_library, view_want))

# %% [markdown]
# ### 3. The accumulator is float16
#
# A float16 accumulator saves registers, and C is float16 anyway. This kernel sums in the type `ACC`. To stay short, it
# takes only sizes that need no mask.


# %%
@triton.jit
def half_sums(a_ptr, b_ptr, c_ptr, K, ACC: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    acc = tl.zeros((BLOCK, BLOCK), dtype=ACC)
    for k in range(0, K, BLOCK):
        a = tl.load(a_ptr + i[:, None] * K + k + i[None, :])
        b = tl.load(b_ptr + (k + i)[:, None] * BLOCK + i[None, :])
        acc += tl.dot(a, b).to(ACC)
    tl.store(c_ptr + i[:, None] * BLOCK + i[None, :], acc.to(tl.float32))


# %% [markdown]
# Each row of A begins with a large number: 512, 1024, 2048 or 4096. After it, each of the next sixteen blocks along K
# has one 1. Column j of B adds up the first j of these ones.

# %%
long_A = torch.zeros(16, 17 * 16, dtype=torch.float16, device=device)
long_A[:, 0] = 512.0 * 2 ** (torch.arange(16, device=device) // 4)
long_A[:, 16::16] = 1
long_B = torch.zeros(17 * 16, 16, dtype=torch.float16, device=device)
long_B[0] = 1
long_B[16::16] = torch.ones(16, 16, device=device).triu(1)
long_want = reference.gemm(long_A, long_B, torch.float32)
halves = torch.empty(16, 16, dtype=torch.float32, device=device)
half_sums[(1,)](long_A, long_B, halves, long_A.shape[1], ACC=tl.float16, BLOCK=16)
matrices.error_map(halves, long_want, title="sums in float16")

# %% [markdown]
# From 2048 on, float16 holds only even numbers. 2048 + 1 rounds back to 2048, and so does the next addition, and the
# next: every addition loses its 1. With float32 sums, rounding happens once, at the store.

# %%
print("2048 + 1 in float16:", float(torch.tensor(2048, dtype=torch.float16) + 1))
singles = torch.empty_like(halves)
half_sums[(1,)](long_A, long_B, singles, long_A.shape[1], ACC=tl.float32, BLOCK=16)
print("sums in float32:", torch.equal(singles, long_want))

# %% [markdown]
# ### 4. The test has an arbitrary tolerance
#
# With whole numbers we can ask for equality. With real weights we cannot. The common way out is `torch.allclose` with
# some tolerance that makes the test pass. We try it on three results: a right one with large numbers, one with small
# numbers that was never computed (all zeros), and the float16 sums from above.

# %%
large = torch.rand(64, 512, generator=torch.Generator().manual_seed(0)).to(device, torch.float16)
computed = torch.empty(64, 64, dtype=torch.float16, device=device)
launch(masked, large, large.T.contiguous(), computed, lda=512, ldb=64)
small = large[:, :64] / 100

results = {
    "right": (computed, large, large.T),
    "never computed": (torch.zeros_like(computed), small, small.T),
    "float16 sums": (halves, long_A, long_B),
}

# %%
for name, (got, x, y) in results.items():
    exact = reference.gemm(x, y)
    atol = torch.allclose(got.double(), exact, atol=1e-2)
    rtol = torch.allclose(got.double(), exact, rtol=1e-2)
    print(f"{name:14}  passes atol=1e-2: {atol!s:5}  rtol=1e-2: {rtol}")

# %% [markdown]
# The absolute tolerance rejects the right result, whose rounding error is larger, and accepts the zeros. The relative
# one accepts the float16 sums. A better test computes for each element how far off a right kernel can be:
#
# error ≤ K · 2⁻²³ · (|A| |B|) + 2⁻¹¹ · |C|
#
# The first term is for the sum: each of K additions in float32 loses at most 2⁻²³ of what is summed, and |A| |B| is the
# product of the absolute values. The second is for the one rounding at the store: float16 has 11 binary digits. (For
# float32 results it is 2⁻²⁴, and small terms are left out here.)

# %%
for name, (got, x, y) in results.items():
    exact, bound = testing.error_bound(x, y, got.dtype)
    print(f"{name:14}  within its bound: {bool(((got.double() - exact).abs() <= bound).all())}")

# %% [markdown]
# ## Try it
#
# 1. In `masked`, replace `(ka < K)` by `(ka <= K)` and run it and the cell below it again. How many elements are wrong,
#    although B's mask is still right?
#    <details><summary>Answer</summary>All of them. The one column too many is NaN in our buffer, and NaN times the zero
#    from B's mask is NaN.</details>
# 2. Draw `matrices.tile_of_product((50, 80, 72), block=(128, 128, 32))`: expert 2 with one large tile. What share of
#    the multiplications is wasted?
#    <details><summary>Answer</summary>Along M and N, 1 − (50 · 80) / (128 · 128), three quarters. The third block along
#    K is a quarter full. Together, 82 % are wasted.</details>
# 3. In the simulation, use a block of `(32, 32, 64)`. Which of the two costs of a launch per problem changes?
#    <details><summary>Answer</summary>A problem has 64 tiles instead of 4, so 64 of 132 SMs work <i>during</i> a
#    kernel. The time <i>between</i> kernels stays.</details>
# 4. Which `rtol` rejects the float16 sums and accepts the right result? And for `computed.bfloat16()`?
#    <details><summary>Answer</summary>Any from 0.0005, the rounding error of the right result, to 0.007. In bfloat16
#    the right result is off by up to 0.004. So an <code>rtol</code> of 0.001 accepts a right result in one type and
#    rejects one in the other.</details>
#
# In [exercise 03](../exercises/03_tail_masks.ipynb) you write the masks of a product whose A is stored transposed.

# %% [markdown]
# ## Summary
#
# - A program computes one tile: pointers from strides, a loop along K, float32 sums, one rounding at the store.
# - The K mask keeps the result right. The store's mask protects the memory around C. The row and column masks of the
#   loads prevent illegal reads.
# - A leading dimension is a stride of the buffer, not an extent of the matrix. A transposed view needs both strides.
# - One launch per problem costs time between kernels, and leaves SMs idle during small ones.
# - For large problems a loop is as fast. For equal sizes use `bmm`. For many small problems of different sizes, group
#   them.
#
# ## References
#
# - P. Tillet, H. T. Kung, D. Cox, [Triton: an intermediate language and compiler for tiled neural network
#   computations](https://doi.org/10.1145/3315508.3329973), 2019.
# - NVIDIA, [Matrix Multiplication Background User's
#   Guide](https://docs.nvidia.com/deeplearning/performance/dl-performance-matrix-multiplication/index.html): tiles and
#   waves.
# - NVIDIA, [Getting Started with CUDA Graphs](https://developer.nvidia.com/blog/cuda-graphs/).
# - N. J. Higham, [Accuracy and Stability of Numerical Algorithms](https://doi.org/10.1137/1.9780898718027), 2002: error
#   bounds of sums and products (chapter 3).
#
# ## What to read next
#
# Lesson 04 puts all problems into one launch. It reuses this lesson's tile and replaces only the question of which tile
# a program computes.
