# %% [markdown]
# # 06 · TMA descriptors
#
# Lesson 04's kernel multiplies on [tensor cores](glossary.md#tensor-core). Yet most instructions of its main loop do
# not multiply: they compute addresses and compare them with the matrix's edges. Hopper has a unit that does both, the
# [TMA](glossary.md#TMA). What must a kernel tell it? And what does that cost when every problem is another matrix?
#
# **About 40 minutes. Afterwards you can**
#
# - say what a [descriptor](glossary.md#descriptor) holds, and write a grouped kernel that uses descriptors,
# - read in the compiled code what they save, without a GPU,
# - tell which matrices can be described, and repair one that cannot,
# - decide where a descriptor must end when groups share a matrix.
#
# You need: lesson 04 (the walk over tiles).

# %%
import gemm_course  # import first: without a GPU, kernels then run in the interpreter

import torch
import triton
import triton.language as tl
from IPython.display import display

from course_kernels import GemmConfig, GroupGemmPlan, codegen, runtime, schedule, testing
from course_kernels.bench import record
from course_kernels.kernels import naive, tma
from course_kernels.testing import reference
from course_kernels.codegen import ptx
from gemm_course.figures import f06_descriptors as draw, instructions
from gemm_course.lessons.listing import fold, show, side_by_side

device = runtime.device()

# %% [markdown]
# ## The cost of fetching a block
#
# Lessons 03 and 04 fetch with one pointer per element, and two comparisons: with the matrix's edge, and with the end of
# K. A block of A of 128 × 64 elements has 8,192 pointers and as many masks. (`multiply_add` is `tl.dot`, and
# `PRECISION` says how it multiplies float32.)

# %%
show(naive.accumulate_tile, "for k in range", "b_ptrs +=")

# %% [markdown]
# We compile that kernel for an H200, here, without a GPU. Next to it we compile the library's descriptor kernel, which
# this lesson explains. Both use the same [tile](glossary.md#tile), the same walk and three [stages](glossary.md#stage).

# %%
config = GemmConfig(128, 128, 64, num_warps=4, num_stages=3)
builds = {"pointers": codegen.build("round_robin", config=config), "descriptors": codegen.build("tma", config=config)}
cases = [(name, target) for target in ("sm_80", "sm_90", "sm_100") for name in builds]
compiled = dict(zip(cases, codegen.compile_many((builds[name], target) for name, target in cases)))
pointers, descriptors = compiled["pointers", "sm_90"], compiled["descriptors", "sm_90"]

# %% [markdown]
# One square is one instruction of [PTX](glossary.md#PTX), in the order of the text. Every thread passes all of them for
# every block of K. Green squares multiply. An instruction marked `@%p` acts only in threads whose condition p is true:
# so one thread alone starts a copy through a descriptor.
#
# **Guess** before you open the output: which share of the pointer kernel's loop is green?

# %% tags=["hide-output", "nbval-ignore-output"]
instructions.loop_instructions({"pointers": pointers.ptx, "descriptors": descriptors.ptx})

# %% [markdown]
# <details><summary>Answer</summary>
#
# Eight squares: one in twenty. The descriptor kernel has the same eight, one in ten.
#
# </details>
#
# Both kernels multiply with the same `wgmma` instructions. The rest differs. In the pointer kernel each thread computes
# an address and a mask for every copy. In the descriptor kernel it computes neither: its pink squares are addresses in
# *shared* memory, for barriers and for `wgmma`.
#
# ## The idea: describe the matrix once
#
# A **descriptor** is a record of 128 bytes. It holds the address of a matrix, its extents, its strides and the shape of
# a block. The *tensor memory accelerator* (**TMA**) is a unit of the GPU that reads a descriptor. The kernel gives it a
# row and a column, and the TMA copies the block. Elements outside the matrix become zeros.

# %%
draw.descriptor(shape=(40, 56), leading=64, block=(16, 16), at=(30, 48))

# %% [markdown]
# In Triton, `tl.make_tensor_descriptor` makes a descriptor in a kernel. Its methods `load` and `store` take a position.
# They need no pointers and no masks. (The last line of this kernel is an ordinary store, so that you can look at the
# block.)


