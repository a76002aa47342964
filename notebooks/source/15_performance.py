# %% [markdown]
# # 15 · Performance
#
# Somebody shows you a table: a padded `bmm` beats the grouped kernel, four times over. You know from lesson 01 that
# it computes rows that nobody wants. Is the table wrong, or were you?
#
# You will fool yourself with a stopwatch in seven ways and repair each, write an honest benchmark in a dozen lines,
# read a recorded one against the roof of the machine, and then find the five lies in that table. About 45 minutes.

# %%
import gemm_course  # noqa: F401 (first: without a GPU, it has kernels run in the interpreter)

import statistics

import torch

from course_kernels import GemmConfig, codegen, runtime, testing
from course_kernels.bench import grouped, record, timing
from gemm_course.figures import measuring, record_analysis, roofline as draw
from gemm_course.figures.simulated_gpu import L2_BYTES, MEMORY_TB_S, PEAK_TFLOPS, SimulatedGpu
from gemm_course.figures.listing import show

device = runtime.device()

# %% [markdown]
# ## Try the obvious: a stopwatch
#
# To measure on any machine, and to know the truth, you get a simulated GPU: a host that enqueues kernels, a device
# that works them off, an L2 cache, a clock that slows when the chip is hot. Its constants are round numbers near an
# H200's, **none of them measured**. It says nothing about kernels. What it shows is what a method of measuring does.


# %%
def product(gpu, n, fill="randn"):
    """A function that launches one product of n × n × n."""
    a, b, c = (getattr(gpu, fill)(n, n) for _ in range(3))
    return lambda: gpu.launch(f"{n}³", flops=2 * n**3, reads=[a, b], writes=[c])


def stopwatch(gpu, function):
    start = gpu.now  # the host's clock: time.perf_counter()
    function()
    return gpu.now - start


# %%
gpu = SimulatedGpu(seed=1)
runs = {n: product(gpu, n) for n in (512, 2048, 8192)}
print("            first call   second call         that would be")
for n, run in runs.items():
    first, second = stopwatch(gpu, run), stopwatch(gpu, run)
    print(f"{n:5}³ {first:13.0f} µs {second:10.0f} µs {2 * n**3 / second / 1e6:14,.0f} TFLOP/s")
print(f"the device's peak: {PEAK_TFLOPS:.0f} TFLOP/s")

# %% [markdown]
# Two wrong answers at once. The first call takes 20 ms whatever it computes: the kernel is compiled or loaded. The
# second takes 3 µs whatever it computes, and beats the peak of the device. Launching is all that the host did; the
# device has not even begun. **Warm up, and then wait for the device.**
#
# ## Wait, or better: let the device hold the watch
#
# `synchronize` makes the host wait. An *event* is a mark in the queue, and the device notes when it gets there.


# %%
def synchronised(gpu, function):
    gpu.synchronize()
    start = gpu.now
    function()
    gpu.synchronize()
    return gpu.now - start


def between_events(gpu, function):
    start = gpu.event()
    function()
    end = gpu.event()
    gpu.synchronize()
    return start.until(end)


# %%
print("          host alone   synchronised   between events")
for n, run in runs.items():
    gpu.synchronize()
    times = [method(gpu, run) for method in (stopwatch, synchronised, between_events)]
    print(f"{n:5}³", *(f"{us:12.1f} µs" for us in times))

# %%
gpu.synchronize()
begin, first_span, mark = gpu.now, len(gpu.spans), gpu.event()
for _ in range(3):
    runs[2048]()
launched, done = gpu.now, gpu.event()
gpu.synchronize()
brackets = {"stopwatch": (begin, launched), "events": (mark.at, done.at), "synchronised": (begin, gpu.now)}
measuring.lanes(gpu.spans[first_span:], brackets)

# %% [markdown]
# Three launches. The stopwatch sees the host's side, synchronising adds the host's waking up, events see the device.
# For a product that is over before the host has launched it, no method will do alone: see graphs, below.
#
# ## Repeat it, and watch the clock
#
# One call is no measurement. Two hundred, between events, from a cold chip, once on random numbers and once on zeros:


# %%
def each_call(gpu, run, repeats):
    pairs = []
    for _ in range(repeats):
        start = gpu.event()
        run()
        pairs.append((start, gpu.event()))
    gpu.synchronize()
    return [start.until(end) for start, end in pairs]


