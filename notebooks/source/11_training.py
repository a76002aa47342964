# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown]
# # 11 · Training
#
# The forward pass of an expert layer is a grouped product. Training also needs gradients: of the tokens, of the
# weights, of the biases. Which products are these, and how much do they cost?
#
# After this lesson you can
#
# - write the backward pass of a mixture-of-experts layer as grouped products, and name the mode of each;
# - write a weight-gradient kernel, and say what an expert without tokens does to it;
# - add gradients of several micro-batches with one rounding, and say which bits two roundings lose;
# - sum a bias gradient so that every run gives the same bits;
# - call `gmm`, `ptgmm`, `nptgmm` and `grouped_mm` with a main gradient, and choose between their kernels.
#
# About 50 minutes. You need lessons [05](05_scheduling.ipynb) (schedules) and [08](08_contiguous_offsets.ipynb) (packed
# groups, modes, `grouped_mm`).

# %%
import gemm_course  # noqa: F401 (first: without a GPU, it has kernels run in the interpreter)

import functools
import random

import torch
import triton
import triton.language as tl

from course_kernels import GemmConfig, GroupLayout, codegen, gmm, grouped_mm, nptgmm, ptgmm, runtime, schedule, testing
from course_kernels.bench import record
from course_kernels.gmm import get_config
from course_kernels.kernels import group_sums, transposed
from gemm_course.figures import gradients, pipelines, rounding, timeline, training_costs, walk_costs
from gemm_course.figures.listing import fold, show

device = runtime.device()

# %% [markdown]
# ## One layer
#
# 96 tokens, 8 experts, a skewed router. Each expert has two weights with a relu between them. The tokens are sorted by
# expert, as in lesson 08. (How a model sorts them and puts them back is the subject of lesson 14.)

# %%
H, I, E = 64, 128, 8  # the width of a token, the width inside of an expert, the number of experts
expert_of = testing.route("zipf", 96, s=2.0, seed=1)
tokens = testing.integers((96, H), torch.float16, 1)
x = tokens[expert_of.argsort(stable=True)].to(device)
W1 = testing.integers((E, H, I), torch.float16, 2, -1, 1, device=device)
W2 = testing.integers((E, I, H), torch.float16, 3, -1, 1, device=device)
sizes = torch.bincount(expert_of, minlength=E).tolist()
offs = GroupLayout.from_sizes(torch.tensor(sizes, dtype=torch.int32, device=device)).ends
print("rows of each expert:", sizes)

# %% [markdown]
# Expert 5 got no token. That is ordinary: the more experts, the more of them are empty. Keep an eye on it.


# %%
def mm(left, right, **options):
    """grouped_mm by the kernels, on a CPU, too."""
    return grouped_mm(left, right, offs=offs, backend="triton", config=GemmConfig(64, 64, 64), **options)


def forward(x, W1, W2):
    z = mm(x, W1)
    h = torch.relu(z)
    return z, h, mm(h, W2)


z, h, y = forward(x, W1, W2)
print(f"x {tuple(x.shape)} → z {tuple(z.shape)} → h {tuple(h.shape)} → y {tuple(y.shape)}")

# %% [markdown]
# ## Backward, by hand
#
# Backward starts with `dy`, the gradient of the loss with respect to `y`. For one product y = x · W there are two
# rules:
#
# - dx = dy · Wᵀ. Each token's gradient uses its own expert's weight. The tokens are rows: **mode m**, as in forward.
# - dW = xᵀ · dy. The tokens of an expert are *summed over*: **mode k**. The result has a matrix for each expert.
#
# The layer has two products, so backward has four. Before you look at the picture: which matrices of the forward pass
# does backward need again?

# %%
gradients.layer([5, 3, 0, 4])

# %% [markdown]
# `x` and `h`, for the two weight gradients, and where `z` was positive. A training step keeps them in memory. (The
# picture has four experts. The third has no tokens, so its band has no height, and its gradient is hatched.)
#
# The same in five lines:


# %%
def backward(x, z, h, W1, W2, dy):
    dh = mm(dy, W2.mT)  # mode m
    dW2 = mm(h.T, dy)  # mode k
    dz = torch.where(z > 0, dh, 0)
    return mm(dz, W1.mT), mm(x.T, dz), dW2  # mode m, mode k


dy = testing.integers((96, H), torch.float16, 4, device=device)
by_hand = backward(x, z, h, W1, W2, dy)

# %%
leaves = [leaf.clone().requires_grad_() for leaf in (x, W1, W2)]
forward(*leaves)[-1].backward(dy)
for name, leaf, mine in zip(("dx", "dW1", "dW2"), leaves, by_hand):
    print(f"{name:3} {str(tuple(mine.shape)):13} equals autograd's: {torch.equal(leaf.grad, mine)}")

