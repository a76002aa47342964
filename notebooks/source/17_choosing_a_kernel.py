# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown]
# # 17 · Choosing a kernel
#
# This lesson is for those who maintain a library. Lesson 07 ended with a call that measures nothing: it computes a
# configuration from the shape. How do you get such a rule, how do you know that it is good, and what do you do if no
# candidate is?
#
# **About 45 minutes. Afterwards you can**
#
# - judge a way to choose by what it loses (its *[regret](glossary.md#regret)*) on shapes that it has not seen,
# - build a model of time from tiles, waves and bytes, and fit it,
# - read the library's answer to "why this kernel?",
# - say what the order of tiles, a partner and a stage are worth in gradients of weights.
#
# You need: lessons 05, 07 and 10.

# %%
import gemm_course  # import first: without a GPU, kernels then run in the interpreter

import json
import math
import statistics
from dataclasses import replace

import torch
from IPython.display import display

from course_kernels.bench import record, zoo
from course_kernels.bench.tuning import fit as fitting
from course_kernels.engine import backend_choice as choice
from course_kernels.engine.tuning import Extents, Kind, configs_by_kind as swept, choose, fallback_rules as rules
from course_kernels.engine.tuning import explain, gpu_constants as constants, time_model
from course_kernels.kernels.cute_sm90.config import CONFIGS_ALONG_K, COOPERATIVE, PINGPONG, CuteConfig
from course_kernels.kernels.cute_sm90.form import Form
from gemm_course.figures import f10_clusters as cute_clusters, f10_kernel as hopper, f17_predicted_times as predicted
from gemm_course.lessons import l10_clusters, records
from gemm_course.lessons.listing import fold

h200 = constants.read(constants.CONSTANTS / "h200.json").gpu
forward = Kind("m", "k")  # groups along M; B is contiguous along K

# %% [markdown]
# ## Tuned on thirteen rows, beaten on the fourteenth
#
# On Hopper the library has two kernels with configurations of their own: lesson 08's in Triton, and lesson 10's in CuTe
# DSL. For a while a few thresholds chose the kernel and its configuration. They came from thirteen shapes, the rows of
# our benchmark. On these, their choices were the best or nearly so. Here is the rule. (Up to 64 rows, the old rule read
# a table of measured winners. The table no longer exists. `rules.by_hand` takes its place here, and loses more.)

# %%
SQUARE = CuteConfig(tile_m=128, tile_n=128, tile_k=64, cluster=2, stages=6, schedule=PINGPONG)
WIDE = replace(SQUARE, tile_n=192, stages=4)
FITTED = replace(WIDE, stages=5, last_tile_n=128, tail_tile_n=256)


def thresholds(kind, M, N, K, G):
    """The old rule. ``kind``: "m,k" forward, "m,n" the rows' gradient, "k,n" the weights'; M or K is an average."""
    rows, unused = (K if kind == "k,n" else M), -N % WIDE.tile_n
    if rows <= 64:  # to Triton, by a rule
        return rules.by_hand(Kind.parse(kind), Extents(M, N, K, G), h200, uses_tma=True)[0]
    if kind == "m,k" and K > 512 and (rows <= 1024 or 40 * unused <= N):
        return replace(WIDE, split_last_wave=True) if rows > 4096 and not unused else FITTED
    if kind == "m,n" and rows <= 512 and 64 * unused <= N:
        return replace(WIDE, split_last_wave=True)
    if kind == "k,n":
        down, across = math.ceil(M / WIDE.tile_m), math.ceil(N / WIDE.tile_n)
        pairs = down // 2 * across + down % 2 * math.ceil(across / 2)
        return WIDE if 16 * unused <= N and pairs % 66 == 0 else SQUARE
    return replace(SQUARE, split_last_wave=True)


# %%
def model_of(row):
    """The published model that a row is of; a random row is its own."""
    return max((each.name for each in zoo.MODELS if row.startswith(each.name)), key=len, default=row)


