# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown]
# # 08 · Contiguous offsets
#
# A mixture-of-experts layer does not have a list of matrices. Its tokens are in one matrix, expert after expert, and a
# list of ends says where the rows of each expert end. Can a kernel read this packed matrix as it is, without a
# descriptor per group, and without a host that knows the sizes?
#
# **About 55 minutes. Afterwards you can**
#
# - write a grouped kernel for packed operands with three descriptors in all,
# - store a tile that crosses the end of its group, with a mask and with a window,
# - tell from compiled code whether the loop over tiles and the loop over K were fused,
# - name the four modes of `grouped_mm`, and find those of a layer's backward pass,
# - handle tail rows, empty groups and unaligned operands.
#
# You need: lessons 04 and 06.

# %%
import gemm_course  # import first: without a GPU, kernels then run in the interpreter

import torch
import triton
import triton.language as tl
from IPython.display import display
from triton.tools.ragged_tma import create_ragged_descriptor, to_ragged_indices
from triton.tools.tensor_descriptor import TensorDescriptor

from course_kernels import GemmConfig, GroupLayout, codegen, group_gemm, grouped_mm, runtime, schedule, testing
from course_kernels.bench import record
from course_kernels.bench.rows import rows
from course_kernels.kernels import contiguous
from course_kernels.testing import reference
from course_kernels.codegen import ptx
from gemm_course.figures import f08_modes as modes, f08_packed_rows as draw, f08_pipelines as pipelines
from gemm_course.lessons import l08_pipeline
from gemm_course.lessons.listing import fold

device = runtime.device()

# %% [markdown]
# ## Try the obvious: cut it into lists
#
# Eight experts, a skewed router, and 200 tokens, sorted by expert. The matrix has 224 rows, because a serving system
# uses buffers of a fixed size. The last 24 rows belong to no expert. They are the **tail**.

# %%
sizes, tail, K, N = testing.routed_sizes("zipf", 200), 24, 64, 64
total = sum(sizes) + tail
tokens = testing.integers((total, K), torch.float16, 1, device=device)
weights = testing.integers((8, K, N), torch.float16, 2, device=device)
offs = GroupLayout.from_sizes(torch.tensor(sizes, dtype=torch.int32, device=device)).ends
expected = reference.grouped_mm(tokens, weights, offs, out_dtype=torch.float16)
print("rows of each expert:", sizes)
print("offs, their ends:   ", offs.tolist())

# %%
list_of_A = list(tokens[: sum(sizes)].split(offs.diff(prepend=offs.new_zeros(1)).tolist()))
product = torch.cat(group_gemm(list_of_A, list(weights)))
print("the lists, packed again, are the tokens:", torch.equal(torch.cat(list_of_A), tokens[: sum(sizes)]))
print("exact:", torch.equal(product, expected[: sum(sizes)]))

# %% [markdown]
# The result is right, but this way has two costs. First, `.tolist()` makes the host wait: the router ran on the GPU,
# and the host needs the sizes before it can cut. That happens in every layer. Second, the switches of lesson 06. Take a
# layer of a real size:

# %%
layer = [(rows, 2048, 1536) for rows in testing.routed_sizes("zipf", 8192)]
walk = schedule.walk(layer, "round_robin", 132, (128, 256))
gap = record.load("switch")["switch_us"]["median"]
most = max(len(schedule.problem_starts(own)) for own in walk)
print(f"{max(map(len, walk))} tiles a program, which enters a problem up to {most} times:")
print(f"up to {most} × {gap:.1f} = {most * gap:.0f} µs spent on writing descriptors, in every launch")

# %% [markdown]
# ## The idea: describe the packed matrix, once
#
# All rows of A have the same length and follow each other in memory. So *one* [descriptor](glossary.md#descriptor) is
# enough for all groups of A. All weights have the same shape, so one descriptor of three dimensions is enough for
# those. Of the tables only `offs` is left. In the picture, a black mark is a descriptor.

# %%
draw.lists_and_packed(sizes, tail)

# %% [markdown]
# Nothing of this depends on the sizes. The host makes three descriptors from shapes that it knows, and the kernel reads
# `offs` when it runs.

