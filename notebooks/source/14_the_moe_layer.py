# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown]
# # 14 · The MoE layer
#
# The experts of a layer are two grouped products, and earlier lessons made these fast. But a model does not call a
# product. It calls a layer, and around the products the layer gathers rows, applies an activation and adds results.
# Where does its time go, and how much of it can be saved?
#
# **About 60 minutes. Afterwards you can**
#
# - count the bytes that each operation of a layer moves, and predict its time from them;
# - load rows by an index, and apply an activation in the epilogue of a product, in 30 lines of Triton;
# - add the results of a token's experts so that every run gives the same bits;
# - name what backward must keep, and what it can compute again;
# - run a model on the fused layer by changing one line, and say when fusing does not pay.
#
# You need: lessons [08](08_contiguous_offsets.ipynb) (packed groups) and [11](11_training.ipynb) (gradients).

# %%
import gemm_course  # import first: without a GPU, kernels then run in the interpreter

import copy
import random

import torch
import triton
import triton.language as tl
from IPython.display import display
from torch.nn.functional import grouped_mm, silu

from course_kernels import codegen, moe, moe_feed_forward, runtime
from course_kernels.bench import record
from course_kernels.kernels import gated, moe_few, moe_routing, moe_rows
from gemm_course.figures import f14_layer as figures
from gemm_course.lessons import l14_layer_bytes as layer_bytes, layer_records
from gemm_course.lessons.listing import fold

device = runtime.device()

# %% [markdown]
# ## The layer as it is
#
# Each token has chosen k [experts](glossary.md#expert). `index` (T, k) has their numbers, `weights` (T, k) says how
# much each counts. Here is the layer with torch's `grouped_mm`, in the way that transformers and others write it. Each
# expert has one weight for *gate* and *up*, (2 · I, H), and one for *down*, (H, I). The activation is
# [SwiGLU](glossary.md#SwiGLU): silu(gate) · up.


