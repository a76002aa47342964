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
# With one launch per problem, each problem costs a launch, and most of the GPU is idle. But the grid of a kernel is
# fixed at launch, and so are its arguments. How can *one* launch compute matrices of many sizes?
#
# **About 55 minutes. Afterwards you can**
#
# - describe a batch by tables that a kernel reads: addresses, sizes and strides,
# - find the tiles of a persistent program with a subtraction, a division and a step, on paper and in Triton,
# - write a grouped GEMM in 42 lines, and tell the compiler what it cannot know about alignment,
# - choose the number of programs for a GPU,
# - recognise three errors: dangling pointers, a store without a mask, wrong strides.

# %%
import gemm_course  # import first: without a GPU, kernels then run in the interpreter

import gc
import weakref

import torch
import triton
import triton.language as tl

from course_kernels import GemmConfig, GroupGemmPlan, codegen, runtime, schedule, testing
from course_kernels.bench import record, timing
from course_kernels.kernels import round_robin
from course_kernels.testing import reference
from gemm_course.figures import f04_ownership as ownership, walk_costs
from gemm_course.lessons import canaries, listing, records, timelines

# %matplotlib inline
device = runtime.device()

# %% [markdown]
# ## The first idea: pass the list
#
# The batch is a Python list of matrices. Ours has four squares of 128, 64, 32 and 16: the sizes of Triton's tutorial on
# grouped GEMM, divided by 8. This kernel reads only the first element of each matrix.

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
# A kernel takes numbers and addresses. A list is neither: it is a Python object, which the GPU cannot read. But Triton
# accepts a *tuple*:

# %%
first_elements[(1,)](tuple(group_A), firsts, 4)
print("a tuple works:", torch.equal(firsts, torch.stack([a[0, 0] for a in group_A])))

# %% [markdown]
# This works, but it does not scale. A tuple becomes one argument for each element, and in `matrices[g]` the compiler
# must know `g`. So `tl.static_range` writes the loop out, turn by turn, and a batch of five needs another compiled
# kernel than a batch of four. In serving, the batch changes with each step.
#
# ## Tables: addresses, sizes, strides
#
# So we write down what a kernel needs for each problem, and put *that* on the device: three small tensors, which we
# call tables. They have the same form whatever the sizes of the matrices.


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
address_table, size_table, stride_table = tables(group_A, group_B, group_C)
print("sizes, one row per problem (M, N, K):", *size_table.tolist(), sep="\n  ")
print("strides (A row, column, B row, column, C row, column):", *stride_table.tolist(), sep="\n  ")

# %% [markdown]
# To reach a matrix, a program loads twice. Arrow 1: it loads the address from the table. Arrow 2: it loads elements
# from that address. The table's own address is fixed at launch, but its row `g` is an ordinary number that the kernel
# computes.

# %%
ownership.pointer_tables(problems, stride_table[:, :2].tolist())

# %% [markdown]
# In Triton, load the `int64` and convert it to a pointer type. The same compiled kernel now serves any number of
# problems.


# %%
@triton.jit
def first_elements_by_table(a_ptrs, out):
    g = tl.program_id(0)
    a = tl.load(a_ptrs + g).to(tl.pointer_type(tl.float16))
    tl.store(out + g, tl.load(a))


firsts.zero_()
first_elements_by_table[(4,)](address_table[0], firsts)
print("through the table, right:", torch.equal(firsts, torch.stack([a[0, 0] for a in group_A])))

# %% [markdown]
# ### An address does not keep memory alive
#
# A tensor in a list is a reference, so it stays alive. An address in a table is only an integer. Here, eight experts
# have their weights as (N, K), and somebody wants contiguous (K, N) matrices for the table:

# %%
weights = [testing.integers((64, 32), generator=e, device=device) for e in range(8)]
addresses = [w.t().contiguous().data_ptr() for w in weights]
print("eight copies at eight addresses:", len(set(addresses)) == 8)

