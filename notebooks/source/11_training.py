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
# The forward pass of a mixture-of-experts layer is a grouped product. Training also needs gradients: of the tokens, of
# the weights, of the biases. Which products compute them, and what do they cost?
#
# **About 50 minutes. Afterwards you can**
#
# - write the backward pass of a mixture-of-experts layer as grouped products, and name the mode of each;
# - write a weight-gradient kernel that is right for experts without tokens;
# - add the gradients of several micro-batches with one rounding;
# - sum a bias gradient so that every run gives the same bits;
# - call `gmm`, `ptgmm`, `nptgmm` and `grouped_mm` for training, and choose between their kernels.
#
# You need: lessons [05](05_scheduling.ipynb) (schedules) and [08](08_contiguous_offsets.ipynb) (packed groups, modes,
# `grouped_mm`).

# %%
import gemm_course  # import first: without a GPU, kernels then run in the interpreter

import functools
import random

import torch
import triton
import triton.language as tl
from IPython.display import display

from course_kernels import GemmConfig, GroupLayout, codegen, gmm, grouped_mm, nptgmm, ptgmm, runtime, schedule, testing
from course_kernels.bench import record
from course_kernels.kernels import group_sums, transposed
from course_kernels.codegen import ptx
from gemm_course.figures import f11_gradients as gradients, f11_rounding as rounding
from gemm_course.figures import f11_training_costs as training_costs, timeline, walk_costs
from gemm_course.lessons import records, timelines
from gemm_course.lessons.listing import fold

device = runtime.device()

# %% [markdown]
# ## One layer
#
# We use 96 tokens, 8 [experts](glossary.md#expert) and a skewed [router](glossary.md#router). Each expert has two
# weights with a relu between them. The tokens are sorted by expert, as in lesson 08.

# %%
H, I, E = 64, 128, 8  # the width of a token, the width inside an expert, the number of experts
expert_of = testing.route("zipf", 96, s=2.0, seed=1)
tokens = testing.integers((96, H), torch.float16, 1)
x = tokens[expert_of.argsort(stable=True)].to(device)
W1 = testing.integers((E, H, I), torch.float16, 2, -1, 1, device=device)
W2 = testing.integers((E, I, H), torch.float16, 3, -1, 1, device=device)
sizes = torch.bincount(expert_of, minlength=E).tolist()
offs = GroupLayout.from_sizes(torch.tensor(sizes, dtype=torch.int32, device=device)).ends
print("rows of each expert:", sizes)

# %% [markdown]
# Expert 5 got no token. This is common where a batch has few tokens for each expert.


# %%
def mm(left, right, **options):
    """grouped_mm with the library's own kernels, on a CPU as well."""
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
# - dx = dy · Wᵀ. Each token uses the weight of its own expert. The groups are rows of the result: **mode m**, as in
#   forward.
# - dW = xᵀ · dy. The tokens of an expert are *summed over*: **mode k**. The result has one matrix for each expert.
#
# The layer has two products, so backward has four.
#
# **Guess** before you open the picture: which matrices of the forward pass does backward need again?

# %% tags=["hide-output"]
gradients.layer([5, 3, 0, 4])

# %% [markdown]
# <details><summary>Answer</summary>
#
# `x` and `h` for the two weight gradients, and both weights. It also needs to know where `z` was positive.
#
# </details>
#
# A training step keeps all of these in memory. (The picture has four experts. The third one has no tokens, so its band
# has no height and its gradient is hatched.)
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
# Experts often have a bias: y = x · W + b. The gradient db sums `dy` over the expert's tokens. So one linear layer has
# four operations in a training step:

# %%
gradients.products([5, 3, 0, 4])

# %% [markdown]
# **Guess** before you open the output: how many times as long as the forward product do dx and dW take together? Count
# the multiplications of each product first.

