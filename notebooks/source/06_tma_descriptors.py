# %% [markdown]
# # 06 · TMA descriptors
#
# Lesson 04's kernel multiplies on tensor cores, yet most of the instructions in its main loop do not multiply: they
# compute addresses and compare them with edges. Hopper has a unit that does both. What must a kernel tell it, and
# what does that cost when every problem is a different matrix?
#
# You will read what the compiler makes of both kernels (without a GPU), fetch a block through a descriptor, count how
# often descriptors are made, break their rules and see what catches you, and meet the one mistake they invite.
# About 40 minutes.

# %%
import gemm_course  # noqa: F401 (first: without a GPU, it has kernels run in the interpreter)

import torch
import triton
import triton.language as tl

from course_kernels import GemmConfig, GroupGemmPlan, codegen, group_gemm, runtime, schedule, testing
from course_kernels.bench import record
from course_kernels.kernels import naive, tma
from course_kernels.testing import reference
from gemm_course.figures import descriptors as draw, ptx
from gemm_course.figures.listing import show

device = runtime.device()

# %% [markdown]
# ## What fetching a block costs today
#
# This is how lessons 03 and 04 fetch: one pointer and one comparison per element, 128 × 64 of them for A alone.

# %%
show(naive.accumulate_tile, "for k in range", "b_ptrs +=")

# %% [markdown]
# Compile it for an H200, here, and look at the loop over K. Beside it, ahead of its explanation, the kernel of this
# lesson: same tile, same walk, same number of stages.

# %%
config = GemmConfig(128, 128, 64, num_warps=4, num_stages=3)
builds = {"pointers": codegen.build("round_robin", config=config), "descriptors": codegen.build("tma", config=config)}
cases = [(name, target) for target in ("sm_80", "sm_90", "sm_100") for name in builds]
compiled = dict(zip(cases, codegen.compile_many((builds[name], target) for name, target in cases)))
pointers, descriptors = compiled["pointers", "sm_90"], compiled["descriptors", "sm_90"]

# %% [markdown]
# One square is one instruction of PTX, the compiler's assembly, in the order of the text. Every thread executes them
# for every block of K. Count the green ones.

# %% tags=["nbval-ignore-output"]
draw.loop_instructions({"pointers": pointers.ptx, "descriptors": descriptors.ptx})

# %% [markdown]
# Both multiply with the same `wgmma` instructions. What shrinks is everything around them: a copy needs an address
# and a mask per thread in one kernel, and neither in the other.

# %% [markdown]
# ## The idea: describe the matrix once
#
# A **descriptor** is 128 bytes that say where a matrix lies, how large it is and how large a block of it is. The tensor
# memory accelerator (**TMA**) reads it, takes a row and a column, and does the rest, edges included.

# %%
draw.descriptor(shape=(40, 56), leading=64, block=(16, 16), at=(30, 48))

# %% [markdown]
# In Triton: `tl.make_tensor_descriptor` in a kernel, then `load` and `store` at a position. No pointers, no masks.
# (The last two lines are ordinary stores, so that you can look at the block.)


# %%
@triton.jit
def peek(matrix, rows, cols, leading, row, col, out, BLOCK: tl.constexpr):
    descriptor = tl.make_tensor_descriptor(matrix, [rows, cols], [leading, 1], [BLOCK, BLOCK])
    block = descriptor.load([row, col])
    index = tl.arange(0, BLOCK)
    tl.store(out + index[:, None] * BLOCK + index[None, :], block)


# %% [markdown]
# The element at (i, j) of this matrix is 100·i + j. A block of 8 × 8 at (9, 20) of its 12 rows and 24 columns:

# %%
runtime.ensure_allocator()  # the GPU needs somewhere to write a descriptor that a kernel makes
matrix = (100 * torch.arange(12)[:, None] + torch.arange(24)[None, :]).float().to(device)
block = torch.empty(8, 8, device=device)
peek[(1,)](matrix, 12, 24, matrix.stride(0), 9, 20, block, BLOCK=8)
print(block.int().cpu().numpy())

# %% [markdown]
# Outside the matrix are zeros, and zeros do not change a sum of products. So the K loop of the real kernel shrinks to
# this, with M, N and K tails handled:

# %%
show(tma.compute_tile, "for k in range", "acc = multiply_add")

# %% [markdown]
# ## What the compiler made of it
#
# The last copy in each loop, with the lines before it. On the left 16 bytes per thread, sixteen times per block of K
# and thread; on the right one elected thread asks for a whole block.