# %% [markdown]
# Each copy was freed as soon as its address was taken, and the next copy was put into the same memory. The addresses
# are [dangling pointers](glossary.md#dangling-pointer): several rows of the table share memory that belongs to none of
# them. No error follows, because the memory exists. The kernel reads what is there by then.

# %%
copies = [w.t().contiguous() for w in weights]
print("kept in a list, eight addresses:", len({copy.data_ptr() for copy in copies}) == 8)
last = weakref.ref(copies[-1])
del copies
print("list gone, copy still there:", last() is not None)

# %% [markdown]
# There are two repairs. The first: something holds the tensors as long as the table is in use. `GroupGemmPlan` does
# that:

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
# The second repair is better: put the strides into a table, as we did, and make no copy.
#
# ## The walk, on paper
#
# In lesson 03 each program computed one tile and ended, so the grid depended on the size of C. Now we launch a *fixed*
# number of programs, P, and each computes many tiles. Such a kernel is called **[persistent](glossary.md#persistent)**:
# a program stays on its SM until it has no tile left. A grid with one program for each tile would work, too. But with a
# fixed number the host need not know how many tiles there are (lesson 08), the kernel chooses their order (lesson 05),
# and a program can fetch its next tile's blocks while it stores this one (lesson 08).
#
# Which tiles are a program's own? Cut each C into [tiles](glossary.md#tile) and number them through all problems.
# Program p computes tiles p, p + P, p + 2P, … This is [round-robin](glossary.md#round-robin), like dealing cards. It is
# *static*: these numbers are known before the launch. (Lesson 05 has a dynamic order.) Here are three problems, four
# programs, tiles of 32 × 32:

# %%
three = [(50, 96, 32), (32, 64, 32), (64, 40, 32)]
ownership.tile_strip(three, (32, 32), programs=4)

# %% [markdown]
# A program knows only the number of its tile. To find the problem, it subtracts the tiles of all problems before. To
# find row and column, it divides by the number of tiles in a row. To find its next tile, it adds P.
#
# **Guess** before you open the output: program 3 begins with tile 3. What are the problem, row and column of this tile,
# and of the program's next two tiles?


# %% tags=["hide-output"]
def my_walk(program, programs, problems, block):
    tile, passed = program, 0
    for g, (M, N, _) in enumerate(problems):
        tiles_n = triton.cdiv(N, block)
        end = passed + triton.cdiv(M, block) * tiles_n
        while tile < end:
            print(f"tile {tile:2} - {passed} = {tile - passed}: problem {g}, row,column", end=" ")
            print(*divmod(tile - passed, tiles_n), sep=",")
            tile += programs
        passed = end


my_walk(3, 4, three, 32)

# %% [markdown]
# <details><summary>Answer</summary>
#
# Tile 3 is tile 3 of problem 0, which has 3 tiles in a row: row 1, column 0. Tile 7 is tile 1 of problem 1: row 0,
# column 1. Tile 11 is tile 3 of problem 2: row 1, column 1.
#
# </details>
#
# That is the whole schedule: subtract, divide, step. We call it the *walk*. It needs no list of tiles, and programs do
# not communicate. It has a cost: each program passes every problem before its own, and loads the sizes of one after the
# other. Lesson 03's record shows how long that takes:

# %%
passed_us = timelines.time_to_pass(timelines.launch_bars(record.load("launches")["one launch"]))
print(f"{passed_us:.1f} µs for each problem passed; past 255 experts: {255 * passed_us:.0f} µs")

# %% [markdown]
# So with 256 experts, a program that works for the last of them starts late. Lesson 08 finds a tile's group without
# this walk. The library's `schedule.walk` computes the same in plain Python, and also the size of each tile:

# %%
for tile in schedule.walk(three, "round_robin", programs=4, block=(32, 32))[3]:
    print(f"tile {tile.index:2}: problem {tile.problem}, row,column {tile.m},{tile.n}, {tile.rows} × {tile.cols}")