# %% [markdown]
# Experts often have a bias: y = x · W + b. Its gradient is a sum over the expert's tokens, too, but of `dy` alone. That
# makes four operations for one linear layer:

# %%
gradients.products([5, 3, 0, 4])

# %% [markdown]
# How many times the forward product do the two gradients cost? Count the multiplications of each product, then guess
# the time.
#
# <details><summary>Answer</summary>Each product multiplies tokens × K × N numbers, only in another order. So backward
# has twice as many multiplications as forward. The time is about twice as long, too, as the record shows.</details>

# %%
results = record.load("grouped_mm")
ours = [name for name, about in results["providers"].items() if about["role"] == "ours" and "absent" not in about]
step_us = {}
for entry in results["rows"].values():
    best = {of: min(entry["us"][of][name]["median_us"] for name in ours) for of in ("forward", "dA", "dB")}
    step_us[entry["title"]] = best
    print(f"{entry['title']:42} dx and dW take {(best['dA'] + best['dB']) / best['forward']:.2f} × forward")

# %% [markdown]
# A row's title gives its rows and experts, then N and K: "32768 over 128 Zipf(0.8), 1536, 2048" has 32,768 rows over
# 128 experts, N = 1536, K = 2048. The times are those of an H200.
#
# ## Try the obvious
#
# ### A loop
#
# Cut `x` and `dy` into the experts' rows, and multiply:


# %%
def by_loop(x, dy, sizes):
    return torch.stack([rows.T @ grads for rows, grads in zip(x.split(sizes), dy.split(sizes))])


dz = torch.where(z > 0, mm(dy, W2.mT), 0)
print("the loop is right:", torch.equal(by_loop(x.double(), dz.double(), sizes), by_hand[1].double()))
for experts in (8, 128):
    print(f"{experts} experts: {6 * experts} launches in one layer's step; grouped: 6")

# %% [markdown]
# It is right, expert 5 included, and it stalls as in lesson 08: `.tolist()` waits for the router, and each launch is
# small. In the record, the weight gradient of 128 experts:

# %%
for name in ("zipf128-up", "zipf128-down"):
    entry = results["rows"][name]
    loop, best = entry["us"]["dB"]["loop"]["median_us"], step_us[entry["title"]]["dB"]
    print(f"{entry['title']}: the loop {loop:.0f} µs, one launch {best:.0f} µs, {loop / best:.1f} times faster")

# %% [markdown]
# ### Padding
#
# Give every expert as many rows as the largest one has, and use `bmm`. The padding rows must add nothing to the sum. A
# programmer leaves `x`'s padding as it is and zeroes `dy`'s. Is that enough?


# %%
def padded(matrix, sizes, fill):
    out = matrix.new_full((len(sizes), max(sizes), matrix.shape[1]), fill)
    for g, rows in enumerate(matrix.split(sizes)):
        out[g, : len(rows)] = rows
    return out


x_pad, dz_pad = padded(x.float(), sizes, fill=float("nan")), padded(dz.float(), sizes, fill=0)
product = torch.bmm(x_pad.mT, dz_pad)
print("experts with NaN in their gradient:", product.isnan().flatten(1).any(1).nonzero().flatten().tolist())
print(f"rows computed: {E * max(sizes)}, rows needed: {sum(sizes)}")

# %% [markdown]
# The result is wrong. Zeros in one operand do not help, because 0 × NaN is NaN. Only the largest expert has no padding,
# so seven of eight gradients are lost. (We wrote NaN there because fresh memory may hold anything.) With zeros in both
# operands the result is right, but the product multiplies five times as many rows as needed.
#
# ## The smallest kernel
#
# One program for each tile of each expert's dW. Its loop runs over the expert's tokens, from `start` to `end`. Both
# operands are read by rows; rows from `end` on count as zeros, for they belong to the next expert.


# %%
@triton.jit
def load_rows(matrix, rows, end, at, width):
    mask = (rows < end)[:, None] & (at < width)[None, :]
    return tl.load(matrix + rows[:, None] * width + at[None, :], mask=mask, other=0.0)


@triton.jit
def weight_gradient(x, dy, dw, offs, K, N, BLOCK: tl.constexpr, WRITE_EMPTY: tl.constexpr):
    g, tile, tiles_n = tl.program_id(1), tl.program_id(0), tl.cdiv(N, BLOCK)
    start = tl.load(offs + g - 1, mask=g > 0, other=0)
    end = tl.load(offs + g)
    row = tile // tiles_n * BLOCK + tl.arange(0, BLOCK)
    col = tile % tiles_n * BLOCK + tl.arange(0, BLOCK)
    acc = tl.zeros((BLOCK, BLOCK), dtype=tl.float32)
    for first in range(start, end, BLOCK):
        rows = first + tl.arange(0, BLOCK)
        acc = tl.dot(load_rows(x, rows, end, row, K).T, load_rows(dy, rows, end, col, N), acc)
    at = dw + g * K * N + row[:, None] * N + col[None, :]
    if WRITE_EMPTY or start < end:
        tl.store(at, acc.to(dw.dtype.element_ty), mask=(row < K)[:, None] & (col < N)[None, :])


