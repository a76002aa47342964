# %% [markdown]
# # 01 · The grouped problem
#
# Eight experts, each with its own number of tokens. You could loop over them, or pad all groups to one size and
# multiply once, or group them. What does each way pay? And how does a kernel learn where a group begins?
#
# You will compute a batch in all three ways, watch padding grow with skew, describe the same groups in five ways,
# and hand one description to a function that wants another. About 30 minutes.

# %%
import gemm_course  # noqa: F401 (first: without a GPU, it has kernels run in the interpreter)

import torch
from torch.nn.utils.rnn import pad_sequence

import course_kernels
from course_kernels import group_gemm, testing
from course_kernels.bench import record
from course_kernels.layout import GroupLayout, padding_waste
from gemm_course.figures import groups

device = course_kernels.runtime.device()

# %% [markdown]
# ## One batch, three ways
#
# Routers are seldom fair. Here are 512 tokens from three of them: *uniform*, every expert equally likely; *Zipf*,
# expert 0 twice as popular as expert 1, three times as expert 2; *one-hot*, all to expert 0.

# %%
batches = {router: testing.routed_sizes(router, tokens=512) for router in testing.ROUTERS}
for router, sizes in batches.items():
    print(f"{router:8} {sizes}")

# %% [markdown]
# Take Zipf. The tokens lie sorted by expert in one matrix, `rows`; each expert has a matrix of weights. First
# way: a loop, one product after another.

# %%
sizes, K, N = batches["zipf"], 64, 48
rows = testing.integers((sum(sizes), K), device=device)
weights = testing.integers((8, K, N), generator=1, device=device)

loop = torch.cat([a @ w for a, w in zip(rows.split(sizes), weights)])
loop.shape

# %% [markdown]
# Second way: pad every group with zeros to the largest, so that the groups stack, and call `bmm` once. Then throw
# the padding's results away.

# %%
padded = pad_sequence(rows.split(sizes), batch_first=True)
product = torch.bmm(padded, weights)
bmm = torch.cat([product[g, :m] for g, m in enumerate(sizes)])
print("padded rows ", tuple(padded.shape), " holding", sum(sizes), "real rows of", padded.shape[0] * padded.shape[1])

# %% [markdown]
# Third way: one launch over the groups as they are. All three give the same answer, to the last bit.

# %%
grouped = torch.cat(group_gemm(list(rows.split(sizes)), list(weights), method="round_robin"))
print("bmm equals the loop:    ", torch.equal(bmm, loop))
print("grouped equals the loop:", torch.equal(grouped, loop))

# %% [markdown]
# ## What padding adds
#
# Each column is an expert, to scale; hatched is what `bmm` computes and throws away.

# %%
groups.padded_batches(batches)

# %% [markdown]
# The waste has a formula: `G · max / Σ − 1` padding rows for each real one. Let the router's Zipf exponent grow
# from 0 (uniform) and the largest group pulls all others up with it. (The curve is for the sizes to expect; a batch
# drawn from them, like those above, lies somewhat off it.)

# %%
exponents = [i / 20 for i in range(61)]
shares = [[(g + 1) ** -s for g in range(8)] for s in exponents]
waste = [padding_waste([round(1e6 * share) for share in each]) for each in shares]
groups.waste_curve(exponents, waste, groups=8)

# %% [markdown]
# A real router moves along this curve from step to step, so a padded batch must be sized for a bad day: that, or
# drop tokens.
#
# ## What each way pays
#
# Count launches, arithmetic and memory traffic for a layer of real size: 8192 tokens, K = 2048, N = 1536, fp16.
# Operands are counted once, copies into the padding not at all.


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
# The loop does no needless arithmetic but launches most often; `bmm` launches once and computes what nobody
# wants. Grouped has the smallest number in every column. Why launches cost, lesson 03 measures.
#
# And experts are the easy case, with K and N in common. Where all extents differ, as in the four squares that
# Triton's tutorial groups, `bmm` has three to pad, and the formula counts cubes instead of rows:

# %%
squares = testing.reference_problems()
work = [m * n * k for m, n, k in squares]
print("squares of", [m for m, _, _ in squares], f"padded: {1 + padding_waste(work):.1f} times the arithmetic")

# %% [markdown]
# Be fair to `bmm`, though: where sizes are equal, nothing is padded. The record, from an H200:

# %%
measured = record.load("when_to_group")
cell = next(cell for cell in measured["cells"] if (cell["count"], cell["n"]) == (8, 1024))
print("8 equal problems of 1024 × 1024 × 1024 on an", measured["provenance"]["gpu"])
for way, microseconds in cell["us"].items():
    print(f"  {way:12} {microseconds:6.1f} µs")

# %% [markdown]
# Skew is where the ways part. Recorded as well: the weight gradient of the layer above, whose K is the number of
# tokens, in one launch with its best schedule (lesson 05). Beside it, what padding would make of the arithmetic.

# %%
runs = record.load("sm_timelines")["timelines"]
for batch in ("uniform", "skewed", "one-hot"):
    same = [run for run in runs if run["batch"] == batch]
    tokens = [k for _, _, k in same[0]["problems"]]
    best = min(run["median_us"] for run in same)
    print(f"{batch:8} grouped {best:4.0f} µs    padded: {1 + padding_waste(tokens):.1f} times the arithmetic")

# %% [markdown]
# The same tokens in nearly the same time, whatever the router did. Padding would have made it a matter of luck.
#
# ## Five descriptions of the same groups
#
# A kernel gets `rows` as one matrix and must be told where groups begin. Libraries disagree on how. Take four
# groups, of 4, 0, 6 and 3 rows, with two unused rows behind them, the *tail*:

# %%
layout = GroupLayout.from_sizes(torch.tensor([4, 0, 6, 3], dtype=torch.int32, device=device))

print("sizes     ", layout.sizes.tolist())
print("ends      ", layout.ends.tolist(), "  exclusive; torch and CUTLASS call them offs")
print("offsets   ", layout.offsets.tolist(), "  starts, and the last end")
print("row_groups", layout.row_groups(total_m=15).tolist())
print("masked    ", layout.masked_m.tolist(), "  of max_m slots that each group owns")

# %% [markdown]
# The matrix lies on its side here: a row is a column of the picture. Every number stands under what it counts or
# marks. Find the empty group in each description.

# %%
groups.descriptions([4, 0, 6, 3], tail=2)

# %% [markdown]
# Any description gives every other, on the device, without the CPU waiting for a number. Five constructors, one
# answer:

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
# A router's own output is a sixth thing: one expert for each token, **not sorted**. Sorting the tokens makes it
# `row_groups`; keeping the order lets you put the results back where the tokens came from.

# %%
expert_of = testing.route("zipf", tokens=512).to(device)
order = GroupLayout.sort_order(expert_of)
by_expert = GroupLayout.from_row_groups(expert_of[order], G=8)

back = torch.empty_like(loop)
back[order] = loop  # row i of the sorted result belongs to token order[i]
print("sizes", by_expert.sizes.tolist(), "as before:", by_expert.sizes.tolist() == sizes)
print("token 100 went to expert", expert_of[100].item(), "and its result is row", (order == 100).nonzero().item())

# %% [markdown]
# ## What goes wrong: ends taken for offsets
#
# Both are lists of row numbers, and nobody's type system tells them apart. This function wants **offsets**, G + 1
# of them:


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
# Five groups; the caller has **ends** in hand and passes them. Nothing crashes, the result has the right shape.

# %%
five = GroupLayout.from_sizes(torch.tensor([4, 3, 6, 3, 5], device=device))
few = rows[:21]
right, owner = multiply(few, weights, five.offsets)
wrong, taken = multiply(few, weights, five.ends)

print("shapes equal:", wrong.shape == right.shape, "  results equal:", torch.equal(wrong, right))