# %% [markdown]
# The last column shows tiles that are not 32 × 32: they reach past their matrix. Remember them for later.
#
# ## The kernel
#
# The kernel has two parts. A kernel can call another function with `@triton.jit`, so `compute_tile` is lesson 03's
# kernel as a function: a loop over K, then one masked store. It loads the strides from the table, those of A and B
# before the loop. Two switches are for later: `FULL_TILES` leaves out the store's mask, a mistake that we try.
# `ALIGNED` makes promises to the compiler.


# %%
@triton.jit
def compute_tile(
    a_ptr, b_ptr, c_ptr, s, row, col, M, N, K, BLOCK: tl.constexpr, FULL_TILES: tl.constexpr, ALIGNED: tl.constexpr
):
    """One tile of C = A B. s points to the strides: A row, column, B row, column, C row, column."""
    a_row, a_col, b_row, b_col = tl.load(s), tl.load(s + 1), tl.load(s + 2), tl.load(s + 3)
    if ALIGNED:
        a_row, a_col, b_row, b_col = tl.multiple_of(a_row, 8), 1, tl.multiple_of(b_row, 8), 1
    rows = (row + tl.arange(0, BLOCK))[:, None]
    cols = (col + tl.arange(0, BLOCK))[None, :]
    acc = tl.zeros((BLOCK, BLOCK), dtype=tl.float32)
    for k in range(0, tl.cdiv(K, BLOCK)):
        depth = k * BLOCK + tl.arange(0, BLOCK)
        ka, kb = depth[None, :], depth[:, None]
        a = tl.load(a_ptr + rows * a_row + ka * a_col, mask=(rows < M) & (ka < K), other=0.0)
        b = tl.load(b_ptr + kb * b_row + cols * b_col, mask=(kb < K) & (cols < N), other=0.0)
        acc = tl.dot(a, b, acc)
    inside = (rows < M) & (cols < N) | FULL_TILES
    tl.store(c_ptr + rows * tl.load(s + 4) + cols * tl.load(s + 5), acc.to(tl.float16), mask=inside)


# %% [markdown]
# `grouped_kernel` is the walk from above, in Triton. Its `for` and `while` run on the GPU. The `while` loop makes it
# persistent: a program computes all of its tiles in problem g, one after the other. (The table of sizes is int32 for a
# reason: `passed` begins as an int32 number, and the compiler refuses a loop that changes a variable's type. With int64
# sizes the error says *Loop-carried variable passed has initial type int32 but is re-assigned to int64*. The
# interpreter does not notice.)


# %%
@triton.jit
def grouped_kernel(
    a_ptrs, b_ptrs, c_ptrs, sizes, strides, num_problems,
    BLOCK: tl.constexpr, FULL_TILES: tl.constexpr = False, ALIGNED: tl.constexpr = False,
):  # fmt: skip
    tile, passed = tl.program_id(0), 0  # this program's tile; the tiles of all problems before g
    for g in range(num_problems):
        M, N, K = tl.load(sizes + g * 3), tl.load(sizes + g * 3 + 1), tl.load(sizes + g * 3 + 2)
        if ALIGNED:
            N, K = tl.multiple_of(N, 8), tl.multiple_of(K, 8)
        tiles_n = tl.cdiv(N, BLOCK)
        end = passed + tl.cdiv(M, BLOCK) * tiles_n
        while tile < end:
            a_ptr = tl.load(a_ptrs + g).to(tl.pointer_type(tl.float16))
            b_ptr = tl.load(b_ptrs + g).to(tl.pointer_type(tl.float16))
            c_ptr = tl.load(c_ptrs + g).to(tl.pointer_type(tl.float16))
            if ALIGNED:
                a_ptr, b_ptr = tl.multiple_of(a_ptr, 16), tl.multiple_of(b_ptr, 16)
            row = (tile - passed) // tiles_n * BLOCK
            col = (tile - passed) % tiles_n * BLOCK
            compute_tile(a_ptr, b_ptr, c_ptr, strides + g * 6, row, col, M, N, K, BLOCK, FULL_TILES, ALIGNED)
            tile += tl.num_programs(0)
        passed = end