# %% [markdown]
# The last condition comes from lesson 08: there, an empty expert has no rows, so no tile, and nothing to store. Start
# without `WRITE_EMPTY`, as somebody would who copies that habit. What will be in the gradient of expert 5?


# %%
def gradient_of(x, dy, offs, into, write_empty):
    K, N = x.shape[1], dy.shape[1]
    grid = (triton.cdiv(K, 32) * triton.cdiv(N, 32), len(into))
    weight_gradient[grid](x, dy, into, offs, K, N, 32, write_empty)
    return into


fresh = torch.full((E, H, I), float("nan"), dtype=torch.float16, device=device)
fresh = gradient_of(x, dz, offs, fresh, write_empty=False)
print("right:", [bool(torch.equal(got, want)) for got, want in zip(fresh, by_hand[1])])

# %% [markdown]
# Whatever the memory held before. We filled it with NaN to see it. In practice `torch.empty` returns memory that was
# used a moment ago, often by the same tensor of the step before. So let the step before have tokens for all experts:

# %%
before = testing.routed_sizes("zipf", 96, s=2.0, seed=0)
offs_before = GroupLayout.from_sizes(torch.tensor(before, dtype=torch.int32, device=device)).ends
reused = gradient_of(x, dz, offs_before, torch.empty_like(fresh), write_empty=True)
reused = gradient_of(x, dz, offs, reused, write_empty=False)
right = gradient_of(x, dz, offs, torch.full_like(fresh, float("nan")), write_empty=True)
attempts = {"empty experts skipped, memory of NaN": fresh, "empty experts skipped, memory of the step before": reused}
gradients.expert_matrices(attempts | {"empty experts written": right}, by_hand[1], sizes)

# %% [markdown]
# The second row is the worse one. No NaN, no crash: expert 5 is trained again with the gradient of another batch. And
# the first row? One expert of eight is broken. Training scripts *clip* before they step: they divide all gradients by a
# factor, so that their common norm is at most 1. Do this and take a step:


# %%
def weights_after_a_step(gradient):
    weight = torch.nn.Parameter(torch.ones_like(gradient, dtype=torch.float32))
    weight.grad = gradient.float()
    torch.nn.utils.clip_grad_norm_([weight], max_norm=1.0)
    torch.optim.SGD([weight], lr=0.1).step()
    return weight.detach()


for name, gradient in (("skipped", fresh), ("written", right)):
    lost = weights_after_a_step(gradient).isnan().flatten(1).any(1)
    print(f"empty expert {name}: {int(lost.sum())} of {E} experts have NaN in their weights")

# %% [markdown]
# The norm is NaN, and so is every gradient that is divided by it. One empty expert ends the training run. The repair
# costs nothing: an empty loop leaves `acc` at zero, so store it. **An empty sum is zero, and zero is a result.**
#
# ### The neighbour's rows
#
# In lesson 08 a tile read rows past its group's end, and it did no harm: such rows gave other rows of the result, which
# were not stored. Suppose `load_rows` did not compare with `end`. Which experts would be wrong now?

# %%
ends, wrong = offs.tolist(), []
for g, (end, size) in enumerate(zip(ends, sizes)):
    last = min(end - size + triton.cdiv(size, 32) * 32, len(x))  # blocks of 32 rows
    found = x[end - size : last].double().T @ dz[end - size : last].double()
    wrong += [] if torch.equal(found, by_hand[1][g].double()) else [g]
print("wrong experts:", wrong)

# %% [markdown]
# Every expert whose rows do not fill whole blocks, unless it comes last or is empty. Tokens are summed here, so a row
# too many changes *all* elements. In mode k the load must end with the group; in mode m it was the store.
#
# ## What the compiler made of it
#
# The library's kernel does the same three things. Its loads end with the group in hardware (the windows of lesson 08),
# it writes zeros for empty experts, and it is persistent: a fixed number of programs walks all tiles. Compile it for an
# H200, here:

# %%
library = codegen.compile_kernel("transposed", "sm_90", dtype="float16")
print("loops around a multiplication:", len(pipelines.loops(library.ptx)[1]))
print("copies blocks by descriptor:", library.instructions["bulk tensor load"] > 0)
print("multiplies with wgmma:", library.instructions["wgmma"] > 0)

# %% [markdown]
# One loop only, though there are tiles and blocks of tokens. Each tile has its own number of blocks, so the compiler
# cannot join the two loops, as it did in lesson 08. The kernel joins them by hand: one loop over all blocks of all
# tiles of a program. At a tile's first block it looks up the tile; at its last block it stores.