# %%
groups.misread(owner, taken)

# %% [markdown]
# Every group moved by one: the first group's rows were skipped, all others met their neighbour's weights, and the
# last expert did nothing. A training run would go on like that. Ask for a check of the *values* and it is found
# at once: the next cell fails **on purpose**. (The CPU must wait for those values, so nobody checks unless asked to.)

# %% tags=["raises-exception"]
GroupLayout.from_offsets(five.ends).validate(total_m=21)

# %% [markdown]
# Now repair it: the caller has `five.ends` and nothing else. Change the first line so that the last one prints
# True.

# %%
offsets = five.ends  # replace: make offsets of these ends
repaired, _ = multiply(few, weights, offsets)
print("repaired:", torch.equal(repaired, right))

# %% [markdown]
# <details><summary>Answer</summary><code>offsets = GroupLayout.from_ends(five.ends).offsets</code>. By hand, it is
# a zero in front: <code>torch.cat([five.ends.new_zeros(1), five.ends])</code>.</details>
#
# ## Rows per expert decide what limits you
#
# An expert's product does `2·M·N·K` FLOP and moves `2·(M·K + K·N + M·N)` bytes in fp16. Their ratio, the
# *arithmetic intensity*, depends on M most: weights are read once, for however many rows there are. The dashed
# line is what an H200 can do for each byte, by its data sheet.

# %%
PEAK_FLOPS, BYTES_PER_S = 989.5e12, 4.8e12  # NVIDIA H200 SXM data sheet: dense fp16, HBM3e
M = [2**i for i in range(13)]
intensity = [flops / size for _, flops, size in (costs([m], 2048, 1536, "grouped") for m in M)]

groups.intensity_curve(M, intensity, ridge=PEAK_FLOPS / BYTES_PER_S, marks=[1, 16, 256, 4096])

# %% [markdown]
# With one row, the expert's weights are read for a single token: the GPU waits for memory, and only bytes count.
# That is *decoding*, a token at a time. With thousands of rows, *training* or reading a prompt, the tensor cores
# are the limit. The same formula, two different kernels; both come back in later lessons.
#
# ## Try it
#
# - Route 8 tokens instead of 8192 in the table of costs. What does grouping still save against the loop, and why
#   does `bmm` move as many MB under every router?
#   <details><summary>Answer</summary>Launches only, and none where one expert has all tokens: arithmetic and MB are
#   the loop's. With so few rows nearly all traffic is weights, and <code>bmm</code> reads those of all eight experts,
#   with tokens or without.</details>
# - `padding_waste([100, 100, 100, 101])`, `padding_waste([0, 0, 9])`: predict, then run.
#   <details><summary>Answer</summary>4 · 101 / 401 − 1, less than 1 %; and G − 1 = 2, as always when one group has
#   everything.</details>
# - Give `multiply` the *sizes* instead of offsets. Does anything crash? Which rows are right, and by what luck?
#   <details><summary>Answer</summary>Nothing crashes, and of 21 rows only row 5 is right: read as offsets, 4, 3, 6, 3,
#   5 give expert 1 the rows 3 to 5, of which 4 and 5 are its own, and expert 3 then writes over 3 and 4.</details>
#
# [Exercise 01](../exercises/01_offsets.ipynb), the offsets: sizes to ends, rows to groups, on the device.
#
# ## Summary
#
# - A loop launches per expert, padding computes rows nobody wants, grouping does neither.
# - Padding adds `G · max / Σ − 1` rows for each real one: nothing for equal groups, G − 1 for one-hot.
# - Sizes, ends, offsets, row groups and masked counts say the same; `GroupLayout` converts on the device.
# - Ends read as offsets give every group its neighbour's weights, and no error.
# - Few rows per expert: memory limits. Many: arithmetic.
#
# Next: [03 One launch per problem](03_one_launch_per_problem.ipynb), a kernel from nothing, and what launching it
# costs.