# %% [markdown]
# One launch computes all four problems, with any number of programs. There are 22 tiles. We try 1 and 4 programs, as
# many as tiles, and more:


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
# A router may send no tokens to an expert. That problem has no tiles, so the `while` loop does not run, and the walk
# goes on to the next problem:

# %%
for router in testing.ROUTERS:
    tokens = testing.routed_sizes(router, 128)
    A, B = testing.make_operands([(m, 64, 32) for m in tokens], device=device)
    right = same(grouped(A, B), reference.group_gemm(A, B, out_dtype=torch.float16))
    print(f"{router:8} {tokens}: {right}")

# %% [markdown]
# ## The kernel records its own walk
#
# The library's kernel does the same walk. A [plan](glossary.md#plan) with `record=True` keeps which program computed
# each tile. A `GemmConfig` holds the choices that change no result: first the block's extents along M, N and K, here 32
# each; lesson 07 explains the rest. Does the kernel agree with the plain Python?

# %%
config = GemmConfig(32, 32, 32, group_m=1)
plan = GroupGemmPlan(group_A, group_B, method="round_robin", config=config, programs=4, record=True)
print("equal to the reference:", same(plan.run(), expected))
recorded = plan.launches[0].records[:, 0].tolist()
for program, walked in enumerate(schedule.walk(problems, "round_robin", programs=4, block=(32, 32))):
    did = [tile for tile, by in enumerate(recorded) if by == program]
    print(f"program {program} computed tiles {did}, as planned: {did == [tile.index for tile in walked]}")

# %%
ownership.owners(problems, (32, 32), recorded, title="Recorded: which of 4 programs computed each tile")

# %% [markdown]
# In C0 each column has one colour, because there are 4 programs and 4 tiles in a row. At the end of a problem a program
# goes on with the next one, so small problems run beside large ones. Next, 8 experts under a Zipf router, on 7
# programs:

# %%
tokens = testing.routed_sizes("zipf", 256)
experts = [(m, 96, 32) for m in tokens]
A, B = testing.make_operands(experts, device=device)
plan = GroupGemmPlan(A, B, method="round_robin", config=config, programs=7, record=True)
print(plan)
print("equal to the reference:", same(plan.run(), reference.group_gemm(A, B, out_dtype=torch.float16)))
ownership.owners(experts, (32, 32), plan.launches[0].records[:, 0].tolist(), title="8 experts, 7 programs")

# %% [markdown]
# No program has more than one tile more than another. Dotted outlines are the parts of tiles outside the matrix: the
# kernel computes them, but must not store them.
#
# ## The production kernel
#
# `round_robin_kernel` is the library's version of `grouped_kernel`. It takes any data type and any memory layout, uses
# 64-bit offsets, chooses between several schedules (`first_tile` and `next_tile`, lesson 05), and uses what the host
# knows about alignment (`ALIGN`, next section). Click a line to read its source.

# %%
from IPython.display import display

display(*map(listing.fold, (round_robin.round_robin_kernel, round_robin.first_tile, round_robin.next_tile)))
display(*map(listing.fold, (round_robin.problem_size, round_robin.problem_pointer, round_robin.problem_strides)))

# %% [markdown]
# ## What the compiler makes of it
#
# Triton looks at each pointer argument: is the address a multiple of 16? A pointer that was loaded from a table is only
# a number, so the compiler knows nothing about it. The same holds for sizes and strides from a table. We compile our
# kernel for Hopper:


# %%
def compile_for_hopper(ALIGNED):
    signature = dict.fromkeys(("a_ptrs", "b_ptrs", "c_ptrs", "strides"), "*i64")
    signature |= {"sizes": "*i32", "num_problems": "i32"}
    constexprs = {"BLOCK": 64, "FULL_TILES": False, "ALIGNED": ALIGNED}
    return codegen.compile_kernel(grouped_kernel, "sm_90", signature=signature, constexprs=constexprs, num_stages=3)


plain, promised = compile_for_hopper(False), compile_for_hopper(True)
print("loads element by element:", 2 in plain.widths["ld.global"])
print("copies 16 bytes at once: ", 16 in plain.widths["cp.async"])

