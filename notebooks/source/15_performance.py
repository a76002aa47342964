# %% [markdown]
# # 15 · Performance
#
# Somebody shows you a table: a padded `bmm` is four times as fast as the grouped kernel. You know from lesson 01 that
# it computes rows that nobody needs. Is the table wrong, or were you?
#
# **About 70 minutes. Afterwards you can**
#
# - name the ways in which a stopwatch misleads, and repair each,
# - write an honest benchmark in a dozen lines,
# - read a recorded benchmark against the [roof](glossary.md#roof) of the machine,
# - explain the time of a kernel by arithmetic, bytes, wasted rows and the last wave,
# - find the five lies in that table,
# - profile a model, and say what a faster kernel or layer would gain it.
#
# You need: lessons 01 and 05; the records are of the kernels of lessons 08 and 10.

# %%
import os

os.environ["KINETO_LOG_LEVEL"] = "99"  # torch's profiler would print its stages
import gemm_course  # import first: without a GPU, kernels then run in the interpreter

import statistics

import torch

import course_kernels
from course_kernels import GemmConfig, codegen, runtime, testing
from course_kernels.bench import record, timing, verified_timing
from course_kernels.bench.rows import title_of
from gemm_course.figures import f15_layers, f15_measurements as measuring, record_analysis, roofline as draw
from gemm_course.lessons import layer_records, records
from gemm_course.lessons.l15_simulated_gpu import L2_BYTES, MEMORY_TB_S, PEAK_TFLOPS, SimulatedGpu
from gemm_course.lessons.listing import show

device = runtime.device()

# %% [markdown]
# ## Try the obvious: a stopwatch
#
# You get a simulated GPU, so that you can measure on any machine and know the truth. A host puts kernels into a queue.
# A device executes them, with an L2 cache and a clock that slows down when the chip is hot. Its constants are round
# numbers near an H200's, **none of them measured**. The simulation tells nothing about kernels. It shows what a method
# of measuring does.


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
cold_gpu = SimulatedGpu(seed=1)
runs = {n: product(cold_gpu, n) for n in (512, 2048, 8192)}
print("            first call   second call         that would be")
for n, run in runs.items():
    first, second = stopwatch(cold_gpu, run), stopwatch(cold_gpu, run)
    print(f"{n:5}³ {first:13.0f} µs {second:10.0f} µs {2 * n**3 / second / 1e6:14,.0f} TFLOP/s")
print(f"the device's peak: {PEAK_TFLOPS:.0f} TFLOP/s")

# %% [markdown]
# Both answers are wrong. The first call takes equally long for any size: the kernel is compiled or loaded. The second
# takes 3 µs for any size. For the larger two, that is faster than the peak of the device. In that time the host has
# only launched the kernel, and the device has not begun. **Warm up, and then wait for the device.**
#
# ## Wait, or let the device take the time
#
# `synchronize` makes the host wait. An *event* is a mark in the queue. The device notes the time when it reaches the
# mark.


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
warm_gpu = SimulatedGpu(seed=1)
warm = {n: product(warm_gpu, n) for n in runs}
for run in warm.values():
    run()
print("          host alone   synchronised   between events")
for n, run in warm.items():
    warm_gpu.synchronize()
    times = [method(warm_gpu, run) for method in (stopwatch, synchronised, between_events)]
    print(f"{n:5}³", *(f"{us:12.1f} µs" for us in times))

# %%
warm_gpu.synchronize()
begin, first_span, mark = warm_gpu.now, len(warm_gpu.spans), warm_gpu.event()
for _ in range(3):
    warm[2048]()
launched, done = warm_gpu.now, warm_gpu.event()
warm_gpu.synchronize()
brackets = {"stopwatch": (begin, launched), "events": (mark.at, done.at), "synchronised": (begin, warm_gpu.now)}
measuring.lanes(warm_gpu.spans[first_span:], brackets)

# %% [markdown]
# The picture has three launches. The stopwatch sees the host's side. Synchronising adds the time in which the host
# wakes up. Events see the device. If a product takes less time than its
# launch, none of these methods is enough: see graphs, below.
#
# ## Repeat, and watch the clock
#
# Here are two hundred calls between events from a cold chip, once on random numbers and once on zeros.
#
# **Guess:** which of the two is faster, and does it stay so?


