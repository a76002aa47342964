"""Exercise 02: the masks of a tiled product whose A is stored transposed, so that every mask has to be thought out."""

from __future__ import annotations

import random
from collections.abc import Iterator

import torch
import triton
import triton.language as tl

from course_kernels import reference, testing
from course_kernels.course import diagnose
from course_kernels.course.case import Case, Finding, Ran

BLOCK = 16


@triton.jit
def tail_masks_kernel(a_ptr, b_ptr, c_ptr, M, N, K, lda, ldb, ldc, PRODUCT_TILE: tl.constexpr, BLOCK: tl.constexpr):
    """C = Aᵀ B, A (K, M), B (K, N), C (M, N), all row-major; one program a tile, grid (tiles,)."""
    tile = tl.program_id(0)
    tiles_n = tl.cdiv(N, BLOCK)
    row, col = (tile // tiles_n) * BLOCK, (tile % tiles_n) * BLOCK
    PRODUCT_TILE(a_ptr, b_ptr, c_ptr, row, col, M, N, K, lda, ldb, ldc, BLOCK)


def draw(rng: random.Random) -> list[Case]:
    """Whole tiles; then tails along all three extents, once with M below N and once with M above it."""

    def tail(tiles):
        # Two short of a tile at least: one short, no mask at all reads as far as `<=` does, and is taken for it.
        return BLOCK * tiles + rng.randint(1, BLOCK - 2)

    shapes = [
        ((BLOCK * 2, BLOCK * 2, BLOCK * 2), ("tiles",)),
        ((tail(1), tail(2), tail(1)), ("tiles", "tail", "loads", "zeros", "store")),
        ((tail(2), tail(1), tail(1)), ("tiles", "tail", "loads", "zeros", "store")),
        ((rng.randint(1, 9), rng.randint(10, 15), rng.randint(1, 15)), ("tiles", "tail", "loads", "zeros", "store")),
    ]
    cases = []
    for (m, n, k), checks in shapes:
        # No zeros: every element that is missing from a sum, or one too many, shows.
        a = testing.integers((k, m), generator=rng.getrandbits(31), low=1, high=3)
        b = testing.integers((k, n), generator=rng.getrandbits(31), low=1, high=3)
        cases.append(Case({"a": a, "b": b}, checks, label=f"M = {m}, N = {n}, K = {k}, tiles of {BLOCK} × {BLOCK}"))
    return cases


def run(answer, inputs: dict, watch) -> None:
    """One launch with the answer as its device function."""
    (k, m), n = inputs["a"].shape, inputs["b"].shape[1]
    a, b = watch.matrix("A", inputs["a"]), watch.matrix("B", inputs["b"])
    c = watch.output("C", (m, n), torch.float32)
    grid = (triton.cdiv(m, BLOCK) * triton.cdiv(n, BLOCK),)
    tail_masks_kernel[grid](a, b, c, m, n, k, a.stride(0), b.stride(0), c.stride(0), answer, BLOCK)


def builds(answer) -> Iterator[tuple]:
    """What to compile: (kernel, types of its run-time arguments, values of the others)."""
    types = {"a_ptr": "*fp16", "b_ptr": "*fp16", "c_ptr": "*fp32"}
    types.update(dict.fromkeys(("M", "N", "K", "lda", "ldb", "ldc"), "i32"))
    yield tail_masks_kernel, types, {"PRODUCT_TILE": answer.product_tile, "BLOCK": BLOCK}


def examine(case: Case, ran: Ran) -> Iterator[Finding]:
    """Sort what the probes saw into the masks they belong to; then compare C."""
    a, b = case.inputs["a"], case.inputs["b"]
    want = reference.gemm(a.T, b, torch.float32)
    c = ran.outputs["C"]
    picture = [diagnose.panel(c, want, (BLOCK, BLOCK), "your C")]
    if all(event["kind"] == "store" for event in ran.events) and not (c.values == want).any():
        yield Finding("*", diagnose.tiles(c, want, (BLOCK, BLOCK)) or "C is wrong everywhere", picture)
        return
    for event in ran.events:
        text = diagnose.sentence(event)
        if event["kind"] == "undefined":
            yield Finding("zeros", text, picture)
        elif event["kind"] == "load" and event["side"] == "rows":
            yield Finding("tail", f"{text}. Rows of {event['matrix']} run along K: look at the K mask", picture)
        elif event["kind"] == "load":
            yield Finding("loads", text, picture)
    if text := diagnose.stores_outside(ran):
        yield Finding("store", text, picture)
    if text := diagnose.tiles(c, want, (BLOCK, BLOCK)):
        yield Finding("tiles", text + _why(c, want, ran), picture)


def _why(c, want, ran: Ran) -> str:
    if torch.isnan(c.values[~c.missing]).any():
        return "\nNaN comes from elements outside of A and B: they must count as zero"
    rows, cols = want.shape
    if c.missing.any() and any(event["kind"] == "store" for event in ran.events):
        return "\nthe store's mask leaves out parts of C and lets through what is outside: are M and N in their places?"
    if c.missing.any() and not ran.events:
        row, col = c.missing.nonzero()[0].tolist()
        return f"\n({row}, {col}) lies inside C ({rows} × {cols}), and the store's mask leaves it out"
    return ""