# %% tags=["nbval-ignore-output"]
left = pointers.excerpt(r"cp\.async\.c[ag]", before=9, after=0, occurrence=-1)
right = descriptors.excerpt(r"cp\.async\.bulk\.tensor\.2d\.shared", before=9, after=0, occurrence=-1)
print(ptx.side_by_side(left, right, ("pointers, sm_90", "descriptors, sm_90"), width=57))

# %% [markdown]
# On the left, find `selp`: the mask becomes the number of bytes to copy, 16 or 0. On the right, `mbarrier` is a
# counter in shared memory: the copy reports its bytes there, and the warps wait for the sum.

# %%
block_bytes = config.block_m * config.block_k * 2
for name, one in (("pointers", pointers), ("descriptors", descriptors)):
    found = [what for what in ("wgmma", "cp.async", "bulk tensor load") if one.instructions[what]]
    moved = block_bytes if "bulk tensor load" in found else max(one.widths["cp.async"])
    print(f"{name:12} {' + '.join(found):26} a copy moves {moved:5} bytes: {block_bytes // moved:4} for a block of A")
print("fewer registers:", descriptors.registers < pointers.registers)
print("fewer instructions in the loop:", len(ptx.inner_loop(descriptors.ptx)) < len(ptx.inner_loop(pointers.ptx)))

# %% [markdown]
# Registers, in numbers: the tile's sums alone take 128 × 128 / 128 threads = 128 of them. What is left over goes mostly
# to addresses and masks. A thread has at most 255, so this decides whether a larger tile fits.

# %% tags=["nbval-ignore-output"]
sums = config.block_m * config.block_n // (config.num_warps * 32)
for (name, target), one in compiled.items():
    spilled = f", {one.spills.bytes} bytes spilled" if one.spills else ""
    print(f"{target:7} {name:12} {one.registers} registers{spilled}; {one.shared_bytes // 1024} KiB shared memory")
for name, one in (("pointers", pointers), ("descriptors", descriptors)):
    print(f"besides the {sums} for the sums, on sm_90: {one.registers - sums} registers with {name}")

# %% [markdown]
# And on other GPUs? Blackwell (sm_100) multiplies with `tcgen05.mma` and copies as Hopper does. Ampere (sm_80) has no
# such unit: the same source compiles, into pointers again, and worse ones. So `group_gemm` does not use it there.

# %%
for (name, target), one in compiled.items():
    multiply = next(what for what in ("wgmma", "tcgen05.mma", "mma.sync") if one.instructions[what])
    copy = next(what for what in ("bulk tensor load", "cp.async", "ld.global") if one.instructions[what])
    print(f"{target:7} {name:12} multiplies with {multiply:12} fetches with {copy}")

# %% [markdown]
# ## One descriptor per problem, made on the device
#
# In a grouped GEMM each problem has its own A, B and C. The host could send descriptors along with the tables; this
# kernel makes them where the walk of lesson 04 arrives at a problem, from the same tables.

# %%
show(tma.tma_kernel, "if tile < min(end, stop)", "c_desc = tl.make_tensor_descriptor")

# %% [markdown]
# A few lines here, many instructions there. These are the fields that the compiled kernel fills in, first in shared
# memory, then copied to a scratch buffer in global memory, then fenced, so that the TMA does not read an old one.

# %% tags=["nbval-ignore-output"]
print(f"{descriptors.instructions['tensormap.replace']} field writes for A, B and C; the fields:")
print(*ptx.descriptor_fields(descriptors.ptx))
print(descriptors.excerpt("cp_fenceproxy", before=0, after=3))

# %%
programs = 132
print(f"scratch memory: 3 × {draw.DESCRIPTOR_BYTES} bytes × {programs} programs = {3 * 128 * programs} bytes")

# %% [markdown]
# ## What a switch costs
#
# A program pays whenever its next tile lies in another problem. An H200's own clocks say how long the pause between
# two tiles is:

# %%
switch = record.load("switch")
gap, none = switch["switch_us"]["median"], switch["same_problem_us"]["median"]
print(f"pause before a tile of the same problem: {none:.2f} µs")
print(f"pause before a tile of the next problem: {gap:.2f} µs, {gap / none:.0f} times as long")

# %% [markdown]
# How often it pays is a matter of the schedule. Take the weight gradients of eight experts under a uniform router, and
# the first 8 of 132 programs:

# %%
batch = [t for t in record.load("sm_timelines")["timelines"] if t["batch"] == "uniform"]
problems, block = batch[0]["problems"], batch[0]["block"]
walks = {order: schedule.walk(problems, order, 132, block, group_m=1) for order in ("round_robin", "chunks")}
draw.switches(walks)

# %% [markdown]
# Round-robin jumps 132 tiles at a time, over a whole problem: every tile is the first of its problem. A chunk stays.
# What the H200 measured for the two, without any clock being read inside:

# %%
for order, walk in walks.items():
    most = max(draw.visits(walk))
    recorded = next(t["median_us"] for t in batch if t["schedule"] == order)
    print(f"{order:12} {most} visits × {gap:.1f} µs: at most {most * gap:4.1f} µs of a recorded {recorded:5.1f} µs")

# %% [markdown]
# The saving is real, and smaller than the product says: part of a switch hides behind the last tile's stores, and a
# kernel that reads clocks waits for these first. Chunks have their own price, which lesson 05 showed: unequal tiles.
#
# Does it pay in the end? Four problems of N³, each kernel with the configuration chosen for it:

# %%
rows = record.load("group_gemm")["rows"]
draw.recorded_ratio({name: row["us"] for name, row in rows.items()})

# %% [markdown]
# For small matrices a launch is over before a descriptor has earned its switch. This is why `method="auto"` looks at
# the sizes before it chooses.

# %% [markdown]
# ## The rules
#
# The hardware insists: base address and leading stride are multiples of 16 bytes, and the other stride is 1. Which of
# these views may be described? Decide before you run the cell.

# %%
from course_kernels.lists.launch import satisfies_descriptor_rule

M = torch.zeros(96, 64, dtype=torch.float16, device=device)
views = {"M": M, "M[1:]": M[1:], "M[:, 1:]": M[:, 1:], "M[:, 8:]": M[:, 8:], "M[:, ::2]": M[:, ::2], "M.T": M.T}
views["96 × 100, of its own"] = torch.zeros(96, 100, dtype=torch.float16, device=device)
for name, view in views.items():
    start, allowed = view.storage_offset() * view.element_size(), satisfies_descriptor_rule(view)
    print(f"{name:22} starts at byte {start:3}  strides {view.stride()!s:9} {allowed}")

# %% [markdown]
# `M.T` is fine: a column-major matrix is described as its row-major transpose, and the block is transposed on arrival.
# (A block may start at any row; its first column has to be a multiple of 16 bytes as well, in Triton.) The last one
# has rows of 200 bytes. Triton's host-side descriptor says so:

# %% tags=["raises-exception", "nbval-ignore-output"]
from triton.tools.tensor_descriptor import TensorDescriptor

TensorDescriptor.from_tensor(views["96 × 100, of its own"], [16, 16])

# %% [markdown]
# A descriptor made on the device has nobody to raise an error, so the host has to look first. Here the third of four
# problems has K = 33, rows of 66 bytes. We ask for descriptors, and watch what is launched:

# %%
problems = [(128, 128, 128), (64, 64, 64), (32, 32, 33), (16, 16, 16)]
A, B = testing.make_operands(problems, device=device)
small = GemmConfig(32, 32, 32)
plan = GroupGemmPlan(A, B, method="tma", config=small, programs=4)
print(plan)
print("exact:", all(map(torch.equal, plan.run(), reference.group_gemm(A, B))))

# %% [markdown]
# The answer is right, and it took a second launch: the pointer kernel took over one problem. Repair it: give the
# matrix rows that are a multiple of 16 bytes apart, without changing its shape.


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
# ## FP8: half the bytes again
#
# `float8_e4m3fn` needs tensor cores that know it. Many programs test for capability 9.0; Ada (8.9) has them, too. No
# GPU is needed to see the refusal: compile for one without.

# %% tags=["nbval-ignore-output"]
try:
    codegen.compile_kernel("round_robin", "sm_80", dtype="float8_e4m3fn")
except codegen.CompileError as error:
    print(str(error).splitlines()[-1])

# %%
for name, target in codegen.TARGETS.items():
    if target.backend == "cuda":
        fp8 = target.capability >= runtime.FP8_CAPABILITY
        print(f"{name:7} {target.gpus:16} float8_e4m3fn: {'yes' if fp8 else 'no'}")

# %% [markdown]
# `group_gemm` asks `runtime.supports_fp8` and raises a `TypeError` that names the capability before anything runs.
# (AMD's GPUs have FP8, too, and not all in this format; the course supports the other dtypes there.) Triton's
# interpreter computes it on any machine; on a GPU without it, you see the refusal here:

# %%
a = testing.integers((48, 64), torch.float8_e4m3fn, 1, device=device)
b = testing.integers((64, 32), torch.float8_e4m3fn, 2, device=device)
right = reference.group_gemm([a], [b], out_dtype=torch.float32)[0]
try:
    product = group_gemm([a], [b], method="tma", out_dtype=torch.float32)[0]
    print("exact:", torch.equal(product, right))
except TypeError as refusal:
    print(refusal)

# %% [markdown]
# On a GPU without it, repair the call by widening: float16 has every number that this type has, so nothing is lost
# but speed.