# %% tags=["hide-output"]
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
# <details><summary>Answer</summary>
#
# Zeros are faster, and stay so.
#
# </details>
#
# The picture shows three effects. The first dot, at the bottom, is the loading: **warm up**. The random series sinks
# while the chip heats up: **run until it settles**. And zeros stay faster. A transistor that switches costs power,
# zeros switch few of them, and a chip at its power limit lowers its clock: **measure on random data**. No layer
# multiplies zeros. When has it settled? When the medians of two blocks of
# calls, one after the other, agree.
#
# ## Empty the cache
#
# A benchmark calls with the same operands again and again. In a model, other layers run in between. Take our layer of 8
# experts while it decodes, one row each, with weights of growing size:


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
# With a warm cache, weights that fit into it seem to be read faster than memory can deliver. (With smaller ones, the
# launch takes most of the time.) **Overwrite the cache before each timed call.** Then a rate above that of the memory
# needs an explanation, and is often a mistake.
#
# ## Take turns
#
# There are two orders to compare two kernels: first all calls of one and then all calls of the other, or in turn.


# %%
def in_sequence(gpu, functions, repeats):
    return {name: each_call(gpu, function, repeats) for name, function in functions.items()}


def in_turn(gpu, functions, repeats):
    times = {name: [] for name in functions}
    for _ in range(repeats):
        for name, function in functions.items():
            times[name] += each_call(gpu, function, 1)
    return times


# %% [markdown]
# We compare a kernel with itself, from a cold chip.
#
# **Guess:** in which order does it look as fast as itself?

# %% tags=["hide-output"]
twins = {}
for method in (in_sequence, in_turn):
    gpu = SimulatedGpu(seed=5)
    run = product(gpu, 4096)
    run()
    twins[method.__name__.replace("_", " ")] = method(gpu, {"this": run, "the same": run}, 60)
measuring.spread(twins)

# %% [markdown]
# <details><summary>Answer</summary>
#
# In turn.
#
# </details>
#
# In sequence, the first one looks faster, because it met the cool chip. **Take turns**, and drift affects all kernels
# alike.
#
# ## One number for many calls
#
# A few calls above are off the scale to the right: something disturbed them. How do they change the number that you
# report? We run ten benchmarks of the same kernel, 40 calls each.
#
# **Guess:** which of mean, median and minimum varies most between the ten?

# %% tags=["hide-output"]
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
# <details><summary>Answer</summary>
#
# The mean.
#
# </details>
#
# The mean depends on how many disturbed calls are among your forty. The minimum is steady here, but not typical: it
# comes from the call with the highest clock. **Report the median and the quartiles.** The quartiles show how far apart
# two medians must be to mean something.
#
# ## What goes wrong: a kernel that is fast because it is wrong
#
# This kernel is real and runs with torch. It multiplies our 8 experts, but leaves out the rows that do not fill a tile
# of 128. So it has fewer tiles and takes less time. The right one is beside it:

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


# %% [markdown]
# **Guess:** does a comparison with the exact result find the mistake?

# %% tags=["hide-output"]
for function in (all_rows, full_tiles_only):
    function()
    print(f"{function.__name__:16} correct: {torch.equal(out, exact)}")

# %% [markdown]
# <details><summary>Answer</summary>
#
# No, the wrong kernel passes! It wrote into the same buffer as the right one, so the rows it left out were already
# there.
#
# </details>
#
# Repair the check: put `out.fill_(float("nan"))` before `function()`, and run the cell again.
#
# <details><summary>Answer</summary>The second line now says <code>False</code>: NaN is equal to nothing. A result that
# is compared after a right kernel ran proves nothing. <b>Poison every output, verify, then time.</b></details>

# %%
out.fill_(float("nan"))
full_tiles_only()
missing = [int(part.isnan().any(dim=1).sum()) for part in out.split(tokens)]
print("rows of each expert:", tokens)
print("never written:      ", missing)

# %% [markdown]
# ## The smallest honest benchmark
#
# Four habits take a dozen lines. For each part, say which of the wrong numbers above it prevents.


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
# <details><summary>Answer</summary>
#
# - The ten calls before the measurement: the loading, at the bottom of the picture of two hundred calls.
# - The inner loop over `functions`: the kernel that looked faster than itself.
# - `flush_l2`: the rates above the memory's.
# - Events, and a `synchronize` before they are read: the stopwatch and its 3 µs.
#
# Random data, verifying, and one number for many calls are left to the caller.
#
# </details>
#
# The library's benchmark for real GPUs is the same loop. Before it times a kernel, it fills the output with poison and
# verifies the result:

# %%
show(timing.interleaved_us, "flush = ", "return")

# %%
show(verified_timing.verified_call, "# A call that makes", "verify(function()")

