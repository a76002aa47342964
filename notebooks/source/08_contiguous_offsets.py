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
# A mixture-of-experts layer never had a list of matrices. Its tokens lie in one matrix, expert after expert, and
# offsets say where each expert's rows end. Lists were our idea. Can a kernel read the packed matrix as it is, without
# a descriptor per group, without a host that knows the sizes?
#
# You will write that kernel, let it destroy finished work and repair it, build a descriptor whose bound moves with the
# group, see which code the compiler can fuse and which it cannot, and end at `grouped_mm`, a drop-in for torch's.
# About 45 minutes.

# %%
import gemm_course  # noqa: F401 (first: without a GPU, it has kernels run in the interpreter)

import torch
import triton
import triton.language as tl
from triton.tools.ragged_tma import create_ragged_descriptor, to_ragged_indices
from triton.tools.tensor_descriptor import TensorDescriptor

from course_kernels import GemmConfig, GroupLayout, codegen, group_gemm, grouped_mm, runtime, schedule, testing
from course_kernels.bench import record
from course_kernels.bench.rows import rows
from course_kernels.kernels import contiguous
from course_kernels.testing import reference
from gemm_course.figures import descriptors, modes, packed as draw, pipelines, roofline
from gemm_course.figures.listing import show

device = runtime.device()

# %% [markdown]
# ## Try the obvious: cut it into lists
#
# Eight experts, a skewed router, 200 tokens, sorted by expert. The matrix has 224 rows, because a serving system wants
# buffers of one size: the last 24 are the **tail** and belong to nobody.

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
# Right, and it stalls twice. First, `.tolist()`: the router ran on the GPU, so the host must wait for it before it can
# cut anything, in every layer. Second, the switches of lesson 06. Take a layer of a real size:

# %%
layer = [(rows, 2048, 1536) for rows in testing.routed_sizes("zipf", 8192)]
walk = schedule.walk(layer, "round_robin", 132, (128, 256))
gap = record.load("switch")["switch_us"]["median"]
most = max(descriptors.visits(walk))
print(f"{max(map(len, walk))} tiles a program, which enters a problem up to {most} times:")
print(f"up to {most} × {gap:.1f} = {most * gap:.0f} µs spent on writing descriptors, in every launch")

# %% [markdown]
# ## The idea: describe the packed matrix, once
#
# All rows of A have the same length and lie behind one another, so *one* descriptor reaches them all. All weights have
# the same shape, so one descriptor of three dimensions reaches those. What is left of the tables is `offs`.

# %%
draw.lists_and_packed(sizes, tail)

# %% [markdown]
# Nothing in this depends on the sizes: the host makes three descriptors from shapes that it knows anyway, and the
# kernel reads `offs` when it runs.

# %%
BLOCK = 32
a = TensorDescriptor.from_tensor(tokens, [BLOCK, BLOCK])
b = TensorDescriptor.from_tensor(weights, [1, BLOCK, BLOCK])
print("A:", a.shape, "in blocks of", a.block_shape)
print("B:", b.shape, "in blocks of", b.block_shape)

# %% [markdown]
# Tiles are counted from each group's first row, and a descriptor's row coordinate may be any number, so a tile starts
# wherever its group does. Where it *ends* is another matter. Here is the only tile of expert 3:

# %%
draw.boundary_tile(sizes, tail, BLOCK, group=3)

# %% [markdown]
# It reads rows of two other experts, multiplies them with the wrong weight, and throws them away. Reading needs no
# care at all; only the store has to know where the group ends.

# %% [markdown]
# ## Which group is this tile in?
#
# Call the tiles of the same rows a *strip*. Lesson 04 walked: subtract the strips of group 0, of group 1, … A program
# that wants its next tile goes through the groups in between, one after the other. Instead, compare with all at once:

# %%
strip_ends = torch.tensor([triton.cdiv(rows, BLOCK) for rows in sizes]).cumsum(0)
print("strips end at", strip_ends.tolist())
for strip in (0, 2, 3, 7):
    passed = strip_ends <= strip
    print(f"strip {strip}: {passed.int().tolist()} add up to group {passed.sum()}")