# %%
@triton.jit
def peek(matrix, rows, cols, leading, row, col, out, BLOCK: tl.constexpr):
    descriptor = tl.make_tensor_descriptor(matrix, [rows, cols], [leading, 1], [BLOCK, BLOCK])
    block = descriptor.load([row, col])
    index = tl.arange(0, BLOCK)
    tl.store(out + index[:, None] * BLOCK + index[None, :], block)


# %% [markdown]
# The element at (i, j) of this matrix is 100·i + j. The matrix has 12 rows and 24 columns, and we load 8 × 8 elements
# at (9, 20).
#
# **Guess:** how many of the 64 elements are zero?

# %% tags=["hide-output"]
runtime.ensure_allocator()
matrix = (100 * torch.arange(12)[:, None] + torch.arange(24)[None, :]).float().to(device)
block = torch.empty(8, 8, device=device)
peek[(1,)](matrix, 12, 24, matrix.stride(0), 9, 20, block, BLOCK=8)
print(block.int().cpu().numpy())

# %% [markdown]
# <details><summary>Answer</summary>
#
# Only 3 × 4 elements are inside. The other 52 are zero.
#
# </details>
#
# `ensure_allocator` is a function of the library. A descriptor that a kernel makes is written to global memory, and
# Triton asks you for that memory. Without it, a launch on a GPU stops with *Kernel requires a runtime memory
# allocation, but no allocator was set*. In a script of your own, set an allocator once in each thread that launches:
#
# ```python
# def allocate(size: int, alignment: int, stream: int | None) -> torch.Tensor:
#     return torch.empty(size, dtype=torch.int8, device="cuda")
#
# triton.set_allocator(allocate)
# ```
#
# Zeros do not change a sum of products. So a loop over K needs no masks at all, even where K is not a multiple of the
# block.
#
# ## The smallest grouped kernel
#
# Here it is whole. The tables and the walk are those of lesson 04. New are the three descriptors, made when a program
# arrives at a problem, and the loop over K. Rows of A, B and C are contiguous, so the strides are K, N and N.


# %%
@triton.jit
def pointer(table, g):
    return tl.load(table + g).to(tl.pointer_type(tl.float16))


@triton.jit
def grouped_tma(a_ptrs, b_ptrs, c_ptrs, sizes, G, BLOCK: tl.constexpr, BLOCK_K: tl.constexpr):
    tile, passed = tl.program_id(0), 0
    for g in range(G):
        M, N, K = tl.load(sizes + 3 * g), tl.load(sizes + 3 * g + 1), tl.load(sizes + 3 * g + 2)
        tiles_n = tl.cdiv(N, BLOCK)
        end = passed + tl.cdiv(M, BLOCK) * tiles_n
        if tile < end:
            a = tl.make_tensor_descriptor(pointer(a_ptrs, g), [M, K], [K, 1], [BLOCK, BLOCK_K])
            b = tl.make_tensor_descriptor(pointer(b_ptrs, g), [K, N], [N, 1], [BLOCK_K, BLOCK])
            c = tl.make_tensor_descriptor(pointer(c_ptrs, g), [M, N], [N, 1], [BLOCK, BLOCK])
            while tile < end:
                row, col = (tile - passed) // tiles_n * BLOCK, (tile - passed) % tiles_n * BLOCK
                acc = tl.zeros((BLOCK, BLOCK), dtype=tl.float32)
                for k in range(0, K, BLOCK_K):
                    acc = tl.dot(a.load([row, k]), b.load([k, col]), acc)
                c.store([row, col], acc.to(tl.float16))
                tile += tl.num_programs(0)
        passed = end


# %% [markdown]
# Five problems, one of them empty, none with extents that are multiples of the block:

# %%
shapes = [(40, 56, 72), (8, 120, 24), (100, 48, 200), (0, 64, 32), (33, 8, 88)]
operands = testing.make_operands(shapes, device=device)
results = [torch.zeros(m, n, dtype=torch.float16, device=device) for m, n, k in shapes]
tables = [torch.tensor([each.data_ptr() for each in part], device=device) for part in (*operands, results)]
sizes_table = torch.tensor(shapes, dtype=torch.int32, device=device)
expected = [each.half() for each in reference.group_gemm(*operands)]
for programs in (1, 4, 9):
    for each in results:
        each.zero_()
    grouped_tma[(programs,)](*tables, sizes_table, len(shapes), BLOCK=32, BLOCK_K=32)
    print(f"{programs} programs, exact:", all(map(torch.equal, results, expected)))