# %%
show(transposed.transposed_kernel, "for _ in tl.range(blocks)", "row, col, k = ")

# %% [markdown]
# An empty expert's tile has one block, of zeros: `blocks_of` says so. The whole kernel:

# %%
fold(transposed.transposed_kernel)

# %% [markdown]
# ## Micro-batches: one rounding or two
#
# A batch that does not fit into memory is cut into micro-batches, and their gradients are added. Let the first one's
# gradient be 2048, and those of sixteen more be 1, in every element. In float16:


# %%
def micro_batch(*values):
    """Tokens x and gradients dy of one expert, whose dW is the sum of `values` in every element."""
    column = torch.tensor(values, dtype=torch.float16, device=device)[:, None]
    return column.repeat(1, 32), torch.ones(len(values), 32, dtype=torch.float16, device=device)


def gradient(x, dy, dtype=torch.float16):
    end = torch.tensor([len(x)], dtype=torch.int32, device=device)
    return gradient_of(x, dy, end, torch.empty(1, 32, 32, dtype=dtype, device=device), write_empty=True)


total = gradient(*micro_batch(2048))
for _ in range(16):
    total += gradient(*micro_batch(1))
print("2048 + 16 × 1 =", total.unique().tolist())

# %% [markdown]
# All sixteen are lost. A float16 number has 11 bits. The 1 is the twelfth bit of 2049, and bfloat16 has only 8:

# %%
first = {"so far": 2048, "the next gradient": 1, "their sum": 2049, "stored": 2048}
second = {"so far": -2048, "the next gradient": 2049, "stored by the kernel": 2048}
second |= {"rounded twice:  −2048 + 2048": 0, "rounded once:  −2048 + 2049": 1}
rounding.aligned_bits({"a small one is added to a large one": first, "two large ones cancel": second}, kept=11)

# %% [markdown]
# Left: the sum needs 12 bits. More bits help: keep the sum in float32, which has 24. Training frameworks call this the
# **main gradient**.
#
# Right: the sum, 1, needs one bit, and it is lost all the same. Here the kernel computed 2049 in float32, rounded it to
# store it (first rounding), and then it was added to −2048 (second rounding). A kernel that adds before it stores
# rounds once. Load what is there into the accumulator, before the store:


# %%
@triton.jit
def training_kernel(x, dy, dw, db, offs, K, N, BLOCK: tl.constexpr, ADD: tl.constexpr):
    g, tile, tiles_n = tl.program_id(1), tl.program_id(0), tl.cdiv(N, BLOCK)
    start = tl.load(offs + g - 1, mask=g > 0, other=0)
    end = tl.load(offs + g)
    row = tile // tiles_n * BLOCK + tl.arange(0, BLOCK)
    col = tile % tiles_n * BLOCK + tl.arange(0, BLOCK)
    acc = tl.zeros((BLOCK, BLOCK), dtype=tl.float32)
    sums = tl.zeros((BLOCK,), dtype=tl.float32)
    for first in range(start, end, BLOCK):
        rows = first + tl.arange(0, BLOCK)
        block_dy = load_rows(dy, rows, end, col, N)
        acc = tl.dot(load_rows(x, rows, end, row, K).T, block_dy, acc)
        sums += tl.sum(block_dy.to(tl.float32), 0)
    at, inside = dw + g * K * N + row[:, None] * N + col[None, :], (row < K)[:, None] & (col < N)[None, :]
    if ADD:
        acc += tl.load(at, mask=inside, other=0.0)
    tl.store(at, acc.to(dw.dtype.element_ty), mask=inside)
    if tile < tiles_n:
        tl.store(db + g * N + col, sums, mask=col < N)


# %% [markdown]
# (`sums` and `db` belong to a later section.) The two examples again, added by the kernel:


# %%
def add_gradient(x, dy, offs, dw, add=True):
    K, N = x.shape[1], dy.shape[1]
    db = torch.empty(len(dw), N, dtype=torch.float32, device=device)
    grid = (triton.cdiv(K, 32) * triton.cdiv(N, 32), len(dw))
    training_kernel[grid](x, dy, dw, db, offs, K, N, 32, add)
    return db


for dtype in (torch.float16, torch.float32):
    total = gradient(*micro_batch(-2048), dtype)
    add_gradient(*micro_batch(2048, 1), offs.new_tensor([2]), total)
    print(f"{dtype}: −2048 + (2048 + 1) =", total.unique().tolist(), end=";  ")
    total = gradient(*micro_batch(2048), dtype)
    for _ in range(16):
        add_gradient(*micro_batch(1), offs.new_tensor([1]), total)
    print("2048 + 16 × 1 =", total.unique().tolist())