# %% [markdown]
# Flushing has a second effect: it keeps the device busy while the host fills the queue. Without it a short kernel waits
# for its launch, and you time the host again.
#
# ## As called, or in a graph?
#
# A [CUDA graph](glossary.md#CUDA-graph) replays many launches at the cost of one. Take our 8 experts, once as a loop of
# small products and once in one launch. We measure each as called and in a graph. The last column calls it back to
# back, without a flush:


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
# The three numbers answer three questions. *Device, in a graph*: how good is the kernel? *Back to back, as called*: how
# long does my call take? *Host*: will it limit the program? Back to back, a call takes the longer of the host's time
# and the device's (whose cache is warm). A table has to say which number it shows. A table that shows the other library
# as called and its own in a graph tells a lie.
#
# ## The roof
#
# Lesson 01 computed the intensity of an expert: FLOP per byte. A kernel can do no more than the arithmetic units allow,
# and no more than memory can feed them. Both ceilings below were *measured*, in the same run as everything else. The
# flat one is the fastest dense cuBLAS product of the rows' sizes, the slope is a copy.

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
# Left of the [ridge](glossary.md#roof), arithmetic costs nothing and every byte counts: decoding. Right of it, bytes
# cost nothing: training. Six rows have about 32,768 tokens, and yet they are far apart. Why?
#
# <details><summary>Answer</summary>The number of experts. Each has weights of its own. With more experts, each weight
# is read for fewer tokens. Small N and K also count: each row of A and C is used for less arithmetic.</details>
#
# If a point is above the roof, ask why. On the slope the reason is known: a copy writes as much as it reads, and
# reading alone can be faster. And dense cuBLAS is a peer, no bound: a kernel may pass it.
#
# ## What the compiler made of it: the roof inside the chip
#
# A tile has an intensity of its own: FLOP per byte that its main loop fetches. The dense rate divided by it is the
# traffic that the [L2](glossary.md#L2) cache must deliver. The compiler shows registers, shared memory and
# [spills](glossary.md#spill) as well, before anything is measured and without a GPU:

# %% tags=["nbval-ignore-output"]
compute_bound = [name for name, entry in results["rows"].items() if entry["kind"] == "compute"]
dense = max(records.ceiling(results, name) for name in compute_bound)
configs = [GemmConfig(64, 64, 64, 4, 3), GemmConfig(128, 128, 64, 4, 3), GemmConfig(128, 256, 64, 8, 3)]
builds = [(codegen.build("tma", dtype="bfloat16", config=config), "sm_90") for config in configs]
for config, one in zip(configs, codegen.compile_many(builds)):
    m, n, k = config.block
    per_byte = 2 * m * n * k / (2 * (m + n) * k)
    print(f"{m:3} × {n:3}: {per_byte:3.0f} FLOP per byte, so {dense:.0f} TFLOP/s take {dense / per_byte:4.1f} TB/s;"
          f" {one.registers} registers, {one.shared_bytes // 1024} KiB, spills: {bool(one.spills)}")  # fmt: skip

# %% [markdown]
# The smaller the tile, the more traffic it needs from the cache. This is one reason why large tiles win where there are
# many rows, and why clusters exist, in which programs share their loads. If you see spills or loads of few bytes each,
# repair them first.
#
# ## Against every other library
#
# Here are the same rows as bars, each against its own ceiling. All were verified, timed in turn and run in graphs.
# *triton* is lesson 08's kernel, *cute* lesson 10's, *auto* the faster one. [QuACK](glossary.md#QuACK) has CuTe
# kernels.

# %%
draw.against_peers(results)

# %% [markdown]
# "Faster than torch" says little if all bars are short. "Slower than QuACK" is no problem if both reach the line. So
# compare with the ceiling first.
#
# The next picture shows one factor per row, with the gradients beside it, because two thirds of the products of
# training are gradients:

# %%
record_analysis.speedups_over_peers(results, ours)

# %% tags=["hide-input"]
for name, speedups in results["speedups"].items():
    print(results["providers"][name]["label"])
    for of, others in speedups.items():
        mean = {other: f"{found['times']:.2f} (worst {found['worst']:.2f})" for other, found in others.items()}
        print(f"  {of:8}", ",  ".join(f"{each}: {mean[each]}" for each in ("torch", "best peer") if each in mean))

