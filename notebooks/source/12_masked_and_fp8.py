# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown]
# # 12 · Masked groups and FP8
#
# A language model writes one token at a time. This is called [decoding](glossary.md#decoding). In each step, every
# expert gets a few rows, often none, and the numbers change from step to step. A serving system records the launches of
# one step as a [CUDA graph](glossary.md#CUDA-graph) and repeats them: the same kernels, shapes and addresses. How can
# one recorded launch serve every step, and how can it be fast?
#
# **About 60 minutes. Afterwards you can**
#
# - compute from bytes and FLOPs the least time of a decoding step, and name two ways to shorten it;
# - lay out groups in slots, with row counts on the device, and write a kernel for them;
# - store numbers in eight bits with the right scales, and tell what is lost;
# - explain why sums of 8-bit products need two levels;
# - use shuffled weights, and tell on which GPUs they help.
#
# You need: lessons [04](04_static_round_robin.ipynb) (persistent programs), [06](06_tma_descriptors.ipynb)
# (descriptors) and [08](08_contiguous_offsets.ipynb) (packed groups).

# %%
import gemm_course  # import first: without a GPU, kernels then run in the interpreter

import statistics

import torch
import triton
import triton.language as tl
from IPython.display import display
from triton.tools.tensor_descriptor import TensorDescriptor

from course_kernels import GemmConfig, codegen, deepgemm, quantize_1x128, quantize_128x128, runtime
from course_kernels import scaled_grouped_mm, shuffle_weight, testing, unshuffle_weight
from course_kernels.bench import record
from course_kernels.bench.rows import title_of
from course_kernels.kernels import common, masked
from course_kernels.testing import reference
from gemm_course.figures import f12_decoding as draw, f12_fp8 as fp8, f12_shuffled_weight as shuffled
from gemm_course.lessons.l12_decoding import Step, Work
from gemm_course.lessons.listing import fold
from gemm_course.lessons.records import dense_tflops, fastest_us, shares_of_a_copy

device = runtime.device()

# %% [markdown]
# ## Where the time of a step goes
#
# Take 256 experts with weights of 4096 × 7168, as in DeepSeek-V3. The record has two measured limits of an H200. A copy
# shows how fast memory is; a dense product shows how fast the [tensor cores](glossary.md#tensor-core) are:

# %%
records = {"bfloat16": record.load("grouped_mm"), "float8": record.load("scaled_grouped_mm")}
TB_S = records["bfloat16"]["copy_tb_s"]
peaks = {name: dense_tflops(one) for name, one in records.items()}
print(f"{records['bfloat16']['provenance']['gpu']}: {TB_S:.2f} TB/s")
for name, peak in peaks.items():
    print(f"{name:8} {peak:5,.0f} TFLOP/s = {peak / TB_S:3.0f} FLOP per byte")

# %% [markdown]
# Now compute the least time of a step with `rows` rows for each expert.
#
# **Guess** before you open the output: how much longer do 64 rows take than one?

# %% tags=["hide-output"]
G, N, K = 256, 4096, 7168
ELEMENT = {"bfloat16": 2, "float8": 1}  # bytes; the result is bfloat16


def step(rows, name):
    flops = 2 * G * rows * N * K
    moved = ELEMENT[name] * G * (rows * K + N * K) + 2 * G * rows * N
    return Step(rows, flops, moved, max(flops / peaks[name], moved / TB_S) / 1e6)


for rows in (1, 4, 16, 64, 256, 1024, 4096):
    one = step(rows, "bfloat16")
    longer = one.us / step(1, "bfloat16").us - 1
    print(
        f"{rows:4} rows: {one.flops / one.moved:6.1f} FLOP per byte, at least {one.us:6,.0f} µs, {longer:6.0%} longer"
    )


# %% [markdown]
# <details><summary>Answer</summary>
#
# 2 %. The weights have to be read in any case, and reading them takes the time.
#
# </details>
#
# The picture shows both limits: left the rate that they allow, right the least time. Labels name rows of the large
# dots, bfloat16. In float8 as many rows are one dot further right.

# %%
steps = {name: [step(2**i, name) for i in range(13)] for name in records}
rows_of = {"single256": 1, "decode256": 4}  # rows of the record with these experts: 1 and 4 rows for each
measured = {name: [(n, fastest_us(one, row)) for row, n in rows_of.items()] for name, one in records.items()}
draw.under_the_roof(steps, peaks, TB_S, measured)

# %% [markdown]
# The crosses are recorded times of our kernels. (They may be a little below the line: the bandwidth is that of a copy,
# and a copy also writes.)
#
# So there are two ways to shorten a step, and this lesson covers both:
#
# - read *fewer* weights: the weights of experts without rows are not needed;
# - read *smaller* weights: eight bits are half the bytes of sixteen.

# %% [markdown]
# ## Slots and a mask
#
# The packed layout of lesson 08 also has its `offs` on the device, so its launch can be recorded, too. The problem
# comes earlier. In a large system, rows arrive from many GPUs. In a packed matrix, the place of a group depends on the
# sizes of all groups before it. All senders would have to exchange their counts before they send the first row.
#
# The [masked layout](glossary.md#masked-layout) gives each group room of its own: `max_M` slots. The first
# `group_layout[g]` slots of group g are used.