# %% [markdown]
# The compiler must assume the worst: every load fetches one fp16 element, and there is no `cp.async`, the copy that
# runs beside the multiplications. `tl.multiple_of(value, 8)` is a promise by the author: this number is a multiple of
# 8. `ALIGNED` makes four of them, and each is needed:
#
# - The addresses of A and B are multiples of 16 bytes.
# - The step from row to row is a multiple of 8 elements, which are 16 bytes. So every row begins at such an address.
# - Within a row, elements are neighbours: the other stride is the constant 1.
# - N and K are multiples of 8. Then a mask is the same for all 8 elements of a copy.
#
# Say it where the number is loaded. If a function gets the number as an argument and promises there, the promise is
# lost when the compiler puts the function into its caller.

# %%
print("loads element by element:", 2 in promised.widths["ld.global"])
print("copies 16 bytes at once: ", 16 in promised.widths["cp.async"])
aligned_C = [torch.empty(m, n, dtype=torch.float16, device=device) for m, n, _ in problems]
aligned_addresses, *aligned_tables = tables(group_A, group_B, aligned_C)
grouped_kernel[(4,)](*aligned_addresses, *aligned_tables, len(problems), BLOCK=32, ALIGNED=True)
print("right:", same(aligned_C, expected))

# %% [markdown]
# For each memory instruction, the table has *width: count*. A width is in bytes per thread. Then come the registers of
# a thread (at most 255), and the wide copy:

# %% tags=["nbval-ignore-output"]
for name, kernel in (("without", plain), ("with promises", promised)):
    print(f"{name + ':':14}", kernel.widths, f"{kernel.registers} registers")
print(promised.excerpt(r"cp\.async\.cg", before=0, after=3))

# %% [markdown]
# A false promise is worse than none: the kernel reads at other addresses, or stops. In the library, the host makes the
# promise only after it has checked all addresses and strides. Problems that fail the check go to a second launch
# without it. With promises, ten loads from the tables are left: three addresses, three sizes, four strides (both of C,
# one each of A and B). They happen once per problem or tile, not in the loop over K.
#
# ## How many programs?
#
# A persistent kernel needs a number of programs. Tutorials launch 84 or 128, or one for each [SM](glossary.md#SM). An
# RTX A6000 has 84 SMs, an RTX 4090 has 128, an H200 has 132. A number that fits one GPU is a guess on the next.
#
# If all tiles cost the same, the time grows with the number of [waves](glossary.md#wave): tiles divided by programs,
# rounded up. The record has four products of 1024 × 1024 × 1024 on an H200, with different numbers of programs. The
# orange line is lesson 03's simulation, which counts waves:

# %%
counts = record.load("programs")["rows"]["4 x 1024^3"]
kernels = {"round_robin": "pointer kernel", "tma": "descriptor kernel (lesson 06)"}
panels = {}
for kernel, label in kernels.items():
    times = records.program_times(counts, kernel, [(1024, 1024, 1024)] * 4)
    panels[f"{label}, {times.tiles} tiles"] = times
walk_costs.program_counts(panels, scaled_at=66)

# %% [markdown]
# The time falls in steps. From 66 to 84 programs the number of waves is the same, and the time hardly changes. With 84
# programs, 48 of the 132 SMs are idle. (The orange line shows where steps fall. Its height is fitted at 66 programs.)

# %%
tma = {int(programs): us for programs, us in counts["tma"].items()}
pointer = {int(programs): us for programs, us in counts["round_robin"].items()}
print(f"descriptor kernel: 84 programs take {tma[84] / tma[132]:.2f} times as long as 132 programs")
print(f"pointer kernel: from 66 to 84 programs the time changes by {abs(pointer[84] / pointer[66] - 1):.1%}")
print(f"from 128 to 264 programs, half the waves, the time falls to {pointer[264] / pointer[128]:.0%}, not to 50%")

