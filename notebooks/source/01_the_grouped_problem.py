# %% [markdown]
# # 01 · The grouped problem
#
# Eight experts each have their own number of tokens. You can loop over them, or pad all groups to one size and multiply
# once, or group them. What does each way cost? And how does a kernel know where a group begins?
#
# **About 45 minutes. Afterwards you can**
#
# - count launches, arithmetic and memory traffic of a loop, a padded product and a grouped product,
# - predict from the sizes how much padding wastes,
# - describe the groups of a packed matrix in five ways, and convert one into another,
# - send each token to several experts, and say what sorting its rows costs,
# - tell from the rows per expert whether memory or arithmetic limits the speed.

# %%
import gemm_course  # import first: without a GPU, kernels then run in the interpreter

import torch
from torch.nn.utils.rnn import pad_sequence

import course_kernels
from course_kernels import group_gemm, testing
from course_kernels.bench import record
from course_kernels.layout import GroupLayout, padding_waste
from gemm_course.figures import f01_ragged_groups as groups

device = course_kernels.runtime.device()

# %% [markdown]
# ## One batch, three ways
#
# A [router](glossary.md#router) seldom treats all [experts](glossary.md#expert) alike. Here are 512 tokens from three
# routers. *Uniform*: every expert is equally likely. *Zipf*: expert 0 is twice as popular as expert 1, and three times
# as popular as expert 2. *One-hot*: all tokens go to expert 0.

# %%
batches = {router: testing.routed_sizes(router, tokens=512) for router in testing.ROUTERS}
for router, sizes in batches.items():
    print(f"{router:8} {sizes}")

# %% [markdown]
# We take the Zipf batch. One matrix, `rows`, holds the tokens, sorted by expert. Each expert has a weight matrix. The
# first way is a loop of products:

# %%
sizes, K, N = batches["zipf"], 64, 48
rows = testing.integers((sum(sizes), K), device=device)
weights = testing.integers((8, K, N), generator=1, device=device)

loop = torch.cat([a @ w for a, w in zip(rows.split(sizes), weights)])
loop.shape

# %% [markdown]
# The second way pads every group with zeros to the size of the largest. Then the groups have one shape, and one `bmm`
# multiplies them all. The results of the padding are thrown away.

# %%
padded = pad_sequence(rows.split(sizes), batch_first=True)
product = torch.bmm(padded, weights)
bmm = torch.cat([product[g, :m] for g, m in enumerate(sizes)])
print(f"padded: {tuple(padded.shape)}; {sum(sizes)} of {padded.shape[0] * padded.shape[1]} rows are real")

# %% [markdown]
# The third way is one launch over the groups as they are. All three results are equal, bit for bit:

# %%
grouped = torch.cat(group_gemm(list(rows.split(sizes)), list(weights), method="round_robin"))
print("bmm equals the loop:    ", torch.equal(bmm, loop))
print("grouped equals the loop:", torch.equal(grouped, loop))

# %% [markdown]
# ## What padding adds
#
# Each column is an expert. The hatched part is padding, which `bmm` computes and throws away.

# %%
groups.padded_batches(batches)

# %% [markdown]
# Padded, there are `G · max(sizes)` rows, where G is the number of groups. `sum(sizes)` of them are real. So each real
# row brings `G · max / sum − 1` rows of padding. Under a Zipf router, expert g gets a share of `1 / (g + 1)^s`. The
# exponent s is 1 for the batch above, and 0 for a uniform router. Let it grow:

# %%
exponents = [i / 20 for i in range(61)]
shares = [[(g + 1) ** -s for g in range(8)] for s in exponents]
waste = [padding_waste([round(1e6 * share) for share in each]) for each in shares]
groups.waste_curve(exponents, waste, groups=8)

