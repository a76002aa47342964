# %% [markdown]
# # 03 · One launch per problem
#
# What does a matrix product look like to a GPU, and what happens when a layer of eight experts, or a batch of 64 small
# problems, launches it once per problem?
#
# You will build a tiled matrix product from nothing and watch it go wrong until it has every mask it needs. Then you
# will see 64 launches on a recorded timeline, find out when grouping does *not* pay, and make four mistakes that raise
# no error: three in a kernel, one in a test. About 35 minutes.

# %%
import gemm_course  # noqa: F401 (first: without a GPU, it has kernels run in the interpreter)

import torch
import triton
import triton.language as tl

import course_kernels
from course_kernels import testing
from course_kernels.testing import reference
from gemm_course.figures import memory

device = course_kernels.runtime.device()

# %% [markdown]
# ## One program, one tile
#
# A GPU runs many copies of one *program*. The usual division of labour: cut C into tiles, give each program one. It
# needs a band of rows of A and a band of columns of B, and walks along K block by block.

# %%
memory.tile_of_product((64, 96, 64), block=(32, 32, 32), tile=(1, 1))

# %% [markdown]
# A kernel never gets a matrix, only the address of its first element. Element (i, j) lies
# `i * stride_row + j * stride_column` elements further on. Below, rows of 10 live in a buffer 12 wide, so one row down
# is +12. That step is the *leading dimension*, `lda`; two of every 12 numbers are not A's.

# %%
memory.tile_offsets((6, 10), block=(4, 4), at=(0, 4), strides=(12, 1))

# %% [markdown]
# So a tile of pointers is a column of row offsets plus a row of column offsets. Here is the most direct kernel that
# could work: load a tile of A, load a tile of B, multiply, store.


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
# We try it on whole numbers from −2 to 2, so that the right answer is exact and *equal* means equal. C starts out full
# of NaN, to tell "wrong" from "never written".

# %%
M, N, K = 64, 96, 64
A = testing.integers((M, K), generator=1, device=device)
B = testing.integers((K, N), generator=2, device=device)
want = reference.gemm(A, B, torch.float16)

C = torch.full((M, N), float("nan"), dtype=torch.float16, device=device)
first_try[(1,)](A, B, C, K, N, N, BLOCK=32)
memory.error_map(C, want, block=(32, 32), title="first try")

# %% [markdown]
# Two things are missing, and the picture tells them apart. Black: five tiles that no program wrote, because we
# launched one. Coloured: the tile we did write has only the first 32 of 64 terms of every sum.
#
# So: `tl.program_id` says which tile is mine, and a loop walks K, adding into a float32 accumulator.


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


launch(no_masks, A, B, C, lda=K, ldb=N)
print("right everywhere:", torch.equal(C, want))

# %% [markdown]
# ## Sizes as a router makes them
#
# Our kernel is right, for multiples of 32. A mixture-of-experts layer does not deal in multiples of 32: M is the number
# of tokens that the router happened to send to an expert.

# %%
tokens = testing.routed_sizes("zipf", 400, experts=8)
M, N, K = tokens[2], 80, 72
print("tokens of the eight experts:", tokens)
print(f"we compute expert 2: ({M} × {K}) times ({K} × {N})")

# %% [markdown]
# Reading past a matrix is a quiet crime: there is nearly always *something* there. To hear it we surround A and B with
# NaN, and C with the number −999, a *canary*. What a kernel should not have read or written becomes visible.

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


# %%
C, buffer = run(no_masks)
memory.error_map(C, want, block=(32, 32), title="no masks")

# %% [markdown]
# Not one element survives. The reason is the last step along K: it takes 32 columns of A where 8 are left, and
# multiplies 24 columns of something else into every sum. Without our NaN these would be plausible wrong numbers.