# %% [markdown]
# The last line shows a limit of counting waves. 264 programs are two on each SM, and each gets half of the SM. Still
# the time falls by a quarter: one program can multiply while the other waits for memory or stores its tile.
#
# So take the number from the machine: SMs × programs that fit on one SM (`GemmConfig.programs_per_sm`).
#
# ## What it costs
#
# The record compares this lesson's kernel with a loop of cuBLAS calls, with lesson 03's kernel, and with the kernel of
# the Triton tutorial. The tutorial appears twice: with its best configuration, and with the one that its
# [autotuner](glossary.md#autotuner) picked at N = 128 and kept for all batches of four. Each batch ran in one [CUDA
# graph](glossary.md#CUDA-graph), in fp16. The last row has 64 problems of random sizes from 64 to 2048.

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
floor = us["4 x 128^3"]["empty"]
print(f"4 × 128³: an empty kernel takes {floor:.1f} µs, this lesson {us['4 x 128^3']['round_robin']:.1f} µs")

# %% [markdown]
# Small problems gain most: there is one launch instead of four, and its small tiles give nearly all SMs work. Large
# problems fill the GPU by themselves, so grouping gains little and the speed of each tile decides. At 2048³ cuBLAS is
# faster, until lesson 06. The host needs time, too, to build the tables:

# %%
host = rows["64 random 64-2048"]["host_us"]
print(f"host time for 64 problems: cuBLAS loop {host['cublas loop']:.0f} µs,", end=" ")
print(f"group_gemm {host['group_gemm']:.0f} µs, running a plan {host['plan.run']:.0f} µs")

# %% [markdown]
# A call of `group_gemm` checks every matrix and builds the tables again. A [plan](glossary.md#plan) does so once. Keep
# a plan if the tensors stay at their addresses. If you have a GPU, the next cell measures one row on it:

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
# Somebody drops the mask of the store. A benchmark with sizes of 1024 shows no difference. Here C is 50 × 40, inside a
# larger buffer full of NaN, the [canary](glossary.md#canary).
#
# **Guess** before you open the output: the tiles are 32 × 32. How many elements outside of C does the kernel overwrite?


# %% tags=["hide-output"]
def run_in_canary(full_tiles):
    buffer = torch.full((84, 84), float("nan"), dtype=torch.float16, device=device)
    a, b = testing.integers((50, 32), device=device), testing.integers((32, 40), generator=1, device=device)
    c = buffer[10:60, 10:50]
    pointers, sizes, strides = tables([a], [b], [c])
    grouped_kernel[(4,)](*pointers, sizes, strides, 1, BLOCK=32, FULL_TILES=full_tiles)
    right = torch.equal(c.double(), a.double() @ b.double())
    fates = canaries.count_canary(buffer.cpu(), c.shape, (10, 10))
    print(f"full tiles: {full_tiles!s:5}  C is right: {right}; around it", end=" ")
    print(f"{fates['overwritten']} elements are overwritten, {fates['intact']} intact.")
    return buffer.cpu()


buffers = {"every tile full": run_in_canary(True), "masked": run_in_canary(False)}

# %%
ownership.canary(buffers, (50, 40), (32, 32), (10, 10))

# %% [markdown]
# C is right both times. The damage is beside it. If the outputs are slices of one packed tensor, the neighbour is the
# next expert, and the result depends on the order in which tiles are written:

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
# One program has a fixed order. With 132 programs, the order and the result can change from run to run. With the mask
# the order does not matter. Lesson 08 returns to this store.
#
# ### "The leading dimension is K" and "B is contiguous"
#
# Both are claims about [strides](glossary.md#stride). Here A is the left half of a wider matrix, as K is where one
# matrix holds K and V. B is a weight stored as (N, K), viewed as its transpose. This function puts claimed strides into
# the table:


# %%
def wrong_elements(a, b, claimed):
    """How many elements of a @ b come out wrong when the table claims these strides for A and B."""
    c = torch.zeros(a.shape[0], b.shape[1], dtype=a.dtype, device=device)
    pointers, sizes, strides = tables([a], [b], [c])
    strides[0, :4] = torch.tensor(claimed, device=device)
    grouped_kernel[(4,)](*pointers, sizes, strides, 1, BLOCK=32)
    return f"{int((c.double() != a.double() @ b.double()).sum())} of {c.numel()} wrong"