# %% [markdown]
# No line of it handles an edge: a load past the matrix gives zeros, and a store past it writes nothing.
#
# ## What the compiler made of it
#
# Back to the library's two kernels. This is the last copy in each loop, with the lines before it. On the left each
# thread copies 16 bytes, and does so sixteen times for each block of K. On the right one thread asks for a whole block.

# %% tags=["nbval-ignore-output"]
left = pointers.excerpt(r"cp\.async\.c[ag]", before=9, after=0, occurrence=-1)
right = descriptors.excerpt(r"cp\.async\.bulk\.tensor\.2d\.shared", before=9, after=0, occurrence=-1)
print(side_by_side(left, right, ("pointers, sm_90", "descriptors, sm_90"), width=57))

# %% [markdown]
# On the left, find `selp`: it turns the mask into the number of bytes to copy, 16 or 0. On the right, `mbarrier` is a
# counter in shared memory. The copy adds its bytes there, and the warps wait until all have arrived.

# %%
block_bytes = config.block_m * config.block_k * 2
for name, one in (("pointers", pointers), ("descriptors", descriptors)):
    found = [what for what in ("wgmma", "cp.async", "bulk tensor load") if one.instructions[what]]
    moved = block_bytes if "bulk tensor load" in found else max(one.widths["cp.async"])
    print(f"{name:12} {' + '.join(found):26} a copy moves {moved:5} bytes: {block_bytes // moved:4} for a block of A")
print("fewer registers:", descriptors.registers < pointers.registers)
print("fewer instructions in the loop:", len(ptx.inner_loop(descriptors.ptx)) < len(ptx.inner_loop(pointers.ptx)))

# %% [markdown]
# Registers next. The sums of a tile take 128 × 128 / 128 threads = 128 registers of each thread. Most of the others
# hold addresses and masks. A thread has at most 255, so the saving decides whether a larger tile fits. Values that do
# not fit are [spilled](glossary.md#spill) to memory.

# %% tags=["nbval-ignore-output"]
sums = config.block_m * config.block_n // (config.num_warps * 32)
for (name, target), one in compiled.items():
    spilled = f", {one.spills.bytes} bytes spilled" if one.spills else ""
    print(f"{target:7} {name:12} {one.registers} registers{spilled}; {one.shared_bytes // 1024} KiB shared memory")
for name, one in (("pointers", pointers), ("descriptors", descriptors)):
    print(f"besides the {sums} for the sums, on sm_90: {one.registers - sums} registers with {name}")

# %% [markdown]
# The descriptor kernel takes 32 KiB more of shared memory: the TMA stores from there, so the finished tile of 128 × 128
# numbers of 2 bytes needs a place. The pointer kernel stores it from registers.
#
# And on other GPUs? Blackwell (sm_100) multiplies with `tcgen05.mma` and copies as Hopper does. Ampere (sm_80) has no
# TMA. There the same source becomes plain loads, which do not run ahead of the multiplications. So `group_gemm` uses
# pointers on Ampere.

# %%
for (name, target), one in compiled.items():
    multiply = next(what for what in ("wgmma", "tcgen05.mma", "mma.sync") if one.instructions[what])
    copy = next(what for what in ("bulk tensor load", "cp.async", "ld.global") if one.instructions[what])
    print(f"{target:7} {name:12} multiplies with {multiply:12} fetches with {copy}")

# %% [markdown]
# ## The cost of making a descriptor
#
# `tl.make_tensor_descriptor` is one line and many instructions. The compiled kernel fills in these fields in shared
# memory and copies them to a scratch buffer in global memory. A *fence* then makes sure that the TMA reads the new
# descriptor and not an old one. (`swizzle_mode` is one of the fields. A *[swizzle](glossary.md#swizzle)* shuffles the
# pieces of each row of the block in shared memory, so that threads that read a column at the same time do not wait for
# each other.)

# %% tags=["nbval-ignore-output"]
print(f"{descriptors.instructions['tensormap.replace']} field writes for A, B and C; the fields:")
print(*ptx.descriptor_fields(descriptors.ptx))
print(descriptors.excerpt("cp_fenceproxy", before=0, after=3))

# %%
programs = 132
print(f"scratch memory: 3 × {draw.DESCRIPTOR_BYTES} bytes × {programs} programs = {3 * 128 * programs} bytes")