series = {}
for name, fill in (("zeros", "zeros"), ("random", "randn")):
    gpu = SimulatedGpu()
    times = each_call(gpu, product(gpu, 4096, fill), 200)
    series[name] = [2 * 4096**3 / us / 1e6 for us in times]
measuring.call_by_call(series, PEAK_TFLOPS)

# %% [markdown]
# Read three things. The very first dot, at the bottom, is the loading: **warm up**. The random series sinks while the
# chip heats up: **run until it settles**. And zeros are faster for good. Switching transistors cost power, zeros
# switch none, and a chip at its power limit lowers its clock: **measure on random data**. No layer multiplies zeros.
# (The stray dots get a section of their own.)
#
# ## Empty the cache
#
# A benchmark calls with the same operands again and again. In a model, other layers have run in between. Our layer
# of 8 experts while it decodes, one row each, with weights of growing size:


# %%
def apparent_rate(weight_mb, flush, repeats=30):
    gpu = SimulatedGpu()
    weights, rows, out = gpu.randn(8, int(weight_mb / 16 * 1e6)), gpu.randn(8, 1024), gpu.randn(8, 1024)
    pairs = []
    for _ in range(repeats):
        if flush:
            gpu.flush_l2()
        start = gpu.event()
        gpu.launch("decode", flops=weights.nbytes, reads=[weights, rows], writes=[out])
        pairs.append((start, gpu.event()))
    gpu.synchronize()
    return weights.nbytes / statistics.median(a.until(b) for a, b in pairs) / 1e6


sizes = [8, 12, 16, 24, 32, 40, 50, 64, 80, 120, 200, 400]
measured = {name: [apparent_rate(mb, name == "flushed") for mb in sizes] for name in ("warm", "flushed")}
measuring.cache_curve(sizes, measured, L2_BYTES / 1e6, MEMORY_TB_S)

# %% [markdown]
# Warm, the small ones "read" more than memory can deliver. **Overwrite the cache before each timed call.** Then a
# rate above memory's tells you at once that something is off.
#
# ## Take turns
#
# The kernel against itself, from a cold chip: first all calls of the one, then all calls of the other.


# %%
def in_sequence(gpu, functions, repeats):
    return {name: each_call(gpu, function, repeats) for name, function in functions.items()}


def in_turn(gpu, functions, repeats):
    times = {name: [] for name in functions}
    for _ in range(repeats):
        for name, function in functions.items():
            times[name] += each_call(gpu, function, 1)
    return times


# %%
twins = {}
for method in (in_sequence, in_turn):
    gpu = SimulatedGpu(seed=5)
    run = product(gpu, 4096)
    run()
    twins[method.__name__.replace("_", " ")] = method(gpu, {"this": run, "the same": run}, 60)
measuring.spread(twins)

# %% [markdown]
# In sequence, whoever comes first is "faster": it met the cool chip. **Interleave**, and drift meets all alike. (On a
# real GPU, other people's jobs and the weather of the data centre drift as well.)
#
# ## One number for many: which?
#
# The dots far to the right are calls that something got in the way of. What do they do to the number that you report?
# Ten benchmarks of 40 calls each, of the same kernel:

# %%
numbers = {"mean": statistics.fmean, "median": statistics.median, "minimum": min}
found = {name: [] for name in numbers}
for seed in range(10):
    gpu = SimulatedGpu(seed)
    run = product(gpu, 2048)
    each_call(gpu, run, 100)  # warm
    times = each_call(gpu, run, 40)
    for name, number in numbers.items():
        found[name].append(number(times))
for name, values in found.items():
    print(f"{name:8} from {min(values):5.1f} to {max(values):5.1f} µs: {max(values) / min(values) - 1:.1%} apart")

# %% [markdown]
# The mean depends on how many accidents fell into your forty. The minimum is steady here, and yet no typical call: it
# keeps the luckiest clock. **Report the median, and the quartiles**, which say how far apart two medians must be to
# mean something.
#
# ## What goes wrong: a kernel that is fast because it is wrong
#
# This one is real, computed with torch: our 8 experts, and a kernel that leaves out the rows that do not fill a tile
# of 128. Fewer tiles, less time. Would your check catch it?

# %%
tokens = testing.routed_sizes("zipf", 512)
rows = testing.integers((sum(tokens), 64), torch.float32, 1, device=device)
experts = testing.integers((8, 64, 48), torch.float32, 2, device=device)
exact = torch.cat([r @ e for r, e in zip(rows.split(tokens), experts)])
out = torch.empty_like(exact)