# %%
BLOCK = 32
a = TensorDescriptor.from_tensor(tokens, [BLOCK, BLOCK])
b = TensorDescriptor.from_tensor(weights, [1, BLOCK, BLOCK])
print("A:", a.shape, "in blocks of", a.block_shape)
print("B:", b.shape, "in blocks of", b.block_shape)

# %% [markdown]
# Tiles are counted from the first row of each group. A descriptor's row coordinate can be any number, so a tile can
# start where its group does. Its *end* is the problem. Here is the only tile of expert 3:

# %%
draw.boundary_tile(sizes, tail, BLOCK, group=3)

# %% [markdown]
# It reads rows of two other experts, multiplies them with the wrong weight, and drops the products. So reading needs no
# care. Only the store must know where the group ends.

# %% [markdown]
# ## Which group is this tile in?
#
# Call the tiles of the same rows a *tile row*. Lesson 04 found a tile's problem by a walk: subtract the tile rows of
# group 0, of group 1, and so on, one group after the other. We can also compare with all groups at once:

# %%
tile_row_ends = torch.tensor([triton.cdiv(rows, BLOCK) for rows in sizes]).cumsum(0)
print("tile rows end at", tile_row_ends.tolist())
for tile_row in (0, 2, 3, 7):
    passed = tile_row_ends <= tile_row
    print(f"tile row {tile_row}: {passed.int().tolist()} add up to group {passed.sum()}")

# %% [markdown]
# The number of groups that end at or before a tile row is the number of its group. On a GPU the threads of a warp
# compare at the same time, and a few more instructions add up the results.


# %%
@triton.jit
def count_tile_rows(offs, G, BLOCK: tl.constexpr, GROUPS: tl.constexpr):
    groups = tl.arange(0, GROUPS)
    ends = tl.load(offs + groups, mask=groups < G, other=0)
    starts = tl.load(offs + groups - 1, mask=(groups > 0) & (groups < G), other=0)
    return tl.cumsum(tl.cdiv(ends - starts, BLOCK), 0)


@triton.jit
def find_group(tile_row_ends, offs, tile_row, BLOCK: tl.constexpr):
    passed = tile_row_ends <= tile_row
    g = tl.sum(passed.to(tl.int32), 0)
    before = tl.max(tl.where(passed, tile_row_ends, 0), 0)
    start = tl.load(offs + g - 1, mask=g > 0, other=0)
    return g, start, tl.load(offs + g), start + (tile_row - before) * BLOCK


# %% [markdown]
# ## The smallest kernel
#
# The kernel is [persistent](glossary.md#persistent): as in lesson 04, a fixed number of [programs](glossary.md#program)
# takes all tiles in turns. It has two loads through descriptors, and a store that you pass in: `STORE` is a
# `@triton.jit` function, given as a constexpr. The kernel takes the tiles backwards, so that a wrong store shows
# itself. (`window` and `flatten` come in later sections.)