# %%
sizes, max_M = [3, 0, 17, 1, 0, 5, 24, 2], 24
draw.packed_and_masked(sizes, max_M, group=5)

# %% [markdown]
# `group_layout` is a tensor on the device. (AITER, AMD's library, has this name for it. DeepGEMM, DeepSeek's library,
# calls the layout *masked*.) The sender writes it together with the rows. Shapes and addresses are the same in every
# step, so the recorded launch needs nothing else.
#
# How many slots are enough? A token never chooses the same expert twice, so `max_M` = number of tokens is always
# enough. In the next table each token chooses 8 of 256 experts:

# %%
print("tokens   rows   experts without rows   slots used   room for X   rows used   weights")
for tokens in (8, 32, 128):
    counts = testing.routed_sizes("uniform", 8 * tokens, G)
    room, used, weights = (2e-6 * K * count for count in (G * tokens, 8 * tokens, G * N))
    print(f"{tokens:6} {sum(counts):6} {counts.count(0):22} {used / room:12.1%}"
          f" {room:9,.0f} MB {used:8,.1f} MB {weights:6,.0f} MB")  # fmt: skip

# %% [markdown]
# Only 8 of every 256 slots are used, whatever the number of tokens. But unused slots cost only memory, not time: no
# kernel has to read them. A few hundred MB are acceptable. With thousands of tokens, as in training, pack the rows.
#
# ## Try the obvious: multiply every slot
#
# `torch.bmm` takes groups of equal size, and with slots all groups have equal size:

# %%
width, depth = 64, 64  # small, for a CPU
x = testing.integers((8, max_M, depth), torch.float16, 1, device=device)
w = testing.integers((8, width, depth), torch.float16, 2, device=device)
for g, size in enumerate(sizes):
    x[g, size:] = float("nan")  # what an earlier step left in the slot: anything

product = torch.bmm(x, w.mT)
want = reference.grouped_mm(x.nan_to_num(0), w.mT, out_dtype=torch.float16)
used = [torch.equal(product[g, :size], want[g, :size]) for g, size in enumerate(sizes)]
print("right in every group's rows:", all(used))
print(f"rows computed: {product.shape[0] * product.shape[1]}, needed: {sum(sizes)}")

# %% [markdown]
# The result is right. A row of the product depends only on its own row of `x`, so garbage stays in the unused slots.
# Next, the cost of this at the size of the real layer: 32 tokens, 256 rows, tiles of 16 rows.


# %%
def cost(layout, rows_computed, groups_read, N=4096, K=7168):
    """What is needed and what is spent: FLOP, MB of weights, MB of rows."""
    needed = sum(layout)
    filled = len(layout) - layout.count(0)
    return {
        "GFLOP": Work(2e-9 * needed * N * K, 2e-9 * rows_computed * N * K),
        "MB of weights": Work(2e-6 * filled * N * K, 2e-6 * groups_read * N * K),
        "MB of rows": Work(2e-6 * needed * K, 2e-6 * rows_computed * K),
    }


step_sizes, tile_rows = testing.routed_sizes("uniform", 256, G), 16
in_tiles = sum(triton.cdiv(size, tile_rows) * tile_rows for size in step_sizes)
ways = {
    "bmm over 32 slots": cost(step_sizes, rows_computed=32 * G, groups_read=G),
    "tiles of used rows": cost(step_sizes, rows_computed=in_tiles, groups_read=G - step_sizes.count(0)),
}
draw.waste(ways, {"GFLOP": "{:,.0f}", "MB of weights": "{:,.0f}", "MB of rows": "{:,.0f}"})

# %% [markdown]
# The wasted FLOPs look bad but cost little, because the tensor cores are idle most of the time. The wasted *weights*
# matter. `bmm` also reads the weights of experts without rows: more than a third of all bytes.
#
# ## The smallest kernel
#
# It is lesson 08's kernel with another place for each row. `find_tile` counts the [tile rows](glossary.md#tile-row) of
# each group from `group_layout`, and finds the group of a tile by comparing. A group without rows has no tile, so its
# weights are never read.


# %%
@triton.jit
def find_tile(group_layout, G, tile, tiles_n, BLOCK_M: tl.constexpr, GROUPS: tl.constexpr):
    """Group and first row of a tile, and the number of all tiles."""
    groups = tl.arange(0, GROUPS)
    rows = tl.load(group_layout + groups, mask=groups < G, other=0)
    tile_row_ends = tl.cumsum(tl.cdiv(rows, BLOCK_M), 0)
    passed = tile_row_ends <= tile // tiles_n
    tile_row = tile // tiles_n - tl.max(tl.where(passed, tile_row_ends, 0), 0)
    return tl.sum(passed.to(tl.int32), 0), tile_row * BLOCK_M, tl.max(tile_row_ends, 0) * tiles_n