# %% [markdown]
# The numbers are geometric means over the rows, with the worst row in brackets. If the worst row were not shown, one
# huge win would hide a loss. (As called, QuACK runs one configuration. In graphs it runs the best of 18 for each row,
# and of six for gradients.)
#
# One more check. Two rows of the table have the same dense product, measured at two moments of the run.
#
# **Guess:** how far apart are the two medians?

# %% tags=["hide-output"]
twin_rows = [results["rows"][name] for name in ("zipf128-up", "half-empty128")]
print("the same product:", len({(sum(e["sizes"]), e["N"], e["K"]) for e in twin_rows}) == 1)
first, second = (entry["us"]["forward"]["dense"] for entry in twin_rows)
for us in (first, second):
    print(f"{us['median_us']:.1f} µs, half of the calls between {us['q1_us']:.1f} and {us['q3_us']:.1f}")
print(f"medians {abs(first['median_us'] / second['median_us'] - 1):.1%} apart; the ranges overlap:",
      max(first["q1_us"], second["q1_us"]) < min(first["q3_us"], second["q3_us"]))  # fmt: skip

# %% [markdown]
# <details><summary>Answer</summary>
#
# So far that the two ranges do not overlap.
#
# </details>
#
# The work and the method are the same. So the chip makes the difference, most likely its clock, which was not recorded.
# Kernels of one row took turns and can be compared. A difference of that size *between* rows, or between two days,
# means nothing. Quartiles compare the calls of one moment. They say nothing about two moments.
#
# ## In turn, or alone?
#
# A layer runs one kernel again and again. So the large rows were measured
# once more, each kernel alone and back to back, without the first third of a second, and with what the L2 cache holds.
#
# **Guess:** the problems are the same. Is the order of the kernels the same?

# %% tags=["hide-output"]
alone = record.load("sustained")
base, others = "triton", [name for name in ("cute", "quack", "torch", "dense") if name in results["providers"]]
print(f"times of others over {results['providers'][base]['label']}'s: below 1 they are faster")
print(" " * 53 + "".join(f"{name:>16}" for name in others))
print(" " * 53 + f"{'turns   alone':>16}" * len(others))
for name, entry in alone["rows"].items():
    line = f"{title_of(entry):53}"
    for other in others:
        for us in (of["rows"][name]["us"]["forward"] for of in (results, alone)):
            line += f"{us[other]['median_us'] / us[base]['median_us']:8.2f}" if other in us else f"{'–':>8}"
    print(line)

# %% [markdown]
# <details><summary>Answer</summary>
#
# Not quite. In turn torch is slower than our Triton kernel in all five rows. Alone it has caught up in four of them, to
# within 2 %; less than that says nothing here. In the last it falls further behind. The dense product gains in every
# row.
#
# </details>
#
# Here is a likely reason; `benchmarks/notes/hopper_m.md` describes how it was checked, with counters of energy and
# bytes, on earlier kernels. A kernel needs the same number of cycles both times, but the clock differs. These rows run
# at the chip's power limit, and the clock is as high as the power allows. When kernels take turns, the clock cannot
# adapt within one call. So all run at the same clock, and the one with fewer cycles wins. Alone, each kernel gets a
# clock of its own. So the one that needs less *energy* wins, and moving bytes takes a good part of it.
#
# Both measurements are honest. Neither is a step of your model, where other kernels run in between and some need little
# power. Say which one you show. Where a choice is close, take both.
#
# ## The cost of a call, as recorded
#
# If the host's time for a call is longer than the device's, the device waits for the host:

# %%
called = [name for name in results["providers"] if any(name in e["us"]["called"] for e in results["rows"].values())]
record_analysis.as_called(results, [name for name in called if name in (ours, "torch", "loop")])

# %% tags=["hide-input"]
for name in called:
    entries = [e for e in results["rows"].values() if name in e["us"]["called"] and name in e["us"]["forward"]]
    bound = sum(e["host_us"][name] > e["us"]["forward"][name]["median_us"] for e in entries)
    host = [e["host_us"][name] for e in entries]
    label = results["providers"][name]["label"].replace("best configuration", "one configuration")  # as called
    print(f"{label:32} host {min(host):6.1f} to {max(host):7.1f} µs a call; the limit in {bound} of {len(host)} rows")

# %% [markdown]
# ## What limits each row?
#
# We explain the time of lesson 08's kernel in steps. First comes the roof: arithmetic at the rate of this row's dense
# product, or the bytes at a copy's rate. (The roofline's flat part is the fastest dense product of all rows, so shares
# can be higher here.) Where arithmetic is the limit, we add the rows of 128 × 256 tiles that are past the end of their
# group (lesson 08), then the last wave, which is not full (lesson 05). The rest has other causes.