# %%
memory.tile_of_product((M, N, K), block=(32, 32, 32), tile=(M // 32, 2), step=2)

# %% [markdown]
# **Mask 1: along K, on both loads, with `other=0.0`.** A zero adds nothing to a sum; whatever the hardware would leave
# in a masked lane might.


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
memory.written_map(buffer, (MARGIN, MARGIN), want, canary=-999, block=(32, 32), title="K masked")

# %% [markdown]
# Every element of C is right, a test that compares C would pass, and the kernel has still overwritten memory that is
# not its own. In a C without margins, the columns past N are the beginning of the *next row* of C, and the rows past M
# are the next expert's result.
#
# **Mask 2: on the store. Mask 3: rows and columns, on the loads.** The third changes no result (those rows are never
# stored), but at the end of an allocation reading them is an illegal memory access. Red below: addresses that the
# corner tile reads although they are not A's.

# %%
memory.tile_offsets((6, 10), block=(4, 4), at=(4, 8))


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
memory.written_map(buffer, (MARGIN, MARGIN), want, canary=-999, block=(32, 32), title="all masks")

# %% [markdown]
# Thirteen lines, and right for any M, N and K from 1 upwards. The unkind sizes first:

# %%
for m, n, k in testing.ragged_problems():
    a = testing.integers((m, k), generator=m, device=device)
    b = testing.integers((k, n), generator=n, device=device)
    c = torch.empty(m, n, dtype=torch.float16, device=device)
    launch(masked, a, b, c, lda=k, ldb=n)
    print(f"{m:3} × {n:3} × {k:3}: {torch.equal(c, reference.gemm(a, b, torch.float16))}")

# %% [markdown]
# The library's `kernels.naive` is this kernel, with three additions: both strides of every matrix (you will see why
# below), 64-bit offsets (a matrix may have more than 2³¹ elements) and a choice of tile order (lesson 05).

# %%
from course_kernels.kernels import naive
from gemm_course.figures.listing import show

show(naive.accumulate_tile, "for k in range", "b_ptrs +=")

# %% [markdown]
# ## What the compiler made of it
#
# We compile it for Hopper (sm_90), on this machine, which need not have a GPU: once for matrices whose rows begin at
# multiples of 16 bytes, once for any other.

# %%
from course_kernels import codegen

aligned = codegen.compile_kernel("naive", "sm_90")
unaligned = codegen.compile_kernel("naive", "sm_90", aligned=False)
print("tensor cores (wgmma) in both:", all(c.instructions["wgmma"] > 0 for c in (aligned, unaligned)))
print("aligned: bytes a copy:", sorted(aligned.widths["cp.async"]))
print("unaligned: bytes a load:", sorted(unaligned.widths["ld.global"]))

# %% [markdown]
# And the masks? Here is one load of the aligned kernel in PTX, the compiler's assembly. `cp.async` copies 16 bytes to
# shared memory; its last operand says how many of them to read, the rest become zero. The mask, `other=0.0` included,
# is a `selp` for each condition, which picks 16 or 0.

# %% tags=["nbval-ignore-output"]
print(aligned.excerpt(r"cp\.async\.cg", before=2, after=0))

# %% [markdown]
# So a mask is nearly free where rows are aligned, and an odd leading dimension is not: it turns one copy of 16 bytes
# into eight loads of 2. Alignment comes back in lesson 06.
#
# ## What it costs: one launch per problem
#
# Eight experts, eight products: the method `"naive"` launches our kernel once for each. (A *plan* is a prepared call;
# it knows its launches.)

# %%
group_A = [testing.integers((m, 72), generator=m, device=device) for m in tokens]
group_B = [testing.integers((72, 80), generator=g, device=device) for g in range(8)]
plan = course_kernels.GroupGemmPlan(group_A, group_B, method="naive")
right = [torch.equal(c, reference.gemm(a, b, torch.float16)) for a, b, c in zip(group_A, group_B, plan.run())]
print(f"{len(plan.launches)} launches, all results right: {all(right)}")

# %% [markdown]
# An H200 has 132 streaming multiprocessors (SMs). If each takes a tile at a time, a launch runs in *waves* of 132, and
# a launch with fewer tiles leaves SMs with nothing to do. With tiles of 128 × 128 (the sizes up to 1024 are those of
# Triton's own tutorial on grouped GEMM):

# %%
from course_kernels import schedule
from gemm_course.figures import launches

sizes = (128, 256, 512, 1024, 1536, 2048)
tiles = {f"{n} × {n}": schedule.tile_counts([(n, n, n)], 128, 128)[0] for n in sizes}
launches.sm_fill(tiles, sms=132)

# %% [markdown]
# A product of 256 × 256 occupies 4 SMs, and the next kernel in the stream waits until it is done. Simulated, 64 of
# them, one launch each and all in one launch:

# %%
from gemm_course.figures import timeline

problems = [(256, 256, 256)] * 64
block = (128, 128, 64)
one_each = schedule.one_launch_per_problem(problems, 132, block)
grouped = schedule.simulate(problems, "round_robin", 132, block)
runs = {"one launch per problem": one_each, "one launch": grouped}
bars = {name: timeline.simulated_bars(simulated) for name, simulated in runs.items()}
timeline.compare(bars, rows=132)

# %% [markdown]
# One launch per problem has two costs: nothing runs *between* kernels, and SMs have no tile *during* them. Smaller
# tiles help with the second only. Now the same 64 problems on a real chip, where every tile wrote down its SM, its
# start and its end. (The hardware fills every second SM first; we sort them, those of the first problem on top.)

# %%
from course_kernels.bench import record

recorded = record.load("launches")
names = ("one launch per problem", "one launch per problem, CUDA graph", "one launch")
used = {tile[2] for tile in recorded[names[0]]["tiles"] if tile[0] == 0}  # SMs that work on the first problem
order = sorted(range(132), key=lambda sm: (sm not in used, sm))
bars = {
    name: [bar._replace(row=order.index(bar.row)) for bar in timeline.launch_bars(recorded[name])] for name in names
}
print("recorded on an", recorded["provenance"]["gpu"])
timeline.compare(bars, rows=132, row_name="SM, sorted")

# %% [markdown]
# A CUDA graph (launches recorded once, replayed by the driver) takes Python out of the way and the gaps shrink. They
# do not vanish, since each kernel still waits for its predecessor's last tile. The simulation has the right order and
# the wrong numbers: a launch costs more than it says from Python, less in a graph, and the single launch takes longer.
# Lesson 05 looks into that. The same kernels, without SMs:

# %%
timeline.kernels({name: timeline.problem_spans(bars[name]) for name in names[:2]})

# %% [markdown]
# Closer: the first microseconds of the graph, beside the single launch. Above, half of the rows stay grey although the
# library cut these problems into small tiles. Below, tiles are larger, fetch all at once and take longer each; but
# nobody waits for anybody:

# %%
last = max(bar.end for bar in bars["one launch"])
graph = bars["one launch per problem, CUDA graph"]
beginning = [bar for bar in graph if bar.end <= last]
done = [problem for _, end, problem in timeline.problem_spans(graph) if end <= last]
each = sum(bar.problem == 0 for bar in beginning)
print(f"{each} tiles a problem, for 132 SMs; problems done after {last:.0f} µs: {len(done)} and 64")
closer = {"CUDA graph of 64 launches": beginning, "one launch": bars["one launch"]}
timeline.compare(closer, rows=132, row_name="SM, sorted")

# %% [markdown]
# ## When not to group
#
# Grouping is a cure for launches and idle SMs. Where there are none of either, there is nothing to cure. The record:
# equal problems, everything in CUDA graphs, against a loop of cuBLAS calls and against one `torch.bmm`.

# %%
crossover = record.load("when_to_group")
launches.speedups(crossover["cells"], "group_gemm", against=["cublas loop", "bmm"])

# %% [markdown]
# Left: small problems gain, and the more of them the more; large ones fill the chip by themselves, however many there
# are. Right: if all sizes are *equal*, `torch.bmm` needs no tables and no search for its tile. Use it.

# %%
every_n = {cell["n"] for cell in crossover["cells"]}
for count in sorted({cell["count"] for cell in crossover["cells"]}):
    times = {cell["n"]: cell["us"] for cell in crossover["cells"] if cell["count"] == count}
    loses = [n for n, us in times.items() if us["group_gemm"] >= us["cublas loop"]]
    unknown = "".join(f"; N = {n} was not measured" for n in sorted(every_n - times.keys()))
    named = ", ".join(map(str, loses)) or "none"
    print(f"{count:2} problems: the loop is as fast or faster for N = {named}{unknown}")

# %% [markdown]
# And a problem can be too small to be worth any of this. Grouping still beats a loop there, but all it saves is
# launches: below 64 × 64 the time hardly depends on the size. It is launch, tables and a trip to memory. An empty
# kernel is the floor.

# %%
floor = record.load("group_gemm")["rows"]["4 x 128^3"]["us"]["empty"]["median_us"]
four = {cell["n"]: cell["us"]["group_gemm"] for cell in crossover["cells"] if cell["count"] == 4}
print(f"an empty kernel: {floor:.1f} µs")
for n in (16, 32, 64, 128):
    print(f"4 problems of {n:3}³, grouped: {four[n]:.1f} µs for {4 * 2 * n**3 / 1e6:6.2f} million operations")

# %% [markdown]
# From 16³ to 128³ the work grows 512-fold, the time hardly. Such products belong inside a neighbouring kernel, or
# should not be matrix products at all.
#
# One more honest number: the host's. Tables take Python time; a plan builds them once.

# %%
host = record.load("group_gemm")["rows"]["4 x 128^3"]["host_us"]
labels = {"cublas loop": "four cuBLAS calls", "group_gemm": "group_gemm from nothing", "plan.run": "a plan's run"}
for name, label in labels.items():
    print(f"{label}: {host[name]:.0f} µs of host time")

# %% [markdown]
# ## What goes wrong
#
# Four mistakes that raise no error: three in a kernel, the fourth in the test that should have seen them. Look at each
# result and say what happened before you read on.
#
# **1. A leading dimension taken for K.** A is 72 columns of a matrix that is 96 wide, as a slice of a fused projection
# would be. To see where numbers come from, row r of it holds the number r, and B holds ones.

# %%
wide = torch.arange(M, dtype=torch.float16, device=device)[:, None].repeat(1, 96)
a = wide[:, :72]
b = torch.ones(72, N, dtype=torch.float16, device=device)
c = torch.empty(M, N, dtype=torch.float32, device=device)
right = reference.gemm(a, b, torch.float32)
launch(masked, a, b, c, lda=a.shape[1], ldb=b.shape[1])
memory.error_map(c, right, title="lda = K")

# %% [markdown]
# Row 0 is right. Row 1 starts 72 elements into the buffer, still in row 0 of `wide`; and so on, ever further behind:
# the last rows hold too little by a quarter. The fingerprint: wrong from the second row on. Repair it: change the first
# line so that the last one prints True.

# %%
lda = a.shape[1]  # replace: what is the step from one row to the next?
launch(masked, a, b, c, lda=lda, ldb=b.stride(0))
print("repaired:", torch.equal(c, right))

# %% [markdown]
# <details><summary>Answer</summary><code>lda = a.stride(0)</code>: ask a matrix for its leading dimension, never
# compute it from the shape.</details>
#
# **2. A transposed view passed as if contiguous.** `torch.nn.Linear` stores its weight as (N, K), so B is `weight.T`.
# Its shape is what we want. Its memory is not. Column j of B holds the number j, A holds ones.

# %%
a = torch.ones(M, 72, dtype=torch.float16, device=device)
weight = torch.arange(N, dtype=torch.float16, device=device)[:, None].repeat(1, 72)
b = weight.T
right = reference.gemm(a, b, torch.float32)
launch(masked, a, b, c, lda=a.stride(0), ldb=b.shape[1])
print("B has shape", tuple(b.shape), "and strides", b.stride())
memory.error_map(c, right, title="B = weight.T")

# %% [markdown]
# Every column came out as nearly the same mixture of all columns: too large on the left, too small on the right. With
# ordinary weights that looks like noise of the right magnitude. One leading dimension cannot describe B, whose *second*
# stride is 72. Two repairs: copy B, or pass both strides, as the library's kernel takes them.

# %%
launch(masked, a, b.contiguous(), c, lda=a.stride(0), ldb=N)
print("a contiguous copy:", torch.equal(c, right))
(c,) = course_kernels.group_gemm([a], [b], method="naive", out_dtype=torch.float32)
print("both strides, no copy:", torch.equal(c, right))

# %% [markdown]
# **3. A float16 accumulator.** It saves registers, and float16 holds the result, so why not? This copy of our loop adds
# up in float16; to keep it short it takes sizes that need no mask.


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
# Each row of A begins with a large number; then comes a single 1 in each of the next sixteen K blocks. Column j of B
# lets the first j of those ones through. Row r's number is 512, 1024, 2048 or 4096.

# %%
a = torch.zeros(16, 17 * 16, dtype=torch.float16, device=device)
a[:, 0] = 512.0 * 2 ** (torch.arange(16, device=device) // 4)
a[:, 16::16] = 1
b = torch.zeros(17 * 16, 16, dtype=torch.float16, device=device)
b[0] = 1
b[16::16] = torch.ones(16, 16, device=device).triu(1)
right = reference.gemm(a, b, torch.float32)
halves = torch.empty(16, 16, dtype=torch.float32, device=device)
half_sums[(1,)](a, b, halves, a.shape[1], ACC=tl.float16, BLOCK=16)
memory.error_map(halves, right, title="sums in float16")

# %% [markdown]
# Above 2048, float16 knows only even numbers: 2048 + 1 is rounded back to 2048, and so is the next 1, and the next. Not
# *one* rounding error: every addition loses. In float32 all is well, and rounding happens once, at the store.

# %%
print("2048 + 1 in float16:", float(torch.tensor(2048, dtype=torch.float16) + 1))
c = torch.empty_like(halves)
half_sums[(1,)](a, b, c, a.shape[1], ACC=tl.float32, BLOCK=16)
print("sums in float32:", torch.equal(c, right))

# %% [markdown]
# **4. A tolerance out of the air.** Whole numbers let us ask for equality; real weights do not. The usual way out is
# `torch.allclose` with a number that makes the test pass. Three results: one right, of large numbers; one of small
# numbers, never computed; and the float16 sums from above.

# %%
large = torch.rand(64, 512, generator=torch.Generator().manual_seed(0)).to(device, torch.float16)
computed = torch.empty(64, 64, dtype=torch.float16, device=device)
launch(masked, large, large.T.contiguous(), computed, lda=512, ldb=64)
small = large[:, :64] / 100

results = {
    "right": (computed, large, large.T),
    "never computed": (torch.zeros_like(computed), small, small.T),
    "float16 sums": (halves, a, b),
}

# %%
for name, (got, x, y) in results.items():
    exact = reference.gemm(x, y)
    atol = torch.allclose(got.double(), exact, atol=1e-2)
    rtol = torch.allclose(got.double(), exact, rtol=1e-2)
    print(f"{name:14}  passes atol=1e-2: {atol!s:5}  rtol=1e-2: {rtol}")

# %% [markdown]
# The absolute tolerance rejects the right result, whose own rounding is larger, and accepts zeros. The relative one
# accepts float16 sums. Repair: compute for each element how far a right kernel *can* be off, from K, the magnitudes and
# the precision of the sums.

# %%
for name, (got, x, y) in results.items():
    exact, bound = testing.error_bound(x, y, got.dtype)
    print(f"{name:14}  within its bound: {bool(((got.double() - exact).abs() <= bound).all())}")

# %% [markdown]
# ## Try it
#
# - In `masked`, replace `(ka < K)` by `(ka <= K)` and run it and the cell below it again. How many elements are wrong,
#   although B's mask is still right?
#   <details><summary>Answer</summary>All of them. The column too many is NaN in our buffer, and NaN times the zero from
#   B's mask is NaN.</details>
# - Draw `memory.tile_of_product((50, 80, 72), block=(128, 128, 32))`, expert 2 with one large tile. What share of the
#   multiplications is wasted?
#   <details><summary>Answer</summary>1 − (50 · 80) / (128 · 128), three quarters; with the last step along K, which is
#   a quarter full, 82 %.</details>
# - In the simulation, use a block of `(32, 32, 64)`. Which of the two costs of a launch per problem changes, which
#   does not?
#   <details><summary>Answer</summary>A problem has 64 tiles instead of 4, so 64 SMs of 132 work <i>during</i> a kernel.
#   The time <i>between</i> kernels stays.</details>
# - Which `rtol` rejects the float16 sums and accepts the right result? And `computed.bfloat16()`?
#   <details><summary>Answer</summary>Anything from 0.0005, the right result's own rounding, to 0.007. In bfloat16 the
#   right result is off by up to 0.004: an <code>rtol</code> of 0.001 accepts it in one type and not in the
#   other.</details>
#
# [Exercise 03](../exercises/03_tail_masks.ipynb), the tail masks: a tile at every edge of its matrices.
#
# ## Summary
#
# - A program computes a tile: pointers from strides, a loop along K, float32 sums, one rounding at the store.
# - The K mask keeps the result right, the store mask its neighbours, the row and column masks the process alive.
# - A leading dimension is a stride of the buffer, not an extent of the matrix; a transposed view needs both strides.
# - One launch per problem pays for every launch and leaves every SM idle that has no tile of *this* problem.
# - Large problems: a loop does as well. Equal sizes: `bmm`. Many, different, smallish: group them.
#
# Next: [04 Static round-robin](04_static_round_robin.ipynb), all problems in one launch.