# %% [markdown]
# One rounding saves the right example in float16. Only a float32 main gradient saves both.
#
# The library's kernel does the same, and on Hopper it need not read dW for a float32 main gradient. The store itself
# can add: the tile is sent to the L2 cache, and the sum is made there.

# %%
adding = codegen.compile_kernel("transposed", "sm_90", dtype="float16", out_dtype="float32", accumulate=True)
for name, kernel in (("writes", library), ("adds", adding)):
    print(f"a kernel that {name} has a store that adds:", "cp.reduce.async.bulk.tensor" in kernel.ptx)

# %% [markdown]
# With `ADD`, what should the kernel do for an expert without tokens? The careless kernel above skipped it. Was that
# wrong here?
#
# <details><summary>Answer</summary>No: to add zero, leave the gradient as it is. Skipping is right when adding and
# wrong when writing. A kernel that does both has to know which one it does.</details>
#
# ### How much is lost in a real sum?
#
# 64 micro-batches of 32 tokens, with gradients of every size, in bfloat16. Three ways to add them up, against the exact
# sum. Rank them before you run the cell.

# %%
batches = [testing.integers((2, 32, 32), torch.float64, seed, -9999, 9999) for seed in range(64)]
products = [rows.T @ grads for rows, grads in batches]
sums = {"bfloat16 += bfloat16": products[0].bfloat16() * 0, "float32 += bfloat16": products[0].float() * 0}
sums["float32, added in the kernel"] = products[0].float() * 0
errors, exact = {name: [] for name in sums}, torch.zeros_like(products[0])
for product in products:
    exact += product
    for name, total in sums.items():
        total += product.float() if "kernel" in name else product.bfloat16()
        errors[name].append(float((total.double() - exact).norm() / exact.norm()))
rounding.error_growth(errors)

# %%
for name, series in errors.items():
    print(f"{name:30} after 64 micro-batches: {series[-1]:.0e}")

# %% [markdown]
# - 16-bit sums get worse with every micro-batch: the sum grows, and what is added falls off its end.
# - A float32 sum of rounded gradients keeps the error of the gradients themselves.
# - Added in the kernel, no gradient is ever rounded to 16 bits. It also moves the fewest bytes: there is no dW to
#   write, to read again and to add.
#
# ## The bias gradient: one writer
#
# db sums an expert's rows of `dy`. The obvious way is a small kernel with a program for each block of rows. All
# programs of an expert add to the same row of db:
#
# ```python
# tl.atomic_add(db + g * N + col, tl.sum(block_dy, 0))
# ```
#
# A GPU promises no order of programs, and float32 sums depend on the order. Here are 32 partial sums of one element of
# db, added in 100 orders (right):

# %%
parts = [value / 999 for value in testing.integers((32,), torch.float32, 5, -1000, 1000)]
shuffled = random.Random(0)


def one_run(order):
    return float(functools.reduce(torch.add, order))


in_any_order = [one_run(shuffled.sample(parts, len(parts))) for _ in range(100)]
gradients.one_writer((3, 4), in_any_order, alone=one_run(parts))

# %% [markdown]
# The same training run, twice, gives two models. Nobody can say later whether a change of the code or the order of the
# atomics made the difference.
#
# With one writer the order is fixed. The weight gradient's kernel has the blocks of `dy` at hand, so let it sum them,
# block after block: `sums` above. All tiles in a column of tiles see the same blocks (left). If each of them wrote,
# they would do it several times. So the first row of tiles (orange) writes, and the others leave db alone. In the
# kernel that is `if tile < tiles_n`. It needs no atomics and no zeroed buffer.

# %%
dw = torch.empty(E, H, I, dtype=torch.float16, device=device)
db = add_gradient(x, dz, offs, dw, add=False)
want = torch.stack([rows.double().sum(0) for rows in dz.split(sizes)])
print("dW exact:", torch.equal(dw, by_hand[1]), " db exact:", torch.equal(db.double(), want))
print("expert 5: db is zero:", not db[5].any())

# %% [markdown]
# The library's kernel is a separate one, for a large expert would keep its one writer busy for long. It cuts each
# expert's rows into chunks of 256. A program sums one chunk; a second kernel adds an expert's chunks in their order.
# The chunk size never changes, so the bits are the same on every GPU.

# %%
fold(group_sums.sum_items_kernel)

# %% [markdown]
# ## In the library: `gmm`, `ptgmm`, `nptgmm`
#
# AMD's library AITER has names for the two products. Here they have the same names and arguments, so that a program
# changes one import:
#
# | function | result | in training |
# | --- | --- | --- |
# | `gmm(lhs, rhs, group_sizes, bias)` | `lhs[rows of g] @ rhs[g] + bias[g]`, mode m | y and dx |
# | `ptgmm(lhs, rhs, group_sizes, bias_grad)` | `lhs[:, g] @ rhs[g, :]`, mode k | dW, by a persistent kernel |
# | `nptgmm(lhs, rhs, group_sizes, bias_grad)` | the same bits | dW, by one program for each tile |
#
# They take sizes where `grouped_mm` takes ends, and say with `preferred_element_type` what to round to. `rhs` may be
# (experts, K, N) or (experts, N, K). Where K equals N, a shape cannot tell which, and AITER refuses; here `rhs_layout`
# says it.