# %% tags=["hide-output"]
results = record.load("grouped_mm")
step_us = records.step_times(results)
for title, us in step_us.items():
    print(f"{title:64} dx and dW take {(us['dA'] + us['dB']) / us['forward']:.1f} × forward")

# %% [markdown]
# <details><summary>Answer</summary>
#
# Twice as long. Each of the three products multiplies tokens × K × N numbers, only in another order.
#
# </details>
#
# Recorded on an H200, it is about that, or a little more.
#
# ## Try the obvious
#
# **A loop.** Cut `x` and `dy` into the rows of each expert, and multiply:


# %%
def by_loop(x, dy, sizes):
    return torch.stack([rows.T @ grads for rows, grads in zip(x.split(sizes), dy.split(sizes))])


dz = torch.where(z > 0, mm(dy, W2.mT), 0)
print("the loop is right:", torch.equal(by_loop(x.double(), dz.double(), sizes), by_hand[1].double()))
for experts in (8, 128):
    print(f"{experts} experts: {6 * experts} launches in one training step of the layer; grouped: 6")

# %% [markdown]
# The loop is right, for expert 5 as well. But it has the costs of lessons 03 and 08: the CPU has to wait for the
# router's sizes, and each launch is small. Here is the recorded time of the weight gradient of 128 experts:

# %%
for name in ("zipf128-up", "zipf128-down"):
    us = results["rows"][name]["us"]["dB"]
    loop, best = us["loop"]["median_us"], min(us[kernel]["median_us"] for kernel in ("triton", "cute"))
    print(f"{name:12} the loop: {loop:.0f} µs, one launch: {best:.0f} µs, {loop / best:.1f} times as fast")

# %% [markdown]
# **Padding.** Give every expert as many rows as the largest one has, and use `bmm`. We fill the padding of `dy` with
# zeros, so that it adds nothing to the sum. We leave the padding of `x` as it is. Fresh memory may hold anything; we
# write NaN there.
#
# **Guess:** which experts get a wrong gradient?


# %% tags=["hide-output"]
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
# <details><summary>Answer</summary>
#
# All but the largest, which has no padding: 0 × NaN is NaN, so zeros in one operand are not enough.
#
# </details>
#
# With zeros in both operands the result is right, but the product multiplies five times as many rows as needed.
#
# ## The smallest kernel
#
# One [program](glossary.md#program) computes one [tile](glossary.md#tile) of the dW of one expert. Its loop runs over
# the expert's tokens, from `start` to `end`, in blocks of rows. Rows from `end` on belong to the next expert, so the
# loads replace them by zeros. This is the whole kernel:


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
# ### An expert without tokens
#
# In lesson 08 an empty expert has no rows in the result, so there is nothing to store. Suppose we copy that habit, and
# store only where `start < end`.
#
# **Guess:** what is in the gradient of expert 5?


# %% tags=["hide-output"]
def gradient_of(x, dy, offs, into, write_empty):
    K, N = x.shape[1], dy.shape[1]
    grid = (triton.cdiv(K, 32) * triton.cdiv(N, 32), len(into))
    weight_gradient[grid](x, dy, into, offs, K, N, 32, write_empty)
    return into


fresh = torch.full((E, H, I), float("nan"), dtype=torch.float16, device=device)
fresh = gradient_of(x, dz, offs, fresh, write_empty=False)
print("right:", [bool(torch.equal(got, want)) for got, want in zip(fresh, by_hand[1])])
print("expert 5 has NaN:", bool(fresh[5].isnan().all()))

# %% [markdown]
# <details><summary>Answer</summary>
#
# Whatever the memory held before: here NaN.
#
# </details>
#
# We filled the memory with NaN to see it. In practice `torch.empty` returns memory that was used a moment ago, often by
# the same gradient one step earlier. So let an earlier batch, with tokens for all experts, write there first:

# %%
before = testing.routed_sizes("zipf", 96, s=2.0, seed=0)
offs_before = GroupLayout.from_sizes(torch.tensor(before, dtype=torch.int32, device=device)).ends
reused = gradient_of(x, dz, offs_before, torch.empty_like(fresh), write_empty=True)
reused = gradient_of(x, dz, offs, reused, write_empty=False)
right = gradient_of(x, dz, offs, torch.full_like(fresh, float("nan")), write_empty=True)
attempts = {"empty experts skipped, memory of NaN": fresh, "empty experts skipped, memory of the step before": reused}
gradients.expert_matrices(attempts | {"empty experts written": right}, by_hand[1], sizes)

# %% [markdown]
# The second row is the worse one. There is no NaN and no crash, but expert 5 is trained again with the gradient of
# another batch.
#
# In the first row only one expert of eight has NaN. But training scripts *clip* gradients before a step: they divide
# all of them by one factor, so that their common norm is at most 1. Clip, and take a step:


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
# The norm is NaN, so every gradient that is divided by it becomes NaN. One empty expert ends the training run. The
# repair is simple. After an empty loop `acc` is zero, so always store it. **The sum over no tokens is zero, and zero
# must be written.**
#
# ### Rows of the next expert
#
# In lesson 08 a tile may read rows past the end of its group. They give other rows of the result, which are not stored.
# Suppose that `load_rows` did not compare with `end`.
#
# **Guess:** which experts would be wrong now? (We compute what it would add, with torch.)

# %% tags=["hide-output"]
ends, wrong = offs.tolist(), []
for g, (end, size) in enumerate(zip(ends, sizes)):
    last = min(end - size + triton.cdiv(size, 32) * 32, len(x))  # blocks of 32 rows
    found = x[end - size : last].double().T @ dz[end - size : last].double()
    wrong += [] if torch.equal(found, by_hand[1][g].double()) else [g]
print("wrong experts:", wrong)

# %% [markdown]
# <details><summary>Answer</summary>
#
# All but experts 5 and 7. A block of each of the others goes on into the next expert's rows. The empty expert has no
# block, and no rows come after the last one.
#
# </details>
#
# Tokens are summed here, so one row too many changes *all* elements of dW. In mode m the *store* must end with the
# group; in mode k the *load* must.
#
# ## Micro-batches: one rounding or two
#
# A batch that does not fit into memory is cut into [micro-batches](glossary.md#micro-batch), and their gradients are
# added. Let the first gradient be 2048 in every element, and sixteen more be 1. In float16:


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
# All sixteen are lost. A float16 number keeps 11 significant bits, and 2049 needs 12. (bfloat16 keeps only 8.) The
# picture shows this case on the left, and another one on the right:

# %%
first = {"so far": 2048, "the next gradient": 1, "their sum": 2049, "stored": 2048}
second = {"so far": -2048, "the next gradient": 2049, "stored by the kernel": 2048}
second |= {"rounded twice:  −2048 + 2048": 0, "rounded once:  −2048 + 2049": 1}
rounding.aligned_bits({"a small number is added to a large one": first, "two large numbers cancel": second}, kept=11)

# %% [markdown]
# - **Left:** the sum needs 12 bits. More bits help. Keep the sum in float32, which has 24. Training frameworks call
#   this sum the [main gradient](glossary.md#main-gradient).
# - **Right:** the sum is 1, which needs one bit. (The box has the bits of a number as large as 2048. A smaller number
#   has its 11 bits further right.) It is lost all the same. The kernel computes 2049 in float32 and rounds it to store
#   it. That is the first rounding. Adding −2048 in a second kernel is the second one.
#
# A kernel that adds *before* it stores rounds only once. It loads the old gradient and adds it to `acc`:


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
# (`sums` and `db` belong to the next section.) Both examples again, added in the kernel:


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
# One rounding is enough for the right example, even in float16. Only a float32 main gradient gets both right.
#
# ### How much is lost in a real sum?
#
# Take 64 micro-batches of 32 tokens, with random gradients. There are three ways to add them: in bfloat16; in float32,
# after each gradient was rounded to bfloat16; in float32, inside the kernel.
#
# **Guess:** how large is the error of each sum after 64 micro-batches?

