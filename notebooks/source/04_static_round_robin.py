# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown]
# # 04 · Static round-robin
#
# One launch per problem pays for every launch and leaves most of the GPU idle in each. A kernel's grid is one box and
# its arguments are fixed. How can *one* launch compute matrices of many sizes?
#
# You will put the batch into tables that a kernel can read, work out on paper which program computes which tile, write
# the kernel in twenty lines, watch it record its own walk, and break it in three ways. About 45 minutes.

# %%
import gemm_course  # noqa: F401 (first: without a GPU, it has kernels run in the interpreter)

import gc
import weakref

import torch
import triton
import triton.language as tl

from course_kernels import GemmConfig, GroupGemmPlan, codegen, runtime, schedule, testing
from course_kernels.bench import record, timing
from course_kernels.kernels import round_robin
from course_kernels.kernels.common import accumulate_tile, store_tile
from course_kernels.testing import reference
from gemm_course.figures import listing, ownership, walk_costs

# %matplotlib inline
device = runtime.device()

# %% [markdown]
# ## Try the obvious: hand over the list
#
# The batch is a Python list: the four squares of 1024, 512, 256 and 128, scaled down by 8. This kernel only wants the
# first element of each.

# %%
problems = testing.reference_problems(scale=8)
group_A, group_B = testing.make_operands(problems, device=device)


@triton.jit
def first_elements(matrices, out, COUNT: tl.constexpr):
    for g in tl.static_range(COUNT):
        tl.store(out + g, tl.load(matrices[g]))


# %%
firsts = torch.zeros(4, dtype=torch.float16, device=device)
try:
    first_elements[(1,)](group_A, firsts, 4)
except Exception:  # which one depends on whether the kernel is compiled or interpreted
    print("Triton refuses the list.")

# %% [markdown]
# A kernel's arguments are numbers and addresses. A list is neither: it lives in Python's memory, where no GPU can look.
# Triton does take a *tuple*. Does that solve it?

# %%
first_elements[(1,)](tuple(group_A), firsts, 4)
print("a tuple works:", torch.equal(firsts, torch.stack([a[0, 0] for a in group_A])))

# %% [markdown]
# It works and it stalls: the tuple is unrolled while compiling, so four problems and five problems are two different
# kernels, and `matrices[g]` wants a `g` known beforehand. In serving, the batch changes with every step.
#
# ## Tables: addresses, sizes, strides
#
# So write down for each problem what a kernel needs, and put *that* on the device: three small tensors whose shape
# says nothing about the matrices.


# %%
def tables(group_A, group_B, group_C):
    """Addresses (3, G), sizes (G, 3) and strides (G, 6) of all problems, on the device."""
    groups = (group_A, group_B, group_C)
    addresses = [[matrix.data_ptr() for matrix in group] for group in groups]
    sizes = [(a.shape[0], b.shape[1], a.shape[1]) for a, b in zip(group_A, group_B)]
    strides = [(*a.stride(), *b.stride(), *c.stride()) for a, b, c in zip(*groups)]
    return (
        torch.tensor(addresses, dtype=torch.int64, device=device),
        torch.tensor(sizes, dtype=torch.int32, device=device),
        torch.tensor(strides, dtype=torch.int64, device=device),
    )


# %%
group_C = [torch.empty(m, n, dtype=torch.float16, device=device) for m, n, _ in problems]
pointers, sizes, strides = tables(group_A, group_B, group_C)
print("sizes, one row per problem (M, N, K):", *sizes.tolist(), sep="\n  ")
print("strides (A row, column, B row, column, C row, column):", *strides.tolist(), sep="\n  ")

# %% [markdown]
# To reach a matrix, a program now loads twice: first (arrow 1) the address out of the table, then (arrow 2) the element
# at that address. The table is chosen at launch; the row, a plain number `g`, while the kernel runs.

# %%
ownership.pointer_tables(problems, strides[:, :2].tolist())

# %% [markdown]
# In Triton: load an `int64`, say what it points to, use it as a pointer. The same compiled kernel now serves any
# number of problems.


# %%
@triton.jit
def first_elements_by_table(a_ptrs, out):
    g = tl.program_id(0)
    a = tl.load(a_ptrs + g).to(tl.pointer_type(tl.float16))
    tl.store(out + g, tl.load(a))