# %%
@triton.jit
def masked_kernel(
    x, w, y, group_layout, G, max_M, N, K,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUPS: tl.constexpr,
):  # fmt: skip
    tiles_n = tl.cdiv(N, BLOCK_N)
    _, _, tiles = find_tile(group_layout, G, 0, tiles_n, BLOCK_M, GROUPS)
    for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0)):
        g, row, _ = find_tile(group_layout, G, tile, tiles_n, BLOCK_M, GROUPS)
        col = tile % tiles_n * BLOCK_N
        acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        for k in range(0, K, BLOCK_K):
            block_x = x.load([g, row, k]).reshape(BLOCK_M, BLOCK_K)
            block_w = w.load([g, col, k]).reshape(BLOCK_N, BLOCK_K)
            acc = tl.dot(block_x, block_w.T, acc)
        rows, cols = row + tl.arange(0, BLOCK_M)[:, None], col + tl.arange(0, BLOCK_N)[None, :]
        inside = (rows < tl.load(group_layout + g)) & (cols < N)
        place = (g.to(tl.int64) * max_M + rows) * N + cols
        tl.store(y + place, acc.to(tl.float16), mask=inside)


# %% [markdown]
# A row is at `g * max_M + row`. This does not depend on the groups before.
#
# We fill the result with a [canary](glossary.md#canary), a number that no product equals, and launch. On a GPU the
# launch goes into a CUDA graph. A CPU has no graphs, so there the same call is repeated.

# %%
CANARY = -77.0
y = torch.full((8, max_M, width), CANARY, dtype=torch.float16, device=device)
group_layout = torch.tensor(sizes, dtype=torch.int32, device=device)
blocks = TensorDescriptor.from_tensor(x, [1, 16, 32]), TensorDescriptor.from_tensor(w, [1, 32, 32])


def launch():
    masked_kernel[(4,)](*blocks, y, group_layout, 8, max_M, width, depth, BLOCK_M=16, BLOCK_N=32, BLOCK_K=32, GROUPS=8)


def as_graph(launch):
    """A function that replays the launch from a CUDA graph; without a GPU, the launch itself."""
    launch()  # compiles the kernel
    if not runtime.has_gpu():
        return launch
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launch()
    return graph.replay


# %% [markdown]
# We run two steps. Between them only numbers on the device change: the rows in their slots, and `group_layout`.

# %%
replay = as_graph(launch)
runs = {}
for name, now in {"one step": sizes, "the next step, same launch": [0, 20, 2, 0, 7, 16, 1, 0]}.items():
    x.copy_(testing.integers(x.shape, torch.float16, len(runs), device=device))
    for g, size in enumerate(now):
        x[g, size:] = float("nan")
    group_layout.copy_(torch.tensor(now))
    y.fill_(CANARY)
    replay()
    want = reference.grouped_mm(x.nan_to_num(0), w.mT, out_dtype=torch.float16)
    runs[name] = (y.clone(), want, now)
draw.written_rows(runs, CANARY)

# %% [markdown]
# Every used row is right, and every other slot keeps its canary.
#
# ## What goes wrong: a count that is too large
#
# Nothing checks the counts on the device. Suppose that an earlier kernel has a bug and counts 25 rows in the 24 slots
# of group 6. Group 7 has no rows.
#
# **Guess:** how many rows of the result are wrong, and where are they?

# %% tags=["hide-output"]
too_many = [3, 0, 17, 1, 0, 5, 25, 0]
group_layout.copy_(torch.tensor(too_many))
y.fill_(CANARY)
masked_kernel[(1,)](*blocks, y, group_layout, 8, max_M, width, depth, BLOCK_M=16, BLOCK_N=32, BLOCK_K=32, GROUPS=8)
neighbour = y[7, 0].ne(CANARY)
print(f"group 7 has no rows, and {int(neighbour.sum())} of {width} elements of its slot 0 were written:")
print("all of them are", float(y[7, 0, 0]))

# %% [markdown]
# <details><summary>Answer</summary>
#
# One, in another group: the 25th row of group 6 is slot 0 of group 7.
#
# </details>
#
# The load was harmless. The descriptor has three dimensions, so it gives zeros past slot 23. But the store computes its
# own address, and it wrote those zeros over the neighbour. In the last group it would have written past the tensor.
#
# `deepgemm` is the library's masked product. (AITER has this name for it. It is not DeepSeek's library DeepGEMM.) It
# uses at most `max_M` rows of each group. With `check=True` it reports a bad count. (The host does not know the sizes.
# So `deepgemm` takes the average size as `expected_m=` and chooses its tiles from that. A recorded launch keeps these
# tiles. If the load changes, the result stays right, but another tile may be faster.)

# %%
y.fill_(CANARY)
deepgemm(x, w, y, group_layout)
print("slots of group 7 untouched:", bool((y[7] == CANARY).all()))
try:
    deepgemm(x, w, y, group_layout, check=True)
except ValueError as error:
    print(error)

# %% [markdown]
# A check waits for the device, so a CUDA graph cannot hold it. Use it while you develop, and leave it out of the loop.
#
# ## What the compiler made of it
#
# The instruction `wgmma` of lesson 06 multiplies at least 64 rows.
#
# **Guess:** what does the compiler do with tiles of 16 rows?

# %% tags=["hide-output"]
builds = {rows: codegen.build("masked", dtype="bfloat16", config=GemmConfig(rows, 128, 64)) for rows in (16, 64)}
for rows, one in zip(builds, codegen.compile_many((each, "sm_90") for each in builds.values())):
    multiply = next(what for what in ("wgmma", "mma.sync") if one.instructions[what])
    print(f"tiles of {rows} rows multiply with {multiply}")

