# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown]
# # 02 · Triton in fifteen minutes
#
# You know PyTorch. How do you write your own function for a GPU, in Python, and what does the GPU do with it? If you
# know Triton, read the summary at the end and go on with lesson 03.
#
# **About 55 minutes. Afterwards you can**
#
# - write three kernels: a sum of vectors, a reduction of rows, one tile of a matrix product,
# - name the parts of a GPU that a program uses,
# - say what `num_warps` and `num_stages` change in the compiled code,
# - recognise four mistakes that everybody makes once, by their errors or by what they do to memory,
# - look into a kernel that is wrong, in the interpreter and on a GPU.
#
# The fifteen minutes of the title are for the first kernel, up to *Rows*. The exercise takes ten more.

# %%
import gemm_course  # import first: without a GPU, kernels then run in the interpreter

import torch
import triton
import triton.language as tl

from course_kernels import codegen, runtime
from course_kernels.testing import integers, reference
from gemm_course.figures import f02_gpu_parts as gpu_parts, matrices

device = runtime.device()  # the GPU, or the CPU where there is none

# %% [markdown]
# ## A first kernel: the sum of two vectors
#
# A function that runs on a GPU is called a [kernel](glossary.md#kernel). In Triton, a kernel is a Python function with
# the decorator `@triton.jit`. This one adds two vectors:


# %%
@triton.jit
def add(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = i < n
    x = tl.load(x_ptr + i, mask=mask)
    y = tl.load(y_ptr + i, mask=mask)
    tl.store(out_ptr + i, x + y, mask=mask)


# %% [markdown]
# A launch runs this function many times, in parallel. Each run is a [program](glossary.md#program). The programs share
# the work: each takes `BLOCK` elements. Here they are for 10 elements and `BLOCK` = 4. A number is an element's index
# `i`:

# %%
gpu_parts.vector_blocks(10, block=4)

# %% [markdown]
# Line by line:
#
# - `x_ptr`, `y_ptr`, `out_ptr` are *pointers*: addresses in the GPU's memory. A tensor argument arrives as a pointer:
#   its first element's address and type. Shape and strides do not arrive.
# - `n` is a number, known when the kernel is launched.
# - `BLOCK: tl.constexpr` is a number, known when the kernel is *compiled* ([constexpr](glossary.md#constexpr)). Another
#   value makes another compiled kernel.
# - `tl.program_id(0)` is the number of this program: 0, 1 or 2 in the picture.
# - `tl.arange(0, BLOCK)` is a *block* of integers: 0, 1, …, `BLOCK` − 1. The length must be a constexpr and a power of
#   two. So `i` is a block, too: the indices of this program's elements.
# - `mask` is a block of booleans. The last program's block reaches past the end of the vector, and its
#   [mask](glossary.md#mask) is false there (hatched).
# - `x_ptr + i` is a block of pointers. Adding 1 to a pointer moves it by one element, whatever the element's size is.
# - `tl.load` reads a block of elements from memory, `tl.store` writes one. Both skip elements whose mask is false.
# - `x + y` adds two blocks, element by element. There is no loop over elements.
#
# To run a kernel, say how many programs there are, in square brackets: the [grid](glossary.md#grid). `triton.cdiv(n,
# 4)` divides and rounds up.

# %%
n = 10
x = torch.arange(n, dtype=torch.float32, device=device)
y = 100 * x
out = torch.empty_like(x)
add[(triton.cdiv(n, 4),)](x, y, out, n, BLOCK=4)
print(out.tolist())

# %% [markdown]
# Triton compiles the kernel at its first launch, and keeps the result. Without a GPU, Triton's
# [interpreter](glossary.md#interpreter) runs the programs one after the other on the CPU. `import gemm_course` chooses
# it. In a script of your own, set the environment variable `TRITON_INTERPRET=1` before Python imports Triton. Otherwise
# a launch ends with *0 active drivers*. The bare interpreter computes bfloat16 wrongly, without an error: it adds and
# multiplies the bit patterns. `import gemm_course` repairs it. In a script without the course, write `.to(tl.float32)`
# after each load of bfloat16 numbers.
#
# **Guess** before you open the output: for 1000 elements and `BLOCK` = 256, how many programs are there, and how many
# elements does the last mask leave out?

# %% tags=["hide-output"]
n, BLOCK = 1000, 256
programs = triton.cdiv(n, BLOCK)
x = torch.arange(n, dtype=torch.float32, device=device)
out = torch.empty_like(x)
add[(programs,)](x, x, out, n, BLOCK=BLOCK)
print(f"{programs} programs, {programs * BLOCK - n} elements left out; right: {torch.equal(out, x + x)}")

# %% [markdown]
# ## Where a program runs
#
# A GPU has many processors. NVIDIA calls one an [SM](glossary.md#SM) (streaming multiprocessor). Each program runs on
# one SM, from its first line to its last. When it ends, the SM takes another. The order of the programs is not defined.

# %%
gpu_parts.gpu_parts(num_warps=4)

# %% [markdown]
# From left to right:
#
# - **The GPU.** Tensors are in its memory ([HBM](glossary.md#HBM)). All SMs share this memory, and the
#   [L2](glossary.md#L2) cache in front of it. (An H200 is the same chip with more and faster memory, and a larger L2.)
#   Both manage themselves: a kernel cannot put anything into the L2. It can only choose an order of work that finds
#   there what it needs (lesson 05).
# - **One SM.** A block that you compute with is in [registers](glossary.md#register). [Shared
#   memory](glossary.md#shared-memory) holds blocks on their way from memory to the [tensor
#   cores](glossary.md#tensor-core), which multiply small matrices.
# - **One program.** It has a share of its SM's registers and shared memory. On the hardware it is a group of threads, a
#   [CTA](glossary.md#CTA). A *thread* computes with one number at a time. 32 threads form a [warp](glossary.md#warp),
#   and `num_warps` says how many warps a program has. In Triton you never write what one thread does. The compiler
#   divides each block among the threads: with 4 warps, each of the 128 threads has 2 of 256 elements.
#
# ## Rows: two dimensions and a sum
#
# A block may have two dimensions. `[:, None]` makes a column of a block, and `[None, :]` a row. A column and a row
# together give a rectangle, by [broadcasting](glossary.md#broadcasting), as in PyTorch:

# %%
rows, cols = torch.arange(3), torch.arange(4)
print(rows[:, None] * 10 + cols[None, :])

# %% [markdown]
# This is how a kernel gets the addresses of a piece of a matrix. Element (i, j) of a row-major matrix is `i * stride +
# j` elements after the first one. The [stride](glossary.md#stride) is the step from one row to the next.
#
# The next kernel divides each row by its sum. Each program takes `BLOCK_M` rows, and all columns at once:


# %%
@triton.jit
def row_shares(x_ptr, y_ptr, M, N, stride_x, stride_y, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
    cols = tl.arange(0, BLOCK_N)[None, :]
    mask = (rows < M) & (cols < N)
    x = tl.load(x_ptr + rows * stride_x + cols, mask=mask, other=0.0)
    total = tl.sum(x, axis=1)
    tl.store(y_ptr + rows * stride_y + cols, x / total[:, None], mask=mask)


# %% [markdown]
# New here:
#
# - `mask` combines two conditions with `&`, one for rows and one for columns. (Not with `and`: see *When a kernel is
#   wrong*.)
# - `other=0.0` is the value of each element that the mask leaves out. Without `other` it may be anything. Here it goes
#   into a sum, so it must be 0.
# - `tl.sum(x, axis=1)` is a *reduction*. It adds along each row and gives one number for each: a block of `BLOCK_M`
#   numbers. `tl.max` and `tl.min` work alike.
# - `total[:, None]` makes a column of it. The division broadcasts it over the columns.
# - A block's side must be a power of two, and a row has 5 elements. `triton.next_power_of_2(5)` is 8; the mask leaves
#   out the other three.

# %%
X = [[1, 3, 0, 2, 2], [4, 0, 4, 0, 0], [8, 0, 0, 0, 0], [2, 2, 2, 1, 1], [0, 5, 1, 1, 1], [3, 0, 0, 0, 5]]
X = torch.tensor(X, dtype=torch.float32, device=device)
(M, N), BLOCK_M = X.shape, 2
BLOCK_N = triton.next_power_of_2(N)
Y = torch.empty_like(X)
row_shares[(triton.cdiv(M, BLOCK_M),)](X, Y, M, N, X.stride(0), Y.stride(0), BLOCK_M, BLOCK_N)
print(f"blocks of {BLOCK_M} × {BLOCK_N}; right: {torch.equal(Y, X / X.sum(1, keepdim=True))}")
print(Y.cpu())

# %% [markdown]
# ## One tile of a matrix product
#
# C = A B, where A has M × K elements and B has K × N. A [tile](glossary.md#tile) is a rectangular piece of C. It needs
# the rows of A that are beside it, and the columns of B that are above it. One program computes one tile. It walks
# along K block by block. The dark blocks are those of one step:

# %%
matrices.tile_of_product((64, 96, 64), block=(32, 32, 32), tile=(1, 2))


# %%
@triton.jit
def tiled_product(a_ptr, b_ptr, c_ptr, K, lda, ldb, ldc, BLOCK: tl.constexpr, BLOCK_K: tl.constexpr):
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)[:, None]
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)[None, :]
    acc = tl.zeros((BLOCK, BLOCK), dtype=tl.float32)
    for k in range(0, K, BLOCK_K):
        a = tl.load(a_ptr + rows * lda + (k + tl.arange(0, BLOCK_K))[None, :])
        b = tl.load(b_ptr + (k + tl.arange(0, BLOCK_K))[:, None] * ldb + cols)
        acc = tl.dot(a, b, acc)
    tl.store(c_ptr + rows * ldc + cols, acc.to(c_ptr.dtype.element_ty))