# %%
every = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn)
every = every[~every.float().isnan()]
print("all in float16:", torch.equal(every.half().float(), every.float()))
widened = group_gemm([a.half()], [b.half()], method="tma", out_dtype=torch.float32)[0]
print("same product:", torch.equal(widened, right))

# %% [markdown]
# The product was exact because small integers are among the few numbers that this type has. Others are rounded, by far
# more than in bfloat16:

# %%
draw.fp8_rounding()

# %% [markdown]
# Three bits of mantissa: up to 1/16 of the value is lost. Does a sum of many products average it away? And what of
# numbers that are small, or large?

# %%
x, y = (torch.randn(256, 256, generator=torch.Generator().manual_seed(seed)) for seed in (0, 1))
exact = x.double() @ y.double()
for dtype in (torch.bfloat16, torch.float8_e4m3fn):
    rounded = x.to(dtype).double() @ y.to(dtype).double()
    print(f"{dtype!s:20} error of the product: {((rounded - exact).norm() / exact.norm() * 100).item():.1g} %")
for value in (0.0009, 300.0, 5000.0):
    print(f"{value:g} → {torch.tensor(value).clamp(-448, 448).to(torch.float8_e4m3fn).item():g}")

# %% [markdown]
# It does not: the sum of random terms shrinks by the same averaging. The range is short as well: 448 at the top,
# nothing below 0.001. Real FP8 layers carry a scale beside each row or block, the subject of a later lesson.

# %% [markdown]
# ## What goes wrong, gently
#
# A mixture-of-experts layer packs its groups into one matrix. Why not describe the *whole* matrix once, and save every
# switch? This kernel computes one expert's rows, which begin at `start`; its tiles are counted from there.


# %%
@triton.jit
def one_group(a_ptr, b_ptr, c_ptr, total, start, c_rows, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    a = tl.make_tensor_descriptor(a_ptr, [total, SIZE], [SIZE, 1], [BLOCK, SIZE])
    b = tl.make_tensor_descriptor(b_ptr, [SIZE, SIZE], [SIZE, 1], [SIZE, SIZE])
    c = tl.make_tensor_descriptor(c_ptr, [c_rows, SIZE], [SIZE, 1], [BLOCK, SIZE])
    row = start + tl.program_id(0) * BLOCK
    c.store([row, 0], tl.dot(a.load([row, 0]), b.load([0, 0])).to(c.dtype))


# %% [markdown]
# Four experts with 40, 24, 56 and 8 rows. The tiles of 32 rows do not fit them, and the second tile of group 0 loads
# rows of group 1. `c_rows` is what the descriptor of C takes for the end of the matrix.

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
# First attempt: every descriptor ends where the tensor ends. Which rows do you expect to be wrong?

# %%
whole = wrong_rows(lambda g: len(tokens))
print(f"{sum(whole)} of {len(whole)} rows are wrong")

# %% [markdown]
# Reading the next group's rows did no harm: their products were not used. *Writing* them destroyed finished work, and
# no error came, because the bounds are the tensor's, not the group's. Repair it by changing one argument:

# %%
ends_at_group = wrong_rows(lambda g: starts[g] + sizes[g])
draw.reach(sizes, BLOCK, {"C ends with the tensor": whole, "C ends with the group": ends_at_group})

# %% [markdown]
# That is what `tma_kernel` does: its descriptors are each problem's own. The other way is one descriptor for all
# groups of A and a mask on the last store of each group. It needs no switch at all; packed tensors will be built on it.
#
# ## Try it here
#
# [Exercise 06](../exercises/06_descriptor_kernel.ipynb), the descriptor kernel: three descriptors, and where each ends.
# Or change a cell and run it again:
#
# - `peek` at a negative row or column: what comes back, and why does that make a convolution's padding free?
# - Compile both with `GemmConfig(128, 256, 64, num_warps=8)`: how many registers are left to either, of 255?
# - In `wrong_rows`, launch the groups in ascending order. Why is every row right now, and why would you not rely on it
#   with all groups in one launch?
#
# ## Summary
#
# - A descriptor is 128 bytes: address, extents, stride, block. One thread then moves a block, edges included.
# - That about halves the loop's instructions and frees registers; the multiplications are the same.
# - It is made where a program enters a problem, which takes microseconds: few visits per program, few microseconds.
# - 16 bytes for address and leading stride, 1 for the other. The host checks; the pointer kernel takes the rest.
# - Its bounds are the tensor's: reading past a group is harmless, writing is not.
#
# Tiles, stages, warps, schedule: who chooses them for a shape never seen before?
# Next: [07 Autotuning and configuration](07_autotuning.ipynb).