# %%
@triton.jit
def packed_kernel(
    a, b, c, window, offs, total, N, K, G,
    BLOCK: tl.constexpr, BLOCK_K: tl.constexpr, GROUPS: tl.constexpr, STORE: tl.constexpr,
):  # fmt: skip
    tile_row_ends = count_tile_rows(offs, G, BLOCK, GROUPS)
    tiles_n = tl.cdiv(N, BLOCK)
    tiles = tl.max(tile_row_ends, 0) * tiles_n
    for i in tl.range(tl.program_id(0), tiles, tl.num_programs(0), flatten=True):
        tile = tiles - 1 - i
        g, start, end, row = find_group(tile_row_ends, offs, tile // tiles_n, BLOCK)
        col = tile % tiles_n * BLOCK
        acc = tl.zeros((BLOCK, BLOCK), dtype=tl.float32)
        for k in range(0, K, BLOCK_K):
            block_b = b.load([g, k, col]).reshape(BLOCK_K, BLOCK)
            acc = tl.dot(a.load([row, k]), block_b, acc)
        STORE(c, window, acc.to(tl.float16), start, end, row, col, total, N)


# %% [markdown]
# Here is a first store. Its mask ends at the end of the matrix, as in lesson 03.
#
# **Guess** before you open the output: which rows of C are wrong?


# %% tags=["hide-output"]
@triton.jit
def store_whole(c, window, block, start, end, row, col, total, N):
    rows = row + tl.arange(0, block.shape[0])[:, None]
    cols = col + tl.arange(0, block.shape[1])[None, :]
    tl.store(c + rows * N + cols, block, mask=(rows < total) & (cols < N))


def multiply(store, programs, window=None, kernel=packed_kernel):
    C = torch.zeros(total, N, dtype=torch.float16, device=device)
    window = window(C) if window else None
    kernel[(programs,)](a, b, C, window, offs, total, N, K, 8, BLOCK, BLOCK, 8, store)
    return C


whole = multiply(store_whole, programs=1)  # one program, so that the outcome is the same every time
wrong = (whole != expected).any(1)
print(f"{int(wrong.sum())} of {total} rows are wrong, {int(wrong[sum(sizes) :].sum())} of them in the tail")

# %% [markdown]
# <details><summary>Answer</summary>
#
# The rows after the end of each group, as many as its last tile reaches past it. Nobody writes them again, because
# their own tiles came before.
#
# </details>
#
# ## What goes wrong: the neighbour's rows
#
# The wasted rows were stored over rows that were finished. There was no crash and no NaN. If one program took the tiles
# in ascending order, the rows of all groups would even be right: the neighbour comes later and writes them again. With
# several programs that is luck.
#
# **Guess** before you open the next cell: one name in `store_whole` has to change. Which, and to what?


# %% tags=["hide-input", "hide-output"]
@triton.jit
def store_masked(c, window, block, start, end, row, col, total, N):
    rows = row + tl.arange(0, block.shape[0])[:, None]
    cols = col + tl.arange(0, block.shape[1])[None, :]
    tl.store(c + rows * N + cols, block, mask=(rows < end) & (cols < N))


masked = multiply(store_masked, programs=4)
draw.overwritten(sizes, tail, {"mask at the matrix's end": whole, "mask at the group's end": masked}, expected)

# %% [markdown]
# <details><summary>Answer</summary>
#
# `total` became `end`.
#
# </details>
#
# Now the kernel is right in any order, with any number of programs.
#
# ## A bound that moves with the group
#
# The mask has a cost: an address and a comparison for each 16 bytes of *every* tile, although few tiles cross an end. A
# store through a descriptor needs neither. But the bound of a descriptor is a number inside it, and a descriptor for
# each group is what we wanted to avoid.
#
# There is a trick. The bound stays where it is, at 2³⁰, a number larger than any matrix, and we *move the matrix*.
# Group 1 has 38 rows, 66 to 103. We give its first row the coordinate 2³⁰ − 38, and its last row 2³⁰ − 1. Row 104, the
# first that is not ours, would have 2³⁰. That is the bound, so the hardware skips it.
#
# The picture has both: above, the coordinates of a plain descriptor; below, those of the window. The last tile of the
# group begins at row 98.

# %%
draw.sliding_window(sizes, group=1, block=BLOCK)

# %% [markdown]
# Now the coordinate 2³⁰ − 38 must mean row 66. Two more coordinates only shift the address: `base` by +104 rows, `sign`
# by −2³⁰. The sum is 104 − 2³⁰ + 2³⁰ − 38 = 66.
#
# `triton.tools.ragged_tma` makes such a descriptor. It adds two dimensions in front, so three coordinates now step
# through the same rows. The hardware adds their steps to an address, and compares each coordinate with a bound of its
# own. Those of `sign` and `base` are nearly 2³¹, so they are never reached:
#
# | coordinate | value | stride | bound | purpose |
# | --- | --- | --- | --- | --- |
# | `sign` | 2³⁰ | 2³⁴ − leading | 2³¹ − 2¹⁶ | takes 2³⁰ rows back: 2³⁰ · 2³⁴ = 2⁶⁴ is 0 in 64 bits |
# | `base` | the group's end | leading | 2³¹ − 2¹⁶ | moves forward to the group's end |
# | `inside` | 2³⁰ − size + row | leading | 2³⁰ | reaches its bound when `row` reaches `size` |
#
# Why is `sign` not simply −2³⁰? The hardware takes a negative coordinate as outside, and would skip everything. So
# `sign` is a positive number, and its *stride* takes the rows back: an address has 64 bits, and 2³⁰ steps of 2³⁴ are
# 2⁶⁴, which is 0. Of the stride 2³⁴ − leading, only −leading is left, 2³⁰ times.
#
# Check it in elements: the first row of group 1, its last row, and the first row of group 2.

# %%
size, end = sizes[1], int(offs[1])
start = end - size
for row in (0, size - 1, size):
    sign, base, inside = 2**30, end, 2**30 - size + row
    address = (sign * (2**34 - N) + base * N + inside * N) % 2**64
    print(f"row {row:2}: address {address} = row {address // N} of C; below the bound: {inside < 2**30}")

# %% [markdown]
# The addresses are right, and the hardware skips the row that is not ours. (This guards only the end of a group. No
# tile starts before its group, so that is enough.) The store has two lines:


# %%
@triton.jit
def store_window(c, window, block, start, end, row, col, total, N):
    sign, base, inside = to_ragged_indices(start, end - start, row - start)
    window.store([sign, base, inside, col], block.reshape(1, 1, block.shape[0], block.shape[1]))


def window_of(C):
    return create_ragged_descriptor(C, [BLOCK, BLOCK])


print("exact:", torch.equal(multiply(store_window, 4, window_of), expected))

# %% [markdown]
# Every tile, full or not, uses the same two lines. There is no mask and no branch.

# %% [markdown]
# ## What the compiler made of it
#
# Would a branch be slow? Here are two rivals to compare. The first stores full tiles through a plain descriptor and the
# others through the mask. The second finds groups by the walk of lesson 04.


# %%
@triton.jit
def store_branch(c, window, block, start, end, row, col, total, N):
    if row + block.shape[0] <= end:
        window.store([row, col], block)
    else:
        store_masked(c, window, block, start, end, row, col, total, N)


@triton.jit
def walking_kernel(
    a, b, c, window, offs, total, N, K, G,
    BLOCK: tl.constexpr, BLOCK_K: tl.constexpr, GROUPS: tl.constexpr, STORE: tl.constexpr,
):  # fmt: skip
    tile, passed, start, tiles_n = tl.program_id(0), 0, 0, tl.cdiv(N, BLOCK)
    for g in range(G):
        end = tl.load(offs + g)
        group_tiles = tl.cdiv(end - start, BLOCK) * tiles_n
        for at in tl.range(tile - passed, group_tiles, tl.num_programs(0), flatten=True):
            row, col = start + at // tiles_n * BLOCK, at % tiles_n * BLOCK
            acc = tl.zeros((BLOCK, BLOCK), dtype=tl.float32)
            for k in range(0, K, BLOCK_K):
                acc = tl.dot(a.load([row, k]), b.load([g, k, col]).reshape(BLOCK_K, BLOCK), acc)
            STORE(c, window, acc.to(tl.float16), start, end, row, col, total, N)
            tile += tl.num_programs(0)
        passed, start = passed + group_tiles, end


# %%
print("the walk, exact:", torch.equal(multiply(store_window, 4, window_of, walking_kernel), expected))

# %% [markdown]
# `codegen` compiles kernels of a notebook's cells, too. It needs the types of the arguments, which a launch would give
# it:


# %%
def compile_for_h200(kernel, store, block=128, block_k=64):
    box = f"1, 1, {block}, {block}" if store is store_window else f"{block}, {block}"
    signature = {
        "a": f"tensordesc<fp16[{block}, {block_k}]>", "b": f"tensordesc<fp16[1, {block_k}, {block}]>", "c": "*fp16",
        "window": f"tensordesc<fp16[{box}]>", "offs": "*i32", "total": "i32", "N": "i32", "K": "i32", "G": "i32",
    }  # fmt: skip
    values = {"BLOCK": block, "BLOCK_K": block_k, "GROUPS": 8, "STORE": store}
    aligned = ("c", "offs", "N", "K")
    return codegen.compile_kernel(kernel, "sm_90", signature=signature, constexprs=values, divisible_by_16=aligned)


by_walk = compile_for_h200(walking_kernel, store_window)
by_mask = compile_for_h200(packed_kernel, store_masked)
by_window = compile_for_h200(packed_kernel, store_window)

# %% [markdown]
# Both kernels ask for `flatten`: the compiler should make one loop of the loop over tiles and the loop over K. The
# picture shows what it did: copies, multiplications and stores in their order, with the loops around them. (The walk's
# third loop, over groups, is around everything and not drawn.)

# %% tags=["nbval-ignore-output"]
pipelines.structure({"groups found by walking": by_walk.ptx, "groups found by comparing": by_window.ptx})

# %% [markdown]
# In the walk (top) the first copies are inside the loop over tiles. Each tile starts with an empty
# [pipeline](glossary.md#pipeline): its first blocks are fetched only after the store of the previous tile. In the fused
# version (bottom) the first copies run once per program. Inside the loop, each copy fetches the block needed two steps
# later, which may belong to the next tile. So the next tile's first blocks arrive while this tile is stored.
#
# The compiler does not fuse the loops of the walk, because they are inside a third loop, over groups. (Even if it fused
# the inner two, the pipeline would run empty at the end of each group.) And the branch?

# %% tags=["nbval-ignore-output"]
try:
    print("loops:", len(ptx.loops(compile_for_h200(packed_kernel, store_branch).ptx)[1]))
except codegen.CompileError as error:
    print(next(line for line in str(error).splitlines() if "error: " in line).partition("error: ")[2][:110], "…")

# %% [markdown]
# At the time of writing, Triton cannot compile the fused loop with the branch. The mask and the window remain, and both
# are fused:

# %% tags=["nbval-ignore-output"]
for name, one in {"walk and window": by_walk, "mask": by_mask, "window": by_window}.items():
    stores = sum(run.count for run in ptx.loops(one.ptx)[0] if run.kind == ptx.STORE)
    print(f"{name:16} {ptx.count_instructions(one.ptx):5} instructions, {stores:2} to store a tile,", end=" ")
    print(f"{one.registers} registers")

# %%
compiled = {"walk": by_walk, "comparison": by_window}
print("loops around a multiplication:", {name: len(ptx.loops(one.ptx)[1]) for name, one in compiled.items()})
shorter = ptx.count_instructions(by_window.ptx) < ptx.count_instructions(by_mask.ptx)
print("the window takes fewer instructions than the mask:", shorter)

# %% [markdown]
# ## What it costs
#
# The walk has the fewest instructions, and still it waits most. A small model shows why. One program computes four
# tiles of six blocks, and shared memory has room for three blocks. A copy takes as long as two products, a store as
# long as three.

# %%
runs = {name: l08_pipeline.pipeline(4, 6, fused=fused) for name, fused in (("loop in a loop", False), ("fused", True))}
pipelines.overlap(runs)

# %% [markdown]
# After each store the unfused program waits for copies that could have started earlier. This time is the same for each
# tile, so it is a larger share of short tiles (small K). Try 2 and 64 blocks in the cell above.

# %%
large = GemmConfig(128, 256, 64, num_warps=8, num_stages=4, group_m=8, store_parts=2)  # the one for large groups
library = codegen.compile_kernel("contiguous", "sm_90", dtype="float16", config=large)
steps, loops = ptx.loops(library.ptx)
print("loops around a multiplication:", len(loops), "with", *(f"{step.count} × {step.kind}" for step in steps[1:]))

# %% [markdown]
# The library's kernel is fused as well. It has two stores, because a tile goes out in two halves: a half needs half the
# shared memory.
#
# ### The one coordinate that must be aligned
#
# A descriptor's coordinate along the contiguous dimension must be a multiple of 16 bytes. An H200 stops the kernel at
# any other coordinate. Rows of a row-major matrix are never concerned. But if tokens are *columns*, the ragged
# dimension is the contiguous one. A group can start anywhere there. So a tile starts at the last 16-byte boundary at or
# before its group, and the store's mask leaves the elements before the group untouched.

# %%
draw.whole_units(sizes, unit=16 // tokens.element_size(), group=1, block=BLOCK)

# %% [markdown]
# ## `grouped_mm`: four modes
#
# The ranks of the operands say which dimension the groups divide. A colour is a group. A stack has one matrix for each
# group.

# %%
captions = {"m": "rows: the forward product, and the gradient of A", "n": "columns: the same, transposed"}
captions |= {"k": "the summed dimension: the gradient of B", "batch": "none: equal groups, no offs"}
modes.four_modes(captions)

# %% [markdown]
# Three of them are a layer's forward and backward pass. The gradients of C = A·B are dA = dC·Bᵀ and dB = Aᵀ·dC. Tokens
# are rows of A and of dC, so dA is mode m again. In dB the tokens are summed over, which is mode k.
#
# **Guess** the shapes of the four results before you open the output.


# %% tags=["hide-output"]
def mm(*operands, **options):
    """grouped_mm by the kernels, on a CPU, too."""
    return grouped_mm(*operands, backend="triton", config=GemmConfig(64, 64, 64), **options)


d_out = testing.integers((total, N), torch.float16, 3, device=device)
operands = {
    "forward, mode m": (tokens, weights), "forward, mode n": (weights.mT, tokens.T),
    "dA,      mode m": (d_out, weights.mT), "dB,      mode k": (tokens.T, d_out),
}  # fmt: skip
products = {name: mm(left, right, offs=offs) for name, (left, right) in operands.items()}
for name, (left, right) in operands.items():
    exact = torch.equal(products[name], reference.grouped_mm(left, right, offs, out_dtype=torch.float16))
    shapes = [str(tuple(one.shape)) for one in (left, right, products[name])]
    print(f"{name}: {shapes[0]:12} × {shapes[1]:12} = {shapes[2]:11}", exact)

# %% [markdown]
# <details><summary>Answer</summary>
#
# (224, 64), (64, 224), (224, 64) and (8, 64, 64).
#
# </details>
#
# `backward` does the same by itself:

# %%
x, w = tokens.clone().requires_grad_(), weights.clone().requires_grad_()
mm(x, w, offs=offs).backward(d_out)
print("dA:", torch.equal(x.grad, products["dA,      mode m"]))
print("dB:", torch.equal(w.grad, products["dB,      mode k"]))

# %% [markdown]
# Mode k is the opposite case. Its result has a matrix for each group, so a store cannot reach another group. But a
# block of K that reaches past the group's end would be *summed*. So there the loads use windows, which give zeros past
# the end. Each tile has its own number of blocks, so the compiler cannot fuse the loops. `kernels/transposed.py` writes
# by hand what `flatten` does here.
#
# ## A drop-in for torch's
#
# `torch.nn.functional.grouped_mm` has the same names in the same order. A layer that uses it changes one import:
#
# ```python
# from torch.nn.functional import grouped_mm  # before
# from course_kernels import grouped_mm  # after
# ```
#
# Here we pass both to one layer, to compare them:


# %%
def experts(grouped_mm, x, up, down, offs):
    return grouped_mm(torch.relu(grouped_mm(x, up, offs=offs)), down, offs=offs)


def operand(*shape, seed):
    return testing.integers(shape, torch.bfloat16, seed, low=-1, high=1)


few = torch.tensor(testing.routed_sizes("zipf", 16, seed=1), dtype=torch.int32)
offs_few = GroupLayout.from_sizes(few).ends
x, up, down = operand(24, 32, seed=1), operand(8, 32, 48, seed=2), operand(8, 48, 32, seed=3)
theirs = experts(torch.nn.functional.grouped_mm, x, up, down, offs_few)
ours = experts(mm, *(t.to(device) for t in (x, up, down, offs_few))).cpu()
used = int(offs_few[-1])
print("rows of each expert:", few.tolist())
print("the same in the groups' rows:", torch.equal(ours[:used], theirs[:used]))

# %% [markdown]
# There are 24 rows and 16 tokens, and two experts have none. The other 8 rows are the tail. In torch's result they are
# not written, so they hold the old content of the memory. Such bugs are hard to see, because fresh memory is often
# zero. Under `use_deterministic_algorithms`, torch fills uninitialised memory with NaN, which shows them. (torch's
# tensors are on the CPU here.)
#
# **Guess:** which rows are NaN in torch's result, in torch's gradient, and in ours?


# %% tags=["hide-output"]
def with_poison(function, *operands):
    """Result and gradient of the first operand, uninitialised memory filled with NaN."""
    x, w, offs = (t.clone() for t in operands)
    torch.use_deterministic_algorithms(True)
    try:
        y = function(x.requires_grad_(), w, offs=offs)
        y.backward(torch.ones_like(y))
        return y.detach(), x.grad
    finally:
        torch.use_deterministic_algorithms(False)


cpu = (x, up, offs_few)
outcome = {"torch": with_poison(torch.nn.functional.grouped_mm, *cpu)}
outcome["course_kernels"] = with_poison(mm, *(t.to(device) for t in cpu))
modes.undefined_rows(outcome, few.tolist(), ["result", "gradient of A"])

# %% [markdown]
# <details><summary>Answer</summary>
#
# In torch's, the rows of the tail are NaN, both in the result and in the gradient. In ours, none is.
#
# </details>
#
# With one NaN in a padding row, the mean over all rows is NaN, and so is the norm of all gradients. Our `grouped_mm`
# writes zeros there in the same kernel: the programs with the fewest tiles take the tiles of the tail. (`tail="keep"`
# with `out=` leaves these rows as they are.) To repair torch's from outside, the operand and the result must be masked,
# so that result *and* gradient are defined:

# %%
inside = (torch.arange(24) < used)[:, None]


def repaired(x, w, offs):
    result = torch.nn.functional.grouped_mm(torch.where(inside, x, 0), w, offs=offs)
    return torch.where(inside, result, 0)


for name, matrix in zip(("result", "gradient of A"), with_poison(repaired, *cpu)):
    print(f"{name}: {int(matrix.isnan().any(1).sum())} rows undefined")

# %% [markdown]
# This costs two more passes over memory. And an expert without tokens? Its gradient is an empty sum, zero:

# %%
up_grad = mm(x.to(device).T, ours.new_ones(24, 48).to(device), offs=offs_few.to(device))
empty = [g for g, rows in enumerate(few.tolist()) if rows == 0]
print("experts without tokens:", empty, "their gradients are zero:", not up_grad[empty].any())

# %% [markdown]
# ### Alignment
#
# Rows of 20 columns of 2 bytes are 40 bytes long, and no descriptor can describe them. torch reports that:

# %% tags=["nbval-ignore-output"]
narrow, narrow_weight = operand(24, 20, seed=4), operand(8, 20, 32, seed=5)
try:
    torch.nn.functional.grouped_mm(narrow, narrow_weight, offs=offs_few)
except RuntimeError as error:
    print(error)

# %%
got = mm(narrow.to(device), narrow_weight.to(device), offs=offs_few.to(device)).cpu()
print("exact:", torch.equal(got, reference.grouped_mm(narrow, narrow_weight, offs_few, out_dtype=torch.bfloat16)))

# %% [markdown]
# Ours computes it. It is the same kernel, compiled with pointers instead of the descriptor.
#
# ### Wrong offsets
#
# Lesson 01's mistake was to pass `offsets` with a leading 0 instead of ends. They have another length, so the library
# notices without looking at the device. It cannot check the values in every call, because the host would wait for the
# GPU.

# %%
with_zero = torch.cat([offs_few.new_zeros(1), offs_few])
for ends, check in ((with_zero, False), (offs_few.flip(0), True), (offs_few * 2, True)):
    try:
        mm(x.to(device), up.to(device), offs=ends.to(device), check=check)
    except ValueError as error:
        print(f"{error}\n")

# %% [markdown]
# Use `check=True` while you develop, and leave it out in the loop. Without it, wrong values give a wrong result. They
# still cause no write outside of the result: the kernel limits each end to the rows that exist.
#
# ## How much is wasted?
#
# We count the rows that are computed and dropped, for real layers: with tiles of 128 rows, and of 16 in the two rows of
# decoding. Lesson 15 has the recorded times of these rows, beside every other library's.
#
# **Guess** which row wastes most.

# %% tags=["hide-output"]
for row in rows():
    block = 128 if row.kind == "compute" else 16
    computed = sum(triton.cdiv(size, block) * block for size in row.sizes)
    print(f"{row.title:52} {1 - sum(row.sizes) / computed:4.0%} of the computed rows are wasted")

# %% [markdown]
# <details><summary>Answer</summary>
#
# The decoding row with four tokens for each expert: three quarters.
#
# </details>
#
# Short groups waste most. In decoding this costs nothing: the time goes into reading weights, and the tensor cores wait
# in any case. Where arithmetic is the limit, a lower tile wastes less but reuses every block less. (These shares are
# counted from the sizes, not measured.)
#
# ## The production kernel
#
# The library's kernel is built from the comparison, the window and the fused loop. Beyond the small one it takes
# operands in any layout or as pointers, zeroes the tail, adds a bias, applies scales of 8-bit operands, and has a
# dynamic schedule. In `compute_tile`, find `passed`, which finds the group. The launch passes two device functions:
# `load_rows` as `LOAD_A`, and `store_sums` as `EPILOGUE`. `store_sums` scales, adds the bias, and calls `store_result`,
# which calls `store_part` once, or once for each half of the tile.

# %%
display(*map(fold, (contiguous.contiguous_kernel, contiguous.compute_tile)))
display(*map(fold, (contiguous.store_sums, contiguous.store_result, contiguous.store_part)))

# %% [markdown]
# ## Try it here
#
# [Exercise 08](../exercises/08_boundary_store.ipynb), the boundary store: a tile writes its group's part of C, and no
# more. Or change a cell and run it again:
#
# 1. Let `packed_kernel` begin with tile 0 (`tile = i`), with one program and `store_whole`. How many rows are wrong
#    now, and which?
#    <details><summary>Answer</summary>Only rows of the tail. Every other row that is overwritten too early is written
#    again by its owner, which comes later. With more programs on a GPU the order is not defined.</details>
# 2. In `store_window`, forget the size: `to_ragged_indices(0, end, row)`. Is the result still right? What is the window
#    of every group now?
#    <details><summary>Answer</summary>Right. The window now holds the rows from 0 to `end`. Base and coordinate are the
#    same as before. Only the end matters.</details>
# 3. What does `draw.boundary_tile(sizes, tail, BLOCK, group=7)` read, and why is that harmless, too?
#    <details><summary>Answer</summary>It reads the tail, which may hold NaN. A row of the product depends on its own
#    row of A alone, so nothing else changes. In mode k it would not be harmless.</details>
# 4. Compile `packed_kernel` with `store_window` and `block_k=128`. Does it fit an H200's 227 KiB of shared memory?
#    <details><summary>Answer</summary>Yes, just: <code>shared_bytes</code> of the result is 229,400 of 232,448. Three
#    stages of 64 KiB and 32 KiB for the store leave next to nothing.</details>
#
# ## Summary
#
# - Packed operands need one descriptor each, whatever the sizes. `offs` stays on the device, and the host never waits.
# - A tile may start at any row and may read past its group. Only the store must end with the group.
# - A window is a descriptor whose bound moves: the group's rows are placed just before 2³⁰, and the address wraps
#   around.
# - Without walk and branch, tiles and K become one loop. The next tile arrives while this one is stored.
# - The modes are a layer's forward and backward pass. Our tail is zero, groups may be empty, and any alignment works.
#
# ## References
#
# - [torch.nn.functional.grouped_mm](https://docs.pytorch.org/docs/main/generated/torch.nn.functional.grouped_mm.html),
#   the interface that ours follows.
# - Triton's [ragged_tma.py](https://github.com/triton-lang/triton/blob/main/python/triton/tools/ragged_tma.py), the
#   descriptor with a bound that moves.
# - Gale and others, [MegaBlocks: Efficient Sparse Training with Mixture-of-Experts](https://arxiv.org/abs/2211.15841),
#   2022: packed groups instead of padding or dropped tokens.
#
# ## What to read next
#
# Triton decides how the kernel uses Hopper's units. The next lesson, 09, looks at a library that names each of them,
# CUTLASS. Lesson 11 takes the modes into training, and lesson 15 has the record of these kernels.