# %% [markdown]
# <details><summary>Answer</summary>
#
# It uses `mma.sync`, an older and slower instruction.
#
# </details>
#
# That does not matter as long as memory is the limit. (Our CuTe kernel of lesson 10 does the opposite: its tiles have
# 64 rows, most of which stay empty, and it uses `wgmma`. In bfloat16 the two are close to each other, in
# float8 the CuTe kernel is faster: the record is at the end of this lesson.)
#
# ## Half the bytes: FP8
#
# `float8_e4m3fn` is the usual [FP8](glossary.md#FP8) type. It has one bit of sign, 4 of exponent and 3 of mantissa. The
# picture shows all of its positive numbers, and how much a number loses when it is rounded to one of them:

# %%
fp8.number_line(example=13.0)

# %% [markdown]
# Tensor cores have to support it. Hopper's do (compute capability 9.0, `sm_90`), and Ada's, too (8.9). For an Ampere
# GPU (8.0), the compiler refuses:

# %% tags=["nbval-ignore-output"]
try:
    codegen.compile_kernel("round_robin", "sm_80", dtype="float8_e4m3fn")
except codegen.CompileError as error:
    print(str(error).splitlines()[-1])

# %%
for name, target in codegen.TARGETS.items():
    if target.backend == "cuda":
        supported = target.capability >= runtime.FP8_CAPABILITY
        print(f"{name:7} {target.gpus:16} float8_e4m3fn: {'yes' if supported else 'no'}")

# %% [markdown]
# (AMD's GPUs have FP8, too, partly in another format. The course supports the other dtypes there.) Triton's interpreter
# computes FP8 on any machine. On a GPU without it, convert to float16: that has every number that `float8_e4m3fn` has,
# so the result is the same, and only speed is lost.
#
# Back to the picture. In the middle, a number loses at most 1/16, whether it is 0.02 or 400. Smaller numbers lose more,
# and below 2⁻¹⁰ they become 0; larger ones become 448. So the numbers should be in the middle part, from 2⁻⁶ to 448: a
# factor of 28,672. To get them there, divide by a [scale](glossary.md#scale) before rounding, and multiply by it later.
#
# How many numbers share one scale? Here are four answers for 24 rows of three experts. Where the colour changes,
# another scale begins:

# %%
thirds = [8, 8, 8]
fp8.scale_shapes(24, thirds, 512)

# %% [markdown]
# More scales cost little: one scale adds four bytes to 128. What do they gain? In language models, a few activations
# are up to 100,000 times as large as the others ("massive activations"). They are in few tokens and few columns. Our
# example has one of them, and two other problems:

# %%
acts = torch.randn(24, 512, generator=torch.Generator().manual_seed(12), dtype=torch.float64)
acts[:8] /= 256  # group 0: quiet tokens
acts[:, 77] *= 60  # a column that is large in every row
acts[11, 300] = 100_000 * acts[8:].abs().median()  # one massive activation, in group 1
largest = {
    "one scale": acts.abs().max(),
    "a scale per group": torch.cat([rows.abs().max().expand(8, 1) for rows in acts.split(thirds)]),
    "a scale per row": acts.abs().amax(1, keepdim=True),
    "a scale per 1 × 128 block": acts.view(24, 4, 128).abs().amax(2).repeat_interleave(128, 1),
}

# %% [markdown]
# Each scale maps the largest of its numbers to 448.
#
# **Guess:** in which rows is most lost, under each of the four?


# %% tags=["hide-output"]
def stored(x, largest):
    """x, divided by scales that map `largest` to 448, rounded to float8, and multiplied again."""
    scale = largest / 448
    return (x / scale).clamp(-448, 448).float().to(torch.float8_e4m3fn).double() * scale


attempts = {name: stored(acts, top) for name, top in largest.items()}
fp8.lost(acts, attempts, thirds)

# %% [markdown]
# <details><summary>Answer</summary>
#
# - **One scale:** the massive activation becomes 448, and all others become tiny. The quiet group is lost.
# - **A scale per group:** only group 1 suffers, but all of its rows do.
# - **A scale per row:** one token suffers.
# - **A scale per block of 1 × 128:** 127 numbers suffer.
#
# </details>
#
# Column 77 did no harm anywhere: 60 times larger is still in the middle part. Compare with 8-bit integers:

# %%
ordinary = acts[16:, 128:]
outliers = [10 ** (i / 4) for i in range(4, 28)]
errors = {"int8": [], "float8_e4m3fn": []}
for times in outliers:
    top = times * ordinary.abs().median()
    as_int8 = (ordinary / top * 127).round() * top / 127
    for name, kept in (("int8", as_int8), ("float8_e4m3fn", stored(ordinary, top))):
        errors[name].append(float((kept - ordinary).norm() / ordinary.norm()))
fp8.outlier_sweep(outliers, errors, {"100,000 times": 1e5})