# %% [markdown]
# A program does this each time its next tile is in another problem. We call that a *switch*. The clocks of an H200
# measured the pause between two tiles, with and without a switch:

# %%
switch = record.load("switch")
gap, none = switch["switch_us"]["median"], switch["same_problem_us"]["median"]
print(f"pause before a tile of the same problem: {none:.2f} µs")
print(f"pause before a tile of the next problem: {gap:.2f} µs, {gap / none:.0f} times as long")

# %% [markdown]
# The schedule decides how often a program switches. Take the weight gradients of eight experts under a uniform router.
# The picture shows the first 8 of 132 programs:

# %%
batch = [t for t in record.load("sm_timelines")["timelines"] if t["batch"] == "uniform"]
problems, block = batch[0]["problems"], batch[0]["block"]
walks = {order: schedule.walk(problems, order, 132, block, group_m=1) for order in ("round_robin", "chunks")}
draw.switches(walks)

# %% [markdown]
# Round-robin jumps 132 tiles at a time, which is past a whole problem. So every tile is the first of its problem. With
# chunks a program stays in one problem. An H200 measured both schedules, with no clock read inside the kernel:

# %%
for order, walk in walks.items():
    most = max(len(schedule.problem_starts(own)) for own in walk)
    recorded = next(t["median_us"] for t in batch if t["schedule"] == order)
    print(f"{order:12} {most} visits × {gap:.1f} µs: at most {most * gap:4.1f} µs of a recorded {recorded:5.1f} µs")

# %% [markdown]
# The saving is real, but smaller than that of five switches: with chunks each tile takes longer (lesson 05 says why).
#
# Are descriptors faster in the end? The next picture has four problems of N × N × N, and 64 of random sizes. Each
# kernel has the configuration that was chosen for it:

# %%
rows = record.load("group_gemm")["rows"]
draw.recorded_ratio({name: row["us"] for name, row in rows.items()})

# %% [markdown]
# For small matrices they are not: a switch costs time, and larger tiles leave SMs idle. At 128³ there are 8 tiles, and
# 128 with pointers. This is why `method="auto"` looks at the sizes before it chooses.

# %% [markdown]
# ## The rules
#
# The hardware has three rules for a matrix. The base address and the leading stride are multiples of 16 bytes, and the
# other stride is 1. (The *leading* stride is the one from row to row.) There are two rules for a block: its last side
# is at least 16 bytes long, 8 elements in float16, and its first column is a multiple of 16 bytes, too.
#
# **Guess** before you open the output: which of these seven views can be described?

# %% tags=["hide-output"]
from course_kernels.lists.launch import satisfies_descriptor_rule

M = torch.zeros(96, 64, dtype=torch.float16, device=device)
views = {"M": M, "M[1:]": M[1:], "M[:, 1:]": M[:, 1:], "M[:, 8:]": M[:, 8:], "M[:, ::2]": M[:, ::2], "M.T": M.T}
views["96 × 100, of its own"] = torch.zeros(96, 100, dtype=torch.float16, device=device)
for name, view in views.items():
    start, allowed = view.storage_offset() * view.element_size(), satisfies_descriptor_rule(view)
    print(f"{name:22} starts at byte {start:3}  strides {view.stride()!s:9} {allowed}")

# %% [markdown]
# <details><summary>Answer</summary>
#
# Four: `M`, `M[1:]`, `M[:, 8:]` and `M.T`.
#
# </details>
#
# A block may start at any row.
#
# `M.T` is fine: a column-major matrix is described as its row-major transpose, and the block is transposed when it
# arrives. This is the usual case, because `torch.nn.Linear` stores its weight as (N, K). One tile of A Wᵀ:


# %%
@triton.jit
def times_transposed(a_ptr, w_ptr, c_ptr, M, N, K, BLOCK: tl.constexpr, BLOCK_K: tl.constexpr):
    row, col = tl.program_id(0) * BLOCK, tl.program_id(1) * BLOCK
    a = tl.make_tensor_descriptor(a_ptr, [M, K], [K, 1], [BLOCK, BLOCK_K])
    w = tl.make_tensor_descriptor(w_ptr, [N, K], [K, 1], [BLOCK, BLOCK_K])  # as it is stored
    c = tl.make_tensor_descriptor(c_ptr, [M, N], [N, 1], [BLOCK, BLOCK])
    acc = tl.zeros((BLOCK, BLOCK), dtype=tl.float32)
    for k in range(0, K, BLOCK_K):
        acc = tl.dot(a.load([row, k]), w.load([col, k]).T, acc)
    c.store([row, col], acc.to(tl.float16))