# %% [markdown]
# The curve uses expected sizes. The batches above were drawn at random, so they are off by a little: the Zipf batch has
# 1.7 rows of padding for each real one, the curve 1.9. While a model runs, sizes change from batch to batch. If the
# padded shape is fixed in advance, it must fit the worst batch, or tokens are dropped.
#
# ## What each way costs
#
# We count launches, arithmetic and memory traffic for a layer of realistic size: 8192 tokens, K = 2048, N = 1536, fp16.
# Every operand is read once and every result written once. The copies into the padded tensor are not counted.


# %%
def costs(sizes, K, N, way):
    used = sum(m > 0 for m in sizes)
    launches = {"loop": used, "bmm": 1, "grouped": 1}[way]
    m, experts = (len(sizes) * max(sizes), len(sizes)) if way == "bmm" else (sum(sizes), used)
    return launches, 2 * m * N * K, 2 * (m * K + experts * K * N + m * N)


print("router    way      launches   GFLOP     MB")
for router in testing.ROUTERS:
    large = testing.routed_sizes(router, tokens=8192)
    for way in ("loop", "bmm", "grouped"):
        launches, flops, size = costs(large, 2048, 1536, way)
        print(f"{router:8}  {way:8} {launches:7} {flops / 1e9:9.1f} {size / 1e6:7.1f}")

# %% [markdown]
# The loop does no extra arithmetic but needs the most launches. `bmm` needs one launch but computes the padding.
# Grouped has the smallest number in each column. Lesson 03 measures what a launch costs.
#
# Experts are the easy case, because K and N are the same for all. Triton's tutorial groups four squares of different
# sizes. There, `bmm` must pad all three extents:

# %%
squares = testing.reference_problems()
work = [m * n * k for m, n, k in squares]
print("squares of", [m for m, _, _ in squares], f"padded: {1 + padding_waste(work):.1f} times the arithmetic")

# %% [markdown]
# If all sizes are equal, there is no padding, and `bmm` is a good choice. These times were measured on an H200. The
# loop calls [cuBLAS](glossary.md#cuBLAS), NVIDIA's library, once for each product, as PyTorch's `@` does:

# %%
measured = record.load("when_to_group")
cell = next(cell for cell in measured["cells"] if (cell["count"], cell["n"]) == (8, 1024))
print("8 equal products of 1024 × 1024 × 1024 on an", measured["provenance"]["gpu"])
for way, microseconds in cell["us"].items():
    print(f"  {way:12} {microseconds:6.1f} µs")

# %% [markdown]
# `bmm` is a little faster than grouping here. All of its problems are alike, so its kernel need not find out which
# problem a [tile](glossary.md#tile) belongs to. A grouped kernel must (lesson 04).
#
# If sizes are unequal (*skewed*), padding grows. The next record is of weight gradients. There, each product sums over
# the tokens of its expert (lesson 11), so the router decides K. M and N are the same for all. All products ran in one
# launch on an H200, with the best schedule of lesson 05. The right column is what padding would cost:

# %%
runs = record.load("sm_timelines")["timelines"]
for batch in ("uniform", "skewed", "one-hot"):
    same = [run for run in runs if run["batch"] == batch]
    tokens = [k for _, _, k in same[0]["problems"]]
    best = min(run["median_us"] for run in same)
    print(f"{batch:8} grouped {best:4.0f} µs    padded: {1 + padding_waste(tokens):.1f} times the arithmetic")

# %% [markdown]
# The grouped times differ by about a tenth. Padding would multiply the arithmetic by up to 8.
#
# ## Five descriptions of the same groups
#
# A kernel gets `rows` as one matrix, so it needs a description of the groups. Libraries use different ones. Our example
# has four groups of 4, 0, 6 and 3 rows. Two unused rows follow: the [tail](glossary.md#tail). The last description,
# [masked](glossary.md#masked-layout), is for another matrix, in which each group has a slot of `max_m` rows.

# %%
layout = GroupLayout.from_sizes(torch.tensor([4, 0, 6, 3], dtype=torch.int32, device=device))