# %% tags=["hide-output"]
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
for name, growing in errors.items():
    print(f"{name:29} {growing[-1]:.1g} of the sum")
rounding.error_growth(errors)

# %% [markdown]
# <details><summary>Answer</summary>
#
# About a hundredth of the sum, a fifth of that, and next to nothing.
#
# </details>
#
# - **bfloat16:** the error grows with every micro-batch. The sum gets larger, so more of each new gradient is lost.
# - **float32 sum of rounded gradients:** the error stays at that of one rounded gradient.
# - **Added in the kernel:** no gradient is ever rounded to 16 bits. It moves no more bytes than the first way, as no
#   separate gradient is written and read again.
#
# ## The bias gradient: one writer
#
# db sums the rows of `dy` of each expert. The obvious kernel has one program for each block of rows. All programs of an
# expert add to the same row of db with an [atomic operation](glossary.md#atomic-operation):
#
# ```python
# tl.atomic_add(db + g * N + col, tl.sum(block_dy, 0))
# ```
#
# A GPU runs programs in no fixed order, and a float32 sum depends on the order. We add 32 partial sums of one element
# of db in 100 random orders (right panel):

# %%
parts = [value / 999 for value in testing.integers((32,), torch.float32, 5, -1000, 1000)]
shuffled = random.Random(0)


def one_run(order):
    return float(functools.reduce(torch.add, order))


in_any_order = [one_run(shuffled.sample(parts, len(parts))) for _ in range(100)]
gradients.one_writer((3, 4), in_any_order, alone=one_run(parts))

# %% [markdown]
# So the same training run gives a different model each time. Nobody can tell later whether a change of the code made a
# difference, or the order of the atomics.
#
# With **one writer** for each sum the order is fixed. The weight-gradient kernel loads the blocks of `dy` anyway, so it
# can sum them: `sums` in the kernel above. All tiles in one tile column see the same blocks (left panel). So only the
# first [tile row](glossary.md#tile-row) (orange) stores its sums. In the kernel this is `if tile < tiles_n`. It needs
# no atomics, and no buffer of zeros.

# %%
dw = torch.empty(E, H, I, dtype=torch.float16, device=device)
db = add_gradient(x, dz, offs, dw, add=False)
want = torch.stack([rows.double().sum(0) for rows in dz.split(sizes)])
print("dW exact:", torch.equal(dw, by_hand[1]), " db exact:", torch.equal(db.double(), want))
print("expert 5: db is zero:", not db[5].any())

# %% [markdown]
# ## What the compiler made of it
#
# The library's kernel computes the same. [Descriptors](glossary.md#descriptor) end its loads where the group ends, in
# hardware (lesson 08). It is [persistent](glossary.md#persistent): a fixed number of programs walks all tiles (lesson
# 04). We compile it for an H200:

# %%
library = codegen.compile_kernel("transposed", "sm_90", dtype="float16")
print("loops around a multiplication:", len(ptx.loops(library.ptx)[1]))
print("copies blocks by descriptor:", library.instructions["bulk tensor load"] > 0)
print("multiplies with wgmma:", library.instructions["wgmma"] > 0)