firsts.zero_()
first_elements_by_table[(4,)](pointers[0], firsts)
print("through the table:", torch.equal(firsts, torch.stack([a[0, 0] for a in group_A])))

# %% [markdown]
# ### An address does not keep memory alive
#
# A tensor in a list is a reference; an integer in a table is not. Eight experts' weights lie as (N, K), and someone
# wants contiguous (K, N) for the table:

# %%
weights = [testing.integers((64, 32), generator=e, device=device) for e in range(8)]
addresses = [w.t().contiguous().data_ptr() for w in weights]
print("eight copies at eight addresses:", len(set(addresses)) == 8)

# %% [markdown]
# Each copy died as soon as its address was taken, and the next one moved into its memory. Rows of the table share a
# place that belongs to nobody: *dangling pointers*. No error follows, since the memory exists; the kernel reads
# whatever lies there by then.

# %%
copies = [w.t().contiguous() for w in weights]
print("kept in a list, eight addresses:", len({copy.data_ptr() for copy in copies}) == 8)
last = weakref.ref(copies[-1])
del copies
print("list gone, copy still there:", last() is not None)

# %% [markdown]
# Repair one: something must hold the tensors for as long as the table is in use. `GroupGemmPlan` does. Repair two is
# better: put strides in a table too, and no copy is needed.

# %%
mine = [torch.ones(16, 16, dtype=torch.float16, device=device)]
watched = weakref.ref(mine[0])
plan = GroupGemmPlan(mine, [torch.ones(16, 16, dtype=torch.float16, device=device)], method="round_robin")
del mine
print("my list is gone, the plan holds its operand:", watched() is not None)
del plan
gc.collect()
print("the plan is gone, so is the operand:        ", watched() is None)

# %% [markdown]
# ## The walk, on paper
#
# Cut every C into tiles and number them through all problems. Launch a *fixed* number of programs, P. Program p
# computes tiles p, p + P, p + 2P, … Three problems, four programs, tiles of 32 × 32:

# %%
three = [(50, 96, 32), (32, 64, 32), (64, 40, 32)]
ownership.tile_strip(three, (32, 32), programs=4)

# %% [markdown]
# Before you run the next cell: program 3 begins with tile 3. What are its problem, row and column, and what comes next?
# A tile knows only its number; to find its problem, subtract the tiles of the problems before it, then divide.