print("sizes     ", layout.sizes.tolist())
print("ends      ", layout.ends.tolist(), "  row after the last one; torch and CUTLASS: offs")
print("offsets   ", layout.offsets.tolist(), "  all starts, and the last end")
print("row_groups", layout.row_groups(total_m=15).tolist())
print("masked    ", layout.masked_m.tolist(), "  used rows of max_m in each group")

# %% [markdown]
# In the picture, a row of the matrix is a column. Each number is under the rows that it counts, or under the boundary
# that it marks. Find the empty group in each description. (Group 0 and the empty group 1 end at the same row, so two
# numbers share a boundary.)

# %%
groups.descriptions([4, 0, 6, 3], tail=2)

# %% [markdown]
# Each description can be converted into every other on the *device*, which is the GPU if there is one. The CPU, called
# the [host](glossary.md#host), never waits for a number. `GroupLayout` has a constructor for each:

# %%
layouts = [
    layout,
    GroupLayout.from_ends(layout.ends),
    GroupLayout.from_offsets(layout.offsets),
    GroupLayout.from_row_groups(layout.row_groups(total_m=15), G=4),
    GroupLayout.from_masked(layout.masked_m, max_m=6),
]
for other in layouts:
    print(f"{other.kind:10} → sizes {other.sizes.tolist()}, ends {other.ends.tolist()}")

# %% [markdown]
# A router itself returns something else: one expert for each token, **not sorted**. Sort the tokens, and you have
# `row_groups`. Keep the order, and you can put the results back:

# %%
expert_of = testing.route("zipf", tokens=512).to(device)
order = GroupLayout.sort_order(expert_of)
by_expert = GroupLayout.from_row_groups(expert_of[order], G=8)

back = torch.empty_like(loop)
back[order] = loop  # row i of the sorted result belongs to token order[i]
print("sizes", by_expert.sizes.tolist(), "as before:", by_expert.sizes.tolist() == sizes)
print("token 100 went to expert", expert_of[100].item(), "and its result is row", (order == 100).nonzero().item())

# %% [markdown]
# ## Several experts for each token, and who sorts
#
# So far each token had one expert. In most models a router scores all experts for each token, and takes the best k: the
# *top k*. Each choice has a weight, from a softmax of the scores. So T tokens give T · k rows, and a token's result is
# the weighted sum of its k rows. The grouped product does not change: it only sees more rows.


# %%
def route_top_k(scores, k):
    """Weights (T, k), the rows sorted by expert as indices into the T · k choices, and the groups."""
    weight, expert = torch.softmax(scores, dim=1).topk(k)
    order = GroupLayout.sort_order(expert.flatten())
    return weight, order, GroupLayout.from_row_groups(expert.flatten()[order], G=scores.shape[1])


hidden = testing.integers((64, K), torch.float32, 3, device=device)
scores = torch.randn(64, 8, generator=torch.Generator().manual_seed(3)).to(device)
weight, choice_of_row, top_2 = route_top_k(scores, k=2)
token_of_row = choice_of_row // 2  # token t has the choices 2 t and 2 t + 1
print("64 tokens, two experts each:", top_2.sizes.tolist(), "=", int(top_2.sizes.sum()), "rows")

# %% [markdown]
# Gather the rows, multiply them in groups, and add each token's rows, weighted. We compare with all eight experts for
# all tokens, of which all but two have the weight 0:

# %%
gathered = hidden[token_of_row]
by_rows = torch.cat(group_gemm(list(gathered.split(top_2.sizes.tolist())), list(weights.float()), method="round_robin"))
mixed = torch.zeros(64, N, device=device)
mixed.index_add_(0, token_of_row, by_rows * weight.flatten()[choice_of_row, None])

full = torch.softmax(scores, dim=1)
full = torch.where(full >= weight.min(dim=1, keepdim=True).values, full, 0)
everybody = torch.einsum("tg,tk,gkn->tn", full, hidden, weights.float())
print("equal up to rounding:", torch.allclose(mixed, everybody, rtol=1e-4, atol=1e-3))