# %%
def plain_layer(x, gate_up, down, index, weights):
    (T, k), experts = index.shape, len(down)
    order = index.flatten().argsort(stable=True)  # all choices, sorted by expert
    back = order.argsort()
    sizes = torch.histc(index.flatten().float(), bins=experts, min=0, max=experts - 1)
    offs = sizes.cumsum(0, dtype=torch.int32)
    rows = x[order // k]
    gate, up = grouped_mm(rows, gate_up.mT, offs=offs).chunk(2, dim=1)
    result = grouped_mm(silu(gate) * up, down.mT, offs=offs)
    weighted = result * weights.flatten()[order][:, None]
    return weighted[back].view(T, k, -1).sum(1)


# %% [markdown]
# This is right, and short. Each line is one or several kernels. Between two kernels, all rows go to memory and come
# back.
#
# We count with the sizes of Qwen3-30B-A3B and 32,768 tokens. The tensors are on torch's `meta` device: they have a
# shape and no memory, so this works on a laptop.


# %%
def qwen3(T, k=8, H=2048, I=768, experts=128):
    options = {"device": "meta", "dtype": torch.bfloat16}
    x, gate_up, down, weights = (
        torch.empty(shape, requires_grad=True, **options)
        for shape in ((T, H), (experts, 2 * I, H), (experts, H, I), (T, k))
    )
    return x, gate_up, down, torch.empty(T, k, dtype=torch.int64, device="meta"), weights


done = layer_bytes.operations(plain_layer, *qwen3(32768))
print(f"{len(done)} operations, {sum(each.name == 'product' for each in done)} of them products")

# %% [markdown]
# **Guess** before you open the picture: which part of the bytes do the two products move? And which operation moves
# most?

# %% tags=["hide-output"]
figures.operations(done)

# %% [markdown]
# <details><summary>Answer</summary>
#
# The products move a third of the bytes. The first product moves most. But the four operations after the second
# product, which only bring rows into order and add them, move more than both products together.
#
# A dot marks what autograd keeps for backward. It keeps five of the large results: more about this below.
#
# </details>
#
# The products multiply while they move bytes. All the others do nearly nothing but move them. So a first prediction of
# an operation's time is simple. It takes as long as its bytes take at the speed of a copy. A product takes as long as
# its multiplications, if that is longer. And no kernel starts sooner than a few microseconds after the one before it.
# All three numbers are in the records of an H200:

# %%
products = record.load("grouped_mm")
copy_rate = products["copy_tb_s"] * 1e12  # bytes a second
multiply_rate = products["rows"]["zipf128-up"]["rate"]["forward"]["dense"] * 1e12  # of cuBLAS, one large product
started = record.load("launches")["one launch per problem, CUDA graph"]["tiles"]
launch = (started[-1][3] - started[0][3]) * 1e-9 / started[-1][0]  # from one launch to the next, in a CUDA graph
print(f"{copy_rate / 1e12:.2f} TB/s, {multiply_rate / 1e12:.0f} TFLOP/s, {launch * 1e6:.1f} µs a launch")


def seconds(moved, flops=0):
    return max(moved / copy_rate, flops / multiply_rate, launch)


# %%
def product_flops(T, k=8, H=2048, I=768):
    return [2 * T * k * H * 2 * I, 2 * T * k * I * H]  # the first product, the second one


def plain_ms(T):
    flops = iter(product_flops(T))
    done = layer_bytes.operations(plain_layer, *qwen3(T))
    return [1e3 * seconds(each.moved, next(flops) if each.name == "product" else 0) for each in done]


in_products = sum(1e3 * seconds(0, flops) for flops in product_flops(32768))
print(f"predicted: {sum(plain_ms(32768)):.1f} ms for the layer, {in_products:.1f} ms of it in the products")

# %% [markdown]
# Outside of the products the tensor cores wait, and faster products do not help there. The prediction is nearly the
# least time that the layer can take. (Nearly: its rates are measured, and no bounds.)
#
# ## One fusion at a time
#
# We fuse step by step, and count after each. The table starts with the fifteen operations in six parts:

# %%
T, k, H, I, E = 32768, 8, 2048, 768, 128
names = ["routing"] * 6 + ["gather", "product 1", "activation", "activation", "product 2"] + ["combine"] * 4
parts = dict.fromkeys(names, 0)
for name, operation in zip(names, done, strict=True):
    parts[name] += operation.moved
plans = {"fifteen operations": parts}
rows = 2 * T * k  # bytes of a column of all rows, in bfloat16
w1 = 2 * E * 2 * I * H  # bytes of the first weights


def saved(before, after):
    less = sum(before.values()) - sum(after.values())
    print(f"saved: {less / 1e9:.2f} GB, at the speed of a copy {1e3 * less / copy_rate:.2f} ms")


# %% [markdown]
# ### Gather in the load
#
# `rows = x[order // k]` writes k copies of each token, and the product reads them. But the product could read each row
# from where it is. Its loop needs row numbers only, so it loads an index, and computes pointers with it.
#
# Lesson 06 replaced pointers by descriptors. A descriptor cannot do this: it describes rows at *equal* distances. (On
# Blackwell there is a gather for TMA. Hopper has none.) So the loads are pointers again, and each thread copies 16
# bytes to [shared memory](glossary.md#shared-memory) with `cp.async`.
#
# **Guess:** how many gigabytes does this save? A row of `x` has 4 KB, and there are 262,144 rows.

# %% tags=["hide-output"]
gathered_plan = parts | {"gather": 0}
plans["gather in the load"] = gathered_plan
saved(parts, gathered_plan)

# %% [markdown]
# <details><summary>Answer</summary>
#
# 2.15: all rows once read, and once written. The product still reads each row, now from `x`.
#
# </details>
#
# ### Activation in the epilogue
#
# After the loop, the sums of a tile are in registers. The product stores them, and two kernels load them again for
# `silu(gate) * up`. The [epilogue](glossary.md#epilogue) of the product can compute the activation in registers, if
# both halves are there: column c of the result needs column c of gate *and* column I + c. So one tile takes its columns
# from both halves of the weight.
#
# **Guess:** two kernels disappear. What else is saved?

# %% tags=["hide-output"]
activated_plan = gathered_plan | {"activation": 0, "product 1": rows * (H + I) + w1}
plans["activation in the epilogue"] = activated_plan
saved(gathered_plan, activated_plan)
print(f"{gathered_plan['activation'] / 1e9:.2f} GB by two kernels, {rows * I / 1e9:.2f} GB by the first product")

# %% [markdown]
# <details><summary>Answer</summary>
#
# The first product stores I columns in place of 2I, and nothing moves for the activation any more.
#
# </details>
#
# ### One kernel for the weighted sum
#
# The last four operations load the weights in the order of experts, multiply, bring the rows back into the order of
# tokens, and add. One kernel does it in one pass: for each token it loads its k rows *by index*, weights them, adds
# them in float32, and stores one row.
#
# **Guess:** which of the four operations does it cost as much as?

# %% tags=["hide-output"]
combined_plan = activated_plan | {"combine": rows * H + 2 * T * H}
plans["one combine"] = combined_plan
saved(activated_plan, combined_plan)

# %% [markdown]
# <details><summary>Answer</summary>
#
# As the last one, the sum: it reads all rows once, and writes one for each token. The multiplication and the new order
# cost nothing more.
#
# </details>
#
# ### Routing
#
# The sorting moves few bytes. But it is six launches before the first product can start. A counting sort is enough: a
# histogram of the ids, the ends of the experts from it, and each choice gets its place. With up to 2,048 choices this
# is one kernel, which compares all with all. With more it is a few short ones. We count them as one.
#
# **Guess:** which share of the bytes at the beginning is left?

# %% tags=["hide-output"]
plans["four kernels"] = combined_plan | {"routing": (8 + 3 * 4) * T * k}  # the ids, and three tables of int32
recorded = layer_records.rows_of("qwen3-30b-a3b")


def recorded_ms(T):  # the forward, with uniform routing: way → ms
    found = [row["us"] for row in recorded if (row["tokens"], row["routing"]) == (T, "uniform")]
    names = {"transformers": "fifteen operations", "ours": "four kernels", "products": "two products alone"}
    return {name: us[f"{way} forward"] / 1e3 for us in found for way, name in names.items() if f"{way} forward" in us}


figures.fusions(plans, recorded_ms(T))

# %% [markdown]
# <details><summary>Answer</summary>
#
# Less than two fifths. What remains is moved by the products, and by one pass over their results.
#
# </details>
#
# Two of the rows have a time, recorded on an H200, both as called: the fifteen operations as transformers runs them,
# and the library's layer. The steps between are no layers of a library, and were not timed.
#
# Nothing but the last pass can be left out without merging the two products. That would need all of an expert's I
# columns in one program, and its second weight as well: there is no room for them.
#
# (In training the first product also stores its sums before the activation, because backward needs them: 2I columns
# more for each row.)
#
# And the time? The products take as long as before, if their new loads and epilogues are hidden behind the
# multiplications:


# %%
def fused_ms(T, k=8, H=2048, I=768, E=128):
    rows, busy = 2 * T * k, min(E, T * k)  # at most this many experts have tokens
    moved = [rows * (H + I) + 4 * busy * I * H, rows * (I + H) + 2 * busy * H * I]
    times = [seconds(each, flops) for each, flops in zip(moved, product_flops(T, k, H, I))]
    return [1e3 * each for each in (seconds(20 * T * k), *times, seconds(rows * H + 2 * T * H))]


predicted = dict(zip(("fifteen operations", "four kernels"), (sum(plain_ms(T)), sum(fused_ms(T)))))
for name, ms in (predicted | {"two products alone": in_products}).items():
    measured = f"recorded {recorded_ms(T)[name]:.1f} ms" if name in recorded_ms(T) else "not recorded yet"
    print(f"{name:18} predicted {ms:4.1f} ms, {measured}")

# %% [markdown]
# The fifteen operations take nearly twice as long as predicted. First, the record's routing weights are float32, as a
# careful router gives them. So torch multiplies, orders and adds the results in float32, and these four operations move
# nearly twice the bytes. (The fused kernel reads the same weights, and nothing gets wider.) Second, torch's products of
# 128 experts are slower than one large product:

# %%
*operands, routed = qwen3(T)
wider = layer_bytes.operations(plain_layer, *operands, routed.float())
in_float32 = sum(plain_ms(T)) + 1e3 * sum(b.moved - a.moved for a, b in zip(done, wider, strict=True)) / copy_rate
rates = products["rows"]["zipf128-up"]["rate"]["forward"]  # of 128 experts
slower = in_products * (rates["dense"] / rates["torch"] - 1)
print(f"fifteen operations with float32 weights:         predicted {in_float32:.1f} ms")
print(f"the same, torch's products at their own rate:    predicted {in_float32 + slower:.1f} ms")

# %% [markdown]
# The rate is of experts with fewer rows than here, so it may be too low. The rest cannot be divided: the record has no
# times of single operations. The prediction lets each run at the speed of a copy.
#
# ## The smallest kernel
#
# This is the first of the two products, whole: the gathered load, and SwiGLU in the epilogue. `tokens` has the row of
# `x` for each row of the result. `ends` is the exclusive end of each expert's rows, as in lesson 08.
#
# - The host does not know how many rows an expert has. So the grid has programs for all rows, for each expert. A
#   program past its expert's end computes zeros and stores nothing.
# - Two accumulators, `gate` and `up`, share each block of `x`.


# %%
@triton.jit
def load_block(matrix, rows, there, depth, width):
    at = matrix + rows.to(tl.int64)[:, None] * width + depth[None, :]
    return tl.load(at, mask=there[:, None] & (depth < width)[None, :], other=0.0)


# %%
@triton.jit
def gathered_swiglu(x, w, out, tokens, ends, H, I, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    g = tl.program_id(0)
    start = tl.load(ends + g - 1, mask=g > 0, other=0)
    rows, end = start + tl.program_id(1) * BM + tl.arange(0, BM), tl.load(ends + g)
    token = tl.load(tokens + rows, mask=rows < end, other=0)
    cols = tl.program_id(2) * BN + tl.arange(0, BN)
    gate = tl.zeros((BM, BN), dtype=tl.float32)
    up = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(0, H, BK):
        depth = k + tl.arange(0, BK)
        a = load_block(x, token, rows < end, depth, H)
        gate = tl.dot(a, load_block(w, g * 2 * I + cols, cols < I, depth, H).T, gate)
        up = tl.dot(a, load_block(w, g * 2 * I + I + cols, cols < I, depth, H).T, up)
    act = gate * tl.sigmoid(gate) * up
    at = out + rows.to(tl.int64)[:, None] * I + cols[None, :]
    tl.store(at, act.to(out.dtype.element_ty), mask=(rows < end)[:, None] & (cols < I)[None, :])


# %% [markdown]
# A small layer to try it: 24 tokens, four experts of which each token chooses two. `moe.Routing` makes the tables.

# %%
torch.manual_seed(0)
x = torch.randn(24, 48).half().to(device)
gate_up, down = (torch.randn(4, n, depth).half().to(device) / depth**0.5 for n, depth in ((80, 48), (48, 40)))
scores = torch.randn(24, 4).softmax(1)
weights, index = (each.to(device) for each in scores.topk(2))
routing = moe.Routing.of(index, 4)
print("ends of the experts' rows:", routing.ends.tolist())
print("tokens of expert 0:", routing.tokens[: routing.ends[0]].tolist())

# %%
act = torch.full((48, 40), float("nan"), dtype=torch.float16, device=device)
grid = (4, triton.cdiv(48, 16), triton.cdiv(40, 32))
gathered_swiglu[grid](x, gate_up, act, routing.tokens, routing.ends, 48, 40, 16, 32, 16)

pre = torch.empty(48, 80, device=device)
for e, (start, end) in enumerate(zip([0, *routing.ends.tolist()], routing.ends.tolist())):
    pre[start:end] = x[routing.tokens[start:end].long()].float() @ gate_up[e].float().T
want = silu(pre[:, :40]) * pre[:, 40:]
print("largest error:", "under 0.002" if (act - want).abs().max() < 0.002 else "too large")

# %% [markdown]
# ### What the compiler made of it
#
# We compile it for an H200, with blocks of 64.
#
# **Guess:** which loads does it have: TMA's bulk copies, `cp.async`, or plain ones?

# %% tags=["hide-output"]
arguments = {"x": "*bf16", "w": "*bf16", "out": "*bf16", "tokens": "*i32", "ends": "*i32", "H": "i32", "I": "i32"}
blocks = {"BM": 64, "BN": 64, "BK": 64}
compiled = codegen.compile_kernel(
    gathered_swiglu, "sm_90", signature=arguments, constexprs=blocks, divisible_by_16=tuple(arguments)
)
print("multiplies with wgmma:", compiled.instructions["wgmma"] > 0)
print("copies by descriptor: ", compiled.instructions["bulk tensor load"] > 0)
print("bytes of a cp.async:  ", sorted(compiled.widths["cp.async"]))

# %% [markdown]
# <details><summary>Answer</summary>
#
# `cp.async`, 16 bytes each. The loads of the index are the only plain ones.
#
# </details>
#
# 16 bytes are the most that `cp.async` copies. The compiler uses them because it was told that H is a multiple of 16
# (`divisible_by_16`), as a launch tells it for such an H: then every row of `x` begins at a multiple of 16 bytes.
# Without that, every load has 2 bytes, and none is a `cp.async`. The tensor cores do not notice the gather: `wgmma`
# reads both operands from shared memory.
#
# The price is in the instructions. A descriptor needs one thread for a whole block, and these loads need all threads,
# with a pointer for each 16 bytes. This is why a fast Hopper kernel gives the gather to warps of its own.
#
# ## Who adds the results?
#
# A token has k rows in the result of the second product, in different tiles. The shortest way is an epilogue that adds
# them to `y` with [atomics](glossary.md#atomic-operation). Then there is no combine at all. But the order of additions
# is that in which tiles finish, and if `y` is bfloat16, each addition rounds.
#
# **Guess:** in 100 runs, how many different results has one element of `y`, if its token has eight experts?

# %% tags=["hide-output"]
results = torch.randn(8, generator=torch.Generator().manual_seed(1))
shuffled = random.Random(0)


def one_run(order, dtype):
    total = torch.zeros((), dtype=dtype)
    for each in order:
        total = (total + results[each]).to(dtype)
    return float(total)


orders = [shuffled.sample(range(8), 8) for _ in range(100)]
for dtype in (torch.bfloat16, torch.float32):
    found = {one_run(order, dtype) for order in orders}
    print(f"{dtype}: {len(found)} results in 100 runs, {max(found) - min(found):.0e} apart")

# %% [markdown]
# <details><summary>Answer</summary>
#
# About fifteen in either type, because different orders round differently. In bfloat16 they differ in the second digit,
# in float32 in the seventh.
#
# </details>
#
# So the library pays for one more pass. `combine` has one program for each block of `y`. It adds a token's rows in the
# order of its choices, in float32, and rounds once. In the plan above it moves about a fifth of all bytes. With atomics
# the product writes as many rows as before, and each addition is a read and a write in the [L2](glossary.md#L2) cache.
# Only the pass over them is saved.
#
# ## Backward: what must be kept
#
# Forward without gradients needs none of its intermediate results later. Training does. Autograd keeps what each
# operation asks for:

# %%
inside = {"262144 × 2048": "gathered rows, results", "262144 × 1536": "gate and up", "262144 × 768": "silu, activation"}
by_shape = layer_bytes.kept(plain_layer, *qwen3(32768))
torchs = {inside[shape]: size for shape, size in by_shape.items() if shape in inside}
print(f"kept by fifteen operations: {sum(torchs.values()) / T:,.0f} bytes a token")
print(f"2k · (2H + 4I):             {2 * k * (2 * H + 4 * I):,} bytes a token")

# %% [markdown]
# **Guess:** which of these can backward compute again from others, without a product?

# %% tags=["hide-output"]
needed = {"x": 2 * T * H, "gate and up (pre-activation)": rows * 2 * I}
figures.kept({"fifteen operations": torchs, "fused": needed})

# %% [markdown]
# <details><summary>Answer</summary>
#
# All but the pre-activation, gate and up. The gathered rows are rows of `x`. The activation follows from gate and up,
# element by element. And the results are not needed at all, as the next section shows.
#
# </details>
#
# This is the plan of SonicMoE (see the references). A token costs 2H + 4kI bytes: `x`, which the layer before often
# keeps anyway, and gate and up of its k rows. Let us see what the library keeps beside its arguments, in a small layer:

# %%
leaves = [each.clone().requires_grad_() for each in (x, gate_up, down, weights)]


def fused_layer(x, gate_up, down, weights, backend="triton"):
    return moe_feed_forward(x, gate_up, down, index, weights, backend=backend)


small = layer_bytes.kept(fused_layer, *leaves)
for name, size in small.items():
    print(f"{name:8} {size:6,} bytes")
print("2 bytes of 48 rows × 2 · 40 columns:", 2 * 48 * 80)

# %% [markdown]
# `48 × 80` is the pre-activation. The others are the tables of the routing, which are small.
#
# ### One product, three results
#
# Backward starts with `dy`. For a row r of expert e, with the routing weight s, the activation a, and W the transpose
# of `down[e]`, forward computed y += s · (a · W). So three gradients are needed:
#
# - of a: s · (dy · Wᵀ);
# - of W: (s · a)ᵀ · dy;
# - of s, for the router: the dot product of dy with a · W.
#
# The third one seems to need the result a · W, H numbers for each row. But dy · (a · W) = (dy · Wᵀ) · a. The first
# product of backward has dy · Wᵀ in its registers, and it recomputes a. So one epilogue gives what all three need:

# %%
figures.backward_epilogue()

# %% [markdown]
# The dot product runs over all I columns, and a tile has only some of them. So each tile stores the sum of its own
# columns, and the sums are added afterwards, in a fixed order. ([Exercise 14b](../exercises/14b_router_gradient.ipynb)
# computes this gradient in a kernel of its own.) Then there are dx (a product, and a combine with weights of 1) and the
# two weight gradients of lesson 11.
#
# Here are all gradients of the small layer, by the library's kernels, against autograd through a float32 layer in plain
# torch:


# %%
def exact_layer(x, gate_up, down, weights):
    every = torch.einsum("th,enh->etn", x, gate_up)  # each expert on each token
    result = torch.einsum("eti,ehi->teh", silu(every[..., :40]) * every[..., 40:], down)
    return (result * torch.zeros(24, 4, device=device).scatter(1, index, weights)[..., None]).sum(1)


mine = [each.detach().clone().requires_grad_() for each in leaves]
exact = [each.detach().float().requires_grad_() for each in leaves]
dy = torch.randn(24, 48, device=device).half()
fused_layer(*mine).backward(dy)
exact_layer(*exact).backward(dy.float())
for name, one, other in zip(("x", "gate_up", "down", "weights"), mine, exact):
    error = float((one.grad.float() - other.grad).abs().max() / other.grad.abs().max())
    print(f"gradient of {name:8} relative error {'under 0.002' if error < 0.002 else 'too large'}")

# %% [markdown]
# ## What goes wrong: an id that is not ours
#
# If experts are spread over several GPUs, a token may choose an expert that is elsewhere. Its id is then outside of [0,
# E). Frameworks give it the weight 0, so that it adds nothing. The library sorts its rows behind those of all experts.
# `grouped_mm` does not write these rows: they hold what the memory held before. We put NaN there, to see it.
#
# **Guess:** which tokens get NaN?


# %% tags=["hide-output"]
def layer_with_old_memory(x, gate_up, down, index, weights, memory):
    routing = moe.Routing.of(index, len(down))
    result = torch.full((index.numel(), x.shape[1]), memory, device=device)  # what torch.empty may return
    start = 0
    for e, end in enumerate(routing.ends.tolist()):
        gate, up = (x[routing.tokens[start:end].long()].float() @ gate_up[e].float().T).chunk(2, 1)
        result[start:end], start = (silu(gate) * up) @ down[e].float().T, end
    weighted = result * weights.flatten()[routing.choices.long()][:, None]
    return weighted[routing.choices.argsort()].view(*index.shape, -1).sum(1)


elsewhere, unused = index.clone(), weights.clone()
elsewhere[3, 1], unused[3, 1] = 9, 0.0
wrong = layer_with_old_memory(x, gate_up, down, elsewhere, unused, float("nan"))
fused = moe_feed_forward(x, gate_up, down, elsewhere, unused, backend="triton")
print("NaN in tokens:", wrong.isnan().any(1).nonzero().flatten().tolist())
print("fused layer:  ", fused.isnan().any(1).nonzero().flatten().tolist())

# %% [markdown]
# <details><summary>Answer</summary>
#
# Token 3: its weight is 0, but 0 × NaN is NaN.
#
# </details>
#
# Usually the old memory holds numbers, and nothing happens. One day it holds NaN or infinity, and the loss is NaN. A
# weight of zero is no mask. So the fused kernels do not read these rows: `combine` knows from its index that a choice
# has no row. ([Exercise 14a](../exercises/14a_gathered_load.ipynb) is the same question for the gathered load.)
#
# ## The production kernels
#
# The library adds to the small kernel: any strides, biases, other activations, interleaved gate and up, and the
# pre-activation for training. The gathered load and the two epilogues are parts of the kernel of lesson 08: it takes
# its load and its epilogue as arguments. On Hopper the CuTe kernel of lesson 10 has the same parts. There two warps
# load the rows of `x`, each with its own addresses, into the ring of stages, while others multiply. (It takes no bias
# of the first product and no interleaved gate and up: these layers run more launches there.) Routing and combine are
# kernels of their own.

# %%
display(fold(gated.gather_rows), fold(gated.store_activated), fold(gated.store_gradient))
display(fold(moe_rows.combine_kernel), fold(moe_routing.sort_few_kernel))

# %% [markdown]
# ## When fusing does not pay
#
# So far a batch had 32,768 tokens. When a model generates text, the layer may get one.
#
# **Guess:** how many times as fast is the fused layer then? Draw it for 1 to 32,768 tokens, before you look.

# %% tags=["hide-output"]
sizes = [2**i for i in range(16)]


def plain_with_busy_experts(T, E=128, k=8):
    busy = min(E, T * k)
    flops, done = iter(product_flops(T)), layer_bytes.operations(plain_layer, *qwen3(T, experts=busy))
    return sum(1e3 * seconds(each.moved, next(flops) if each.name == "product" else 0) for each in done)


plain = {T: plain_with_busy_experts(T) for T in sizes}
predicted = {"four kernels, predicted": {T: plain[T] / sum(fused_ms(T)) for T in sizes}}
figures.gains(predicted | layer_records.gains(recorded))

# %%
for T in (1, 64, 1024, 32768):
    names = ("routing", "product 1", "product 2", "combine")
    shares = ", ".join(f"{name} {ms / sum(fused_ms(T)):.0%}" for name, ms in zip(names, fused_ms(T)))
    print(f"T = {T:6,}: {plain[T]:.3f} → {sum(fused_ms(T)):.3f} ms ({shares})")
us = record.load("zoo")["rows"]
for way, name in {"torch": "torch's", "auto": "the library's"}.items():
    both = sum(us[f"qwen3-30b-a3b-512-zipf-{of}"]["us"]["forward"][way]["median_us"] for of in ("up", "down")) / 1e3
    print(f"recorded, T = 512, both products alone: {name} {both:.3f} ms")

# %% [markdown]
# There are three regions:
#
# - **A thousand tokens and more:** the bytes between the products count. Fusing saves most of them. The recorded gain
#   is larger: as above, torch also adds in float32, its products are slower, and some of its time is unexplained.
# - **Fewer:** most experts have a few rows, so nearly all bytes are weights, and fusing saves few. The recorded gain
#   has other reasons. torch's products are slower than the library's, as the last two lines show. And the layers were
#   timed as called: the host needs time to launch fifteen operations.
# - **One token:** eight experts have one row each. Now four kernels save eleven of fifteen launches. What is left? (The
#   recorded square there is over transformers' faster way for one token, of which more below.)

# %%
weights_of_8 = 2 * 8 * 3 * I * H
print(f"weights of 8 experts: {weights_of_8 / 1e6:.0f} MB, {1e6 * weights_of_8 / copy_rate:.0f} µs to read")
print(f"eleven launches: {11e6 * launch:.0f} µs")

# %% [markdown]
# The reading is left. And recorded? (For one token transformers can also copy the chosen experts' weights, and multiply
# them in a batch.)

# %%
one = next((row["us"] for row in recorded if row["tokens"] == 1), {})
ways = {
    "transformers' operations": "transformers forward", "its way for one token": "batched forward",
    "the library's layer": "ours forward", "two products alone": "products forward", "reading": "reading",
}  # fmt: skip
for name, way in ways.items():
    print(f"{name:24} {one[way]:5.0f} µs" if way in one else f"{name:24} not recorded yet")

# %% [markdown]
# The first three are as called, the others in a graph. The first one has fifteen launches, so it depends most on the
# host. The last line is `torch.amax` of as many bytes. It needs nearly twice the time that was predicted from a copy of
# gigabytes. One reason may be that such a short kernel hardly reaches the memory's full speed. So the library's layer
# takes about as long as reading its weights. Only smaller weights would make it much faster.
#
# For one token the library runs two kernels, not four. Nothing needs sorting. A tile of 16 rows would hold one row and
# fifteen of zeros, so each kernel multiplies weights by vectors. A program has a few lines of one weight. It loads the
# next block while it multiplies the one before. The second kernel adds the results of a token's experts before it
# writes.

# %%
display(fold(moe_few.first_kernel), fold(moe_few.second_kernel))

# %% [markdown]
# They read weights in FP8 (lesson 12), too, which are half as large. So count before you fuse. If nearly all bytes are
# weights, a better epilogue changes nothing. Launches and the products themselves may still be worth work.
#
# ## Recorded
#
# The record has the time of the library's products alone: two in a forward, six in a training step. How many times as
# long do whole layers take? At the grey line, everything around the products would be free. The products are in a CUDA
# graph, layers as called. Liger and the others' training steps are measured from 4,096 tokens on.

# %%
uniform = [row for row in recorded if row["routing"] == "uniform"]
parts_of_step = {"forward": "forward", "forward and backward": "step"}
panels = {title: layer_records.overheads(uniform, part) for title, part in parts_of_step.items()}
figures.overheads(panels) if recorded else print("not recorded yet")

# %% [markdown]
# With up to 1,024 tokens the library's layer takes less than a tenth longer than its products; both read weights.
# With more tokens the rest shows: in a forward the pass that adds results, in a step the pre-activation, too. No fusion
# saves these bytes. Lesson 15 sets the layer beside its peers.
#
# ## In the library
#
# `moe_feed_forward` is the whole layer. The tables of the routing can be made once and given to it. This matters if
# forward runs twice, as in activation checkpointing: a router that chooses anew in the second run can choose otherwise,
# and backward would differentiate a layer that forward did not compute.

# %%
once = moe.Routing.of(index, 4)
by_routing = moe_feed_forward(x, gate_up, down, None, weights, routing=once)
print("the same as with ids:", torch.equal(by_routing, moe_feed_forward(x, gate_up, down, index, weights)))
twice = torch.utils.checkpoint.checkpoint(
    lambda *each: moe_feed_forward(*each[:3], None, each[3], routing=once), *leaves, use_reentrant=False
)
print("with checkpointing:  ", torch.equal(twice, by_routing))

# %% [markdown]
# ## One line in a model
#
# A model of transformers chooses the implementation of its experts by name. The simplest one, "eager", is a loop over
# experts. Here is a model built in the same way, small enough for a CPU. It reads four characters and predicts the next
# one:


# %%
def eager_experts(self, x, index, weights):
    out = torch.zeros_like(x)
    for e in index.unique().tolist():
        token, slot = torch.where(index == e)
        gate, up = (x[token] @ self.gate_up_proj[e].T).chunk(2, dim=1)
        out.index_add_(0, token, (silu(gate) * up) @ self.down_proj[e].T * weights[token, slot, None])
    return out


EXPERTS = {"eager": eager_experts}


class MoEBlock(torch.nn.Module):
    def __init__(self, hidden, inner, experts):
        super().__init__()
        self.norm, self.router = torch.nn.RMSNorm(hidden), torch.nn.Linear(hidden, experts, bias=False)
        self.gate_up_proj = torch.nn.Parameter(torch.randn(experts, 2 * inner, hidden) / hidden**0.5)
        self.down_proj = torch.nn.Parameter(torch.randn(experts, hidden, inner) / inner**0.5)
        self.implementation = "eager"

    def forward(self, x):
        h = self.norm(x)
        weights, index = self.router(h).softmax(1).topk(2)
        return x + EXPERTS[self.implementation](self, h, index, weights / weights.sum(1, keepdim=True))


# %%
TEXT = "the experts of a layer are two grouped products, and the layer around them moves most of the bytes."
letters = sorted(set(TEXT))
ids = torch.tensor([letters.index(letter) for letter in TEXT], device=device)


class Model(torch.nn.Sequential):
    def __init__(self, hidden=32, inner=16, experts=4):
        embed = torch.nn.Embedding(len(letters), hidden // 4)
        blocks = [MoEBlock(hidden, inner, experts) for _ in range(2)]
        super().__init__(embed, torch.nn.Flatten(1), *blocks, torch.nn.Linear(hidden, len(letters)))

    def set_experts_implementation(self, name):
        for block in (self[2], self[3]):
            block.implementation = name


# %%
def train(model, steps=50):
    torch.set_num_threads(1)  # on a CPU: these matrices are too small for several
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    losses = []
    for _ in range(steps):
        loss = torch.nn.functional.cross_entropy(model(ids.unfold(0, 4, 1)[:-1]), ids[4:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


# %% [markdown]
# The new implementation is one call. To use it, one line of the program changes:


# %%
def fused_experts(self, x, index, weights):
    return moe_feed_forward(x, self.gate_up_proj, self.down_proj, index, weights)


EXPERTS["course_kernels"] = fused_experts

torch.manual_seed(0)
eager = Model().to(device)
swapped = copy.deepcopy(eager)
swapped.set_experts_implementation("course_kernels")  # the one line
curves = {"eager": train(eager), "course_kernels": train(swapped)}
print("the loss falls to a tenth:", all(losses[-1] < losses[0] / 10 for losses in curves.values()))
print("never 0.05 apart:", max(abs(a - b) for a, b in zip(*curves.values())) < 0.05)

# %%
figures.losses(curves)

# %% [markdown]
# The curves lie on each other, but are not equal bit by bit: the two layers add in different orders. (On a CPU,
# `moe_feed_forward` computes with torch, expert after expert, so this shows the swap alone. With `backend="triton"` it
# takes the kernels, in the interpreter: right, and slow.)
#
# For a model of transformers, the library brings the call along. It needs the extra `transformers`:
#
# ```python
# from course_kernels.integrations.transformers import register
#
# register()
# model.set_experts_implementation("course_kernels")
# ```
#
# ## Try it
#
# [Exercise 14a](../exercises/14a_gathered_load.ipynb): the gathered load, with tokens that are not ours. [Exercise
# 14b](../exercises/14b_router_gradient.ipynb): the router's gradient. Or change a cell and run it again:
#
# 1. Count the bytes of a model with few, large experts: `qwen3(32768, k=2, H=4096, I=14336, experts=8)` is Mixtral's
#    layer. Which part do the products move now, and what does it say about fusing?
#    <details><summary>Answer</summary>The products move 42 % of the bytes, and 58 % are still moved around them. But
#    each row is multiplied with 14336 columns, not 768. The multiplications take about ten times as long as everything
#    around them. Fusing pays most where experts are small.</details>
# 2. Let `gathered_swiglu` store row r at `tokens[r]`, too. What happens, and for which k would it be right?
#    <details><summary>Answer</summary>Each token has k rows in the result, and they overwrite each other. For k = 1 it
#    would be right, and no combine is needed.</details>
# 3. The layer before keeps `x` for its own backward. What does our layer keep in addition, for each token of
#    Qwen3-30B-A3B? And if it kept `x` and computed the first product again?
#    <details><summary>Answer</summary>4kI = 24,576 bytes: the pre-activation. Without it, a step would need a seventh
#    product, and keep nothing of its own.</details>
# 4. In `layer_with_old_memory`, multiply first and choose then: `torch.where(weight == 0, 0, weighted)`. Is it right
#    now? What about the gradients?
#    <details><summary>Answer</summary>The result is right. But the gradient of the weights is the product of dy with
#    the rows, which still hold NaN. A weight that is really 0 would lose its gradient, too.</details>
#
# ## Summary
#
# - A layer in torch is fifteen operations. Two multiply; the others move more bytes than these.
# - Gather in the load, activate in the epilogue, combine in one pass: four kernels, and two fifths of the bytes.
# - A gathered load has pointers in place of a descriptor: `cp.async`, 16 bytes a copy.
# - Backward needs `x` and the pre-activation. One epilogue gives the gradient, the activation, and the router's
#   gradient.
# - A weight of 0 is no mask. Rows that are not ours must not be read.
# - With one token, reading the weights is all that is left.
#
# ## References
#
# - Guo et al., [SonicMoE](https://arxiv.org/abs/2512.14080), 2025: gathers in the load, and keeps only x and the
#   pre-activation.
# - Tan et al., [ScatterMoE](https://arxiv.org/abs/2403.08245), 2024: products that read and write rows by index.
# - Gale et al., [MegaBlocks](https://arxiv.org/abs/2211.15841), 2022: expert layers as sparse products.
# - Shazeer, [GLU variants improve transformer](https://arxiv.org/abs/2002.05202), 2020: gated activations.
# - [transformers](https://github.com/huggingface/transformers): models choose the implementation of their experts by
#   name.
# - [FlashInfer](https://github.com/flashinfer-ai/flashinfer) and [Liger](https://github.com/linkedin/Liger-Kernel):
#   fused layers of others, for inference and for training.
#
# ## What to read next
#
# Lesson 15 measures: how to compare kernels and libraries, and what a benchmark can hide.