def products(name):
    """The products of a record: their kind, extents, and µs of each configuration."""
    rows = record.load(name)["rows"]
    return fitting.samples(rows, {row: model_of(row) for row in rows})


# %% [markdown]
# Each number had its reason. Then somebody ran a fourteenth shape. So we measured the expert layers of fifteen
# published models with 16 to 16,384 tokens, and random shapes, with *every* candidate of both kernels. Now we can
# compute the regret of the rule.
#
# **Guess:** how much does the rule lose on average, and at worst?


# %% tags=["hide-output"]
def loss_of_thresholds(product):
    """The rule's time over the best one's; None where its configuration was not measured."""
    us = product.us.get(swept.name_of(thresholds(str(product.kind), *product.extents)))
    return us and us / min(product.us.values())


def loss_in_words(ratios):
    return f"+{statistics.geometric_mean(ratios) - 1:.1%} on average, +{max(ratios) - 1:.0%} at worst"


passes = {"m,k": "forward", "m,n": "gradient of the rows", "k,n": "gradient of the weights"}
for gpu_name, name in (("H200", "configurations"), ("H100", "configurations_h100")):
    for kind, title in passes.items():
        found = [loss_of_thresholds(product) for product in products(name) if str(product.kind) == kind]
        known = [ratio for ratio in found if ratio]
        print(f"{gpu_name}, {title:23} {loss_in_words(known)} ({len(known)} of {len(found)} products)")

# %% [markdown]
# <details><summary>Answer</summary>
#
# About a tenth on average, and on the H100 more: there the worst choice takes twice the time of the best.
#
# </details>
#
# (The other products are left out: there the rule chooses a configuration that this record does not have.)
#
# Thirteen rows were too few, and one GPU was too few: on an H100, whose memory is slower, the same thresholds lose
# more.
#
# ## The limits of a table
#
# More rows in the table would help, but only near those rows. Between two of them the time is not smooth. The SMs take
# tiles in [waves](glossary.md#wave), and the empty places of the last wave cost time, too. Here are six shapes of one
# layer in one bucket. (The names list a configuration of the CuTe kernel, its tile first. Lesson 10 explains the rest.)

# %%
scout = dict(N=5120, K=8192, G=2)  # Llama 4 Scout: the second product of two experts, on one GPU of eight
measured_candidates = constants.read(constants.CONSTANTS / "h200.json").candidates
of_bucket = time_model.fastest(forward, Extents(256, **scout), h200).config
for rows in (192, 208, 224, 256, 272, 350):
    ranked = time_model.ranking(forward, Extents(rows, **scout), h200)
    kept = next(each.us for each in ranked if each.config == of_bucket)
    bucket = 2 ** round(math.log2(rows))
    print(f"{rows} rows, bucket {bucket}: {ranked[0].us:3.0f} µs expected, {swept.name_of(ranked[0].config)}; "
          f"that of 256 rows loses {kept / ranked[0].us - 1:.1%}")  # fmt: skip

# %% [markdown]
# The bucket is the same in all lines, and the best choice is not. A table stores which configuration won. It does not
# store why. The reason would carry over to the next shape, and to a GPU with other memory.
#
# ## A model of time
#
# The reason can be counted from the shape: tiles, waves, blocks of K, bytes. The host does not know the rows of single
# groups. So it counts twice: for groups of nearly the same size, and for groups as in a layer of experts of unequal
# load. Each of these spreads has eight sizes, as multiples of the average.