# %%
def my_walk(program, programs, problems, block):
    tile, passed = program, 0
    for g, (M, N, _) in enumerate(problems):
        tiles_n = -(-N // block)
        end = passed + -(-M // block) * tiles_n
        while tile < end:
            print(f"tile {tile:2} - {passed} = {tile - passed}: problem {g}, row,column", end=" ")
            print(*divmod(tile - passed, tiles_n), sep=",")
            tile += programs
        passed = end


my_walk(3, 4, three, 32)

# %% [markdown]
# That is the whole schedule: subtract, divide, stride. No list of tiles is stored anywhere, and no program talks to
# another. The library's plain-Python `schedule.walk` agrees:

# %%
for tile in schedule.walk(three, "round_robin", programs=4, block=(32, 32))[3]:
    print(f"tile {tile.index:2}: problem {tile.problem}, row,column {tile.m},{tile.n}, {tile.rows} x {tile.cols}")

# %% [markdown]
# The last column shows tiles that are not whole: the tile grid reaches past the matrix. Keep that in mind.
#
# ## The kernel
#
# The same loop, in Triton. The arithmetic is lesson 03's, imported: `accumulate_tile` (the loop over K) and
# `store_tile` (round once, write under a mask). `FULL_TILES` is a trap for later.


# %%
@triton.jit
def grouped_kernel(
    a_ptrs, b_ptrs, c_ptrs, sizes, strides, num_problems, BLOCK: tl.constexpr, FULL_TILES: tl.constexpr = False
):
    tile, passed = tl.program_id(0), 0
    for g in range(num_problems):
        M, N, K = tl.load(sizes + g * 3), tl.load(sizes + g * 3 + 1), tl.load(sizes + g * 3 + 2)
        tiles_n = tl.cdiv(N, BLOCK)
        end = passed + tl.cdiv(M, BLOCK) * tiles_n
        while tile < end:
            a = tl.load(a_ptrs + g).to(tl.pointer_type(tl.float16))
            b = tl.load(b_ptrs + g).to(tl.pointer_type(tl.float16))
            c = tl.load(c_ptrs + g).to(tl.pointer_type(tl.float16))
            s = strides + g * 6
            row = (tile - passed) // tiles_n * BLOCK
            col = (tile - passed) % tiles_n * BLOCK
            am, ak, bk, bn = tl.load(s), tl.load(s + 1), tl.load(s + 2), tl.load(s + 3)
            acc = accumulate_tile(a, b, row, col, M, N, K, am, ak, bk, bn, BLOCK, BLOCK, BLOCK, "ieee")
            end_m = row + BLOCK if FULL_TILES else M
            end_n = col + BLOCK if FULL_TILES else N
            store_tile(c, acc, row, col, end_m, end_n, tl.load(s + 4), tl.load(s + 5), BLOCK, BLOCK)
            tile += tl.num_programs(0)
        passed = end


# %% [markdown]
# One launch, four problems, any number of programs: fewer than there are tiles, as many, more.


# %%
def grouped(group_A, group_B, programs=4, block=32):
    group_C = [a.new_full((a.shape[0], b.shape[1]), float("nan")) for a, b in zip(group_A, group_B)]
    pointers, sizes, strides = tables(group_A, group_B, group_C)
    grouped_kernel[(programs,)](*pointers, sizes, strides, len(group_A), BLOCK=block)
    return group_C


def same(group, expected):
    return all(torch.equal(c, e) for c, e in zip(group, expected))


expected = reference.group_gemm(group_A, group_B, out_dtype=torch.float16)
for programs in (1, 4, 22, 30):
    print(f"{programs:2} programs:", same(grouped(group_A, group_B, programs), expected))

# %% [markdown]
# A router may send an expert nothing. Its problem has no tiles, the `while` is not entered, and the walk passes on:

# %%
for router in testing.ROUTERS:
    tokens = testing.routed_sizes(router, 128)
    A, B = testing.make_operands([(m, 64, 32) for m in tokens], device=device)
    right = same(grouped(A, B), reference.group_gemm(A, B, out_dtype=torch.float16))
    print(f"{router:8} {tokens}: {right}")

# %% [markdown]
# ## The kernel records its own walk
#
# The library's kernel is this walk with any strides, any type and a log. A plan with `record=True` keeps which program
# computed each tile. Does the kernel do what the plain Python says?

# %%
config = GemmConfig(32, 32, 32, group_m=1)
plan = GroupGemmPlan(group_A, group_B, method="round_robin", config=config, programs=4, record=True)
print("equal to the oracle:", same(plan.run(), expected))
recorded = plan.launches[0].records[:, 0].tolist()
for program, walked in enumerate(schedule.walk(problems, "round_robin", programs=4, block=(32, 32))):
    did = [tile for tile, by in enumerate(recorded) if by == program]
    print(f"program {program} did tiles {did}, as planned: {did == [tile.index for tile in walked]}")

# %%
ownership.owners(problems, (32, 32), recorded, title="Recorded: which of 4 programs computed each tile")

# %% [markdown]
# Columns of one colour: 4 programs and rows of 4 tiles. Nothing in the walk cares where one problem ends, so the small
# problems are not alone any more. The running example, 8 experts under a Zipf router, on 7 programs:

# %%
tokens = testing.routed_sizes("zipf", 256)
experts = [(m, 96, 32) for m in tokens]
A, B = testing.make_operands(experts, device=device)
plan = GroupGemmPlan(A, B, method="round_robin", config=config, programs=7, record=True)
print(plan)
print("equal to the oracle:", same(plan.run(), reference.group_gemm(A, B, out_dtype=torch.float16)))
ownership.owners(experts, (32, 32), plan.launches[0].records[:, 0].tolist(), title="8 experts, 7 programs")

# %% [markdown]
# Every program has as many tiles as any other, give or take one. Dotted outlines are the parts of tiles that lie past
# the matrix: wasted, and never to be stored.
#
# The same loop in the library, by excerpt. What is new is the choice of schedule (lesson 05) and the word `ALIGN`.

# %%
listing.show(round_robin.round_robin_kernel, "end = passed", "stride_cm, stride_cn")

# %% [markdown]
# ## What the compiler made of it
#
# A pointer that arrives as an argument is known to Triton: it looks whether the address is a multiple of 16. A pointer
# loaded out of a table is just a number. Compile the kernel for Hopper with and without saying it ourselves:

# %%
config_64 = GemmConfig(64, 64, 64)
specs = [codegen.build("round_robin", config=config_64, aligned=aligned) for aligned in (True, False)]
told, untold = codegen.compile_many([(spec, "sm_90") for spec in specs])
for name, kernel in (("told", told), ("not told", untold)):
    print(f"{name + ':':9} multiplies with wgmma {kernel.instructions['wgmma'] > 0},", end=" ")
    print(f"copies 16 bytes at once {16 in kernel.widths['cp.async']},", end=" ")
    print(f"loads element by element {2 in kernel.widths['ld.global']}")

# %% [markdown]
# Not told, it must expect the worst, and fetches fp16 elements one at a time through registers. The counts, and the
# line that tells it:

# %% tags=["nbval-ignore-output"]
for name, kernel in (("told", told), ("not told", untold)):
    print(f"{name + ':':9} bytes per thread: instructions", kernel.widths)
print(told.excerpt(r"cp\.async\.cg", before=0, after=3))

# %%
listing.show(round_robin.problem_pointer)

# %% [markdown]
# The host may say so only after checking every address and stride; the rest go to a launch without the promise.
# The tables' own nine loads (three addresses, three sizes, three strides) happen once per problem or tile, not in the
# loop over K.
#
# ## How many programs?
#
# Tutorials launch 84 or 128 programs, or one per multiprocessor (SM). An RTX A6000 has 84 SMs, an RTX 4090 has 128, an
# H200 132: a number that fits one GPU is a guess on the next. All tiles cost the same here, so the time goes in
# waves: tiles over programs, rounded up.

# %%
counts = record.load("programs")["rows"]["4 x 1024^3"]
squares = [(1024, 1024, 1024)] * 4
panels = {}
for kernel, label in (("round_robin", "pointer kernel"), ("tma", "descriptor kernel (lesson 06)")):
    block = counts[f"{kernel} block"]
    tiles = sum(schedule.tile_counts(squares, *block[:2]))
    recorded_us = {int(programs): us for programs, us in counts[kernel].items()}
    most = max(recorded_us)
    simulated_us = {p: schedule.simulate(squares, "round_robin", p, block).makespan for p in range(33, most + 1)}
    panels[f"{label}, {tiles} tiles"] = walk_costs.ProgramTimes(simulated_us, recorded_us)
    waves = ", ".join(f"{programs}: {-(-tiles // programs)}" for programs in recorded_us)
    print(f"{label}, {tiles} tiles of {block[0]} x {block[1]}; waves for each number of programs: {waves}")

# %%
walk_costs.program_counts(panels)

# %% [markdown]
# The stairs are real: as many waves, nearly the same time, for 66 programs and for 84. (The model's rates are
# those of the descriptor kernel's tile, so the pointer kernel lies above its stairs.) With 84 programs, 48 of 132 SMs
# have nothing to do. From the record:

# %%
tma = {int(programs): us for programs, us in counts["tma"].items()}
pointer = {int(programs): us for programs, us in counts["round_robin"].items()}
print(f"descriptor kernel: 84 programs take {tma[84] / tma[132]:.2f} times as long as 132")
print(f"and 128 programs {tma[128] / tma[132]:.2f} times: the last 4 SMs have no tile to compute either way")
print(f"pointer kernel: from 66 to 84 programs the time changes by {abs(pointer[84] / pointer[66] - 1):.1%}")
print(f"from 128 to 264 programs, half the waves, it falls to {pointer[264] / pointer[128]:.0%}, not to 50%")

# %% [markdown]
# The last line is where the model lies: 264 programs are two on each SM, and each gets half of it. What two programs
# gain is that one multiplies while the other waits for memory or stores its tile.
#
# So the number is read off the machine: SMs × programs that fit on one (`GemmConfig.programs_per_sm`).
#
# ## What it costs
#
# The record: each batch in one CUDA graph, fp16, against the loop of cuBLAS calls and the tutorial's kernel, that one
# with its best configuration and with the one that its autotuner found at N = 128 and then kept.

# %%
rows = record.load("group_gemm")["rows"]
us = {row: {provider: time["median_us"] for provider, time in entry["us"].items()} for row, entry in rows.items()}
walk_costs.time_ratios(
    us,
    {
        "cublas loop": "cuBLAS loop",
        "tutorial": "tutorial, best",
        "tutorial, key=group_size": "tutorial, as tuned first",
        "naive": "lesson 03",
        "round_robin": "this lesson",
    },
)

# %%
for row, times in us.items():
    print(f"{row:18} this lesson {times['round_robin']:6.1f} µs, loop {times['cublas loop']:6.1f}", end=", ")
    print("faster" if times["round_robin"] < times["cublas loop"] else "slower", "than the loop")
print(f"an empty kernel takes {us['4 x 128^3']['empty']:.1f} µs: the floor of the first rows")

# %% [markdown]
# Small problems: one launch instead of four, and all SMs at work. Large ones fill the GPU alone, so grouping gains
# little, and what remains is the quality of the tile: lesson 06. The host pays as well, for building tables:

# %%
host = rows["64 random 64-2048"]["host_us"]
print(f"host time for 64 problems: cuBLAS loop {host['cublas loop']:.0f} µs,", end=" ")
print(f"group_gemm {host['group_gemm']:.0f} µs, running a plan {host['plan.run']:.0f} µs")

# %% [markdown]
# A call checks every matrix and builds the tables anew; a plan has done so once. Keep a plan wherever the memory stays
# put. On a GPU of yours, the next cell measures one of these rows; its numbers belong to your machine.

# %% tags=["nbval-ignore-output"]
if runtime.mode() == "gpu":
    A, B = testing.make_operands([(256, 256, 256)] * 4, device=device)
    plan = GroupGemmPlan(A, B, method="round_robin")
    graphs = {"loop": timing.capture(lambda: [a @ b for a, b in zip(A, B)]), "grouped": timing.capture(plan.run)}
    for name, times in timing.interleaved_us({name: graph.replay for name, graph in graphs.items()}).items():
        print(f"4 x 256^3, {name}: {sorted(times)[len(times) // 2]:.1f} µs")
else:
    print("No GPU here: nothing to time.")

# %% [markdown]
# ## What goes wrong
#
# ### "All tiles are full"
#
# Drop the mask of the store and benchmarks with sizes of 1024 will never tell. Here C is 50 × 40, in the middle of a
# larger buffer full of NaN: the canary. What is left of it?


# %%
def run_in_canary(full_tiles):
    buffer = torch.full((84, 84), float("nan"), dtype=torch.float16, device=device)
    a, b = testing.integers((50, 32), device=device), testing.integers((32, 40), generator=1, device=device)
    c = buffer[10:60, 10:50]
    pointers, sizes, strides = tables([a], [b], [c])
    grouped_kernel[(4,)](*pointers, sizes, strides, 1, BLOCK=32, FULL_TILES=full_tiles)
    right = torch.equal(c.double(), a.double() @ b.double())
    fates = ownership.count_canary(buffer.cpu(), c.shape, (10, 10))
    print(f"full tiles: {full_tiles!s:5}  C itself is right: {right}, and around it", end=" ")
    print(f"{fates['overwritten']} elements are overwritten, {fates['intact']} intact.")
    return buffer.cpu()


buffers = {"every tile full": run_in_canary(True), "masked": run_in_canary(False)}

# %%
ownership.canary(buffers, (50, 40), (32, 32), (10, 10))

# %% [markdown]
# C is right in both. The damage is next door. When the outputs are slices of one packed tensor, next door is the next
# expert, and who is right depends on who wrote last:

# %%
x0, x1 = testing.integers((50, 32), device=device), testing.integers((46, 32), generator=1, device=device)
w = testing.integers((32, 64), generator=2, device=device)
packed = torch.zeros(128, 64, dtype=torch.float16, device=device)
y0, y1 = packed[:50], packed[50:96]
for name, A, C in (("expert 0 first", [x0, x1], [y0, y1]), ("expert 1 first", [x1, x0], [y1, y0])):
    for full_tiles in (True, False):
        pointers, sizes, strides = tables(A, [w, w], C)
        grouped_kernel[(1,)](*pointers, sizes, strides, 2, BLOCK=32, FULL_TILES=full_tiles)
        wrong = [int((y.double() != x.double() @ w.double()).any(1).sum()) for x, y in ((x0, y0), (x1, y1))]
        print(f"{name}, {'full tiles' if full_tiles else 'masked':10}: wrong rows of experts 0 and 1: {wrong}")

# %% [markdown]
# One program keeps an order; 132 do not, and the same call is right on Monday and wrong on Tuesday. With the mask there
# is nothing to order. (Lesson 08 returns to this store.)
#
# ### "The leading dimension is K", "B is contiguous"
#
# Both are claims about strides. A is one half of a fused projection, a slice of a wider tensor. B is a weight stored
# as (N, K) and viewed transposed. This helper lets you claim what you like:


# %%
def wrong_elements(a, b, claimed):
    """How many elements of a @ b come out wrong when the table claims these strides for A and B."""
    c = torch.zeros(a.shape[0], b.shape[1], dtype=a.dtype, device=device)
    pointers, sizes, strides = tables([a], [b], [c])
    strides[0, :4] = torch.tensor(claimed, device=device)
    grouped_kernel[(4,)](*pointers, sizes, strides, 1, BLOCK=32)
    return f"{int((c.double() != a.double() @ b.double()).sum())} of {c.numel()} wrong"


# %%
a = testing.integers((64, 2 * 32), device=device)[:, :32]  # half of a fused projection: rows are 64 apart
b = testing.integers((48, 32), generator=1, device=device).t()  # a weight stored as (N, K)
M, K, N = 64, 32, 48
print("A's rows are K apart, B is contiguous:", wrong_elements(a, b, (K, 1, N, 1)))
print("A's rows are K apart:                 ", wrong_elements(a, b, (K, 1, *b.stride())))
print("B is contiguous:                      ", wrong_elements(a, b, (*a.stride(), N, 1)))

# %% [markdown]
# No crash, no NaN: a product of other matrices that lie in the same memory. Before you look at the next cell, write
# the four numbers that make it right.

# %%
print("true strides:", (*a.stride(), *b.stride()), "→", wrong_elements(a, b, (*a.stride(), *b.stride())))
c = GroupGemmPlan([a], [b], method="round_robin").run()
print("the library, from the same views without a copy:", same(c, reference.group_gemm([a], [b], torch.float16)))

# %% [markdown]
# ## Try it here
#
# [Exercise 04a](../exercises/04a_tile_walk.ipynb), the walk over all tiles: in another order, past problems with none.
# [Exercise 04b](../exercises/04b_tables.ipynb), the tables of a batch: views of any kind, and no copy.
# Or change a cell and run it again:
#
# 1. In `grouped_kernel`, step by 1 instead of `tl.num_programs(0)`. Is the answer still right? How many tiles do 4
#    programs compute now, and why does no check of the result notice?
#    <details><summary>Answer</summary>Right, but program p computes every tile from p on: 22 + 21 + 20 + 19 = 82
#    instead of 22. Programs that share a tile all write the same numbers.</details>
# 2. Record a plan of the four squares with 5 programs, then with 8, and draw it. When does a program stay in one column
#    of C, and which operand does it then read again and again?
#    <details><summary>Answer</summary>When the number of programs is a multiple of the tiles in a row, as 8 is of 4. It
#    then reads the same columns of B for every tile.</details>
# 3. How many programs need exactly 3 waves for 256 tiles? Which of them would you launch?
#    <details><summary>Answer</summary>86 to 127. The fewest, since more gain nothing; or 128 if the GPU has as many
#    SMs, for 2 waves.</details>
#
# ## Summary
#
# - A kernel cannot take a list; it can take tables of addresses, sizes and strides, and look up the row while it runs.
# - An address keeps nothing alive: whoever holds a table must hold the tensors. A loaded address has no alignment
#   either, until you say it.
# - Static round-robin: subtract the tiles of earlier problems, divide by the tiles per row, step by the number of
#   programs. Nothing is stored and nobody waits.
# - The number of programs comes from the machine; time goes in waves, so a few programs more may gain nothing.
# - Strides are facts to be passed, not assumed; and the store's mask protects the neighbour, not you.
#
# Round-robin gives every program the same *number* of tiles. What if tiles are not equally long?
# Next: [05 Scheduling](05_scheduling.ipynb).