# %% [markdown]
# Integers have equal steps, so the error grows with the outlier. A float8 number has its own exponent. Its error stays
# the same up to a factor of about 30,000. Beyond that, the small numbers lose more and more, and in the end become 0.
#
# What is the error of a product? We multiply each row with 256 columns of weights, which stay exact for now. The
# weights that meet the large numbers are small here. Otherwise the large numbers would hide the error of the others.

# %%
acts_weights = torch.randn(512, 256, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
acts_weights[77] /= 60
acts_weights[300] /= 100_000
acts_product = acts @ acts_weights
print("error of a row of the product    median   worst   rows above 4 %")
for name, kept in {"bfloat16": acts.bfloat16().double(), **attempts}.items():
    error = (kept @ acts_weights - acts_product).norm(dim=1) / acts_product.norm(dim=1)
    print(f"{name:31} {error.median():8.1%} {error.max():7.1%} {int((error > 0.04).sum()):7} of {len(error)}")

# %% [markdown]
# Even with the best scales, float8 loses more than ten times as much as bfloat16, because it has three bits of
# mantissa, and bfloat16 has seven. Scales decide how many rows lose more than that, and how much. (The long sum does
# not average the rounding away. Of n terms, the errors partly cancel, and grow as √n. But random terms cancel, too, and
# their sum also grows as √n. So the ratio stays.)
#
# ## Where does the scale go?
#
# Let q and r be the stored numbers of X and W, and s and t their scales. One scale per row of X and one per column of W
# is the simple case. Both are constant along K. So the kernel can multiply once, in its
# [epilogue](glossary.md#epilogue):
#
# $$y_{mn} = s_m\,t_n \sum_k q_{mk}\,r_{kn}$$
#
# Scales of blocks change *inside* the sum. So each block of K has to be summed on its own, and scaled:
#
# $$y_{mn} = \sum_b s_{mb}\,t_{bn} \sum_{k \in b} q_{mk}\,r_{kn}$$
#
# This costs one multiplication and one addition for each element and block, outside of the tensor cores: on the SM's
# ordinary units for float32. But there is another reason to sum in blocks.
#
# ## Sums of few bits
#
# Hopper's tensor cores add FP8 products with about 14 bits, not with the 24 bits of float32. DeepSeek's engineers found
# this. Such an adder takes the largest of the numbers, the sum so far included. It cuts all other numbers where the 14
# bits of the largest one end. Then it adds:


# %%
def add_aligned(acc, products, bits=14):
    """A sum and new products of each row: all are cut at the last of `bits` bits of the largest, then added."""
    numbers = torch.cat([acc[:, None], products], dim=1)
    largest = numbers.abs().amax(1, keepdim=True)
    unit = largest / torch.frexp(largest).mantissa / 2**bits
    return ((numbers / unit).trunc() * unit).sum(1)


ones = torch.ones(1, 32)
print("10000 + 32 × 1 =", int(add_aligned(torch.tensor([10000.0]), ones)))
print("16384 + 32 × 1 =", int(add_aligned(torch.tensor([16384.0]), ones)))

# %% [markdown]
# In a large sum, small products are lost. The remedy is to sum in two levels. After every 128 products, the ordinary
# units add the tensor cores' sum to a total in float32, and the tensor cores start again at zero.


# %%
def add_up(products, apart):
    """Sums of rows: 32 products an instruction; after every `apart` products float32 takes over."""
    total = torch.zeros(len(products))
    for block in products.split(apart, dim=1):
        acc = torch.zeros(len(products), dtype=torch.float64)
        for part in block.split(32, dim=1):
            acc = add_aligned(acc, part)
        total += acc.float()
    return total.double()


def positive(rows, depth, seed):
    """Random numbers from 0.5 to 1.5 in eight bits."""
    random = torch.rand(rows, depth, generator=torch.Generator().manual_seed(seed)) + 0.5
    return random.to(torch.float8_e4m3fn).double()


# %% [markdown]
# Does this model describe the hardware? An H200 added 7168 positive products, by torch with `use_fast_accum=True` (one
# sum) and by our kernel (two levels):

# %%
losses = records["float8"]["losses"]
depths = [128, 512, 2048, 7168, 16384]
ways = {"one sum": [], "float32 takes over\nafter every 128": []}
for depth in depths:
    products = positive(64, depth, seed=1) * positive(64, depth, seed=2)
    for way, apart in zip(ways.values(), (depth, 128)):
        way.append(-float((add_up(products, apart) / products.sum(1) - 1).mean()))
for way, name in zip(ways.values(), ("torch-fast", "cute")):
    label = records["float8"]["providers"][name]["label"]
    print(f"{label}: {-losses[name]['mean']:.2%} too small on the H200, {way[3]:.2%} by the model")

# %%
on_the_gpu = [(7168, -losses[name]["mean"]) for name in ("torch-fast", "cute")]
fp8.accumulators(depths, ways, on_the_gpu)

# %% [markdown]
# For one sum, model and H200 agree to all digits shown: about a seventh of the sum is lost. With two levels, the model
# and the H200 both lose about 0.01 %. (Sums of positive and negative numbers lose far less, because they do not grow as
# much.) Our kernels always use two levels.
#
# A kernel that takes over the sum after every 128 products can multiply by a scale at the same time. This is a whole
# tile of 16 rows and 128 columns with block scales:


# %%
@triton.jit
def block_scaled_tile(x, w, y, x_scale, w_scale, BLOCKS: tl.constexpr, BLOCK: tl.constexpr):
    rows, cols = tl.arange(0, 16)[:, None], tl.arange(0, BLOCK)
    acc = tl.zeros((16, BLOCK), tl.float32)
    for b in range(BLOCKS):
        k = b * BLOCK + tl.arange(0, BLOCK)[None, :]
        block_x = tl.load(x + rows * (BLOCKS * BLOCK) + k)
        block_w = tl.load(w + cols[:, None] * (BLOCKS * BLOCK) + k)
        block = tl.dot(block_x, block_w.T)  # tensor cores, from zero
        acc += block * tl.load(x_scale + rows * BLOCKS + b) * tl.load(w_scale + b)  # float32
    tl.store(y + rows * BLOCK + cols[None, :], acc)


# %% [markdown]
# ## All of it in one call
#
# Now `deepgemm` multiplies the same rows, in slots, 8 of 16 used. The weights have eight bits, too. First we use one
# scale for each row and each column, computed by hand. Then we use blocks, 1 × 128 of X and 128 × 128 of W, by the
# library's quantisers. `deepgemm` tells the two apart by the shapes of the scales. (GPUs older than Ada (RTX 40) and
# Hopper cannot multiply FP8. There pass `backend="torch"`.)
#
# The weights are quantised once, when the model is loaded. X is quantised in every step. That takes a launch, which
# reads and writes X once: little beside the weights.

# %%
backend = "auto" if runtime.supports_fp8(device) else "torch"
slots = torch.zeros(3, 16, 512, device=device)
slots[:, :8] = acts.view(3, 8, 512).to(slots)
all_w = torch.randn(3, 256, 512, generator=torch.Generator().manual_seed(1)).to(device)
all_w[:, :, 77] /= 60
all_w[:, :, 300] /= 100_000
all_layout = torch.tensor(thirds, device=device)
all_y = torch.empty(3, 16, 256, device=device)
all_exact = torch.bmm(slots.double(), all_w.double().mT)[:, :8]


# %%
def quantize_lines(matrix):
    """float8 numbers, and a float32 scale for each line."""
    scale = matrix.abs().amax(-1).clamp(min=1e-12) / 448
    return (matrix / scale[..., None]).to(torch.float8_e4m3fn), scale


print("          scales of X   scales of W   error of a row: median   worst")
by_lines = quantize_lines(slots), quantize_lines(all_w)
by_blocks = quantize_1x128(slots, backend=backend), quantize_128x128(all_w, backend=backend)
for name, ((xq, x_scale), (wq, w_scale)) in {"lines": by_lines, "blocks": by_blocks}.items():
    deepgemm(xq, wq, all_y, all_layout, x_scale, w_scale, backend=backend)
    error = (all_y[:, :8] - all_exact).norm(dim=-1) / all_exact.norm(dim=-1)
    shapes = f"{tuple(x_scale.shape)!s:13} {tuple(w_scale.shape)!s:13}"
    print(f"{name:9} {shapes} {error.median():22.1%} {error.max():7.1%}")

# %% [markdown]
# Compare with the small kernel: group 0, its first 128 columns. (We pass the numbers as float16, which contains every
# FP8 number and which all GPUs multiply.)

# %%
one_tile = torch.empty(16, 128, device=device)
scales = x_scale[0].contiguous(), w_scale[0, 0].contiguous()
block_scaled_tile[(1,)](xq[0].half(), wq[0, :128].half(), one_tile, *scales, BLOCKS=4, BLOCK=128)


def same(a, b):
    """Up to the order and the bits in which tensor cores add."""
    return bool((a - b).norm() < 1e-3 * b.norm())


print("the same:", same(one_tile[:8], all_y[0, :8, :128]))

# %% [markdown]
# Packed rows can have the same two kinds of scales, with torch's names in `scaled_grouped_mm`. The same blocks, packed,
# give the same product:

# %%
ONE, SQUARE = torch.nn.functional.ScalingType.BlockWise1x128, torch.nn.functional.ScalingType.BlockWise128x128
ends = all_layout.cumsum(0).int()
packed_x, packed_scale = quantize_1x128(acts.float().to(device), backend=backend)
packed = scaled_grouped_mm(
    packed_x, wq.mT, packed_scale, ONE, w_scale.mT, SQUARE, offs=ends, output_dtype=torch.float32, backend=backend
)
print("the same:", same(packed.view(3, 8, 256), all_y[:, :8]))

# %% [markdown]
# ## The production kernel
#
# `masked_kernel` has your loop over tiles; `compute_tile` is the rest. Beyond yours, they accept any strides, shuffled
# weights (`load_shuffled`) and both kinds of scales. The store ends with the group by a descriptor (lesson 08). The
# loop over tiles is fused with the loop over K (`flatten`). `add_scaled` is the block-scaled step: it multiplies one
# block, scales it, and adds it in float32. All Triton kernels of the library with block scales call it. For Hopper
# there is the CuTe kernel of lesson 10 as well, with the same two levels.

# %%
display(*map(fold, (masked.masked_kernel, masked.compute_tile, common.add_scaled)))

# %% [markdown]
# ## What it costs
#
# First the prediction of the first section: the same steps in sixteen and in eight bits.

# %%
for row in ("single256", "decode256", "decode32"):
    sixteen, eight = (fastest_us(one, row) for one in records.values())
    title = title_of(records["float8"]["rows"][row])
    print(f"{title:51} {sixteen:6,.0f} µs → {eight:6,.0f} µs: {sixteen / eight:.2f} times as fast")

# %% [markdown]
# Now the masked product, in shapes of decoding that DeepGEMM uses: 32 groups of about 20 rows, in 256 slots each. We
# compare with `bmm` over all slots, and with torch's grouped products of packed rows. (Their time does not include the
# packing. In the second panel X has a scale for each row, and W one for each group.) The line is the bandwidth of a
# copy. Half of a copy's traffic is writes. This product mostly reads, which can be a little faster.

# %%
results = record.load("masked")
draw.masked_rates(results, rows=20, unit="tb_s")

# %% [markdown]
# How close does the faster of our two kernels come to the copy? A part of the gap comes from the benchmark. It
# overwrites the L2 cache before each call (lesson 15), and the call pays for writing that back to memory. The record
# has the same calls with a *clean* cache, too: after the overwriting, other memory is read.

# %%
shares = {"as measured": shares_of_a_copy(results, rows=20)}
shares["with a clean cache"] = shares_of_a_copy(results, rows=20, clean=True)
for name, by_kind in shares.items():
    ranges = [f"{kind} {min(each):.0%} to {max(each):.0%}" for kind, each in by_kind.items()]
    mean = statistics.geometric_mean(share for each in by_kind.values() for share in each)
    print(f"{name:18} {', '.join(ranges)}; on average {mean:.0%}")

# %% [markdown]
# How much does FP8 save of a step?

# %%
for cell in results["cells"].values():
    if cell["rows"] == 20:
        by_kind = cell["speedup_over_bfloat16"]
        print(f"{cell['groups']} groups of about {cell['rows']} rows, N {cell['N']}, K {cell['K']}: float8 "
              f"{by_kind['float8']:.2f} times as fast as bfloat16, blocks {by_kind['float8 blocks']:.2f}")  # fmt: skip

# %% [markdown]
# With many rows, arithmetic is the limit. Then block scales have to be applied while the tensor cores work. These are
# the shapes that DeepGEMM publishes:

# %%
scaled = record.load("block_scaled")
fp8.block_rates(scaled)

# %%
ratios = []
for row in scaled["rows"].values():
    by_rows = [rate for name, rate in row["rate"].items() if name.startswith("row-wise cute")]
    ratios += [max(by_rows) / row["rate"]["cute"]] if by_rows else []
print(
    f"with scales of blocks a product takes {min(ratios):.2f} to {max(ratios):.2f} times as long as with those of rows"
)

# %% [markdown]
# Block scales (dark blue) cost almost nothing beside scales of rows and columns (orange). The CuTe kernel reads the
# scales one block ahead, and its warps do not sleep while they wait for the next block. DeepGEMM is not in this record.
# It was in another run, of which [notes](../benchmarks/notes/fp8.md) were kept: there our kernel came close to its
# rate. (The dense product adds in one sum, without the second level. It may be a little above the limit of the first
# section, which was measured on other shapes.)
#
# ## Try it
#
# [Exercise 12a](../exercises/12a_scaled_epilogue.ipynb): the scaled epilogue. [Exercise
# 12b](../exercises/12b_undo_shuffle.ipynb): undo a shuffle. Or change a cell and run it again:
#
# 1. How many rows does `masked_kernel` compute for `[3, 0, 17, 1, 0, 5, 24, 2]`, and how many with `BLOCK_M=64`?
#    <details><summary>Answer</summary>Eight tile rows of 16 rows: 128 rows, and 52 are needed. With 64, six tile rows:
#    384 rows.</details>
# 2. Launch `masked_kernel` with 100 programs in place of 4. What do most of them do?
#    <details><summary>Answer</summary>Nothing, because there are 16 tiles. They count the tiles, find that their number
#    is too large, and end. The result is the same.</details>
# 3. Repair `find_tile` and the mask of the store, so that a count is at most `max_M`.
#    <details><summary>Answer</summary><code>rows = tl.minimum(tl.load(...), max_M)</code> in <code>find_tile</code>,
#    which needs <code>max_M</code> as an argument, and <code>rows &lt; max_M</code> in <code>inside</code>.</details>
# 4. Make the massive activation 1,000 times the median. Which of the four scales is still too coarse?
#    <details><summary>Answer</summary>Only the one scale for all: it still loses half of the quiet group. A factor of
#    1,000 fits in the middle part, so within a group only the usual 2 % are lost.</details>
# 5. Let float32 take over after every 32 products, or every 512: `add_up(products, 32)`. What is gained, and what does
#    it cost?
#    <details><summary>Answer</summary>With 32 nothing is lost here: the sums stay small enough for 14 bits. With 512 it
#    is about 0.4 %. Each take-over costs one addition for every number of the tile, on the ordinary units.</details>

# %% [markdown]
# ## Appendix: shuffled weights
#
# You can skip this, unless you serve on AMD's GPUs. Exercise 12b undoes a shuffle.
#
# A decoding step mostly reads weights, so their order in memory matters. The threads of a warp are its
# [lanes](glossary.md#lane); a warp of an AMD GPU has 64. A lane loads 16 bytes at a time. A matrix instruction needs 16
# rows of W at once, and in plain memory these rows are far apart. Weights do not change while a model serves. So AMD's
# library AITER reorders them once, when the model is loaded: **shuffled weights**. We number the pieces of 16 bytes of
# a small weight, and use `unshuffle_weight` to see the order:

# %%
number = (torch.arange(32 * 64) // 8).half().view(32, 64)  # the number of each 16 bytes, in memory order
place = unshuffle_weight(number)[:, ::8].flatten()  # for each 16 bytes of the matrix: the number that it has
shuffled.lanes_of_a_load(place.argsort().tolist(), lines=32, lanes=64)

# %% [markdown]
# On the right, a line is 256 bytes of memory, as much as two rows of the weight. A colour is one column of pieces.
#
# One load of 64 lanes takes 16 rows × 64 bytes. In a real weight of 7168 columns, these 16 pieces are 14 KB apart.
# Shuffled, they are one piece of 1 KB, in the order of the lanes.
#
# NVIDIA's GPUs do not need this: their [TMA](glossary.md#TMA) reorders a block while it copies. There, shuffled weights
# pass through registers, and a masked product takes twice as long with 20 rows, and three to six times with 192 and
# more (recorded on an H200). Keep plain weights on such a GPU.
#
# The product is the same:

# %%
few_x = testing.integers((8, 16, 64), torch.bfloat16, 1, device=device)
few_w = testing.integers((8, 32, 64), torch.bfloat16, 2, device=device)
few_layout = torch.tensor([3, 0, 16, 1, 0, 5, 9, 2], dtype=torch.int32, device=device)
plain, other = torch.zeros(2, 8, 16, 32, dtype=torch.bfloat16, device=device)

w_shuffled = shuffle_weight(few_w)
deepgemm(few_x, few_w, plain, few_layout)
deepgemm(few_x, w_shuffled, other, few_layout)
print("the same product:", torch.equal(plain, other))
print("and back:", torch.equal(unshuffle_weight(w_shuffled), few_w))

# %% [markdown]
# **What goes wrong: the wrong order.** A shuffled weight has the shape and the dtype of a plain one. Suppose a plain
# weight is taken for a shuffled one:

# %%
deepgemm(few_x, few_w, other, few_layout, shuffled=True)
wrong_share = (plain != other).float().mean() * plain.numel() / (few_layout.sum() * 32)
print(f"{wrong_share:.0%} of the numbers are wrong; no error")

# %% [markdown]
# So the order must not be lost. `shuffle_weight` returns a tensor that knows its order and refuses operations that
# would break it:

# %%
wrong = {
    "a product": lambda: few_x @ w_shuffled,
    "shuffled twice": lambda: shuffle_weight(w_shuffled),
    "half of the rows": lambda: w_shuffled[:, :16],
    "24 rows": lambda: shuffle_weight(few_w[:, :24]),
    "said to be plain": lambda: deepgemm(few_x, w_shuffled, other, few_layout, shuffled=False),
}
for name, call in wrong.items():
    try:
        call()
    except (TypeError, ValueError) as error:
        print(f"{name}: {error}")

# %% [markdown]
# ## Summary
#
# - A decoding step takes as long as reading its weights. Read fewer of them, and smaller ones.
# - In the masked layout, the place of a group does not depend on other groups. Unused slots cost memory, not time.
# - The kernel counts its tiles on the device. An expert without rows has no tile, so its weights are not read. One
#   recorded launch serves every step.
# - Float8 loses at most 1/16 of a number in its middle range. A scale moves numbers there. One large number spoils all
#   that share its scale.
# - Sums of 8-bit products need float32 after every 128 products. Block scales are applied at the same time.
#
# ## References
#
# - DeepSeek-AI, [DeepSeek-V3 technical report](https://arxiv.org/abs/2412.19437), 2024, section 3.3: scales of 1 × 128
#   and 128 × 128, the adder of 14 bits, and sums in two levels.
# - [DeepGEMM](https://github.com/deepseek-ai/DeepGEMM): the masked layout for decoding with CUDA graphs.
#   [DeepEP](https://github.com/deepseek-ai/DeepEP): its first version had senders that fill such slots.
# - Micikevicius et al., [FP8 formats for deep learning](https://arxiv.org/abs/2209.05433), 2022.
# - Sun et al., [Massive activations in large language models](https://arxiv.org/abs/2402.17762), 2024.
# - [AITER](https://github.com/ROCm/aiter), AMD's library: `deepgemm`, `shuffle_weight`.
# - Compared with, in the records: torch's `grouped_mm` and `scaled_grouped_mm`,
#   [QuACK](https://github.com/Dao-AILab/quack) (kernels in CuTe DSL), a loop of cuBLAS calls.
#
# ## What to read next
#
# Lesson 13 writes grouped products in Helion, a language above Triton. For the hardware side of FP8, section 3.3 of the
# DeepSeek-V3 report is the best source. Lesson 15 shows when to trust the benchmarks of this lesson.