# %%
layer = dict(N=2048, K=2048, G=64)
one = next(each for each in measured_candidates[forward] if each.config == CuteConfig())  # 128×256
for rows in (32, 112, 2048):
    for name, spread in zip(("even", "skewed"), time_model.SPREADS):
        parts = time_model.work(one.config, forward, Extents(rows, **layer), spread)
        tiles, moved = sum(part.tiles for part in parts), sum(part.bytes for part in parts)
        print(f"{rows:4} rows, {name:6}: {tiles:6,.0f} tiles, {tiles / h200.sms:4.1f} waves, {parts[0].blocks:.0f} "
              f"blocks each; {moved / 1e6:5,.0f} MB, {moved / h200.bandwidth / 1e6:3.0f} µs of memory")  # fmt: skip

# %% [markdown]
# Six constants c₁ to c₆ for each configuration turn these counts into time:
#
# - t = tiles / 132 · (c₁ · blocks + c₂) is the time of the tiles on 132 SMs. Fewer than 132 tiles all run at once: then
#   divide by their number,
# - b = bytes / (c₄ · bandwidth) is the time of the bytes,
# - both overlap: together they take (tᵖ + bᵖ)¹ᐟᵖ with p = c₅. With p = 1 that is t + b, with a large p the longer one.
# - Add c₃ · the empty share of the last wave · a tile's time, and c₆ for the launch.
#
# The first three lines are computed for each of a spread's eight sizes, and added. The estimate is the mean of the two
# spreads. The constants are fitted, so one may also hold what the formula leaves out. Perhaps that is why c₆ is longer
# than the launch in lesson 03. The cells below compute an estimate by hand:

# %%
meanings = ("µs for a block of K", "µs for a tile beside its blocks", "of an empty place in the last wave counts",
            "of the memory's rate is reached", "how well tiles and bytes overlap", "µs for the launch")  # fmt: skip
for value, meaning in zip(one.constants, meanings):
    print(f"{value:5.2f} {meaning}")
# %%
c1, c2, c3, c4, p, c6 = one.constants


def by_hand(spread):
    parts = time_model.work(one.config, forward, Extents(256, **layer), spread)  # one for each size of groups
    each = c1 * parts[0].blocks + c2  # µs of a tile
    times = [(part.tiles / 132 * each, part.bytes / (c4 * h200.bandwidth * 1e6)) for part in parts]
    waves = sum(part.tiles for part in parts) / 132
    return sum((t**p + b**p) ** (1 / p) for t, b in times) + c3 * (math.ceil(waves) - waves) * each + c6


even, skewed = map(by_hand, time_model.SPREADS)
print(f"even {even:.0f} µs, skewed {skewed:.0f} µs, their mean {(even + skewed) / 2:.0f} µs; "
      f"{time_model.estimate(one, forward, Extents(256, **layer), h200):.0f} µs after a smooth correction")  # fmt: skip

# %% [markdown]
# The constants are fitted to the measured times by least squares of their logarithms. The fit ignores an error that all
# configurations of a product share: it cannot change a choice. Slow configurations count less. The remaining error is
# fitted by a smooth function of the extents. It changes an estimate by some per cent, by up to 16 for a few, but
# it is too smooth to follow single shapes. The library reads the constants from a file for each GPU. It evaluates all
# configurations when it first sees a shape. Nothing runs on the GPU for that.
#
# ## Judge it on a model that it has not seen
#
# A model that is fitted to all rows and judged on the same rows may have learned them by heart, as the table did. So we
# leave out one published model with all its rows, fit to the others, and predict the one left out:

# %%
torch.set_num_threads(1)  # the matrices of a fit are small
record_us = products("configurations")
unseen = [product for product in record_us if product.source == "qwen3-30b-a3b" and product.kind == forward]
others = [product for product in record_us if product.source != "qwen3-30b-a3b"]
fitted = fitting.fit(others, h200, [forward])
judged = fitting.regret(unseen, fitted, h200)
print(f"fitted to {len({product.source for product in others} & {each.name for each in zoo.MODELS})} models "
      f"and random shapes: {loss_in_words([each.times for each in judged])}, {len(judged)} products")  # fmt: skip