rows_in, linear = (
    testing.integers((40, 72), generator=1, device=device),
    testing.integers((56, 72), generator=2, device=device),
)
forward = torch.zeros(40, 56, dtype=torch.float16, device=device)
times_transposed[(2, 2)](rows_in, linear, forward, 40, 56, 72, BLOCK=32, BLOCK_K=32)
print("exact:", torch.equal(forward, reference.gemm(rows_in, linear.T, torch.float16)))

# %% [markdown]
# `wgmma` takes a block of B in either order, so `.T` costs nothing. Of the seven views, the last one has rows of 200
# bytes. A descriptor made on the host reports that:

# %% tags=["raises-exception", "nbval-ignore-output"]
from triton.tools.tensor_descriptor import TensorDescriptor

TensorDescriptor.from_tensor(views["96 × 100, of its own"], [16, 16])

# %% [markdown]
# A kernel cannot raise an error, so the library checks on the host before it launches. Here the third of four problems
# has K = 33, so its rows are 66 bytes long. We ask for descriptors and look at the launches:

# %%
problems = [(128, 128, 128), (64, 64, 64), (32, 32, 33), (16, 16, 16)]
A, B = testing.make_operands(problems, device=device)
small = GemmConfig(32, 32, 32)
plan = GroupGemmPlan(A, B, method="tma", config=small, programs=4)
print(plan)
print("exact:", all(map(torch.equal, plan.run(), reference.group_gemm(A, B))))

# %% [markdown]
# The result is exact, and it took a second launch: the pointer kernel computed the third problem. We can repair the
# matrix instead. It keeps its shape and gets rows that are a multiple of 16 bytes apart:


# %%
def with_aligned_rows(matrix):
    rows, cols = matrix.shape
    unit = 16 // matrix.element_size()
    room = torch.zeros(rows, -(-cols // unit) * unit, dtype=matrix.dtype, device=matrix.device)
    room[:, :cols] = matrix
    return room[:, :cols]


A[2] = with_aligned_rows(A[2])
print(A[2].shape, A[2].stride(), GroupGemmPlan(A, B, method="tma", config=small, programs=4), sep="\n")

# %% [markdown]
# ## What goes wrong: the bounds of the wrong matrix
#
# A mixture-of-experts layer packs its groups into one matrix. Why not describe the *whole* matrix once, and save every
# switch? This kernel computes the rows of one expert, which begin at `start`. Tiles are counted from there.


# %%
@triton.jit
def one_group(a_ptr, b_ptr, c_ptr, total, start, c_rows, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    a = tl.make_tensor_descriptor(a_ptr, [total, SIZE], [SIZE, 1], [BLOCK, SIZE])
    b = tl.make_tensor_descriptor(b_ptr, [SIZE, SIZE], [SIZE, 1], [SIZE, SIZE])
    c = tl.make_tensor_descriptor(c_ptr, [c_rows, SIZE], [SIZE, 1], [BLOCK, SIZE])
    row = start + tl.program_id(0) * BLOCK
    c.store([row, 0], tl.dot(a.load([row, 0]), b.load([0, 0])).to(c.dtype))


# %% [markdown]
# Four experts have 40, 24, 56 and 8 rows, and tiles have 32. So the second tile of group 0 also loads rows of group 1.
# `c_rows` is where the descriptor of C ends.

# %%
sizes, BLOCK, SIZE = [40, 24, 56, 8], 32, 32
starts = [sum(sizes[:g]) for g in range(4)]
tokens = testing.integers((sum(sizes), SIZE), torch.float16, 3, device=device)
weights = [testing.integers((SIZE, SIZE), torch.float16, 10 + g, device=device) for g in range(4)]
expected = torch.cat(reference.group_gemm(tokens.split(sizes), weights)).half()


def wrong_rows(c_rows_of):
    C = torch.zeros_like(tokens)
    for g in (3, 2, 1, 0):  # one after the other, and in this order, so that the outcome is the same every time
        grid = (triton.cdiv(sizes[g], BLOCK),)
        one_group[grid](tokens, weights[g], C, len(tokens), starts[g], c_rows_of(g), SIZE=SIZE, BLOCK=BLOCK)
    return (C != expected).any(dim=1).tolist()


# %% [markdown]
# First attempt: every descriptor ends where the tensor ends.
#
# **Guess:** which of the 128 rows are wrong afterwards?

# %% tags=["hide-output"]
whole = wrong_rows(lambda g: len(tokens))
print(f"{sum(whole)} of {len(whole)} rows are wrong")

# %% [markdown]
# <details><summary>Answer</summary>
#
# All rows of groups 1 and 3, and the first 8 of group 2: a tile of the group before reaches into them.
#
# </details>
#
# *Reading* the next group's rows did no harm: the products were not used. *Writing* them destroyed finished results.
# There was no error, because the bounds are those of the tensor and not of the group. One argument repairs it:

# %%
ends_at_group = wrong_rows(lambda g: starts[g] + sizes[g])
draw.reach(sizes, BLOCK, {"C ends with the tensor": whole, "C ends with the group": ends_at_group})

# %% [markdown]
# So there are two ways. The kernels of this lesson give each problem its own descriptors, which costs a switch for each
# problem. The other way is one descriptor of A for all groups, and a mask on the last store of each group. It needs no
# switch. Lesson 08 builds it.
#
# ## The production kernel
#
# The library's kernel is the small one with the cases that a user meets. Operands may be transposed or have any leading
# stride. C goes through pointers where it cannot be described. Tiles go out in two halves to save shared memory. The
# tile order and the schedule are those of lesson 05.

# %%
display(fold(tma.tma_kernel), fold(tma.compute_tile), fold(tma.make_descriptor))

# %% [markdown]
# ## Try it here
#
# [Exercise 06](../exercises/06_descriptor_kernel.ipynb), the descriptor kernel: three descriptors, and where each ends.
# Or change a cell and run it again:
#
# 1. Load at row −1 or at column −4 with `peek`. What do you get, and why does this give a convolution its padding? And
#    why −4, not −1?
#    <details><summary>Answer</summary>Zeros again: coordinates are signed, and everything outside the matrix is zero. A
#    convolution's padding is a border of zeros, so its kernel can load at row -1 without masks. A column must be a
#    multiple of 16 bytes: of 4 in float32.</details>
# 2. Compile both kernels with `GemmConfig(128, 256, 64, num_warps=8)`. How many registers does either need, of 255?
#    <details><summary>Answer</summary>The sums take 128 × 256 / 256 = 128 again. The pointer kernel takes all 255, the
#    descriptor kernel fewer than 160. A larger tile would fit only the second.</details>
# 3. In `wrong_rows`, launch the groups in ascending order. Why is every row right now, and why is that no solution?
#    <details><summary>Answer</summary>The neighbour's tile comes later and overwrites the wrong rows with the right
#    ones. In one launch with all groups the order is not defined, so it would be right by luck.</details>
#
# ## Summary
#
# - A descriptor is 128 bytes: address, extents, strides, block. One thread then moves a whole block, edges included.
# - Descriptors about halve the instructions of the loop and free registers. The multiplications are the same.
# - Making one takes microseconds. A program makes three whenever it enters a problem, so few switches cost little.
# - Address and leading stride are multiples of 16 bytes, the other stride is 1. The host checks, and the pointer kernel
#   computes the rest.
# - Its bounds are the tensor's. Reading past a group is harmless. Writing past it is not.
#
# ## References
#
# - Triton:
#   [make_tensor_descriptor](https://triton-lang.org/main/python-api/generated/triton.language.make_tensor_descriptor.html),
#   and the tutorials [Group GEMM](https://triton-lang.org/main/getting-started/tutorials/08-grouped-gemm.html) (its
#   second kernel makes descriptors on the device) and [Persistent
#   Matmul](https://triton-lang.org/main/getting-started/tutorials/09-persistent-matmul.html).
# - [PTX ISA](https://docs.nvidia.com/cuda/parallel-thread-execution/), sections on tensors and `cp.async.bulk.tensor`.
# - [Async Data Movement: TMA](https://mlc.ai/modern-gpu-programming-for-mlsys/chapter_tma/index.html), a longer
#   introduction with pictures.
#
# ## What to read next
#
# This lesson chose tile, stages and warps without saying why. The next lesson, 07, chooses them for a shape that nobody
# has measured. For packed groups without switches go to lesson 08. FP8 is in lesson 12.