def all_rows():
    out.copy_(torch.cat([r @ e for r, e in zip(rows.split(tokens), experts)]))


def full_tiles_only():
    for part, r, e in zip(out.split(tokens), rows.split(tokens), experts):
        whole = len(r) // 128 * 128
        part[:whole] = r[:whole] @ e


# %%
for function in (all_rows, full_tiles_only):
    function()
    print(f"{function.__name__:16} correct: {torch.equal(out, exact)}")

# %% [markdown]
# It passes! The wrong kernel wrote into the same buffer as the right one, and what it left out was already there.
# Repair the check: put `out.fill_(float("nan"))` in front of `function()`, and run the cell again.
#
# <details><summary>What you should see</summary>The second line says <code>False</code>: NaN is equal to nothing.
# Results that are only compared after a right kernel ran prove nothing: <b>poison every output, verify, then
# time.</b></details>

# %%
out.fill_(float("nan"))
full_tiles_only()
missing = [int(part.isnan().any(dim=1).sum()) for part in out.split(tokens)]
print("rows of each expert:", tokens)
print("never written:      ", missing)

# %% [markdown]
# ## The smallest honest benchmark
#
# All habits together take a dozen lines. Say after each line which of the pictures above it prevents.


# %%
def honest(gpu, functions, repeats=60):
    """Microseconds of each call: warm, flushed, in turn, between events."""
    for function in functions.values():
        for _ in range(10):
            function()
    pairs = {name: [] for name in functions}
    for _ in range(repeats):
        for name, function in functions.items():
            gpu.flush_l2()
            start = gpu.event()
            function()
            pairs[name].append((start, gpu.event()))
    gpu.synchronize()
    return {name: [start.until(end) for start, end in found] for name, found in pairs.items()}


# %% [markdown]
# The library's own, for real GPUs, is the same loop, and what it times was verified over poison first:

# %%
show(timing.interleaved_us, "flush = ", "return")

# %%
show(grouped.verified_call, "# The freed", "return")

# %% [markdown]
# Flushing does one thing more: it keeps the device busy while the host enqueues. Without it a short kernel waits for
# its launch, and you time the host again. That is the next question.
#
# ## As called, or in a graph?
#
# A CUDA graph replays many launches at the price of one. Our 8 experts, as a loop of small products and in one
# launch, each both ways, and called back to back without a flush:


# %%
def small_experts(gpu, M=512, K=1024, N=1024):
    rows, weights, out = gpu.randn(M, K), [gpu.randn(K, N) for _ in range(8)], gpu.randn(M, N)
    part, part_out = gpu.randn(M // 8, K), gpu.randn(M // 8, N)
    flops = 2 * M * K * N

    def loop():
        for weight in weights:
            gpu.launch("mm", flops=flops / 8, reads=[part, weight], writes=[part_out])

    def one_launch():
        gpu.launch("grouped", flops=flops, reads=[rows, *weights], writes=[out])

    return {"loop": loop, "grouped": one_launch}


# %%
print("µs a call    host    device, flushed    back to back")
for name in ("loop", "grouped"):
    for way in ("called", "graph"):
        gpu = SimulatedGpu()
        call = small_experts(gpu)[name]
        call()
        call = gpu.graph(call) if way == "graph" else call
        on_device = statistics.median(honest(gpu, {name: call})[name])
        host = stopwatch(gpu, call)
        many = synchronised(gpu, lambda call=call: [call() for _ in range(100)]) / 100
        print(f"{name:8}{way:7}{host:5.0f} {on_device:13.1f} {many:17.1f}")

# %% [markdown]
# Three numbers, three questions. *In a graph*: how good is the kernel? *As called*: what does it cost me? *The host's
# time*: will anybody notice? Back to back a call takes the longer of host and device (which finds its cache warm). A
# table has to say which one it shows. One that shows a rival as called and itself in a graph tells a sixth lie, not
# counted below.
#
# ## The roof
#
# Lesson 01 drew the intensity of an expert; here is what it is for. A kernel can do no more than the arithmetic units
# allow, and no more than memory can feed them. Both ceilings below were *measured*, in the same run as everything else:
# the flat one is the fastest dense cuBLAS product of the rows' sizes, the slope is a copy.

# %%
results = record.load("grouped_mm")
about = results["provenance"]
ours = next(name for name, each in results["providers"].items() if each["role"] == "ours" and "absent" not in each)
print(f"{about['gpu']}, torch {about['torch']}, Triton {about['triton']}, {about['date'][:10]}, {results['dtype']}")
print(f"{len(results['rows'])} rows, {results['repeats']} repeats; {results['providers'][ours]['label']} against:")
for each in results["providers"].values():
    if each["role"] != "ours":
        print(f"  {each['label']:34} {'absent: ' + each['absent'] if 'absent' in each else each['role']}")

# %%
draw.roofline(results)

# %% [markdown]
# Left of the ridge, FLOP are free and every byte counts: decoding. Right of it, bytes are free: training. Six rows
# have about 32,768 tokens and lie far apart nevertheless. Why?
#
# <details><summary>Answer</summary>The number of experts: each brings weights of its own, and the more there are, the
# fewer tokens these are read for. Small N and K do the rest: each row of A and C is used for less.</details>
#
# A point above the roof is a question, not a triumph. Here there is an answer: a copy writes as much as it reads, and
# reading alone can be faster than that.
#
# ## What the compiler made of it: the roof inside the chip
#
# A tile has an intensity of its own: FLOP per byte that its main loop fetches. Divide the dense rate by it, and you
# have the traffic that the L2 cache must stand. Registers, shared memory and spills can be read off as well, all of it
# before anything is measured and without a GPU:

# %% tags=["nbval-ignore-output"]
compute_bound = [name for name, entry in results["rows"].items() if entry["kind"] == "compute"]
dense = max(draw.ceiling(results, name) for name in compute_bound)
configs = [GemmConfig(64, 64, 64, 4, 3), GemmConfig(128, 128, 64, 4, 3), GemmConfig(128, 256, 64, 8, 3)]
builds = [(codegen.build("tma", dtype="bfloat16", config=config), "sm_90") for config in configs]
for config, one in zip(configs, codegen.compile_many(builds)):
    m, n, k = config.block
    per_byte = 2 * m * n * k / (2 * (m + n) * k)
    print(f"{m:3} × {n:3}: {per_byte:3.0f} FLOP per byte, so {dense:.0f} TFLOP/s take {dense / per_byte:4.1f} TB/s;"
          f" {one.registers} registers, {one.shared_bytes // 1024} KiB, spills: {bool(one.spills)}")  # fmt: skip

# %% [markdown]
# The smaller the tile, the more it asks of the cache: one reason why large tiles win where rows are many, and why
# programs that share their loads (clusters) exist. If there are spills, or narrow loads, stop here: there is nothing to
# measure yet.
#
# ## Against every peer
#
# The same rows as bars, each against its own ceiling. All of them verified, interleaved, in graphs.

# %%
draw.against_peers(results)

# %% [markdown]
# "Faster than torch" is a weak claim if all bars are short, and "behind QuACK" a mild one if both touch the line.
# Compare with the ceiling first.
#
# The same as one factor per row, with the gradients beside it, for training spends two thirds of its products there:

# %%
record_analysis.speedups_over_peers(results, ours)

# %%
for name, speedups in results["speedups"].items():
    print(results["providers"][name]["label"])
    for of, others in speedups.items():
        mean = {other: f"{found['times']:.2f} (worst {found['worst']:.2f})" for other, found in others.items()}
        print(f"  {of:8}", ",  ".join(f"{each}: {mean[each]}" for each in ("torch", "best peer") if each in mean))

# %% [markdown]
# Geometric means over the rows, and the worst row beside them: a mean alone would let one huge win pay for a loss. (As
# called, QuACK runs one configuration; in graphs, the best of twelve for each row, and of three for gradients. A table
# has to say that, too.)
#
# One more look before you trust it. Two rows of the table have the same dense product, measured at two moments of the
# run:

# %%
twin_rows = [results["rows"][name] for name in ("zipf128-up", "half-empty128")]
print("the same product:", len({(sum(e["sizes"]), e["N"], e["K"]) for e in twin_rows}) == 1)
first, second = (entry["us"]["forward"]["dense"] for entry in twin_rows)
for us in (first, second):
    print(f"{us['median_us']:.1f} µs, half of the calls between {us['q1_us']:.1f} and {us['q3_us']:.1f}")
print(f"medians {abs(first['median_us'] / second['median_us'] - 1):.1%} apart; the ranges overlap:",
      max(first["q1_us"], second["q1_us"]) < min(first["q3_us"], second["q3_us"]))  # fmt: skip

# %% [markdown]
# Same work, same method: whatever lies between the medians is the chip, most likely its clock, which nobody recorded.
# Providers of one row took turns and may be compared. A difference of that size *between* rows, or between two days,
# means nothing. And quartiles say how far the calls of one moment lie apart, not how far two moments do.
#
# ## In turn, or alone?
#
# A layer does not take turns with other people's kernels: it runs one, again and again. So the large rows were measured
# once more, each kernel alone and back to back, the first third of a second not counted. Before you look: same kernels,
# same problems. Will the order be the same?

# %%
alone = record.load("sustained")
others = [name for name in ("cute", "quack", "torch", "dense") if name in results["providers"] and name != ours]
print(f"times of others over {results['providers'][ours]['label']}'s: below 1 they are faster")
print(" " * 54 + "".join(f"{name:>16}" for name in others))
print(" " * 54 + f"{'turns   alone':>16}" * len(others))
for name, entry in alone["rows"].items():
    line = f"{name:15} {entry['title']:38}"
    for other in others:
        for us in (of["rows"][name]["us"]["forward"] for of in (results, alone)):
            line += f"{us[other]['median_us'] / us[ours]['median_us']:8.2f}" if other in us else f"{'–':>8}"
    print(line)

# %% [markdown]
# It is not. The cycles that a kernel needs are the same both times; the clock is not. These rows run at the chip's
# power limit, 700 W, and what its power leaves is the clock. In turn there is one clock for all, which follows too
# slowly to tell them apart: whoever needs fewer cycles wins. Alone, each has its own: whoever needs less *energy* wins,
# and moving bytes costs a good part of it. Lesson 08's programs share nothing that they load, lesson 09's clusters do.
# Which row should care least?
#
# <details><summary>Answer</summary>The last. All rows belong to one group, so one weight of eight is read, and there is
# little to save.</details>
#
# Neither clock nor power is in these two records, so from them alone this is a guess; `benchmarks/NOTES.md` tells how
# it was looked into, with counters of energy and bytes. (The same kernel twice, alone, differed by up to 0.8 %.) Even
# the best configuration depends on the question:

# %%
for name in alone["rows"]:
    best = [of["rows"][name]["choice"]["forward"].get("quack", "–") for of in (results, alone)]
    print(f"{name:15} QuACK's best: in turn {best[0]:31} alone {best[1]}")

# %% [markdown]
# The larger a tile, the less is read for each product, and the longer its store keeps the SM waiting. Both measurements
# are honest, and neither is a step of your model, where other kernels run in between and some of them draw little. Say
# which one you show, and where a choice is close, take both.
#
# ## What a call adds, as recorded

# %%
called = [name for name in results["providers"] if any(name in e["us"]["called"] for e in results["rows"].values())]
record_analysis.as_called(results, [name for name in called if name in (ours, "torch", "loop")])

# %%
for name in called:
    entries = [e for e in results["rows"].values() if name in e["us"]["called"] and name in e["us"]["forward"]]
    bound = sum(e["host_us"][name] > e["us"]["forward"][name]["median_us"] for e in entries)
    host = [e["host_us"][name] for e in entries]
    label = results["providers"][name]["label"]
    print(f"{label:32} host {min(host):6.1f} to {max(host):7.1f} µs a call; the limit in {bound} of {len(host)} rows")

# %% [markdown]
# The host's time of a loop grows with the number of groups; that of one launch does not.
#
# ## What limits each row?
#
# Take a row's time and explain it from below. First the roof: arithmetic at the rate of this row's dense product, or
# the bytes at a copy's rate. Where it is arithmetic, add what tiles of 128 × 256 compute for rows that do not exist
# (lesson 08), then the last wave that is not full (lesson 05). What is left has other causes.

# %%
explained = record_analysis.shares(results, ours, (128, 256), about["sms"])
record_analysis.where_time_goes(results, explained)

# %%
for name, share in explained.items():
    waste, part = max((value, part) for part, value in share.parts.items() if part != "the roof")
    then = f"next: {part}, {waste:.0%}" if waste > 0.005 else "nothing else to see"
    print(f"{name:15} bound by {share.bound:10} {share.parts['the roof']:4.0%} of its time; {then}")

# %% [markdown]
# The model is crude: it is cut where it says more than was measured, smaller tiles waste fewer rows, and a dense
# product has waves of its own. But it says where to look. Rows that do not exist ask for another tile, a last wave for
# another schedule, the rest for a profiler: short K loops that start and end too often, stores that nothing overlaps.
#
# ## Five lies
#
# Now to that table. Eight experts, 1,536 tokens, a mildly skewed router. `bmm` needs its rows padded and its result
# unpadded, `grouped` needs them sorted and put back:

# %%
tokens = testing.routed_sizes("zipf", 1536, s=0.2)
M, K, N, G, longest = sum(tokens), 1024, 1536, len(tokens), max(tokens)
print("rows of each expert:", tokens, "→ padded:", G * longest, "of", M)


def kernels(gpu, new):
    x, y, w = new(M, K), new(M, N), new(G, K, N)
    padded, padded_y, by_expert, by_expert_y = new(G, longest, K), new(G, longest, N), new(M, K), new(M, N)
    bmm = dict(flops=2 * G * longest * K * N, reads=[padded, w], writes=[padded_y], efficiency=0.92, streaming=0.6)
    packed = dict(flops=2 * M * K * N, reads=[by_expert, w], writes=[by_expert_y], efficiency=0.5, streaming=0.9)
    return {
        "pad": lambda: gpu.launch("pad", reads=[x], writes=[padded]),
        "bmm": lambda: gpu.launch("bmm", **bmm),
        "unpad": lambda: gpu.launch("unpad", reads=[padded_y], writes=[y]),
        "sort": lambda: gpu.launch("sort", reads=[x], writes=[by_expert]),
        "grouped": lambda: gpu.launch("grouped", **packed),
        "unsort": lambda: gpu.launch("unsort", reads=[by_expert_y], writes=[y]),
    }


# %% [markdown]
# `efficiency` is the share of the peak that a kernel's arithmetic reaches, `streaming` that of the bandwidth: here
# `bmm` has the better main loop and too few loads in flight. These are assumptions. The benchmark is not:

# %%
gpu = SimulatedGpu(seed=12)
kernel = kernels(gpu, gpu.zeros)
kernel["pad"]()  # set up
steps = {"padded bmm": ["bmm"], "grouped": ["sort", "grouped", "unsort"]}
flops = {"padded bmm": 2 * G * longest * K * N, "grouped": 2 * M * K * N}
claimed = {}
for name, chain in steps.items():
    for _ in range(10):  # warm up
        for step in chain:
            kernel[step]()
    start = gpu.now
    for _ in range(100):
        for step in chain:
            kernel[step]()
    claimed[name] = flops[name] / ((gpu.now - start) / 100) / 1e6
for name, rate in claimed.items():
    print(f"{name:11} {rate:6,.0f} TFLOP/s")
print("the winner:", max(claimed, key=claimed.get))

# %% [markdown]
# **Find the five lies before you read on.** One of them betrays itself in the output. Change the cell, run it, and
# watch the winner.
#
# <details><summary>Lie 1: it beats the peak</summary><b>No synchronisation.</b> The host's clock is read while the
# device still works: this is the time of one launch against that of three. Use events, or synchronise before both
# readings.</details>
#
# <details><summary>Lie 2: work that nobody asked for</summary><b>Padded FLOP are counted.</b> The padded rows are work,
# but not the work that was asked for: <code>flops</code> must be <code>2 * M * K * N</code> for both. Count what the
# problem needs, never what a kernel does. Better still: compare times.</details>
#
# <details><summary>Lie 3: two different jobs</summary><b>Packing is timed for one side only.</b> <code>grouped</code>
# sorts its rows and puts them back within the timed loop; <code>pad</code> was called once, in the set-up, and
# <code>unpad</code> never. Time both from the same input to the same output.</details>
#
# <details><summary>Lie 4: the data</summary><b>Zeros.</b> <code>gpu.zeros</code> fills operands that no power is spent
# on. Use <code>gpu.randn</code>.</details>
#
# <details><summary>Lie 5: the second call</summary><b>A warm L2.</b> Every call finds the operands that the last one
# left in the cache; the layer will not. Flush before each timed call, and while you are there, take turns.</details>
#
# The corrected benchmark:

# %%
gpu = SimulatedGpu(seed=12)
kernel = kernels(gpu, gpu.randn)
steps = {"padded bmm": ["pad", "bmm", "unpad"], "grouped": ["sort", "grouped", "unsort"]}
layers = {name: lambda chain=chain: [kernel[step]() for step in chain] for name, chain in steps.items()}
truth = honest(gpu, layers)
for name, times in truth.items():
    print(f"{name:11} {2 * M * K * N / statistics.median(times) / 1e6:6,.0f} TFLOP/s")
print("the winner:", min(truth, key=lambda name: statistics.median(truth[name])))

# %%
measuring.spread({"Between events, flushed, in turn, from tokens to tokens": truth})

# %% [markdown]
# Another winner, with boxes that do not touch. What was each lie worth? The same benchmark with any of them left in:


# %%
def claim(lies):
    """The rate of `padded bmm` over that of `grouped`, with these lies left in."""
    gpu = SimulatedGpu(seed=12)
    kernel = kernels(gpu, gpu.zeros if "zeros" in lies else gpu.randn)
    if "warm L2" in lies:
        gpu.flush_l2 = lambda: None
    chain = ["bmm"] if "packing" in lies else ["pad", "bmm", "unpad"]
    layers = {"bmm": lambda: [kernel[step]() for step in chain],
              "grouped": lambda: [kernel[step]() for step in ("sort", "grouped", "unsort")]}  # fmt: skip
    times = {name: statistics.median(found) for name, found in honest(gpu, layers).items()}
    if "no sync" in lies:
        times = {name: stopwatch(gpu, layer) for name, layer in layers.items()}
    return times["grouped"] / times["bmm"] * (G * longest / M if "padded FLOP" in lies else 1.0)


# %%
lies = ["no sync", "padded FLOP", "packing", "zeros", "warm L2"]
repairs = ["with events", "… and needed FLOP", "… and all packing", "… and random data", "… and a flushed L2"]
ratios = {"as published": claim(lies)} | {repair: claim(lies[i:]) for i, repair in enumerate(repairs, 1)}
measuring.claims(ratios, "padded bmm", "grouped")

# %%
measuring.claims({f"only {lie}": claim([lie]) for lie in lies} | {"none": claim([])}, "padded bmm", "grouped")

# %% [markdown]
# Four repairs of five leave the wrong winner standing. Left alone, three of the lies would still have been enough;
# *no sync* makes a draw of anything with equally many launches. And *zeros* alone does next to nothing here: flushed,
# `bmm` waits for memory and stays below its power limit. With a warm cache it computes all the time, and zeros pay.
# Lies help each other, so repairing one and seeing no change proves nothing.
#
# Be fair to the author: the table would have been right elsewhere. The first question below asks where.
#
# ## Try it
#
# - Give every expert the same number of tokens: `tokens = [192] * 8` before `kernels`. Who wins the honest benchmark
#   now?
#   <details><summary>Answer</summary><code>padded bmm</code>: nothing is padded, <code>pad</code> moves no more bytes
#   than <code>sort</code>, and its better main loop outweighs its weaker loads. Lesson 01's record said so,
#   too.</details>
# - Add a sixth lie: in `layers`, wrap one of the two in `gpu.graph(...)`. What does it gain in the honest benchmark,
#   and what would it gain back to back?
#   <details><summary>Answer</summary>Flushed, only shorter gaps between its three kernels: their launches were hidden
#   behind the flush. Back to back it needs one launch where the other needs three, on the host.</details>
# - Suppose that a row lay at a third of the roof, and its time were mostly "the rest". Name two measurements that you
#   would make next.
#   <details><summary>Answer</summary>A timeline per SM (lesson 05), which shows gaps and idle SMs; counters of bytes
#   (lesson 05 again) and of tensor core activity; and before both, what the compiler made of the loop.</details>
#
# With a GPU, `course bench` measures all rows on your machine, and `course bench --roofline roof.png` draws its roof.
# Exercise 15 (find the lies, in `exercises/`) is not out yet.
#
# ## Summary
#
# - The host's clock times launches. Events time the device; graphs leave the launches out; say which one you show.
# - Warm, random, flushed, in turn, median with quartiles: each habit stands for a wrong number that you have seen.
# - Poison the outputs, verify, then time. A kernel that skips work is fast.
# - Compare with the roof before you compare with anybody: arithmetic or bytes, both ceilings measured.
# - Count the work that the problem needs, from the same input to the same output, and believe no rate above the roof.
#
# This was the last lesson. Back to the map: [00 Start here](00_start_here.ipynb).