# %% [markdown]
# The next picture is of one layer of the model left out: the second product of Qwen3-30B-A3B, for the 16 experts that
# one of eight GPUs has. Lines are predicted times of five configurations, over the fastest of them. Their constants
# come from other models only. Dots are measured times, over the fastest measured one.
#
# **Guess:** which configuration wins at 4 rows, and which at 512? From where on does a low tile lose?

# %% tags=["hide-output"]
down = dict(N=2048, K=768, G=16)
lines, dots, grey, rings = {}, {}, [], []
drawn = {"triton 16_128_128_4_4_1_1_1": "Triton 16×128×128", "cute 64x128x128_1_4_pingpong_8": "CuTe 64×128×128",
         swept.name_of(replace(SQUARE, split_last_wave=True)): "CuTe 128×128×64, halved",
         swept.name_of(replace(WIDE, split_last_wave=True)): "CuTe 128×192×64, halved",
         swept.name_of(replace(FITTED, dynamic=True)): "CuTe 128×192×64, fitted"}  # fmt: skip
for each in fitted[forward]:
    if label := drawn.get(swept.name_of(each.config)):
        asked = [2 ** (i / 16) for i in range(16 * 11 + 1) if time_model.suits(each.config, forward, 2 ** (i / 16))]
        lines[label] = [(rows, time_model.estimate(each, forward, Extents(rows, **down), h200)) for rows in asked]
for product, each in zip(unseen, judged):
    rows, *rest = product.extents
    if rest == list(down.values()):
        rings.append((rows, product.us[each.chosen]))
        for config, us in product.us.items():
            (dots.setdefault(drawn[config], []) if config in drawn else grey).append((rows, us))
assert lines.keys() == set(drawn.values())
predicted.expected_times(dict(sorted(lines.items(), reverse=True)), dots, grey, rings)

# %% [markdown]
# <details><summary>Answer</summary>
#
# A low tile at 4 rows, one of the largest at 512. A low tile loses where its tiles begin to take longer than the bytes.
#
# </details>
#
# On the left the launch and reading the weights take the time, and low tiles waste least. Where the tiles take longer
# than the bytes, a line rises, and those of low tiles rise first. The teeth are waves. Where a dot is far off its line,
# the model is wrong. A ring marks its choice. It still chooses well if the ring is at the lowest dot or close to it:

# %%
for product, each in sorted(zip(unseen, judged), key=lambda pair: pair[0].extents):
    if list(product.extents[1:]) == list(down.values()):
        best_name = min(product.us, key=product.us.get)
        lost = product.us[each.chosen] / product.us[best_name] - 1
        print(
            f"{product.extents[0]:6,.0f} rows: the choice loses {lost:5.1%}",
            "" if lost < 0.02 else f"against {best_name}",
        )

# %% [markdown]
# The best configuration at 128 rows has the same tile. It takes its tiles in the dynamic order, which a section below
# explains, and does not halve those of the last wave.
#
# The library's file of constants has this judgement for every model, each left out in turn. The picture compares it
# with the thresholds on the same products. A dot is the mean of a model's products, and a line ends at the worst of
# them.


# %% tags=["hide-input"]
def both(gpu, name):
    """Pass → model → way to choose → times over the best one's, for products on which both can be judged."""
    content = json.loads((constants.CONSTANTS / f"{gpu}.json").read_text())
    panels = {title: {} for title in passes.values()}
    for product in sorted(products(name), key=lambda product: product.source):
        old, new = loss_of_thresholds(product), content["regret"]["left out"].get(product.name)
        if old and new:
            ways = panels[passes[str(product.kind)]].setdefault(product.source, {"thresholds": [], "time model": []})
            ways["thresholds"].append(old)
            ways["time model"].append(new[1])
    return panels


predicted.losses_by_model(both("h200", "configurations"))

# %% [markdown]
# And on an H100, with constants of its own, fitted to a smaller record:

# %%
for title, by_model in both("h100", "configurations_h100").items():
    for way in ("thresholds", "time model"):
        print(f"{title:23} {way:10} {loss_in_words([ratio for ways in by_model.values() for ratio in ways[way]])}")

# %% [markdown]
# The means shrink, and the worst cases with them. Look at the largest loss of a gradient of the rows: Phi-3.5-MoE's
# first product for 1,024 tokens. Count its waves as the model does for even groups, and as its groups really need them:

# %%
row = "phi-3.5-moe-1024-random-up"
entry = record.load("configurations")["rows"][row]
content = json.loads((constants.CONSTANTS / "h200.json").read_text())
_, loss, chosen_name, best_name = content["regret"]["left out"][f"{row} dA"]
configs, sizes, columns = swept.by_name(Kind("m", "n")), entry["sizes"], entry["K"]
print(f"rows of the groups: {sorted(sizes)}")
for name in (chosen_name, best_name):
    tile = configs[name]
    places = h200.sms * time_model.slots(tile)
    parts = time_model.work(tile, Kind("m", "n"), Extents(128, columns, entry["N"], len(sizes)), time_model.SPREADS[0])
    expected = sum(part.tiles for part in parts) / places
    beside = math.ceil(columns / (tile.tile_n if name.startswith("cute") else tile.block_n))  # tiles
    needed = sum(math.ceil(size / time_model.height(tile)) for size in sizes) * beside / places
    print(f"{name}: {expected:.2f} waves expected, {needed:.2f} needed, {entry['dA']['us'][name]:.0f} µs")

# %% [markdown]
# On average a group has 128 rows, exactly a tile's height. Where groups are even, the model expects half of them to
# need a second row of tiles, and so not quite three waves. This batch has nine such groups, not eight. The ninth begins
# a fourth wave, nearly empty. Tiles of 64 rows need 4.97 waves: their fifth is full, and they are faster. Only the GPU
# knows the sizes, so any choice on the host takes that risk.
#
# ## Ask the model
#
# The library asks this model for the kernel and its configuration. `explain` shows why:

# %%
print(explain(forward, Extents(256, **layer), h200))
print(explain(forward, Extents(2, **layer), h200, others=1))

# %% [markdown]
# Three things to know when you use it:
#
# - The library rounds the rows of the average group, in four steps from one power of two to the next. So batches of
#   about the same size share one choice and one compiled kernel.
# - A GPU that nobody measured takes the constants of the measured GPU that is most like it, if both read operands in
#   the same way. It counts with its own SMs, clock and bandwidth. `explain` says whose constants they are. `course
#   tune` fits its own constants, in about four minutes.
# - The model knows 8-bit products, too. Rules by hand answer for everything else: GPUs without constants or a relative
#   (such as an A100), operands of 32 bits, and operands that a GPU with descriptors cannot describe.

# %% [markdown]
# ## The production code
#
# These are the functions that choose. `choose` selects a backend: it asks the model on Hopper, and falls back to Triton
# where the CuTe kernel does not support the operands. `ranking` is the model's answer: configurations of both kernels,
# the fastest first. The second `choose`, of `engine.tuning`, returns the first one for Triton, or that of a rule.

# %%
display(fold(choice.choose), fold(time_model.ranking), fold(choose))

# %% [markdown]
# ## Who takes the next tile
#
# A choice is as good as its candidates. The rest of the lesson is about one kind of product that had no good candidate:
# gradients of weights (lesson 08's mode k). There the K of a tile is the number of rows of its expert. With Zipf's law
# some tiles are sixty times as deep as others. In lesson 10's order the first cluster takes tiles 0, 66, 132 and
# so on, so a cluster may get several of the long ones.
#
# Lesson 05 has the remedy, a dynamic order: a cluster takes the next number from a counter in memory. The loading warp
# asks for it before it loads a tile. When two blocks are on their way, the answer is there, and the warp sends it to
# all warps of the cluster. Recorded for gradients of weights, the fixed order against the dynamic one:

# %%
TOGETHER = CuteConfig(128, 256, 64, cluster=2, stages=4, schedule=COOPERATIVE)
DYNAMIC = replace(TOGETHER, dynamic=True)
swept_h200 = record.load("configurations")["rows"]
by_order = {
    f"{title}: fixed → dynamic":
        records.ratios({name: row for name, row in swept_h200.items() if law in name}, "dB", TOGETHER, DYNAMIC)
    for title, law in (("Zipf's law", "-zipf-"), ("even routing", "-random-"))
}  # fmt: skip
hopper.gains(by_order)

# %%
for name, points in by_order.items():
    best, worst = max(points, key=lambda point: point[1]), min(points, key=lambda point: point[1])
    print(f"{name}: at best {best[1]:.2f} times as fast (K {best[0]:.0f}), at worst {worst[1]:.2f} (K {worst[0]:.0f})")

# %% [markdown]
# K is the average expert's rows here. With even routing the dynamic order helps most where experts have 8 to 64 rows.
# Perhaps a cluster that fell behind stays behind in a fixed order. With more rows it hardly helps, and a few products
# lose. So the library has both orders, and the model chooses.
#
# Who sets the counter back to zero for the next launch? The kernel does, as in lesson 05: the cluster that gets the
# last number knows that nobody will ask again. *When* the number is sent matters as much. A first version sent it with
# the last load of a tile, which was too late: every tile began with a wait. Sent two blocks into the tile, the number
# is there long before anybody needs it. (The clocks that showed it are in the [notes of our
# measurements](../benchmarks/notes/hopper_k.md), as are the trials behind the next sections.)
#
# ### The big stones first
#
# One loss remains: a deep group that comes last keeps a few clusters busy when all others are done. If you pack a box,
# you begin with the big stones, and the small ones fill the gaps. So in the dynamic order, the kernel numbers the tiles
# of deep groups first. A warp looks at 32 groups at a time, a *window* (not a descriptor, as in lesson 08). In each
# window, groups of at least four times the mean depth come first, then those of twice, then of once, then the rest. The
# window that is not full comes first: as the last one, it might hold nothing but deep groups. Simulated for 40 experts,
# Zipf's law and 66 clusters; a deeper group is darker:

# %%
(granite,) = zoo.rows(["granite"], tokens=[8192], routings=["zipf"], projections=["down"])
handed = l10_clusters.hand_out(DYNAMIC, granite.sizes, rows=granite.K, columns=granite.N, clusters=66)
for how, run in handed.items():
    print(f"{how:19} {run.makespan / run.lower_bounds.work - 1:4.0%} longer than perfectly equal shares")
cute_clusters.handed_out(handed)

# %% [markdown]
# The same tiles are computed, and only their order differs. With few rows there is little to gain: nearly every group
# is one block deep.
#
# ### Without a partner
#
# Such gradients mostly write: a tile of one or two blocks of K is multiplied at once, and storing it takes the time.
# Two CTAs of a cluster share loads that hardly matter there, and wait for each other before each tile.
#
# **Guess:** up to how many rows for each expert is one CTA alone faster than a cluster of two, on an H200?

# %% tags=["hide-output"]
NARROW = replace(TOGETHER, tile_n=128, stages=6, schedule=PINGPONG)
alone = replace(NARROW, dynamic=True, cluster=1, swizzle_size=1)  # in strips of one row
paired = replace(NARROW, dynamic=True, most_stores=4, store_row_bytes=64)  # stores in smaller blocks: see below
by_partner = records.ratios(swept_h200, "dB", paired, alone)
for low, high in ((0, 16), (16, 128), (128, 256), (256, 32768)):
    factors = [factor for K, factor in by_partner if low < K <= high]
    print(f"{low:3} < K ≤ {high:6,}: median {statistics.median(factors):.3f} of {len(factors)} products")