# %%
group_sizes = torch.tensor(sizes, dtype=torch.int32, device=device)
half = {"preferred_element_type": torch.float16, "backend": "triton", "config": GemmConfig(64, 64, 64)}
found = {
    "y   = gmm(h, W2)": (gmm(h, W2, group_sizes, **half), y),
    "dx  = gmm(dz, W1ᵀ)": (gmm(dz, W1.mT, group_sizes, **half), by_hand[0]),
    "dW1 = ptgmm(xᵀ, dz)": (ptgmm(x.T, dz, group_sizes, **half), by_hand[1]),
    "dW1 = nptgmm(xᵀ, dz)": (nptgmm(x.T, dz, group_sizes, **half), by_hand[1]),
}
for name, (got, want) in found.items():
    print(f"{name:21} {torch.equal(got, want)}")

# %% [markdown]
# `bias_grad` receives sums of the *left* operand's columns, not of the right one's. For the gradient of a layer's bias,
# `dy` must come first. Which gradient is the product then, and of which shape?

# %%
bias_grad = torch.empty(E, I, dtype=torch.float32, device=device)
dW1_T = ptgmm(dz.T, x, group_sizes, bias_grad, **half)
print("db exact:", torch.equal(bias_grad, db), " shape of the product:", tuple(dW1_T.shape))
print("it is dW1, transposed:", torch.equal(dW1_T.mT, by_hand[1]))

# %% [markdown]
# dyᵀ · x is the transpose of xᵀ · dy: a weight gradient of shape (experts, N, K). That is how most models store their
# weights. A section below shows why it matters.
#
# ### Micro-batches
#
# `accumulate=True` adds to `existing_out` and to `bias_grad`, in float32, rounded once. The same in one call of
# autograd: give `grouped_mm` a `main_grad`, and its backward adds the weight's gradient there, instead of returning
# it.

# %%
main = torch.zeros(E, H, I, dtype=torch.float32, device=device)
single = half | {"preferred_element_type": torch.float32}
for _ in range(3):  # three micro-batches, all alike
    ptgmm(x.T, dz, group_sizes, existing_out=main, accumulate=True, **single)
print("three times dW1:", torch.equal(main, 3 * by_hand[1].float()))

# %%
weight, collected = W1.clone().requires_grad_(), torch.zeros_like(main)
for _ in range(3):
    mm(x, weight, main_grad=collected).backward(dz)
print("the same through autograd:", torch.equal(collected, main), " weight.grad:", weight.grad)

# %% [markdown]
# ### Configurations
#
# `get_config` looks up the table's configuration for a shape, and `config=` takes one. (Lesson 07: 16-bit products on
# Hopper ask a model of time instead.) A weight gradient with many tokens for each expert, and one with few:

# %%
for M, G in ((65536, 8), (2048, 128)):
    print(f"{M} rows, {G} experts:", get_config("ptgmm", M, 2048, 1536, G, arch="sm_90"))

# %% [markdown]
# Here `BLOCK_SIZE_M` is the depth of a block of tokens, and K × N is the tile. AITER's own function has one answer for
# every shape.
#
# ## The gradient in the weight's own layout
#
# A linear layer of torch stores its weight as (out, in), and experts stack it to (experts, N, K). The product wants
# (experts, K, N), so a model passes the transposed view, `weight.mT`. No memory moves. And backward? The obvious way
# writes dW row by row, as (experts, K, N):

# %%
obvious = mm(x.T, dz)  # (experts, K, N)
direct = mm(dz.T, x)  # (experts, N, K)
weight = W1.mT.contiguous()
print("strides of the weight:              ", weight.stride())
print("of xᵀ · dy, seen as (experts, N, K):", obvious.mT.stride())
print("of dyᵀ · x:                         ", direct.stride())
print("the same numbers:", torch.equal(obvious.mT, direct))

# %% [markdown]
# The optimizer needs `weight.grad` with the strides of `weight`. From the first product, autograd gets there by a copy
# that transposes all weight gradients of all experts. It reads and writes each of them once, however few the tokens
# were. The second product *is* the gradient.
#
# What does the copy cost? Its bytes follow from the shapes. At the rate at which an H200 copies (measured, in the same
# record), it takes at least:

# %%
for entry in results["rows"].values():
    moved = 2 * 2 * len(entry["sizes"]) * entry["N"] * entry["K"]  # bytes: 2 each, read and written
    step_us[entry["title"]]["copy"] = moved / results["copy_tb_s"] / 1e6