# %% [markdown]
# The kernel has only one loop, although a program has several tiles, and a tile several blocks of tokens. In lesson 08
# the compiler fused the two loops, so that copies for the next tile start early. Here it cannot, because each tile has
# its own number of blocks. So the kernel is written as one loop over all blocks of all tiles of a program. At the first
# block of a tile it looks up the tile; at the last block it stores the tile.
#
# ## The production kernel
#
# This kernel computes the weight gradient of `ptgmm`, `nptgmm` and `grouped_mm`. Beyond yours, it accepts any strides,
# 8-bit operands with scales, and a bias. For an empty expert, `blocks_of` counts one block, and its load gives zeros.
# To add to a float32 dW on Hopper, it does not load dW: the store itself adds, in the [L2](glossary.md#L2) cache.
#
# The bias gradient has a kernel of its own, because a large expert would keep its one writer busy for a long time. It
# cuts the rows of each expert into chunks of 256. One program sums one chunk, and a second kernel adds the chunks of an
# expert in their order. The chunk size never changes, so the bits are the same on every GPU.

# %%
display(fold(transposed.transposed_kernel), fold(group_sums.sum_items_kernel))

# %% [markdown]
# ## In the library: `gmm`, `ptgmm`, `nptgmm`
#
# AMD's library AITER has names for the two modes. Our functions have the same names and arguments, so that a program
# only changes one import:
#
# | function | result | in training |
# | --- | --- | --- |
# | `gmm(lhs, rhs, group_sizes, bias)` | `lhs[rows of g] @ rhs[g] + bias[g]`, mode m | y and dx |
# | `ptgmm(lhs, rhs, group_sizes, bias_grad)` | `lhs[:, rows of g] @ rhs[rows of g]`, mode k | dW, persistent |
# | `nptgmm(lhs, rhs, group_sizes, bias_grad)` | the same result | dW, one program for each tile |
#
# They take sizes where `grouped_mm` takes ends. `preferred_element_type` is the dtype of the result.

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
# `bias_grad` receives the *left* operand, summed over each group's tokens. So for the bias of a layer, `dy` must come
# first.
#
# **Guess:** which gradient is the product then, and what is its shape?

# %% tags=["hide-output"]
bias_grad = torch.empty(E, I, dtype=torch.float32, device=device)
dW1_T = ptgmm(dz.T, x, group_sizes, bias_grad, **half)
print("db exact:", torch.equal(bias_grad, db), " shape of the product:", tuple(dW1_T.shape))
print("it is dW1, transposed:", torch.equal(dW1_T.mT, by_hand[1]))

# %% [markdown]
# <details><summary>Answer</summary>
#
# The weight gradient, transposed: dyᵀ · x has the shape (experts, N, K).
#
# </details>
#
# Most models store their weights as (experts, N, K), too. The next section shows why this matters.
#
# For micro-batches, `accumulate=True` adds to `existing_out` and to `bias_grad`, in float32, and rounds once. Autograd
# can do it, too: give `grouped_mm` a `main_grad`. Then backward adds the weight gradient there, and does not return it.

# %%
main = torch.zeros(E, H, I, dtype=torch.float32, device=device)
single = half | {"preferred_element_type": torch.float32}
for _ in range(3):  # three equal micro-batches
    ptgmm(x.T, dz, group_sizes, existing_out=main, accumulate=True, **single)
print("three times dW1:", torch.equal(main, 3 * by_hand[1].float()))

weight, collected = W1.clone().requires_grad_(), torch.zeros_like(main)
for _ in range(3):
    mm(x, weight, main_grad=collected).backward(dz)
print("the same through autograd:", torch.equal(collected, main), " weight.grad:", weight.grad)

# %% [markdown]
# ## The gradient in the weight's own layout
#
# A linear layer of torch stores its weight as (out, in). Stacked, the experts are (experts, N, K). The product wants
# (experts, K, N), so a model passes the transposed view, `weight.mT`. A view moves no memory. What happens in backward?
# The obvious way writes dW as (experts, K, N), row by row:

# %%
obvious = mm(x.T, dz)  # (experts, K, N)
direct = mm(dz.T, x)  # (experts, N, K)
weight = W1.mT.contiguous()
print("strides of the weight:              ", weight.stride())
print("of xᵀ · dy, seen as (experts, N, K):", obvious.mT.stride())
print("of dyᵀ · x:                         ", direct.stride())
print("the same numbers:", torch.equal(obvious.mT, direct))