# %%
explained = records.shares(results, "triton", (128, 256), about["sms"])
record_analysis.where_time_goes(results, explained)

# %%
for name, share in explained.items():
    waste, part = max((value, part) for part, value in share.parts.items() if part != "the roof")
    then = f"next: {part}, {waste:.0%}" if waste > 0.005 else "nothing else to see"
    roof, title = share.parts["the roof"], title_of(results["rows"][name])
    print(f"{title:56} bound by {share.bound:10} {roof:4.0%} of its time; {then}")

# %% [markdown]
# The model is crude, for three reasons: (a) shares are cut at 100 %; (b) it assumes 128 × 256 tiles, and smaller ones
# waste fewer rows; (c) the dense rate already contains a last wave. But it shows where to look. Wasted rows need
# another tile, and a last wave another schedule. For the rest, use a profiler: K loops may be short, or stores may
# overlap with nothing.
#
# ## Five lies
#
# Now the table. Eight experts, 1,536 tokens, a mildly skewed router. `bmm` needs its rows padded and its result
# unpadded. `grouped` needs its rows sorted and put back:

# %%
load = testing.routed_sizes("zipf", 1536, s=0.2)
M, K, N, G, longest = sum(load), 1024, 1536, len(load), max(load)
print("rows of each expert:", load, "→ padded to", G * longest, "rows, needed:", M)


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
# `efficiency` is the share of the peak that a kernel's arithmetic reaches. `streaming` is the share of the bandwidth.
# Here `bmm` has the better main loop, but keeps too few loads on their way. These are assumptions. The rest is a
# benchmark like many others:

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
# **Find the five lies before you read on.** One of them shows in the output. Change the cell, run it, and watch the
# winner.
#
# <details><summary>Lie 1: the rate is above the peak</summary><b>No synchronisation.</b> The host's clock is read while
# the device still works: it compares one launch with three. Use events, or synchronise before both readings.</details>
#
# <details><summary>Lie 2: useless work</summary><b>Padded FLOP are counted.</b> The result does not need the padded
# rows: <code>flops</code> must be <code>2 * M * K * N</code> for both. Count what the problem needs, never what a
# kernel does. Better still: compare times.</details>
#
# <details><summary>Lie 3: two different jobs</summary><b>Packing is timed for one side only.</b> <code>grouped</code>
# sorts its rows and puts them back within the timed loop; <code>pad</code> was called once, in the set-up, and
# <code>unpad</code> never. Time both from the same input to the same output.</details>
#
# <details><summary>Lie 4: the data</summary><b>Zeros.</b> <code>gpu.zeros</code> makes operands that cost little power.
# Use <code>gpu.randn</code>.</details>
#
# <details><summary>Lie 5: the second call</summary><b>A warm L2.</b> Every call finds the operands of the last call in
# the cache. A layer in a model does not. Flush before each timed call, and take turns.</details>
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


# %% [markdown]
# Now `grouped` wins, and the boxes do not overlap. How much did each lie add? We start with the published benchmark and
# repair one lie after the other.
#
# **Guess:** how many repairs does it take until the winner changes?


# %% tags=["hide-output"]
lies = ["no sync", "padded FLOP", "packing", "zeros", "warm L2"]
repairs = ["with events", "… and needed FLOP", "… and all packing", "… and random data", "… and a flushed L2"]
ratios = {"as published": claim(lies)} | {repair: claim(lies[i:]) for i, repair in enumerate(repairs, 1)}
measuring.claims(ratios, "padded bmm", "grouped")

# %% [markdown]
# <details><summary>Answer</summary>
#
# All five. After four, the winner is still wrong.
#
# </details>
#
# Next, only one lie at a time:

# %%
measuring.claims({f"only {lie}": claim([lie]) for lie in lies} | {"none": claim([])}, "padded bmm", "grouped")

# %% [markdown]
# Three of the lies would each have been enough alone. With *no sync* alone both look equal, because both have three
# launches. *Zeros* alone does next to nothing here: with a flushed cache, `bmm` waits for memory and stays below its
# power limit. With a warm cache it computes all the time, and zeros help. So lies strengthen each other. If you repair
# one and see no change, it proves nothing.
#
# ## Profile a real model
#
# All of this was about kernels. Does *my model* get faster? Four steps answer it: profile, find the grouped products,
# swap, and profile again. Here is a small model with torch's `grouped_mm`. Use yours in its place:


# %%
class ExpertLayer(torch.nn.Module):
    """Eight experts, two for each token, with a residual."""

    grouped_mm = staticmethod(torch.nn.functional.grouped_mm)

    def __init__(self, H=64, I=128, E=8):
        super().__init__()
        draw = torch.Generator().manual_seed(0)
        for name, shape in {"router": (H, E), "up": (E, H, I), "down": (E, I, H)}.items():
            weight = torch.randn(shape, generator=draw) / shape[-2] ** 0.5
            setattr(self, name, torch.nn.Parameter(weight.to(device, torch.bfloat16)))

    def forward(self, x):
        weight, expert = torch.softmax(x @ self.router, dim=-1).topk(2)
        order = expert.flatten().argsort(stable=True)
        ends = torch.bincount(expert.flatten(), minlength=len(self.up)).cumsum(0).int()
        rows = self.grouped_mm(x[order // 2], self.up, offs=ends)
        rows = self.grouped_mm(torch.nn.functional.silu(rows), self.down, offs=ends)
        return x + torch.zeros_like(x).index_add(0, order // 2, rows * weight.flatten()[order, None])


# %% [markdown]
# **1. Profile a training step.** torch's profiler records every operator with its shapes, and on a GPU every kernel.
# Profile a step in the middle of training: the first ones compile and load.


# %%
def profile_step(model, x):
    activities = [torch.profiler.ProfilerActivity.CPU]
    if device.type == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    model(x).sum().backward()  # warm
    with torch.profiler.profile(activities=activities, record_shapes=True) as found:
        model(x).sum().backward()
    return found.key_averages(group_by_input_shape=True)


model = torch.nn.Sequential(ExpertLayer(), ExpertLayer())
embedded = testing.integers((96, 64), torch.bfloat16, 7, device=device)
before_swap = profile_step(model, embedded)

# %% [markdown]
# **2. Find the grouped products.** Look for operators with a weight of three dimensions and a list of ends.
# `table(sort_by="self_device_time_total")` lists all operators by their time; here we list the ones that we look for.
# In a model whose experts are a loop, look for `aten::mm` with as many calls as there are experts.


# %%
def grouped_products(found, name):
    for event in sorted(found, key=lambda event: str(event.input_shapes)):
        if event.key == name:
            left, right, ends = event.input_shapes[:3]
            print(f"{event.count} × {name}: {left} times {right}, {ends[0]} groups")


grouped_products(before_swap, "aten::_grouped_mm")

# %% [markdown]
# Two layers have two products each. Forward and the gradient of the rows have the same mode, so they are counted
# together where their shapes agree. (The first layer's input needs no gradient: one product less.) The gradients of the
# weights have two operands of two dimensions (lesson 11).
#
# Before you go on, compute what you can win. If the grouped products are a share s of the step, and they become f times
# as fast, the step becomes 1 / (1 − s + s / f) times as fast:

# %%
for share in (0.2, 0.5, 0.8):
    print(
        f"a share of {share:.0%}:",
        *(f"{f} × → {1 / (1 - share + share / f):.2f} ×" for f in (1.2, 1.4, 2.0)),
        sep="   ",
    )

# %% [markdown]
# **3. Swap.** Change the import, or the attribute. In transformers, register it: `ExpertsInterface.register(name, fn)`,
# then `model.set_experts_implementation(name)`. Compare the results before you look at times:

# %%
expected_out = model(embedded)
for layer in model:
    layer.grouped_mm = course_kernels.grouped_mm
swapped_out = model(embedded)
off = float((swapped_out - expected_out).detach().abs().max() / expected_out.detach().abs().max())
print("the same up to bfloat16's rounding:", off < 2**-7)
grouped_products(profile_step(model, embedded), "course_kernels::grouped_mm")
for layer in model:
    del layer.grouped_mm  # torch's again

# %% [markdown]
# No `aten::_grouped_mm` may be left over. (On a CPU, ours calls torch's loop of products. So nothing can be timed
# here.)
#
# **4. Profile again, and compare.** On a GPU, the profile's events have `device_time_total`. This record has products
# of real models' layers with both gradients, both libraries in CUDA graphs on an H200:

# %%
zoo_record = record.load("zoo")
steps_of = {name: entry["us"]["step"] for name, entry in zoo_record["rows"].items() if "step" in entry["us"]}
gains = {name: us["torch"]["median_us"] / us["auto"]["median_us"] for name, us in steps_of.items() if len(us) > 1}
print(f"{len(gains)} products: {statistics.geometric_mean(gains.values()):.2f} times as fast as torch's on average")
for name in (min(gains, key=gains.get), max(gains, key=gains.get)):
    print(f"  {gains[name]:.2f}: {zoo_record['rows'][name]['title']}")

# %% [markdown]
# Is one kernel slower than you expect? NVIDIA's Nsight Compute runs it many times to read the counters of the hardware.
# Name it:
#
# ```
# ncu --set full --kernel-name regex:contiguous --launch-skip 20 --launch-count 1 python my_training.py
# ```
#
# Read three things first. *Speed of light*: the shares of the peak of the SMs and of memory. One near 100 % is the
# limit; if none is, the kernel waits. *Launch statistics*: programs, registers, shared memory. *Warp state*: what warps
# wait for. A barrier means that loads come too late; *math pipe* means that tensor cores are busy, as they should be.
# `nsys profile` shows the gaps between kernels (lesson 03).
#
# ## The layer beside its peers
#
# A faster *layer* gains more than a faster product (lesson 14). *transformers* runs fifteen operations with torch's
# `grouped_mm` (for one token a batched product), *Liger* a fused layer with its own autotuner. All are as called; the
# dashed line is the layer's products alone, in a graph.

# %%
layers = layer_records.measured()
swept = [row for row in layer_records.rows_of("qwen3-30b-a3b") if row["routing"] == "uniform"]
passes = {"forward": "forward", "forward and backward": "step"}
rates = {title: layer_records.rates(swept, part) for title, part in passes.items()}
f15_layers.rates(rates) if swept else print("not recorded yet")

# %% [markdown]
# With few tokens, weights are read for little arithmetic, and all rates are low. The same as factors:

# %%
beside = {title: layer_records.beside_peers(layers, part) for title, part in passes.items()}
f15_layers.beside_peers(beside, "(as called)") if swept else print("not recorded yet")

# %% [markdown]
# Fusing gains least where experts are large, as Mixtral's. How close is the layer to its products, both in graphs? And
# how much memory is kept for the backward?

# %%
if not layers["rows"]:
    print("not recorded yet")
print(" " * 36 + "speed over products'    MB kept for the backward")
print(" " * 36 + "forward    step     this library  transformers  Liger")
for row in layers["rows"]:
    us, memory = row["us"], row["memory"]
    speed = [us[f"products {part}"] / us[f"graph {part}"] for part in passes.values()]
    kept = [memory[way]["kept"] / 1e6 if way in memory else None for way in ("ours", "transformers", "liger")]
    cells = ["–" if mb is None else f"{mb:.2f}" if mb < 1 else f"{mb:,.0f}" for mb in kept]
    print(f"{layer_records.title(row):36}{speed[0]:7.2f} {speed[1]:7.2f} {cells[0]:>16} {cells[1]:>13} {cells[2]:>6}")

# %% [markdown]
# One token has kernels of its own (lesson 14), which can be faster than both products: above 1.
#
# *FlashInfer* has a fused layer for inference. Its autotuner tries up to 120 tiles for each row; ours predicts times
# (lesson 17). Next is FlashInfer's time over ours, both in graphs.
#
# **Guess:** who is ahead with few tokens, and who with many?

# %% tags=["hide-output"]
forwards = layer_records.forward_gains(record.load("moe_forward"), "flashinfer")
batches = sorted({each for ratios in forwards.values() for each in ratios})
print(f"{'tokens':20}" + "".join(f"{each:>8,}" for each in batches))
for title, ratios in forwards.items():
    print(f"{title:20}" + "".join(f"{ratios[each]:8.2f}" if each in ratios else f"{'–':>8}" for each in batches))

# %% [markdown]
# <details><summary>Answer</summary>
#
# With 64 and 256 tokens most bytes are weights, which both read, and they differ little. With many tokens ours is
# ahead. Granite, whose experts are small, is the exception: there FlashInfer is ahead from 64 to 4,096 tokens.
#
# </details>
#
# ## Several GPUs
#
# Experts that do not fit into one GPU are spread over several, and tokens travel (lesson 16). Give each GPU as many
# tokens as one had: *weak scaling*. Without an exchange, P GPUs are P times as fast. Here is Qwen3's layer with 16,384
# tokens on each. *By hand* is the code of many frameworks, with our products; the other ways are ours.

# %%
scaling = {title: layer_records.weak_scaling("qwen3-30b-a3b", 16384, "uniform", part) for title, part in passes.items()}
f15_layers.scaling(scaling) if any(scaling.values()) else print("not recorded yet")

# %% [markdown]
# By hand, two GPUs are slower than one; forward, so are two with *all_to_all*. Time goes into bytes on the wire,
# gathers and sums, and the host: both ways wait until it has read how many rows arrive. A graph has no host in it.
# Larger experts do more arithmetic for the same bytes. With Zipf's law the rank of the most popular expert decides
# (lesson 16). With DeepSeek-V3's layer and uniform routing, this library's ways pass 2 and 4, probably because each GPU
# reads only the weights of its own experts.

# %%
if not any(scaling.values()):
    print("not recorded yet")
for layers_of in ("qwen3-30b-a3b", "mixtral-8x7b", "deepseek-v3"):
    for routing in ("uniform", "zipf"):
        found = layer_records.weak_scaling(layers_of, 8192, routing, "step")
        for gpus in sorted(found.get("by hand", {}).keys() - {1}):
            line = ", ".join(f"{way} {ratios[gpus]:.2f}" for way, ratios in found.items() if gpus in ratios)
            print(f"{layers_of:14}{routing:8} {gpus} GPUs, a step: {line}")

# %% [markdown]
# ## Try it
#
# 1. Give every expert the same number of tokens: `load = [192] * 8` in the cell of the table. Who wins the honest
#    benchmark now?
#    <details><summary>Answer</summary><code>padded bmm</code>. Nothing is padded, <code>pad</code> moves no more bytes
#    than <code>sort</code>, and its better main loop outweighs its weaker loads. Lesson 01's record says the
#    same.</details>
# 2. Add a sixth lie: in `layers`, wrap one of the two in `gpu.graph(...)`. What does it gain in the honest benchmark,
#    and what would it gain back to back?
#    <details><summary>Answer</summary>The gaps between its three kernels, two microseconds in both, because back to
#    back the device is slower than the host, too. They are enough to change the winner.</details>
# 3. Suppose that a row reaches a third of the roof, and most of its time is "the rest". Name two measurements that you
#    would make next.
#    <details><summary>Answer</summary>A timeline per SM (lesson 05), which shows gaps and idle SMs. Counters of bytes
#    (lesson 05) and of tensor core activity. And before both, look at what the compiler made of the loop.</details>
#
# With a GPU, `course bench` measures all rows on your machine, and `course bench --roofline roof.png` draws its roof.
#
# ## Summary
#
# - The host's clock times launches. Events time the device. Graphs leave out the launches. Say which one you show.
# - Warm up, use random data, flush, take turns, report median and quartiles. Each habit prevents a wrong number.
# - Poison the outputs, verify, then time. A kernel that skips work is fast.
# - Compare with the roof before you compare with other libraries: arithmetic or bytes, both ceilings measured.
# - Count the work that the problem needs, from the same input to the same output. A rate above the roof needs a reason.
# - Profile the model before and after. A kernel that is faster helps by its share of the step, a layer by more.
#
# ## References
#
# - Hoefler and Belli, [Scientific Benchmarking of Parallel Computing Systems](https://doi.org/10.1145/2807591.2807644),
#   2015: twelve rules for reporting measurements.
# - Williams, Waterman and Patterson, [Roofline: An Insightful Visual Performance Model for Multicore
#   Architectures](https://zenodo.org/records/1236156), 2009.
# - PyTorch, [torch.profiler](https://docs.pytorch.org/docs/stable/profiler.html), and NVIDIA, [Nsight Compute
#   CLI](https://docs.nvidia.com/nsight-compute/NsightComputeCli/index.html).
# - He, [Strangely, Matrix Multiplications on GPUs Run Faster When Given "Predictable"
#   Data](https://www.thonking.ai/p/strangely-matrix-multiplications), 2024: zeros, power and the clock.
# - Triton's [do_bench](https://triton-lang.org/main/python-api/generated/triton.testing.do_bench.html), which flushes
#   the cache and times with events.
# - Compared with in the record: [torch's
#   grouped_mm](https://docs.pytorch.org/docs/main/generated/torch.nn.functional.grouped_mm.html),
#   [QuACK](https://github.com/Dao-AILab/quack), [transformers](https://github.com/huggingface/transformers),
#   [Liger](https://github.com/linkedin/Liger-Kernel), [FlashInfer](https://github.com/flashinfer-ai/flashinfer).
#
# ## What to read next
#
# Lesson 16 spreads a layer over several GPUs. Lesson 17 is for those who maintain kernels. `benchmarks/notes/` has the
# measurements that did not fit into a lesson.