# %% [markdown]
# **Who sorts?** The model does, on the device, once a layer. The library takes sorted rows. The sort itself is small:
# it moves the index of each row's expert, not the row. The gather before the products and the sum after them move whole
# rows. We count the bytes of each step for a layer of Qwen3-30B-A3B. It has 128 experts, k = 8, and rows of 2048
# numbers (H), of 768 (I) between its products. The last column is the time of an H200 that copies as many bytes:

# %%
T, k, H, I, E = 8192, 8, 2048, 768, 128
copy_tb_s = record.load("grouped_mm")["copy_tb_s"]
megabytes = {
    "sort: the expert of each row, read and written": 2 * T * k * 4,
    "gather: T · k rows read and written": 2 * T * k * H * 2,
    "first product: rows, weights of two matrices, result": 2 * (T * k * H + 2 * E * H * I + 2 * T * k * I),
    "second product: rows, weights, result": 2 * (T * k * I + E * I * H + T * k * H),
    "weighted sum: T · k rows read, T written": 2 * (T * k + T) * H,
}
for name, size in megabytes.items():
    print(f"{name:53} {size / 1e6:7.1f} MB, {size / copy_tb_s / 1e6:6.1f} µs at a copy's rate")

# %% [markdown]
# So the gather alone moves almost half as many bytes as the first product. It needs no arithmetic, and is easily
# forgotten in a benchmark. A kernel can save it if it loads each row from the place where its token is. But it then
# cannot use Hopper's unit for copies of blocks (lesson 06).
#
# ## What goes wrong: ends taken for offsets
#
# Ends and offsets are both lists of row numbers, and no type checker tells them apart. This function wants **offsets**,
# G + 1 of them:


# %%
def multiply(rows, weights, offsets):
    out = torch.zeros(rows.shape[0], weights.shape[2], dtype=rows.dtype, device=rows.device)
    expert = torch.full((rows.shape[0],), -1)
    bounds = offsets.tolist()
    for g, (start, end) in enumerate(zip(bounds, bounds[1:])):
        out[start:end] = rows[start:end] @ weights[g]
        expert[start:end] = g
    return out, expert.tolist()


# %% [markdown]
# There are five groups. The caller has **ends** and passes them. Nothing crashes, and the result has the right shape:

# %%
five = GroupLayout.from_sizes(torch.tensor([4, 3, 6, 3, 5], device=device))
few = rows[:21]
right, owner = multiply(few, weights, five.offsets)
wrong, taken = multiply(few, weights, five.ends)

print("shapes equal:", wrong.shape == right.shape, " results equal:", torch.equal(wrong, right))

# %%
groups.misread(owner, taken)

# %% [markdown]
# Every group has moved by one. The rows of the first group were skipped, all others were multiplied with their
# neighbour's weights, and the last expert got nothing. A training run would go on with these results.
#
# A check of the *values* finds the mistake. It is off by default, because the CPU must wait for the values. The next
# cell fails **on purpose**.

# %% tags=["raises-exception"]
GroupLayout.from_offsets(five.ends).validate(total_m=21)

# %% [markdown]
# Now repair it. The caller has only `five.ends`. Change the first line so that the last one prints True.

# %%
offsets = five.ends  # replace: make offsets of these ends
repaired, _ = multiply(few, weights, offsets)
print("repaired:", torch.equal(repaired, right))

# %% [markdown]
# <details><summary>Answer</summary><code>offsets = GroupLayout.from_ends(five.ends).offsets</code>. By hand, put a zero
# in front: <code>torch.cat([five.ends.new_zeros(1), five.ends])</code>.</details>
#
# ## Rows per expert decide what limits the speed
#
# The product of one expert needs `2·M·N·K` operations (FLOP) and moves `2·(M·K + K·N + M·N)` bytes in fp16. The ratio
# is its [arithmetic intensity](glossary.md#arithmetic-intensity). It grows with M, because the weights are read once
# for all rows. The dashed line is the number of operations that an H200 can do per byte that it reads, by its data
# sheet.
#
# **Guess** before you open the output: with 16 rows per expert, does memory or arithmetic limit the speed? And with
# 256?