# %% [markdown]
# The optimizer needs `weight.grad` with the strides of `weight`. After the first product, autograd has to copy and
# transpose the weight gradients of all experts. The copy reads and writes each of them once, even if the batch had few
# tokens. The second product already *is* the gradient.
#
# The picture compares the copy with the three products of a step. Their times are recorded. The copy's time is
# computed: its bytes, at the rate at which an H200 copies.

# %%
training_costs.copied_gradients(step_us)

# %% [markdown]
# With thousands of tokens for each expert, the copy hardly matters. With 128 experts it costs about as much as one
# product. With a handful of tokens for each expert it costs more than any of them. So `grouped_mm` looks at the strides
# of its operand, and chooses the product:

# %%
seen = []
parameter = torch.nn.Parameter(weight)
operand = parameter.mT
operand.register_hook(lambda gradient: seen.append(gradient.stride()))
mm(x, operand).backward(dz)
print("strides of the operand:  ", operand.stride())
print("strides of its gradient: ", seen[0])
print("parameter.grad is right:", torch.equal(parameter.grad, direct))

# %% [markdown]
# ## Persistent or not
#
# `ptgmm` launches a fixed number of programs; `nptgmm` launches one program for each tile. Each way has an advantage:
#
# - *Persistent:* while the program stores one tile, the blocks of its next tile are already on their way. But tiles are
#   dealt in turn, and they are not equally deep. A tile of a popular expert sums thousands of tokens, another one a
#   few.
# - *One program for each tile:* when a program ends, the GPU starts the next one at once. So no SM waits. But each
#   program starts with an empty pipeline. A remedy is to let several small ones share an SM: while one stores its tile,
#   another multiplies. So `nptgmm` takes smaller blocks on a Hopper GPU, and three programs fit on an SM. (Not where
#   groups have about 1,000 rows or more, as Mixtral's below.)
#
# The simulation of lesson 05 knows the balance, but not the pipeline. (One program for each tile is its dynamic
# schedule: whoever is free takes the next tile.) 32,768 tokens, 8 experts:

# %%
runs = {}
for router in ("uniform", "zipf"):
    products = [(2048, 1024, rows) for rows in testing.routed_sizes(router, 32768)]
    for way, order in (("persistent, dealt in turn", "round_robin"), ("a program for each tile", "dynamic")):
        runs[router, way] = schedule.simulate(products, order, 132, (128, 256, 64))
        print(f"{router:8} {way:25} {runs[router, way].makespan:4.0f} µs simulated")

# %%
skewed = {way: timelines.simulated_bars(run) for (router, way), run in runs.items() if router == "zipf"}
bound = runs["zipf", "a program for each tile"].lower_bounds.work
timeline.compare(skewed, rows=132, bounds=dict.fromkeys(skewed, bound), height=1.9)

# %% [markdown]
# A colour is an expert (the legend calls it a problem). With equal experts there is hardly a difference. With a skewed
# router, one program for each tile wins in the simulation.
#
# **Guess:** which one wins on an H200? In the record, each model has a row with equal experts and one with a Zipf
# router. All compute the gradients of the weights and of the biases. The line at 1× is `ptgmm`.

# %% tags=["hide-output"]
us = records.gradient_times(record.load("gmm"))
names = dict.fromkeys(name for times in us.values() for name in times)
walk_costs.time_ratios(us, {name: name for name in names} | {"ptgmm": "gradients by ptgmm"}, base="ptgmm")

