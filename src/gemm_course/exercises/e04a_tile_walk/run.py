"""Exercise 04a: one walk over the tiles of all problems, noted in a log."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
import triton
import triton.language as tl

BLOCK_M, BLOCK_N = 32, 16
SPARE = 4  # entries of a program's log beyond the number of all tiles
LOG, BARE = "log", "log without empty problems"


@triton.jit
def whole(number):
    """An integer as a tensor; any other number is an exception while compiling."""
    number += tl.full((), 0, tl.int32)
    tl.static_assert(number.dtype.is_int(), "COMPUTE_TILE wants integers, and was given a float: / divides, // counts")
    return number


@triton.jit
def COMPUTE_TILE(tables, g, tile_m, tile_n):
    """Append (problem, row, column) to this program's line of a log. Learners see its name in Python's messages.

    tables: int64 (3,), addresses of the log and of a counter for each program, and the length of a line in numbers.
    """
    g, tile_m, tile_n = whole(g), whole(tile_m), whole(tile_n)
    log = tl.load(tables).to(tl.pointer_type(tl.int32))
    counts = tl.load(tables + 1).to(tl.pointer_type(tl.int32))
    length = tl.load(tables + 2)
    # An atomic, since its result reaches every thread of the program.
    at = 3 * tl.atomic_add(counts + tl.program_id(0), 1)
    if at < length:
        entry = log + tl.program_id(0) * length + at
        tl.store(entry, g)
        tl.store(entry + 1, tile_m)
        tl.store(entry + 2, tile_n)


@triton.jit
def tile_walk_kernel(
    sizes_ptr, num_problems, tables, WALK_TILES: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr
):
    """Any number of programs walks the tiles of all problems. sizes_ptr: int32 (G, 3) M, N, K."""
    WALK_TILES(sizes_ptr, num_problems, tables, BLOCK_M, BLOCK_N, COMPUTE_TILE)


def grid_of(size: Sequence[int]) -> tuple[int, int]:
    """(rows, columns) of the tiles of a problem (M, N, K)."""
    return -(-size[0] // BLOCK_M), -(-size[1] // BLOCK_N)


def prepare(inputs: dict, watch) -> Callable:
    """Lay out the inputs; returns one launch, and where problems are empty, another one without them."""
    bare = [size for size in inputs["problems"] if 0 not in size[:2]]
    batches = {LOG: inputs["problems"]}
    if len(bare) < len(inputs["problems"]) and bare:
        batches[BARE] = bare
    programs, launches = inputs["programs"], []
    for name, problems in batches.items():
        sizes = watch.packed(f"sizes{name.removeprefix(LOG)}", torch.tensor(problems, dtype=torch.int32))
        total = sum(rows * cols for rows, cols in map(grid_of, problems))
        log = watch.packed_output(name, (programs, 3 * (total + SPARE)), torch.int32)
        counts = watch.table(f"counts{name.removeprefix(LOG)}", torch.zeros(programs, dtype=torch.int32))
        addresses = torch.tensor([log.data_ptr(), counts.data_ptr(), log.shape[1]])
        tables = watch.table(f"tables{name.removeprefix(LOG)}", addresses)
        launches.append((sizes, len(problems), tables))

    def call(answer) -> None:
        for launch in launches:
            tile_walk_kernel[(programs,)](*launch, answer, BLOCK_M, BLOCK_N)

    return call


def builds(answer) -> Iterator[tuple]:
    """The builds: (kernel, types of its run-time arguments, values of the others)."""
    types = {"sizes_ptr": "*i32", "num_problems": "i32", "tables": "*i64"}
    yield tile_walk_kernel, types, {"WALK_TILES": answer.walk_tiles, "BLOCK_M": BLOCK_M, "BLOCK_N": BLOCK_N}
