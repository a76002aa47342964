# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown]
# # 16 · Many GPUs
#
# The experts of a large model do not fit into one GPU. So each GPU holds some of them, and tokens travel to their
# experts. What has to be sent, how long does it take, and who waits for whom?
#
# **About 45 minutes. Afterwards you can**
#
# - write a layer whose experts are spread over processes, and test it on a laptop;
# - train a model with such layers, with the losses of one process;
# - say how often a token has to travel, and how much that saves;
# - predict when the network becomes the limit;
# - avoid three mistakes: a silent rank, padding with NaN, a routing that is drawn again.
#
# You need: lesson [14](14_the_moe_layer.ipynb). You need not know `torch.distributed`.

# %%
import gemm_course  # import first: without a GPU, kernels then run in the interpreter

import textwrap

import torch
import torch.distributed as dist
from IPython.display import display
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import silu
from torch.utils.checkpoint import checkpoint

from course_kernels import moe_feed_forward
from course_kernels.distributed import ExpertParallel, plan
from course_kernels.kernels import peers
from course_kernels.moe import Experts
from course_kernels.schedule import Cluster, ExpertLayer, exchange, layer_time
from gemm_course.figures import f16_ranks as figures
from gemm_course.lessons import l16_processes as processes, layer_records
from gemm_course.lessons.listing import fold

# %% [markdown]
# ## Four ranks on a laptop
#
# Each GPU has a process of its own, a [rank](glossary.md#rank), with a number from 0 on. All ranks run the same
# program, each on its own tokens. They form a [process group](glossary.md#process-group), and exchange data in
# [collectives](glossary.md#collective): calls that all ranks of the group make. A collective ends on a rank when its
# data have arrived, so a rank waits for the others.
#
# A GPU is not needed to try this. `processes.run(function, 4, ...)` starts four real processes and calls
# `function(rank, ...)` in each. They exchange data through sockets, by torch's backend gloo. GPUs use the backend
# [NCCL](glossary.md#NCCL), and the calls are the same.
#
# `all_to_all_single` is the collective of this lesson: each rank sends a part of a tensor to each rank.


# %%
def greet(rank, ranks):
    mine = torch.arange(ranks) + 10 * rank  # element r is for rank r
    arriving = torch.empty_like(mine)
    dist.all_to_all_single(arriving, mine)
    return arriving.tolist()


for rank, arrived in enumerate(processes.run(greet, 4, 4)):  # in 4 processes, with ranks=4
    print(f"rank {rank} gets {arrived}")

# %% [markdown]
# ## A token's journey
#
# In [expert parallelism](glossary.md#expert-parallelism) each rank has some experts, and all ranks have tokens. Here
# eight experts are spread over four ranks, two on each. A token of rank 0 has chosen the experts 2, 3 and 6:

# %%
figures.journey()

# %% [markdown]
# ## By hand
#
# The picture sends the token to rank 1 once, for both of its experts there. Training frameworks often send it once for
# each expert, like this. Sort all choices by expert, and so by rank. Exchange the counts: a rank must know how many
# rows will arrive before it can make room for them. Then exchange the rows, compute, and send the results back the same
# way. `all_to_all_single(arriving, mine, received, sent)` has the parts' lengths at its end: `received[r]` rows are
# from rank r, and `sent[r]` rows are for it.