# %%
a = testing.integers((64, 2 * 32), device=device)[:, :32]  # the left half of a wider matrix: rows are 64 apart
b = testing.integers((48, 32), generator=1, device=device).t()  # a weight stored as (N, K)
M, K, N = 64, 32, 48
print("A's rows are K apart, B is contiguous:", wrong_elements(a, b, (K, 1, N, 1)))
print("A's rows are K apart:                 ", wrong_elements(a, b, (K, 1, *b.stride())))
print("B is contiguous:                      ", wrong_elements(a, b, (*a.stride(), N, 1)))

# %% [markdown]
# There is no crash and no NaN. The kernel multiplied other elements of the same memory.
#
# **Guess** before you open the next cell: which four strides of A and B make the result right?

# %% tags=["hide-input", "hide-output"]
print("true strides:", (*a.stride(), *b.stride()), "→", wrong_elements(a, b, (*a.stride(), *b.stride())))
c = GroupGemmPlan([a], [b], method="round_robin").run()
print("the library, from the same views without a copy:", same(c, reference.group_gemm([a], [b], torch.float16)))

# %% [markdown]
# ## Try it
#
# 1. In `grouped_kernel`, step by 1 instead of `tl.num_programs(0)`. Is the answer still right? How many tiles do 4
#    programs compute now, and why does no check of the result notice?
#    <details><summary>Answer</summary>It is right, but program p computes every tile from p on: 22 + 21 + 20 + 19 = 82
#    instead of 22. Programs that share a tile all write the same numbers.</details>
# 2. Record a plan of the four squares with 5 programs, then with 8, and draw it. When does a program stay in one column
#    of C, and which operand does it then read again and again?
#    <details><summary>Answer</summary>When the number of programs is a multiple of the tiles in a row, as 8 is of 4. It
#    then reads the same columns of B for every tile.</details>
# 3. Which numbers of programs need exactly 3 waves for 256 tiles? Which of them would you launch?
#    <details><summary>Answer</summary>86 to 127. The smallest, since more programs gain nothing. Or 128 if the GPU has
#    as many SMs, for 2 waves.</details>
#
# In [exercise 04a](../exercises/04a_tile_walk.ipynb) you write the walk in another order of tiles. In [exercise
# 04b](../exercises/04b_tables.ipynb) you build the tables for matrices with any strides.

# %% [markdown]
# ## Summary
#
# - A kernel cannot take a list. It can take tables of addresses, sizes and strides, and choose the row while it runs.
# - An address keeps no memory alive, so keep the tensors as long as the table. A loaded address has no known alignment,
#   until you promise one.
# - A persistent kernel launches a fixed number of programs, and each computes many tiles. Static round-robin: subtract
#   the tiles of earlier problems, divide by the tiles per row, step by the number of programs. No list is stored, and
#   no program waits for another.
# - The number of programs comes from the GPU. Time goes in waves, so a few programs more may gain nothing.
# - Read strides from the tensor. The store's mask protects the neighbour's memory.
#
# ## References
#
# - Triton, [Group GEMM](https://triton-lang.org/main/getting-started/tutorials/08-grouped-gemm.html): the tutorial
#   whose schedule this lesson uses.
# - NVIDIA CUTLASS, [Grouped Kernel
#   Schedulers](https://docs.nvidia.com/cutlass/latest/media/docs/cpp/grouped_scheduler.html): the same walk in C++, and
#   a variant that is computed on the host.
# - NVIDIA, [Matrix Multiplication Background User's
#   Guide](https://docs.nvidia.com/deeplearning/performance/dl-performance-matrix-multiplication/index.html): tiles and
#   waves.
#
# ## What to read next
#
# Round-robin gives every program the same *number* of tiles. Lesson 05 asks what happens when tiles take different
# times.