# %% [markdown]
# - The grid has two dimensions now. `tl.program_id(0)` counts tiles down, `tl.program_id(1)` counts tiles to the right.
# - `lda`, `ldb` and `ldc` are the strides of the rows of A, B and C, under their usual names (*[leading
#   dimension](glossary.md#leading-dimension)*).
# - `acc` is the [accumulator](glossary.md#accumulator): the sums of the tile. `tl.zeros` makes a block of zeros to
#   start with. It is float32, although A and B are float16. A long sum in float16 would lose small terms.
# - `k + tl.arange(0, BLOCK_K)` are the positions along K in this step: columns of A, and rows of B.
# - `tl.dot(a, b, acc)` is `a @ b + acc` on the tensor cores. No side of a block may be shorter than 16.
# - `for … in range(…)` is an ordinary loop. It runs on the GPU, so K may be any number at launch.
# - `c_ptr.dtype.element_ty` is the type of C's elements. `.to(…)` converts the sums to it.
#
# To keep it short, this kernel has no masks. So M and N must be multiples of `BLOCK`, and K of `BLOCK_K`. Lesson 03
# adds the masks, one at a time. (`reference.gemm` is the course's exact product, to compare with.)

# %%
M, N, K = 64, 96, 64
A = integers((M, K), generator=1, device=device)  # whole numbers in float16: sums are exact
B = integers((K, N), generator=2, device=device)
C = torch.empty(M, N, dtype=torch.float32, device=device)
grid = (M // 32, N // 32)
tiled_product[grid](A, B, C, K, A.stride(0), B.stride(0), C.stride(0), BLOCK=32, BLOCK_K=32)
print(f"{grid[0]} × {grid[1]} programs; right: {torch.equal(C, reference.gemm(A, B, torch.float32))}")

# %% [markdown]
# ## `num_warps` and `num_stages`
#
# Two more numbers belong to a launch: `tiled_product[grid](…, num_warps=8, num_stages=3)`. They change no result. They
# change the compiled code.
#
# - [`num_warps`](glossary.md#num_warps): how many warps share the work of a program.
# - [`num_stages`](glossary.md#stage): how many blocks of A and B a loop holds in shared memory. While the tensor cores
#   multiply one, the others are being copied.
#
# The course can compile a kernel for a GPU that is not there. `sm_90` means Hopper: H100 and H200. A `signature` gives
# the types that the tensors of a launch would have: `*fp16` is a pointer to float16, `i32` an integer of 32 bits.

# %%
numbers = dict.fromkeys(("K", "lda", "ldb", "ldc"), "i32")
signature = {"a_ptr": "*fp16", "b_ptr": "*fp16", "c_ptr": "*fp32", **numbers}


def compile_for_hopper(num_warps, num_stages):
    return codegen.compile_kernel(
        tiled_product,
        "sm_90",
        signature=signature,
        constexprs={"BLOCK": 128, "BLOCK_K": 64},
        divisible_by_16=tuple(signature),  # then a thread may copy 16 bytes at a time
        num_warps=num_warps,
        num_stages=num_stages,
        label=f"num_warps={num_warps}, num_stages={num_stages}",
    )


# %% tags=["nbval-ignore-output"]
compiled = [compile_for_hopper(warps, stages) for warps, stages in [(4, 1), (4, 3), (8, 3), (4, 8)]]
print(codegen.summary(compiled))

# %% [markdown]
# The table counts instructions in the text of the compiled program ([PTX](glossary.md#PTX)). One inside a loop counts
# once, however often it runs. Read the table by columns:
#
# - *registers*, for each thread. The accumulator has 128 × 128 numbers. Over 4 warps, which are 128 threads, that is
#   128 registers for each. Over 8 warps it is 64. A thread can have 255 registers. If it needs more, they are *spilled*
#   to memory, which is slow.
# - *shared B*, bytes of shared memory for each program. A block of A and one of B are 2 × 128 × 64 numbers of 2 bytes:
#   32 KiB for each stage. Even one stage needs them, because the tensor cores read their blocks from shared memory.
# - *wgmma*, Hopper's instruction for its tensor cores. Four warps execute it together. With 8 warps, two teams of four
#   share the tile, and each needs half as many.
# - *cp.async*, copies to shared memory that run beside the arithmetic. With one stage there are none: the program loads
#   to registers (*ld.global*), puts the blocks into shared memory, waits, and multiplies.
#
# More stages hide more of the time that memory takes, until shared memory is full:

# %% tags=["nbval-ignore-output"]
for each in compiled:
    print(f"{each.build}: {each.shared_bytes // 1024} KiB, fits: {each.fits}")

# %% [markdown]
# A launch with 8 stages would raise `OutOfResources`. Which numbers are fastest depends on the problem, so one
# measures: lesson 07.
#
# ## What goes wrong
#
# **1. A block that is no power of two.** Why not take a block as long as the vector? We compile the kernel with a block
# of 10, and print the error:


# %%
def print_error(kernel, signature, **constexprs):
    try:
        codegen.compile_kernel(kernel, "sm_90", signature=signature, constexprs=constexprs)
        print("no error")
    except codegen.CompileError as error:
        print(error)


# %% tags=["nbval-ignore-output"]
vectors = {"x_ptr": "*fp32", "y_ptr": "*fp32", "out_ptr": "*fp32", "n": "i32"}
print_error(add, vectors, BLOCK=10)

# %% [markdown]
# Read an error of the compiler from the end. The last line is the reason. The `^` above it shows the place. Repair: a
# block of 16 and a mask. `triton.next_power_of_2(10)` gives the 16. If you write `tl.arange(0, n)`, the reason is
# *arange's arguments must be of type tl.constexpr*: `n` is not known when the kernel is compiled.
#
# **2. A forgotten mask.** This one raises no error at all. `row_shares` again, with a mask on the load only. To see the
# damage, the output is part of a larger buffer, filled with −999, a [canary](glossary.md#canary):


# %%
@triton.jit
def unmasked_store(x_ptr, y_ptr, M, N, stride_x, stride_y, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
    cols = tl.arange(0, BLOCK_N)[None, :]
    mask = (rows < M) & (cols < N)
    x = tl.load(x_ptr + rows * stride_x + cols, mask=mask, other=0.0)
    total = tl.sum(x, axis=1)
    tl.store(y_ptr + rows * stride_y + cols, x / total[:, None])


# %%
(M, N), margin = X.shape, 4
buffer = torch.full((M + 2 * margin, N + 2 * margin), -999.0, device=device)
Y = buffer[margin : margin + M, margin : margin + N]
unmasked_store[(M // BLOCK_M,)](X, Y, M, N, X.stride(0), Y.stride(0), BLOCK_M, BLOCK_N)
want = X / X.sum(1, keepdim=True)
matrices.written_map(buffer, (margin, margin), want, canary=-999, title="no mask on the store", name="Y")

# %% [markdown]
# Y is right, and the kernel has overwritten the three columns to its right. There is nearly always something there:
# another tensor, or the next row. A test that looks at Y alone passes. A load without a mask is as quiet: it reads what
# is there and computes with it.
#
# **3. A Python `if` on a block.** An `if` needs one boolean. A block has many:


# %%
@triton.jit
def relu(x_ptr, out_ptr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i)
    if x < 0:
        x = 0.0
    tl.store(out_ptr + i, x)


# %% tags=["nbval-ignore-output"]
print_error(relu, {"x_ptr": "*fp32", "out_ptr": "*fp32"}, BLOCK=16)

# %% [markdown]
# *Boolean value of Tensor with more than one value is ambiguous*: choose for each element instead, by `tl.where(x < 0,
# 0.0, x)`. An `if` on one number, such as `if tl.program_id(0) == 0`, is allowed. The interpreter does not raise this
# error. It gives a wrong result, so the checks compile your kernels, too.
#
# **4. A Python value where a tensor is needed.** To add 3 to each element, one may try `add[grid](x, 3.0, out, n,
# BLOCK)`. Then `y_ptr` is a number and no pointer (`fp32` without the `*`):

# %% tags=["nbval-ignore-output"]
print_error(add, {**vectors, "y_ptr": "fp32"}, BLOCK=16)

# %% [markdown]
# `<['16'], fp32>` is a block of 16 numbers where a block of pointers should be. Repair: a kernel that computes `x + y`
# with its argument `y`, without a load. Three relatives of this mistake:
#
# - A list or a NumPy array has no address on the GPU. Pass a tensor.
# - A tensor on the CPU has one, but not on the GPU: *Pointer argument (at 0) cannot be accessed from Triton (cpu
#   tensor?)*.
# - A kernel cannot read a global number: *Cannot access global variable SCALE*. (The interpreter reads it without an
#   error.) Pass it as an argument.
#
# ## When a kernel is wrong: look inside
#
# **In the interpreter a kernel is Python**, and so are its blocks. `print` works in it, and so does a debugger: put
# `breakpoint()` into the kernel, and look at `i` and `mask` of the first program. For a GPU there is
# `tl.device_print("name", block)`: a text that is fixed, and a block. It prints one line for each element, from all
# programs at once, so print in one program only:


# %%
@triton.jit
def watched_add(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = i < n
    if tl.program_id(0) == 2:
        tl.device_print("mask ", mask)
    x = tl.load(x_ptr + i, mask=mask)
    tl.store(out_ptr + i, x + tl.load(y_ptr + i, mask=mask), mask=mask)


# %% tags=["nbval-ignore-output"]
ten = torch.arange(10, dtype=torch.float32, device=device)
watched_add[(3,)](ten, ten, torch.empty_like(ten), 10, BLOCK=4)

# %% [markdown]
# **The interpreter is not the GPU.** Four differences hide mistakes:
#
# - `and` on blocks. Compiled, it works like `&`, with a warning. In the interpreter it is Python's own `and`, which
#   returns one of its two sides: a mask is dropped, silently. The next cell counts.
# - Programs run one after the other. On a GPU two programs that write to the same place race. The last one wins, and
#   nobody knows which that is. Change the order, and see whether the result changes: let program p do the work of
#   `tl.num_programs(0) - 1 - p`.
# - bfloat16 is wrong in the bare interpreter, as said above. Convert to float32 first, or test in float16.
# - `tl.device_assert(condition, "text")` never fires in it. On a GPU it needs `TRITON_DEBUG=1`.


# %%
@triton.jit
def count_inside(out_ptr, M, N, BLOCK: tl.constexpr, WORD: tl.constexpr):
    rows, cols = tl.arange(0, BLOCK)[:, None], tl.arange(0, BLOCK)[None, :]
    if WORD:
        mask = (rows < M) and (cols < N)
    else:
        mask = (rows < M) & (cols < N)
    inside = tl.where(mask, 1, 0) + tl.zeros((BLOCK, BLOCK), tl.int32)
    tl.store(out_ptr, tl.sum(tl.sum(inside, 1), 0))


# %% tags=["nbval-ignore-output"]
counted = torch.zeros(1, dtype=torch.int32, device=device)
for word in (False, True):
    count_inside[(1,)](counted, 3, 5, BLOCK=8, WORD=word)
    print(f"3 × 5 elements with {'and' if word else '&':3}: {counted.item()}")

# %% [markdown]
# **On a GPU**, these find what no result shows:
#
# - *Does it read or write past a tensor?* `compute-sanitizer --tool memcheck python my_script.py` names the address and
#   the block. Set `PYTORCH_NO_CUDA_MEMORY_CACHING=1` for it: otherwise torch's one large allocation hides a small step
#   outside.
# - *Do threads of a program race in shared memory?* `compute-sanitizer --tool racecheck`. It does not see two programs
#   that race in global memory.
# - *Does it read what nobody wrote?* `compute-sanitizer --tool initcheck`. Or fill buffers with NaN first.
# - *Which launch raised this error?* A launch returns before it has run, so its error appears at a later line. With
#   `CUDA_LAUNCH_BLOCKING=1` each launch waits.
# - *Is this really my new kernel?* Compiled kernels are kept in `~/.triton/cache`, or in `TRITON_CACHE_DIR`. The key is
#   the source, with all functions that it calls, so a change is noticed. `TRITON_ALWAYS_COMPILE=1` compiles in any
#   case.
#
# ## Words that come later
#
# | in a kernel | meaning | lesson |
# | --- | --- | --- |
# | `tl.cdiv(K, BLOCK)` | divides and rounds up, as `triton.cdiv` does outside of kernels | 03 |
# | `tl.trans(a)` | a block, transposed | 03 (exercise) |
# | `tl.num_programs(0)` | the size of the grid | 04 |
# | `while tile < end:` | a loop whose condition the GPU computes | 04 |
# | `compute_tile(a, b)` | a call of another function with `@triton.jit` | 04 |
# | `COMPUTE: tl.constexpr` | a function with `@triton.jit` as an argument; the kernel calls `COMPUTE(…)` | 04, 08 |
# | `for g in tl.static_range(4)` | a loop that the compiler writes out, turn by turn | 04 |
# | `address.to(tl.pointer_type(tl.float16))` | an integer of 64 bits, used as a pointer to float16 | 04 |
# | `group_m=4` | tiles are counted in strips of four [tile rows](glossary.md#tile-row), column by column in each | 05 |
# | `tl.atomic_add(ptr, 1)` | adds to memory, one program at a time, and returns the old value | 05 |
# | `tl.make_tensor_descriptor(…)` | describes a matrix to the hardware, which then copies blocks on its own | 06 |
#
# ## Try it
#
# 1. Launch `add` with one program less than `triton.cdiv(n, BLOCK)`, into `torch.zeros`. Which elements are wrong?
#    <details><summary>Answer</summary>The last ones, from <code>(programs - 1) * BLOCK</code> on: they stay 0. Nobody
#    reports it.</details>
# 2. In `row_shares`, change `axis=1` to `axis=0`, and launch it again. What does the error say?
#    <details><summary>Answer</summary>Two shapes do not fit (<i>incompatible dimensions</i>, 2 and 8). The sum has 8
#    numbers now, one for each column, so <code>total[:, None]</code> is a column of 8. It does not broadcast with a
#    block of 2 rows.</details>
# 3. Compile `tiled_product` with 16 warps and 3 stages. How many registers does the accumulator need for each thread?
#    <details><summary>Answer</summary>128 × 128 numbers over 512 threads: 32. The table says more, because pointers and
#    counters are in registers, too.</details>
#
# [Exercise 02](../exercises/02_first_kernel.ipynb): a whole kernel of your own, the softmax of rows.

# %% [markdown]
# ## Summary
#
# - A kernel runs as many programs, a grid of them. `tl.program_id` says which one this is. Each program runs on one SM.
# - Values are blocks. Their sides are constexprs and powers of two; a mask leaves out the rest.
# - A tensor arrives as a pointer. A column of row offsets plus a row of column offsets addresses a rectangle.
# - Reductions give one number for each row. `tl.dot` multiplies blocks on the tensor cores, with float32 sums.
# - `num_warps` divides a program's registers among more threads. `num_stages` takes shared memory to copy ahead.
# - A forgotten mask raises no error. Errors of the compiler are read from the last line.
#
# ## References
#
# - [Triton's tutorials](https://triton-lang.org/main/getting-started/tutorials/index.html): vector addition, fused
#   softmax and matrix multiplication, with more on speed.
# - P. Tillet, H. T. Kung, D. Cox: [Triton: an intermediate language and compiler for tiled neural network
#   computations](https://doi.org/10.1145/3315508.3329973), 2019.
# - NVIDIA, [Hopper tuning guide](https://docs.nvidia.com/cuda/hopper-tuning-guide/index.html): the sizes of an SM's
#   registers and shared memory.
# - S. Rush, [Triton puzzles](https://github.com/srush/Triton-Puzzles): more small kernels to write.
#
# ## What to read next
#
# Lesson 03 gives `tiled_product` its masks, and launches it once for each expert. That shows why many small launches
# leave a GPU idle, which is the reason for all that follows.