# %%
def by_hand(x, index, weights, gate_up, down, ranks):
    local, k = len(gate_up), index.shape[1]  # experts of this rank, choices of a token
    order = index.flatten().argsort(stable=True)  # choices by expert; choice c is of token c // k
    counts = torch.bincount(index.flatten(), minlength=ranks * local).view(ranks, local)
    arriving = torch.empty_like(counts)
    dist.all_to_all_single(arriving, counts)  # (source, expert of this rank)
    sent, received = counts.sum(1).tolist(), arriving.sum(1).tolist()
    rows = x.new_empty(sum(received), x.shape[1])
    dist.all_to_all_single(rows, x[order // k], received, sent)  # by source, then by expert
    expert = torch.arange(local).repeat(ranks).repeat_interleave(arriving.flatten())
    results = torch.empty_like(rows)
    for e in range(local):
        gate, up = (rows[expert == e] @ gate_up[e].T).chunk(2, 1)
        results[expert == e] = (silu(gate) * up) @ down[e].T
    home = x.new_empty(len(order), x.shape[1])
    dist.all_to_all_single(home, results, sent, received)
    return (home[order.argsort()].view(*index.shape, x.shape[1]) * weights[..., None]).sum(1)


# %%
torch.manual_seed(0)
sizes = [6, 3, 8, 5]  # tokens of each rank
x, (gate_up, down) = torch.randn(22, 16), (torch.randn(8, 48, 16) / 4, torch.randn(8, 16, 24) / 5)
weights, index = torch.randn(22, 8).softmax(1).topk(3)


def of_rank(rank):  # its tokens, their choices, its experts
    own = slice(2 * rank, 2 * rank + 2)  # the experts of this rank
    return [each.split(sizes)[rank] for each in (x, index, weights)] + [gate_up[own], down[own]]


def hand_layer(rank):
    return by_hand(*of_rank(rank), 4)


one = moe_feed_forward(x, gate_up, down, index, weights)
print("equals one process:", torch.allclose(torch.cat(processes.run(hand_layer, 4)), one, atol=1e-5))

# %% [markdown]
# ## Once for each rank
#
# A row travels for each choice. But a token with two experts at one rank need travel there only once: that rank can add
# both results and return one row. Here are ten of the tokens, spread over four ranks:

# %%
figures.splits([each.tolist() for each in index.split([3, 2, 3, 2, 12])[:4]], experts=8)

# %% [markdown]
# The library does so. An `ExpertParallel` knows the group of ranks (`dist.group.WORLD` is all of them) and the number
# of experts. Its `dispatch` sends the tokens and says which experts of this rank they need. Its `combine` returns the
# sums. `moe_feed_forward(..., ep=...)` calls both.


# %%
def parallel_layer(rank):
    x, index, weights, gate_up, down = of_rank(rank)
    ep = ExpertParallel(dist.group.WORLD, num_experts=8)
    return moe_feed_forward(x, gate_up, down, index, weights, ep=ep)


print("equals one process:", torch.allclose(torch.cat(processes.run(parallel_layer, 4)), one, atol=1e-5))

# %% [markdown]
# `plan` looks at the ids alone. The result's `matrix` says how many rows each rank sends to each rank; all ranks get
# the same one. Rows on its diagonal do not travel: their tokens' experts are on the same rank. Its `choices` is the
# number of choices that this rank has to compute.
#
# **Guess:** a model has 128 experts on four ranks, and each token chooses eight. How many of the rows are left?


# %% tags=["hide-output"]
def chosen(rank, router):  # ids of 512 tokens; by Zipf's law the first experts are in demand
    scores = torch.rand(512, 128, generator=torch.Generator().manual_seed(rank))
    load = torch.arange(1, 129.0) ** (-0.8 if router == "Zipf" else 0.0)
    return (scores.log() / load).topk(8).indices


def matrix_of(rank, router):
    made = ExpertParallel(dist.group.WORLD, num_experts=128).plan(chosen(rank, router))
    return made.matrix, made.choices


by_choice = [torch.bincount(chosen(rank, "uniform").flatten() // 32, minlength=4).tolist() for rank in range(4)]
deduplicated = processes.run(matrix_of, 4, "uniform")[0][0]
figures.matrices({"by hand": by_choice, "once for each rank": deduplicated})

# %% [markdown]
# <details><summary>Answer</summary>
#
# Less than half. Each of a token's eight choices was a row. Now each of the four ranks gets one row of the token at
# most. The fewer ranks, the more is saved. With one expert a token, nothing is.
#
# </details>
#
# ## Time
#
# A model: a transfer takes a latency, and its bytes over the link's bandwidth. Both numbers were fitted to
# `all_to_all_single` over [NVLink](glossary.md#NVLink), on two H100. Here is a layer of Qwen3-30B-A3B with 16,384
# tokens on each of two GPUs. The wire carries tokens there and results back, and the SMs compute between them. If the
# tokens are cut into chunks, one chunk travels while another is computed: they *overlap*. A dashed line is the time
# that was recorded, on two H200s.
#
# **Guess:** what saves more: to send each token once for each rank (*deduplicated*), or to overlap?

# %% tags=["hide-output"]
qwen3, tokens = ExpertLayer(hidden=2048, inner=768, experts=128, top_k=8), 16384
times = {
    "by hand": layer_time(qwen3, tokens, Cluster(2), copies="choice", chunks=1),
    "deduplicated": layer_time(qwen3, tokens, Cluster(2), chunks=1),
    "overlapped": layer_time(qwen3, tokens, Cluster(2)),
}
measured = layer_records.parallel_times("qwen3-30b-a3b", 2, tokens, "uniform")
chunks = times["overlapped"].chunks
ways = {"by hand": "by hand, our products", "deduplicated": "all_to_all", "overlapped": f"all_to_all, {chunks} chunks"}
recorded = {name: measured[way] for name, way in ways.items() if way in measured}
print("recorded ways:", ", ".join(recorded) or "not recorded yet")
figures.timelines(times, recorded)

# %% [markdown]
# <details><summary>Answer</summary>
#
# To deduplicate. By the model, overlapping saves a little more. In the record, it makes the layer slower.
#
# </details>
#
# The model leaves out memory traffic of gathers and sums, and the host. The host probably matters most. It launches the
# kernels of a layer, and it waits until it can read how many rows arrive. Meanwhile the SMs run out of work. A chunk is
# a whole such call, with smaller products. Each further chunk adds more than the wire takes in all. Below it are times
# with fewer tokens, also of a third way, *symmetric*:

# %%
few = layer_records.parallel_times("qwen3-30b-a3b", 2, 1024, "uniform")
if "overlapped" in recorded:
    further = (recorded["overlapped"] - recorded["deduplicated"]) / (chunks - 1)
    wire = times["overlapped"].dispatch_us + times["overlapped"].combine_us
    print(f"each further chunk adds {further / 1e3:.1f} ms; on the wire, there and back: {wire / 1e3:.1f} ms simulated")
for way in ("by hand, our products", "all_to_all", "symmetric", "symmetric, in a graph"):
    print(f"1,024 tokens, {way}: " + (f"{few[way] / 1e3:.2f} ms" if way in few else "not recorded yet"))

# %% [markdown]
# With 1,024 tokens a GPU has little to do, and a call takes as long as its host. Another host may be faster or slower.
# In a CUDA graph the host has no part. NCCL's way reads sizes on the host, so it cannot be in a graph. *symmetric* can:
# nothing is read on the host, and kernels write rows into the memory of other GPUs, over NVLink. It has to be asked
# for: `ExpertParallel(group, num_experts, transport="symmetric", max_tokens=16384)`.
#
# ### Recorded
#
# Here are layers of three models with 8,192 tokens on each GPU, as called. *all_to_all* is this library's layer over
# NCCL, and *overlapped* the same in chunks. *By hand* has this library's products, too. *No exchange* is the layer on
# the rows that arrive, as called, too. It is timed by itself, with a host's work in it, so small differences from it
# mean nothing. Two GPUs and four have records of their own, of different days. Compare the ways, not the two numbers of
# GPUs.

# %%
by_model = layer_records.parallel_panels(8192)
for title, layers in by_model.items():
    for gpus, us in layers.items():
        if {"by hand", "all_to_all", "symmetric"} <= us.keys():
            gains = (f"{us['by hand'] / us[way]:.2f} × as long as {way}" for way in ("all_to_all", "symmetric"))
            print(f"{title}, {gpus}: by hand takes {', '.join(gains)}")
if by_model:
    for about in (each["provenance"] for each in layer_records.parallel_records()):
        print(f"recorded on {about['gpu']}, {about['date'][:10]}, commit {about['commit'][:8]}")
    display(figures.recorded_layers(by_model))
else:
    print("not recorded yet")

# %% [markdown]
# Chunks never pay here. Nor does it always pay to deduplicate over NCCL: with Qwen3, uniform routing and four GPUs
# *all_to_all* gains nothing over *by hand*. And the larger the experts, the less the exchange counts: Mixtral's take
# most of the time in every way. Where does the rest of the time go? Here is Qwen3's layer with 16,384 tokens, in a
# graph, so without the host:

# %%
graph, alone = "symmetric, in a graph", "the layer alone, on the rows that arrive, in a graph"
collective = "all_to_all_single, equal splits of the deduplicated bytes"
for gpus in (2, 4):
    us = layer_records.parallel_times("qwen3-30b-a3b", gpus, tokens, "uniform")
    if {graph, alone, collective} <= us.keys():
        whole, experts, one_way = (us[way] / 1e3 for way in (graph, alone, collective))
        parts = f"{experts:.2f} ms without exchange + {whole - experts:.2f}"
        print(f"{gpus} GPUs: {whole:.2f} ms = {parts} (all_to_all_single, there and back: {2 * one_way:.2f})")
    else:
        print(f"{gpus} GPUs: not recorded yet")

# %% [markdown]
# The experts of a GPU have as many rows with two GPUs as with four. But with four a token travels to more ranks, so the
# exchange takes longer. The programs of *symmetric* write to the ranks in turn, and results are summed on their way
# home. The first product begins with the GPU's own tokens, while others arrive. So the exchange adds less time than the
# plain collective takes for as many bytes there and back.
#
# ## The slowest rank decides
#
# A rank needs results of all others. So the rank whose experts are most in demand decides, and the others wait. Here
# are the real plans of four processes. By [Zipf's law](glossary.md#Zipf) a few experts are popular. They are neighbours
# here, and all are on rank 0. Hatched, a rank waits.

# %%
arriving = {router: [choices for _, choices in processes.run(matrix_of, 4, router)] for router in ("uniform", "Zipf")}
figures.loads(arriving)

# %%
for router, counts in arriving.items():  # the layer of above, on four GPUs
    most = max(counts) / (sum(counts) / 4)
    ms = layer_time(qwen3, tokens, Cluster(4), imbalance=most, chunks=1).total_us / 1e3
    print(f"{router}: slowest rank {most:.2f} × the mean, {ms:.2f} ms simulated")

# %% [markdown]
# The record draws experts by the same law, but there the popular ones are spread over the ranks by chance. So its
# slowest rank has less to do:

# %%
wanted = dict(model="qwen3-30b-a3b", ranks=4, tokens=tokens, way=graph)
for row in layer_records.parallel_rows():
    if wanted.items() <= row.items():
        router, most = row["routing"].replace("zipf", "Zipf"), row["imbalance_of_choices"]
        ms, simulated = row["forward_us"] / 1e3, row["predicted_us"] / 1e3
        print(f"recorded, {router}: slowest rank {most:.2f} × the mean, {ms:.2f} ms, {simulated:.2f} simulated")
if not layer_records.parallel_rows():
    print("not recorded yet")

# %% [markdown]
# For *symmetric* the model is too slow. Its exchange takes as long as `all_to_all_single`, and its experts begin when
# all tokens have arrived. It also lets the slowest rank's links carry as much more as its experts compute. But a token
# with two popular experts travels there once.
#
# ## The rest of the model
#
# A model has more than experts: attention, norms, routers. All ranks need this *dense* part. Each rank runs it on its
# own tokens, so its gradients must be averaged over all ranks. torch's [FSDP2](glossary.md#FSDP2) does that, and it
# stores only a part of each weight on each rank.
#
# If there are more ranks than one set of experts needs, several ranks hold the same experts. So arrange the ranks in a
# [mesh](glossary.md#mesh), a grid. A row ("ep") has all experts. A column ("dp", data parallel) has the same experts,
# and FSDP2 shards these over the column, so each of its two ranks stores two of the four:
#
# | | ep 0: experts 0 to 3 | ep 1: experts 4 to 7 |
# | --- | --- | --- |
# | **dp 0** | rank 0 | rank 1 |
# | **dp 1** | rank 2 | rank 3 |
#
# `shard` takes a module that has all experts and makes its parameters [DTensors](glossary.md#DTensor): tensors of which
# each rank stores a part. Mind the gradients: tokens of the whole row have arrived, so backward has already summed over
# "ep". FSDP2 sums over "dp", and would divide by the ranks of the column alone. So let FSDP2 divide by 1, and divide
# the loss by all ranks.


# %%
def train(rank, ranks):
    torch.manual_seed(0)  # the same weights and tokens on every rank
    experts, tokens = Experts(8, 16, 24), torch.randn(24, 16)
    weights, index = torch.randn(24, 8).softmax(1).topk(3)
    grid = init_device_mesh("cpu", (max(1, ranks // 2), min(2, ranks)), mesh_dim_names=("dp", "ep"))
    ExpertParallel(grid["ep"], num_experts=8).shard(experts)
    fully_shard(experts, mesh=grid["dp"])
    experts.set_gradient_divide_factor(1.0)
    experts.set_force_sum_reduction_for_comms(True)  # gloo has no sum with a factor
    optimizer, losses = torch.optim.SGD(experts.parameters(), lr=5.0), []
    own = slice(rank * 24 // ranks, (rank + 1) * 24 // ranks)  # the tokens of this rank
    for _ in range(10):
        loss = (experts(tokens[own], index[own], weights[own]) - tokens[own]).square().mean() / ranks
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        dist.all_reduce(mean := loss.detach())  # the sum over all ranks
        losses.append(mean.item())
    return losses, experts.down_proj.to_local().shape[0]


# %%
alone, _ = processes.run(train, 1, 1)[0]
print(f"one process: the loss falls from {alone[0]:.2f} to {alone[-1]:.2f}")
for ranks in (2, 4):
    losses, held = processes.run(train, ranks, ranks)[0]
    same = torch.allclose(torch.tensor(losses), torch.tensor(alone), rtol=1e-4)
    print(f"{ranks} ranks: each stores {held} of 8 experts, the same losses: {same}")

# %% [markdown]
# [train_experts.py](../examples/train_experts.py) is a whole program for your own model: layers with routers, FSDP2 for
# the dense part, clipped gradients. `torchrun` starts its processes. Its losses are the same on one process and on
# four:
#
# ```sh
# torchrun --nproc-per-node 4 examples/train_experts.py
# ```
#
# ## 64 GPUs
#
# Inside a node of eight GPUs there is NVLink. Between nodes there is a network, with an adapter for each GPU. A token
# can travel once for each choice, once for each rank, or once for each node: a GPU there hands it on over NVLink.
#
# **Guess:** from how many GPUs on is the network slower than NVLink? What does a row for each node save?

# %% tags=["hide-output"]
panels = {}
for ranks in (2, 8, 16, 64):
    panels[ranks], cluster = {}, Cluster(ranks)
    for copies in ("choice", "rank", "node"):
        rows = exchange(qwen3, tokens, cluster, copies)
        nvlink = cluster.nvlink.time_us(4096 * rows.nvlink_rows)
        network = cluster.network.time_us(4096 * rows.network_rows)
        compute = layer_time(qwen3, tokens, cluster, chunks=1).compute_us
        panels[ranks][copies] = [us / 1e3 for us in (2 * nvlink, 2 * network, compute)]  # there and back
for ranks in (16, 64):
    saved = 1 - panels[ranks]["node"][1] / panels[ranks]["choice"][1]
    print(f"{ranks} GPUs: a row for each node saves {saved:.0%} of the network's time")
figures.clusters(panels)

# %% [markdown]
# <details><summary>Answer</summary>
#
# With a row for each choice or each rank, from the second node on. With 64 GPUs a token has its eight experts at nearly
# eight ranks, so a row for each rank saves little. A row for each node saves more. With two nodes the network is then
# as fast as NVLink. With eight it is the limit all the same.
#
# </details>
#
# This is a simulation. A test compares it with published bandwidths of two and four nodes, to which nothing was fitted.
# The simulated network is faster than the published one, by less than a quarter.
#
# ## What goes wrong
#
# ### A rank without tokens that does not call
#
# Suppose that rank 1 has no tokens, and so skips the layer. The others wait for it, until the group's time-out. It is
# two seconds here; by default it is minutes.


# %%
def skip_if_empty(rank):
    if rank == 1:
        return "skipped the layer"
    x, index, weights, gate_up, down = of_rank(rank)
    ep = ExpertParallel(dist.group.WORLD, num_experts=8)
    return moe_feed_forward(x, gate_up, down, index, weights, ep=ep)


for rank, found in enumerate(processes.run(skip_if_empty, 4, seconds=2.0, fails=True)):
    print(textwrap.fill(f"rank {rank}: {found}", 110, subsequent_indent="        "))

# %% [markdown]
# ### Padding with NaN
#
# If nothing is read on the host, nobody knows how many rows will arrive. So a buffer has room for the most that can.
# Here it has room for eight rows, and five have arrived. The other three hold NaN, from what was in that memory before.
# Their gradient is 0.
#
# **Guess:** how many elements of the weight's gradient become NaN?

# %% tags=["hide-output"]
buffer, grad = torch.full((8, 16), float("nan")), torch.zeros(8, 24)
buffer[:5], grad[:5] = torch.randn(5, 16), torch.randn(5, 24)
print(f"{(grad.T @ buffer).isnan().float().mean():.0%} with the padding")
print(f"{(grad[:5].T @ buffer[:5]).isnan().float().mean():.0%} without")

# %% [markdown]
# <details><summary>Answer</summary>
#
# All of them: 0 × NaN is NaN, and each element sums over all rows. So the library never reads rows that no token fills.
#
# </details>
#
# ### A routing that is drawn again
#
# Activation [checkpointing](glossary.md#checkpointing) keeps no activations: backward runs the forward once more. This
# router adds noise from a generator of its own, so the second run chooses other experts. Where as many rows arrive,
# nothing crashes, and the gradients are those of neither run. Else torch tells that the shapes differ.


# %%
def noisy(rank, how):
    ep, noise = ExpertParallel(dist.group.WORLD, num_experts=8), torch.Generator().manual_seed(rank)
    x, ones = torch.randn(3, 16, generator=noise), torch.ones(3, 1)
    *_, gate_up, down = of_rank(rank)
    gate_up = gate_up.clone().requires_grad_()

    def route():  # an expert of rank 0, 1 and 2: which of its two is chance
        return (2 * torch.arange(3) + torch.randint(2, (3,), generator=noise))[:, None]

    def layer(x, gate_up, routing):
        ids = route() if routing is None else None
        return moe_feed_forward(x, gate_up, down, ids, ones, ep=ep, routing=routing)

    routing = ep.plan(route()) if how == "plan kept" else None
    arguments = x, gate_up, routing
    y = layer(*arguments) if how == "plain" else checkpoint(layer, *arguments, use_reentrant=False)
    y.square().sum().backward()
    return gate_up.grad


plain = processes.run(noisy, 4, "plain")
for how in ("drawn again", "plan kept"):
    same = all(map(torch.equal, processes.run(noisy, 4, how), plain))
    print(f"{how}: the gradients are {'right' if same else 'wrong'}")

# %% [markdown]
# So make the plan once, outside of what is checkpointed, and pass it on as `routing=`.
#
# ## The production code
#
# For `all_to_all`, `sends_of` finds the sends, on the device. For *symmetric* no rank needs another one's plan: a
# token's row has the token's own number everywhere. `put_kernel` writes tokens into the memory of their GPUs, and
# `push_kernel` writes the results home. On the way it sums each token's rows of experts. Where nearly every token goes
# to every GPU, [copy engines](glossary.md#copy-engine) bring the tokens in place of `put_kernel`. Then a GPU's first
# product begins with its own tokens. `pieces_kernel` says which rows it can multiply before others arrive, and the
# product waits for those. The host reads nothing.

# %%
display(fold(plan.sends_of), fold(peers.put_kernel), fold(peers.pieces_kernel), fold(peers.push_kernel))

# %% [markdown]
# ## Try it
#
# [Exercise 16](../exercises/16_the_splits.ipynb): plan the sends yourself. Or change a cell and run it again:
#
# 1. Set `sizes` to `[22, 0, 0, 0]`. Is the layer still right?
#    <details><summary>Answer</summary>Yes. A rank without tokens sends nothing, and computes for the others.</details>
# 2. Draw the matrix of `processes.run(matrix_of, 4, "Zipf")` instead. Which column is the darkest?
#    <details><summary>Answer</summary>The first: rank 0 has the experts that are most in demand.</details>
# 3. Simulate 1,024 tokens. How many chunks does the model choose?
#    <details><summary>Answer</summary>One: a chunk's latency costs more than it hides.</details>
# 4. Delete the line with `set_gradient_divide_factor`. For how many ranks do the losses change?
#    <details><summary>Answer</summary>For four. FSDP2 then divides by the ranks of a column, too: by two of four ranks,
#    and by one of two.</details>
# 5. Let tokens of the 64 GPUs choose one expert: `top_k=1`. What does a row for each node save?
#    <details><summary>Answer</summary>Nothing: a token has one expert, so it goes to one rank and to one node, whatever
#    the way. With a row for each node it crosses NVLink, too, unless the GPU that gets it has the expert.</details>
# 6. Connect all GPUs by NVLink, with `Cluster(ranks, node=64)`. What does a row for each node save now?
#    <details><summary>Answer</summary>Nothing: there is one node, and the network carries nothing.</details>
#
# ## Summary
#
# - Tokens travel to the ranks of their experts. The results travel back in the same order.
# - A token travels once to each rank that has experts of it. That rank adds their results.
# - The slowest rank decides, and all others wait.
# - Between nodes, a row for each node saves most. With two nodes the network is then as fast as NVLink, with many it is
#   the limit.
# - Every rank makes every call, tokens or not. Make a plan once.
# - Gradients of experts are summed over a row by backward, and over a column by FSDP2. Divide once, by all ranks.
#
# ## References
#
# - [DeepEP](https://github.com/deepseek-ai/DeepEP): kernels for dispatch and combine, with published bandwidths.
# - [torch.distributed](https://docs.pytorch.org/docs/stable/distributed.html): process groups and collectives.
# - [torchtitan](https://github.com/pytorch/torchtitan): training with expert parallelism.
#
# ## What to read next
#
# Lesson 17 is for those who maintain a library: how it chooses a kernel.