# %% tags=["hide-output"]
PEAK_FLOPS, BYTES_PER_S = 989.5e12, 4.8e12  # NVIDIA H200 SXM data sheet: dense fp16, HBM3e
M = [2**i for i in range(13)]
intensity = [flops / size for _, flops, size in (costs([m], 2048, 1536, "grouped") for m in M)]

groups.intensity_curve(M, intensity, ridge=PEAK_FLOPS / BYTES_PER_S, marks=[1, 16, 256, 4096])

# %% [markdown]
# <details><summary>Answer</summary>
#
# With 16 rows it is memory; with 256 the two are nearly balanced.
#
# </details>
#
# With one row, the GPU reads all weights of an expert for a single token. That is *decoding*, where a model writes one
# token at a time. With thousands of rows, in *training* or when a model reads a prompt, the [tensor
# cores](glossary.md#tensor-core) are the limit. The formula is the same, but the two cases need different kernels.
# Later lessons have both.
#
# ## Try it
#
# 1. In the table of costs, route 8 tokens instead of 8192. What does grouping still save against the loop? And why does
#    `bmm` move as many MB under every router?
#    <details><summary>Answer</summary>It saves launches only, and none where one expert has all tokens: arithmetic and
#    MB are those of the loop. With so few rows nearly all traffic is weights, and <code>bmm</code> reads the weights of
#    all eight experts, with or without tokens.</details>
# 2. Predict `padding_waste([100, 100, 100, 101])` and `padding_waste([0, 0, 9])`, then run them.
#    <details><summary>Answer</summary>4 · 101 / 401 − 1, less than 1 %. And G − 1 = 2, as always when one group has
#    everything.</details>
# 3. Pass the *sizes* to `multiply` instead of offsets. Does anything crash? Which rows are right, and why?
#    <details><summary>Answer</summary>Nothing crashes. Of 21 rows only row 5 is right, by chance: read as offsets, 4,
#    3, 6, 3, 5 give expert 1 the rows 3 to 5, of which 4 and 5 are its own. Then expert 3 overwrites rows 3 and
#    4.</details>
#
# In [exercise 01](../exercises/01_offsets.ipynb) you compute ends and row groups on the device.

# %% [markdown]
# ## Summary
#
# - A loop launches once per expert. Padding computes rows that nobody needs. A [grouped GEMM](glossary.md#grouped-GEMM)
#   does neither.
# - Padding adds `G · max / sum − 1` rows for each real one: 0 for equal groups, G − 1 for one-hot.
# - Sizes, ends, offsets, row groups and masked counts describe the same groups. `GroupLayout` converts them on the
#   device.
# - Ends read as offsets give every group its neighbour's weights, and no error.
# - With few rows per expert, memory limits the speed; with many, arithmetic.
#
# ## References
#
# - W. Fedus, B. Zoph, N. Shazeer, [Switch Transformers](https://arxiv.org/abs/2101.03961), 2021: routers, and a fixed
#   capacity per expert with padding and dropped tokens.
# - T. Gale and others, [MegaBlocks: Efficient Sparse Training with
#   Mixture-of-Experts](https://arxiv.org/abs/2211.15841), 2022: the same layer without padding and without dropped
#   tokens.
# - PyTorch,
#   [torch.nn.functional.grouped_mm](https://docs.pytorch.org/docs/main/generated/torch.nn.functional.grouped_mm.html):
#   a grouped product described by ends (`offs`).
# - S. Williams, A. Waterman, D. Patterson, [Roofline](https://doi.org/10.1145/1498765.1498785), 2009: memory or
#   arithmetic as the limit.
#
# ## What to read next
#
# If Triton is new to you, go on with [lesson 02](02_triton_in_fifteen_minutes.ipynb). If you know it, skip to lesson
# 03, which writes a kernel for one product and measures what a launch for each product costs.