# %% [markdown]
# How many groups end at or before this strip? That number is the group. On a GPU eight threads compare at the same
# time, and a few more instructions add up what they found, for 8 groups or for 128.


# %%
@triton.jit
def count_strips(offs, G, BLOCK: tl.constexpr, GROUPS: tl.constexpr):
    groups = tl.arange(0, GROUPS)
    ends = tl.load(offs + groups, mask=groups < G, other=0)
    starts = tl.load(offs + groups - 1, mask=(groups > 0) & (groups < G), other=0)
    return tl.cumsum(tl.cdiv(ends - starts, BLOCK), 0)


@triton.jit
def find_group(strip_ends, offs, strip, BLOCK: tl.constexpr):
    passed = strip_ends <= strip
    g = tl.sum(passed.to(tl.int32), 0)
    before = tl.max(tl.where(passed, strip_ends, 0), 0)
    start = tl.load(offs + g - 1, mask=g > 0, other=0)
    return g, start, tl.load(offs + g), start + (strip - before) * BLOCK


# %% [markdown]
# ## The smallest kernel
#
# Persistent as in lesson 04, two loads through descriptors, and a store that you pass in. It begins with the last tile:
# a GPU promises no order, so nothing may depend on one. (`flatten` is the subject of a later section.)


# %%
@triton.jit
def packed_kernel(
    a, b, c, window, offs, total, N, K, G,
    BLOCK: tl.constexpr, BLOCK_K: tl.constexpr, GROUPS: tl.constexpr, STORE: tl.constexpr,
):  # fmt: skip
    strip_ends = count_strips(offs, G, BLOCK, GROUPS)
    tiles_n = tl.cdiv(N, BLOCK)
    tiles = tl.max(strip_ends, 0) * tiles_n
    for i in tl.range(tl.program_id(0), tiles, tl.num_programs(0), flatten=True):
        tile = tiles - 1 - i
        g, start, end, row = find_group(strip_ends, offs, tile // tiles_n, BLOCK)
        col = tile % tiles_n * BLOCK
        acc = tl.zeros((BLOCK, BLOCK), dtype=tl.float32)
        for k in range(0, K, BLOCK_K):
            block_b = b.load([g, k, col]).reshape(BLOCK_K, BLOCK)
            acc = tl.dot(a.load([row, k]), block_b, acc)
        STORE(c, window, acc.to(tl.float16), start, end, row, col, total, N)


# %% [markdown]
# A first store. It is masked at the end of the matrix, as lesson 03 taught. Which rows of C do you expect to be right?


# %%
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
# ## What goes wrong: the neighbour's rows
#
# The wasted rows were stored, over rows that were finished. No crash, no NaN, and with tiles in
# ascending order even right rows in every group: the neighbour comes later and repairs them, as long as nobody runs at
# the same time.
#
# Repair it: one name in `store_whole` has to change. Then compare.


# %%
@triton.jit
def store_masked(c, window, block, start, end, row, col, total, N):
    rows = row + tl.arange(0, block.shape[0])[:, None]
    cols = col + tl.arange(0, block.shape[1])[None, :]
    tl.store(c + rows * N + cols, block, mask=(rows < end) & (cols < N))


masked = multiply(store_masked, programs=4)
draw.overwritten(sizes, tail, {"mask at the matrix's end": whole, "mask at the group's end": masked}, expected)

# %% [markdown]
# `total` became `end`. The kernel is right now, in any order, with any number of programs.
#
# ## A bound that moves with the group
#
# What the mask costs: an address and a comparison for each 16 bytes of *every* tile, though few tiles cross an end.
# A descriptor's store needs neither. If only its bound were the group's! A descriptor per group was what we wanted to
# get rid of, and the bound is a number inside of it.
#
# The bound is fixed. So leave it where it is, at a number larger than any matrix, 2³⁰, and *move the matrix*: push the
# group's rows against the bound from below, and take the push back in another coordinate.

# %%
draw.sliding_window(sizes, group=1, block=BLOCK)

# %% [markdown]
# `triton.tools.ragged_tma` makes such a descriptor, by adding two dimensions in front. Three coordinates now step
# through the same rows. The hardware adds their steps up to an address, and holds each against a bound of its own:
#
# | coordinate | value | stride | what it is for |
# | --- | --- | --- | --- |
# | `sign` | 2³⁰ | 2³⁴ − leading | takes 2³⁰ rows back: 2³⁰ · 2³⁴ = 2⁶⁴ is 0 in 64 bits |
# | `base` | the group's end | leading | moves the window to the group |
# | `inside` | 2³⁰ − size + row | leading | meets the bound, 2³⁰, when `row` reaches `size` |
#
# Check it with whole numbers before you believe it. Group 1 again, its first row, its last, and the first of group 2:

# %%
size, end = sizes[1], int(offs[1])
start = end - size
for row in (0, size - 1, size):
    sign, base, inside = 2**30, end, 2**30 - size + row
    address = (sign * (2**34 - N) + base * N + inside * N) % 2**64
    print(f"row {row:2}: address {address} = row {address // N} of C; below the bound: {inside < 2**30}")

# %% [markdown]
# The address is right, and the hardware refuses the row that is not ours. (Only the end is guarded. No tile starts
# before its group, so that is enough.) The store, in two lines:


# %%
@triton.jit
def store_window(c, window, block, start, end, row, col, total, N):
    sign, base, inside = to_ragged_indices(start, end - start, row - start)
    window.store([sign, base, inside, col], block.reshape(1, 1, block.shape[0], block.shape[1]))


def window_of(C):
    return create_ragged_descriptor(C, [BLOCK, BLOCK])


print("exact:", torch.equal(multiply(store_window, 4, window_of), expected))

# %% [markdown]
# Every tile takes the same two lines: full or not, no mask, and no branch.

# %% [markdown]
# ## What the compiler made of it
#
# Is a branch so bad? Here are the rivals: full tiles through a plain descriptor and the others through the mask; and
# the walk of lesson 04 in place of the comparison.


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
# To compile your own kernels for an H200, here, they have to be in a file, which the compiler's process can read:

# %%
import inspect
import pathlib
import tempfile

folder = tempfile.TemporaryDirectory()
functions = (count_strips, find_group, store_masked, store_branch, store_window, packed_kernel, walking_kernel)
text = "import triton\nimport triton.language as tl\nfrom triton.tools.ragged_tma import to_ragged_indices\n\n\n"
text += "\n\n".join(inspect.getsource(function.fn) for function in functions)


def compile_for_h200(kernel, store, block=128, block_k=64):
    file = pathlib.Path(folder.name, f"{store}.py")
    file.write_text(text.replace("STORE: tl.constexpr", f"STORE: tl.constexpr = {store}"))
    box = f"1, 1, {block}, {block}" if store == "store_window" else f"{block}, {block}"
    signature = {
        "a": f"tensordesc<fp16[{block}, {block_k}]>", "b": f"tensordesc<fp16[1, {block_k}, {block}]>", "c": "*fp16",
        "window": f"tensordesc<fp16[{box}]>", "offs": "*i32", "total": "i32", "N": "i32", "K": "i32", "G": "i32",
    }  # fmt: skip
    sizes = {"BLOCK": block, "BLOCK_K": block_k, "GROUPS": 8}
    options = {"signature": signature, "constexprs": sizes, "divisible_by_16": ("c", "offs", "N", "K")}
    return codegen.compile_kernel(f"{file}:{kernel}", "sm_90", **options)


# %%
by_walk = compile_for_h200("walking_kernel", "store_window")
by_mask = compile_for_h200("packed_kernel", "store_masked")
by_window = compile_for_h200("packed_kernel", "store_window")

# %% [markdown]
# Both kernels ask for `flatten`, which tells the compiler to make one loop out of the loop over tiles and the loop over
# K. Here is what it made: copies, multiplications and stores in the order in which they run, with loops around them.

# %% tags=["nbval-ignore-output"]
pipelines.structure({"groups found by walking": by_walk.ptx, "groups found by comparing": by_window.ptx})

# %% [markdown]
# Above, the first copies stand inside of the loop over tiles: each tile starts with an empty pipeline, after the store
# of the tile before. Below, they stand in front of everything, and run once per *program*. The loop's own copies fetch
# what is needed two blocks later, be it in this tile or in the next. So the next tile's first blocks are on their way
# before this tile is stored.
#
# In the walk, tiles are a loop inside a third one, over groups, and the compiler leaves all three as they are. (Even if
# it made one of the inner two, the pipeline would run empty at the end of each group.) And the branch?

# %% tags=["nbval-ignore-output"]
try:
    print("loops:", len(pipelines.loops(compile_for_h200("packed_kernel", "store_branch").ptx)[1]))
except codegen.CompileError as error:
    print(next(line for line in str(error).splitlines() if "error: " in line).partition("error: ")[2][:110], "…")

# %% [markdown]
# At the time of writing, Triton fails to fuse it at all. That leaves the mask and the window. Both are fused:

# %% tags=["nbval-ignore-output"]
for name, one in {"walk and window": by_walk, "mask": by_mask, "window": by_window}.items():
    stores = sum(run.count for run in pipelines.loops(one.ptx)[0] if run.kind == pipelines.STORE)
    print(f"{name:16} {pipelines.count_instructions(one.ptx):5} instructions, {stores:2} to store a tile,", end=" ")
    print(f"{one.registers} registers")

# %%
compiled = {"walk": by_walk, "comparison": by_window}
print("loops around a multiplication:", {name: len(pipelines.loops(one.ptx)[1]) for name, one in compiled.items()})
shorter = pipelines.count_instructions(by_window.ptx) < pipelines.count_instructions(by_mask.ptx)
print("the window takes fewer instructions than the mask:", shorter)

# %% [markdown]
# ## What it costs
#
# A small model shows why the fused loop matters. One program, four tiles of six blocks, room for three blocks in
# shared memory; a copy takes as long as two products, a store as long as three.

# %%
runs = {name: pipelines.pipeline(4, 6, fused=fused) for name, fused in (("loop in a loop", False), ("fused", True))}
pipelines.overlap(runs)

# %% [markdown]
# After each store the unfused program waits for copies that could have been on their way. It is a fixed price for a
# tile, so short tiles (small K) pay the larger share. Try K blocks of 2 and of 64 in the cell above.
#
# This is the library's kernel: the comparison, the window, the fused loop. Find your three ideas in it.

# %%
show(contiguous.compute_tile, "passed = ", "tiles_m = tl.cdiv(end")
show(contiguous.store_part, "if KIND == WINDOW", "desc.store([sign")
show(contiguous.contiguous_kernel, "for tile in tl.range", "compute_tile(")

# %%
library = codegen.compile_kernel("contiguous", "sm_90", dtype="float16")
steps, loops = pipelines.loops(library.ptx)
print("loops around a multiplication:", len(loops), "with", *(f"{step.count} × {step.kind}" for step in steps[1:]))

# %% [markdown]
# Two stores, because the tile goes out in two halves: a half needs half the shared memory on its way.
#
# ### The one coordinate that is not free
#
# `top` and `ROW_STEP` are new. A descriptor's coordinate along the contiguous dimension must be a multiple of 16 bytes;
# an H200 that is asked for another one stops the kernel. That never concerns rows of a row-major matrix. But suppose
# tokens are *columns*: then the ragged dimension is the contiguous one. Tiles start at whole 16 bytes there, which may
# be before the group, and the mask of the store spares what lies in front.

# %%
draw.whole_units(sizes, unit=16 // tokens.element_size(), group=1, block=BLOCK)

# %% [markdown]
# ## `grouped_mm`: four modes
#
# The ranks of the operands say which dimension the groups share out. Colours are groups; a stack has a matrix for each.

# %%
captions = {"m": "rows: the forward product, and the gradient of A", "n": "columns: the same, transposed"}
captions |= {"k": "the summed dimension: the gradient of B", "batch": "none: equal groups, no offs"}
modes.four_modes(captions)

# %% [markdown]
# Why those? Of C = A·B the gradients are dA = dC·Bᵀ and dB = Aᵀ·dC. Tokens are rows of A and of dC, so dA is mode m
# again, and in dB the tokens are summed over: mode k. Say which shapes come out before you run it.


# %%
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
# `backward` does the same by itself:

# %%
x, w = tokens.clone().requires_grad_(), weights.clone().requires_grad_()
mm(x, w, offs=offs).backward(d_out)
print("dA:", torch.equal(x.grad, products["dA,      mode m"]))
print("dB:", torch.equal(w.grad, products["dB,      mode k"]))

# %% [markdown]
# Mode k is the mirror image: its tiles are whole, but a block of K that reaches past the group's end would be *summed*.
# There the loads go through windows, which give zeros past the end. Each tile has its own number of blocks, so the
# compiler cannot fuse the loops; `kernels/transposed.py` does by hand what `flatten` does here.
#
# ## A drop-in for torch's
#
# `torch.nn.functional.grouped_mm` has the same names in the same order. A layer written against it changes one import:
#
# ```python
# from torch.nn.functional import grouped_mm  # before
# from course_kernels import grouped_mm  # after
# ```
#
# Here both are passed to one layer, to compare them:


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
# "In the groups' rows": 24 rows, 16 tokens, and two experts without any. What is in the other 8 rows? In torch's
# result, what the memory held before: it is allocated and not written. Such bugs hide, because fresh memory is often
# zero. But torch can be told to poison it: under `use_deterministic_algorithms` it fills uninitialised memory with NaN.
# (torch's tensors are on the CPU here.)


# %%
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
# One NaN in a padding row, and the mean over all rows, or the norm of all gradients, is NaN. `grouped_mm` here writes
# zeros, in the same kernel: the programs with the least to do take the tail's tiles. (`tail="keep"` with `out=` leaves
# them as they are.) Repair torch's from outside: what has to be masked, so that result *and* gradient are defined?

# %%
inside = (torch.arange(24) < used)[:, None]


def repaired(x, w, offs):
    result = torch.nn.functional.grouped_mm(torch.where(inside, x, 0), w, offs=offs)
    return torch.where(inside, result, 0)


for name, matrix in zip(("result", "gradient of A"), with_poison(repaired, *cpu)):
    print(f"{name}: {int(matrix.isnan().any(1).sum())} rows undefined")

# %% [markdown]
# Two more passes over memory, for rows that nobody wants. And an expert without tokens? Its gradient is an empty sum:

# %%
up_grad = mm(x.to(device).T, ours.new_ones(24, 48).to(device), offs=offs_few.to(device))
empty = [g for g, rows in enumerate(few.tolist()) if rows == 0]
print("experts without tokens:", empty, "their gradients are zero:", not up_grad[empty].any())

# %% [markdown]
# ### Alignment
#
# 20 columns of 2 bytes: rows of 40 bytes, which no descriptor can describe. torch says so:

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
# The same kernel, compiled with pointers in place of the descriptor that the operand does not allow.
#
# ### Wrong offsets
#
# Lesson 01's mistake, `offsets` with their leading 0 where ends are wanted, has another length, so it is caught without
# looking at the device. Values are not: that would wait for the GPU, in every call.

# %%
with_zero = torch.cat([offs_few.new_zeros(1), offs_few])
for ends, check in ((with_zero, False), (offs_few.flip(0), True), (offs_few * 2, True)):
    try:
        mm(x.to(device), up.to(device), offs=ends.to(device), check=check)
    except ValueError as error:
        print(f"{error}\n")

# %% [markdown]
# Use `check=True` while you develop, and leave it out in the loop. Without it, wrong values give a wrong result, and
# still no write outside of it: the kernel clamps them.
#
# ## The record
#
# Forward products of real layers' shapes on an H200, every provider's result verified before it was timed. 100 % is the
# ceiling: one dense product of the same size, or a copy's bandwidth where memory is the limit. It is a measurement as
# well, and can be passed: a copy writes half of its bytes, for instance, where a product of few rows reads nearly all.

# %%
results = record.load("grouped_mm")
results["rows"] = {row.name: results["rows"][row.name] for row in rows() if row.name in results["rows"]}
roofline.against_peers(results)

# %% [markdown]
# As geometric means, over these rows and the record's unkind ones (one expert gets all, every other gets none, …):

# %%
ours = next(name for name, about in results["providers"].items() if about["role"] == "ours" and "absent" not in about)
for other, speedup in results["speedups"][ours]["forward"].items():
    label = results["providers"].get(other, {"label": other})["label"]
    print(f"{speedup['times']:.2f} times as fast as {label} ({speedup['rows']} rows; {speedup['worst']:.2f} at worst)")

# %% [markdown]
# What limits each row? Where a row lies says it: under the slope, bytes; under the flat part, arithmetic. What keeps it
# from the roof: rows that are wasted, waves that are not full, stores that nothing hides.

# %%
roofline.roofline(results)

# %% [markdown]
# How much is wasted? With tiles of 128 rows, and of 16 in the two rows of decoding:

# %%
for row in results["rows"].values():
    block = 128 if row["kind"] == "compute" else 16
    computed = sum(triton.cdiv(size, block) * block for size in row["sizes"])
    print(f"{row['title']:42} {1 - sum(row['sizes']) / computed:4.0%} of the computed rows")

# %% [markdown]
# Short groups waste most. In decoding it costs nothing: the time goes into reading weights, and the tensor cores wait
# in any case. Where arithmetic is the limit, it is a price that a lower tile makes smaller, and with it the reuse of
# every block. (These shares are counted from the sizes, not measured.)

# %% [markdown]
# ## Try it here
#
# [Exercise 08](../exercises/08_boundary_store.ipynb), the boundary store: a tile writes its group's part of C, and no
# more. Or change a cell and run it again:
#
# 1. Let `packed_kernel` begin with tile 0 (`tile = i`), with one program and `store_whole`. How many rows are wrong
#    now, and which?
#    <details><summary>Answer</summary>Only rows of the tail. Every other row that is overwritten too early is written
#    again by its owner, which comes later. With more programs on a GPU that is luck.</details>
# 2. In `store_window`, forget the size: `to_ragged_indices(0, end, row)`. Is the result still right? What is the window
#    of every group now?
#    <details><summary>Answer</summary>Right. The rows from 0 to `end` are pushed against the bound; base and coordinate
#    are the same as before. Only the end matters.</details>
# 3. What does `draw.boundary_tile(sizes, tail, BLOCK, group=7)` read, and why is that harmless, too?
#    <details><summary>Answer</summary>The tail, whatever it holds, NaN included: a row of the product depends on its
#    own row of A alone. In mode k it would not be harmless.</details>
# 4. Compile `packed_kernel` with `store_window` and `block_k=128`. Does it fit an H200's 227 KiB of shared memory?
#    <details><summary>Answer</summary>`shared_bytes` says: three stages of 64 KiB and the staging of the store's
#    32 KiB leave next to nothing.</details>
#
# ## Summary
#
# - Packed operands need one descriptor each, whatever the sizes; `offs` stays on the device, and the host never waits.
# - A tile may start at any row and may read past its group. Only the store must end with the group.
# - A window is a descriptor whose bound slides: the group is pushed against 2³⁰, and 64-bit addresses wrap around.
# - No walk, no branch: then tiles and K become one loop, and the next tile arrives while this one is stored.
# - The modes are a layer's forward and backward pass; the tail is zero, empty groups are ordinary, any alignment works.
#
# All of this was Triton's view of the machine. What would a library say that programs Hopper's parts one by one?
# Next: [09 CUTLASS operators](09_cutlass_operators.ipynb).