hopper.gains({"cluster of two → one CTA, tile 128 × 128": by_partner})

# %% [markdown]
# <details><summary>Answer</summary>
#
# Up to about 128 rows, two blocks of K. With more than 256 rows one CTA alone is slower. On an H100, whose memory is
# slower, the cluster is ahead or level in every median.
#
# </details>
#
# The two also differ in strips and in blocks of stores. With all else equal, one CTA alone was ahead by
# less in a trial.
#
# ### Not too far ahead
#
# How far ahead may the loads run? As far as there are free stages, we thought: with six stages and tiles of one block,
# six tiles. But a tile that a CTA has asked for is no other's. At the end some CTAs still have tiles in their stages,
# and others have nothing to do. So now a tile's loads begin when all warps have read the number of the second tile
# before it. Where tiles are deeper, little changed: their blocks fill the stages before that limit is reached.
#
# ### Room for a fifth stage
#
# On an H100, [QuACK](glossary.md#QuACK) was ahead in many gradients of weights. On two of four layers that we profiled,
# no part of the GPU was at its limit. But QuACK used more shared memory for tiles of 128 × 192 than our kernel.
# Probably it has one stage more. Does a fifth one fit in ours? A stage has 320 lines of 128 bytes. Each warp group
# stages its result in blocks of 64 rows, 128 bytes a row, from which TMA stores it. Of the 227 KiB of a program, one is
# kept for barriers:

# %%
for stages, stores, row_bytes in ((4, 2, 128), (5, 2, 128), (5, 3, 64)):
    tried = replace(WIDE, stages=stages, most_stores=stores, store_row_bytes=row_bytes)
    needed = tried.stage_lines * 128, 64 * row_bytes, tried.shared_bytes(Form())
    stage, block, of_all = (size // 1024 for size in needed)
    print(f"{stages} stages of {stage} KiB; blocks for each warp group: {tried.store_blocks(Form())} of {block} KiB; "
          f"in all {of_all} KiB of 226")  # fmt: skip

# %% [markdown]
# With a fifth stage only one block is left. Then a warp group has to wait until TMA has read the block, before it
# writes the next one to the same place. With blocks of half the size three fit: two may still be read while it writes
# the third. How often is a configuration with small blocks the fastest of all fifteen?

# %%
small_blocks = {f"cute {config.name}" for config in CONFIGS_ALONG_K if config.store_row_bytes == 64}
for gpu, name in (("H200", "configurations"), ("H100", "configurations_h100")):
    each_us = [row["dB"]["us"] for row in record.load(name)["rows"].values()]
    fastest = [min(us, key=us.get) for us in each_us]
    print(f"{gpu}: {sum(each in small_blocks for each in fastest)} of {len(fastest)} gradients of weights")

# %% [markdown]
# ## Summary
#
# - Regret on shapes that were left out shows what a way to choose is worth.
# - A table stores which configuration won. A model of tiles, waves and bytes also predicts shapes that nobody measured.
# - Fit on several models and several GPUs: a rule that was tuned on few rows loses on the next one.
# - Where tiles are unequal, a dynamic order helps, with the deep groups first.
# - If no candidate is good, add one. Stages, store blocks, a partner and how far loads run ahead are choices, too.
#
# ## References
#
# - [QuACK](https://github.com/Dao-AILab/quack), a library with its own table of configurations for CuTe kernels.
# - R. L. Graham, [Bounds on Multiprocessing Timing Anomalies](https://doi.org/10.1137/0117039), 1969: long jobs first.
# - Triton: [autotune](https://triton-lang.org/main/python-api/generated/triton.autotune.html), the other way to choose.
#
# ## What to read next
#
# This was the last lesson. To change a kernel, begin with the exercises of lessons 08 and 10. `benchmarks/notes/` has
# the measurements that did not fit into a lesson, with what was tried and did not help.