# %% [markdown]
# <details><summary>Answer</summary>
#
# `ptgmm`, in every row, also with the skewed router.
#
# </details>
#
# So the simulation, which leaves out the pipeline, gave the wrong answer. How much the pipeline matters is not shown
# here, because the kernels differ, too: on an H200 `ptgmm` may take the library's CuTe kernel of lesson 10, and
# `nptgmm` always takes the Triton kernel. On your own shapes, measure both.
#
# Two options are related:
#
# - `gmm(..., work_stealing=True)` is persistent and balanced: a free program takes its next tile from a counter in
#   memory (the dynamic schedule of lesson 05). It should help when another kernel occupies some of the SMs.
# - `GemmConfig(num_xcds=8)` is for AMD's MI300. This GPU is made of 8 dies, which AMD calls XCDs, and each has an L2
#   cache of its own. The option gives each die neighbouring tiles, which read the same parts of the operands.
#
# ## Try it
#
# [Exercise 11a](../exercises/11a_weight_gradient.ipynb): the weight gradient, a tile that sums over its group's tokens.
# [Exercise 11b](../exercises/11b_bias_gradient.ipynb): the bias gradient, one writer, the same bits every time. Or
# change a cell and run it again:
#
# 1. With `ADD`, what should `training_kernel` do for an expert without tokens? Would it be wrong to skip it?
#    <details><summary>Answer</summary>For dW it would be right: to add zero, leave the gradient as it is. When the
#    kernel writes, skipping is wrong. And db is written here in either case, so an expert that is skipped keeps what
#    was in the memory of db.</details>
# 2. In `weight_gradient`, make `acc` a float16 tensor and pass `out_dtype=tl.float16` to `tl.dot`. Is the gradient of
#    the layer still exact? And that of `micro_batch(2048, *[0] * 31, *([1] + [0] * 31) * 16)`?
#    <details><summary>Answer</summary>The layer's is, because its sums are small. The other one is 2048 where it should
#    be 2064: each 1 arrives in a block of its own, and is lost. A test with small numbers does not find this
#    mistake.</details>
# 3. Suppose a training step keeps only `x`, `W1` and `W2`. What must backward compute again, and what does it cost?
#    <details><summary>Answer</summary><code>z</code> and <code>h</code>. Both follow from x · W1, so the step has seven
#    products, not six. This is called activation checkpointing, or recomputation.</details>
# 4. Send all 96 tokens to expert 5: `expert_of = testing.route("one_hot", 96, hot=5)`. How many of the eight gradients
#    does the kernel write that skips empty experts? How many tiles does `ptgmm` write?
#    <details><summary>Answer</summary>One gradient. <code>ptgmm</code> writes all tiles of all eight: seven experts get
#    zeros. Each of their tiles is one short block.</details>
#
# ## Summary
#
# - The backward pass of a layer is four grouped products: two of mode m (dx) and two of mode k (dW). They cost twice as
#   much as forward.
# - An expert without tokens has a gradient: zero. The kernel must write it, or old memory trains the model.
# - Add micro-batches in float32, before the store. Then no gradient is rounded to 16 bits.
# - One writer for each sum gives the same bits in every run. Atomics do not.
# - dyᵀ · x has the layout of the weight. It saves a copy of all weight gradients.
# - A persistent kernel keeps its pipeline full; one program for each tile balances unequal experts. Measure both.
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
# - Empty experts in practice: PyTorch [#172439](https://github.com/pytorch/pytorch/issues/172439) (gradients that are
#   not zero) and [#174314](https://github.com/pytorch/pytorch/pull/174314) (a gradient norm of NaN in training).
# - A main gradient that is added in the kernel: Primus-Turbo [#454](https://github.com/AMD-AGI/Primus-Turbo/pull/454).
# - Compared with, in the records: torch's `grouped_mm`, [QuACK](https://github.com/Dao-AILab/quack) (kernels in CuTe
#   DSL), a loop of cuBLAS calls.
#
# ## What to read next
#
# Lesson 12 turns to inference, where each expert has a few rows and memory is the limit. Lesson 14 trains a whole
# layer, with routing, SwiGLU and the weighted sum of the results. Lesson 15 shows when to trust a benchmark such as the
# ones above.