training_costs.copied_gradients(step_us)

# %% [markdown]
# The bars before the line are recorded times of the three products; the orange ones are computed. With thousands of
# tokens for each expert the copy hardly matters. With 128 experts it costs about as much as a product. With a handful
# of tokens each it costs more than any of them. So `grouped_mm` chooses the product by the operand's strides:

# %%
seen = []
parameter = torch.nn.Parameter(weight)
operand = parameter.mT
operand.register_hook(lambda gradient: seen.append(gradient.stride()))
mm(x, operand).backward(dz)
print("the operand's strides:  ", operand.stride())
print("its gradient's strides: ", seen[0])
print("parameter.grad is right:", torch.equal(parameter.grad, direct))

# %% [markdown]
# ## Persistent or not
#
# `ptgmm` launches a fixed number of programs, `nptgmm` one program for each tile. The kernel is the same. Each way has
# an advantage:
#
# - *Persistent*: while a tile is stored, the next tile's blocks are already on their way. But tiles are dealt in turn,
#   and here they are not equally deep: a tile of a popular expert sums thousands of tokens, others a few.
# - *One program for each tile*: the GPU starts the next program wherever one has finished, so nobody waits for an
#   unlucky neighbour. But each program starts with an empty pipeline.
#
# The model of lesson 05 knows the balance alone, and not the pipeline. 32,768 tokens, 8 experts:

# %%
runs = {}
for router in ("uniform", "zipf"):
    products = [(2048, 1024, rows) for rows in testing.routed_sizes(router, 32768)]
    for way, order in (("persistent, dealt in turn", "round_robin"), ("a program for each tile", "dynamic")):
        runs[router, way] = schedule.simulate(products, order, 132, (128, 256, 64))
        print(f"{router:8} {way:25} {runs[router, way].makespan:4.0f} µs")

# %%
skewed = {way: timeline.simulated_bars(run) for (router, way), run in runs.items() if router == "zipf"}
bound = runs["zipf", "a program for each tile"].lower_bounds.work
timeline.compare(skewed, rows=132, bounds=dict.fromkeys(skewed, bound), height=1.9)

# %% [markdown]
# A colour is an expert. For equal experts there is hardly a difference. For unequal ones a program for each tile wins,
# in the model. Which one wins on the GPU? In the record, each model has a row with equal experts and one with a Zipf
# router. All compute the gradients of the weights and of the biases:

# %%
measured = record.load("gmm")["rows"]
us = {}
for key, entry in measured.items():
    title = f"{entry['title'].partition(':')[0]}, {key.rpartition('-')[2]}"
    us[title] = {name: time["median_us"] for name, time in entry["us"]["gradients"].items()}
names = dict.fromkeys(name for times in us.values() for name in times)
walk_costs.time_ratios(us, {name: name for name in names}, base="ptgmm")

# %%
for title, times in us.items():
    faster = min(("ptgmm", "nptgmm"), key=times.get)
    print(f"{title:30} nptgmm takes {times['nptgmm'] / times['ptgmm']:.2f} × the time of ptgmm: {faster} is faster")

# %% [markdown]
# Does a skewed router favour `nptgmm`, as the model says? Compare the two rows of each model: in two of the
# four models `nptgmm` catches up a little. But its empty pipelines cost more than the balance gains, most of all
# where tiles are shallow (few tokens). The model knew the balance alone. (These are the functions as a user calls them.
# On an H200 `ptgmm` may take the kernel in CuTe DSL, which is persistent, too; `nptgmm` always takes Triton's. So here
# more than the launch differs.) AITER's guide gives the same advice: benchmark both, and choose.
# Compare with the others, too: a loop of cuBLAS calls is ahead of `nptgmm` for few large experts, and torch's product
# for shallow tiles.

# %% [markdown]
# ### Work stealing
#
# Can a persistent kernel have the balance, too? Lesson 05's dynamic schedule does: a program that is free takes the
# next tile from a counter in memory. AITER calls it *work stealing*, and `gmm` has it as an option. All tiles of `gmm`
# cost the same. It helps where *programs* are unequal: another kernel, of a data transfer for instance, occupies some
# SMs.

# %%
stolen = gmm(h, W2, group_sizes, work_stealing=True, preferred_element_type=torch.float16, backend="triton")
print("the same bits, whoever took the tile:", torch.equal(stolen, y))

# %% [markdown]
# ### One GPU, eight caches
#
# An MI300 is made of 8 dies (AMD says XCD), and each has an L2 cache of its own. Programs are dealt to the dies in
# turn: program p runs on die p mod 8. Neighbouring tiles read the same strips of A or B, so now all eight caches hold
# copies of the same strips. The remedy is arithmetic: give the programs of one die a run of neighbouring tiles. 256
# tiles in lesson 05's swizzled order, 256 programs:


# %%
def die_of_each_tile(remap):
    order = schedule.tiles([(2048, 2048, 64)], 128, 128, 8)
    owners = [[0] * 16 for _ in range(16)]
    for program in range(256):
        tile = order[schedule.xcd_tile(program, 256, 256, 8) if remap else program]
        owners[tile.m][tile.n] = program % 8
    return owners


training_costs.dies({"program p computes tile p": die_of_each_tile(False), "remapped": die_of_each_tile(True)})

# %% [markdown]
# The same work, and each cache reads fewer strips. `GemmConfig(num_xcds=8)` does this; it is the default on these GPUs,
# and on an H200, which has one L2 for all SMs, it is off. (No MI300 is in our record: this picture is counted, and the
# kernel is compiled for one, but not measured.)

# %%
amd = codegen.compile_kernel("transposed", "gfx942", dtype="float16", config=GemmConfig(64, 64, 64, num_xcds=8))
print("compiled for an MI300, matrix instructions:", amd.instructions["mfma"] > 0)

# %% [markdown]
# ## Try it here
#
# [Exercise 11a](../exercises/11a_weight_gradient.ipynb), the weight gradient: a tile that sums over its group's tokens.
# [Exercise 11b](../exercises/11b_bias_gradient.ipynb), the bias gradient: one writer, the same bits every time.
# Or change a cell and run it again:
#
# 1. In `weight_gradient`, make `acc` a float16 tensor and pass `out_dtype=tl.float16` to `tl.dot`. Is the gradient of
#    the layer still exact? Is that of `micro_batch(2048, *[0] * 31, *([1] + [0] * 31) * 16)`?
#    <details><summary>Answer</summary>The layer's is: its sums are small. The other one is 2048 where it should be
#    2064: each 1 arrives in a block of its own, and is lost. A test with small numbers does not find this
#    mistake.</details>
# 2. Which memory does backward need that forward has already freed, if you keep only `x` and `W1`, `W2`? What would you
#    compute again, and what does it cost?
#    <details><summary>Answer</summary><code>z</code> and <code>h</code>. Both follow from x · W1: one more product, so
#    seven instead of six. This is called activation checkpointing, or recomputation.</details>
# 3. All 96 tokens go to expert 5: `expert_of = testing.route("one_hot", 96, hot=5)`. How many of the eight gradients
#    are written by the careless kernel, and how many tiles does `ptgmm` write?
#    <details><summary>Answer</summary>One. <code>ptgmm</code> writes all tiles of all eight: seven experts get zeros.
#    For them the launch is as large as ever, but each tile is one short block.</details>
# 4. In `products` of the model above, take 128 experts (`routed_sizes(router, 32768, 128)`). What becomes of the
#    difference between the two schedules?
#    <details><summary>Answer</summary>It is gone. There are 16 times as many tiles, and each program gets long and
#    short ones. Taking the next tile from a counter now costs more than it gains.</details>
#
# ## Summary
#
# - A layer's backward is four grouped products: two of mode m (dx) and two of mode k (dW), twice forward's work.
# - An expert without tokens has a gradient, and it is zero: write it, or memory's old contents train the model.
# - Add in float32 and before the store: then nothing is rounded to 16 bits, however many micro-batches there are.
# - One writer for each sum gives the same bits in every run; atomics do not.
# - A gradient in the weight's own layout, dyᵀ · x, spares a copy of all weights; persistent or not is a question of how
#   unequal the experts are.
#
# ## References
#
# - Shazeer et al., [Outrageously large neural networks](https://arxiv.org/abs/1701.06538), 2017: experts and routers.
# - Gale et al., [MegaBlocks](https://arxiv.org/abs/2211.15841), 2022: expert layers trained without padding.
# - Micikevicius et al., [Mixed precision training](https://arxiv.org/abs/1710.03740), 2017: 16-bit gradients, 32-bit
#   sums.
# - Goldberg, [What every computer scientist should know about floating-point
#   arithmetic](https://doi.org/10.1145/103162.103163), 1991.
# - [AITER](https://github.com/ROCm/aiter), AMD's library: `gmm`, `ptgmm`, `nptgmm`, and the order of tiles for XCDs.
# - Empty experts in the wild: PyTorch [#172439](https://github.com/pytorch/pytorch/issues/172439) (gradients that are
#   not zero) and [#174314](https://github.com/pytorch/pytorch/pull/174314) (a gradient norm of NaN while training).
# - Main gradients inside of the kernel: Primus-Turbo [#454](https://github.com/AMD-AGI/Primus-Turbo/pull/454).
# - Compared with, in the records: torch's `grouped_mm`, QuACK, a loop of cuBLAS calls.
#
# To read next: the rows above come from a benchmark; how to trust one is the subject of lesson 15.
# Next: [12 Masked groups and FP8](12_masked_and_fp8.ipynb).
