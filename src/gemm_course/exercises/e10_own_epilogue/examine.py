"""Exercise 10: SiLU in the epilogue of a Hopper kernel, judged by its PTX, and on a Hopper GPU by its product, too."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator

import numpy as np
import torch

from gemm_course.exercises.e10_own_epilogue.ptx_threads import CannotFollow, follow
from gemm_course.judging.case import Case, Finding, Ran
from gemm_course.judging.panels import MISSING, RIGHT, WRONG, table_panel

TILE_M, GROUP = 128, 128  # rows of a tile; threads of a warp group
WIDTHS = (160, 192)  # above 128, where a thread has 64 sums: an answer may hard-code these
CHECKS = ("silu", "rounding", "threads", "shape", "registers")
_NUMBERS = ("rounding", "threads", "shape")


def draw(rng: random.Random) -> list[Case]:
    """A tile of 64 columns, and a wider one: a thread has 32 sums, then more."""
    cases = []
    for tile_n in (64, rng.choice(WIDTHS)):
        generator = torch.Generator().manual_seed(rng.getrandbits(31))
        sums = _uniform(generator, TILE_M, tile_n)
        while (near := _near_a_tie(silu(sums.double()))).any():
            sums = torch.where(near, _uniform(generator, TILE_M, tile_n), sums)
        # On a GPU: sums that are exact in float32, and tiles that go past the end of C.
        a, b = (
            torch.randint(-4, 5, (extent, 136), generator=generator).float() / 8 for extent in (200, tile_n + 40)
        )  # fmt: skip
        label = f"tile of {TILE_M} × {tile_n}: {TILE_M * tile_n // (2 * GROUP)} sums in each thread"
        cases.append(Case({"tile_n": tile_n, "a": a, "b": b}, CHECKS, {"sums": sums}, label))
    return cases


def _uniform(generator: torch.Generator, *shape: int) -> torch.Tensor:
    return torch.rand(shape, generator=generator) * 12 - 6


def _near_a_tie(values: torch.Tensor) -> torch.Tensor:
    """Where a small error would change the rounding to bfloat16; a GPU's exponential is not exact."""
    rest = values.float().view(torch.int32) & 0xFFFF
    return (rest - 0x8000).abs() < 0x400


def silu(x: torch.Tensor) -> torch.Tensor:
    """x times its sigmoid."""
    return x * torch.sigmoid(x)


def _rounded(x: torch.Tensor) -> torch.Tensor:
    return x.to(torch.bfloat16).double()


def _cut(x: torch.Tensor) -> torch.Tensor:
    return (x.float().view(torch.int32) & ~0xFFFF).view(torch.float32).double()


# Check, what C holds, and the function of the exact sums that gives it.
_MISTAKES: tuple[tuple[str, str, Callable], ...] = (
    ("silu", "the sums themselves, without an activation", _rounded),
    ("rounding", "SiLU of rounded sums: convert to 16 bits after SiLU", lambda x: _rounded(silu(_rounded(x)))),
    ("rounding", "SiLU of sums in float16: keep them in float32", lambda x: _rounded(silu(x.half().double()))),
    ("rounding", "SiLU with its last bits cut off, not rounded", lambda x: _cut(silu(x))),
    ("silu", "SiLU of SiLU: it is applied twice", lambda x: _rounded(silu(silu(x)))),
    ("silu", "the sigmoid: it still has to be multiplied by x", lambda x: _rounded(torch.sigmoid(x))),
    ("silu", "x / (1 + exp(x)): the exponent's sign is wrong", lambda x: _rounded(x * torch.sigmoid(-x))),
    ("silu", "x · (1 + exp(-x)): divide x by 1 + exp(-x)", lambda x: _rounded(x * (1 + (-x).exp()))),
    ("silu", "x / exp(-x): the 1 is missing in 1 + exp(-x)", lambda x: _rounded(x * x.exp())),
    ("silu", "x / (1 - exp(-x)): it has to be 1 + exp(-x)", lambda x: _rounded(x / (1 - (-x).exp()))),
    ("silu", "x / (1 + 2 ** -x): exp has base e, exp2 has base 2", lambda x: _rounded(x / (1 + (-x).exp2()))),
    ("silu", "x + exp(-x): the division comes first; put 1 + exp(-x) in brackets", lambda x: _rounded(x + (-x).exp())),
    ("silu", "ReLU: it has no exponential", lambda x: _rounded(x.relu())),
    ("silu", "ReLU²: it has no exponential", lambda x: _rounded(x.relu().square())),
    ("silu", "GELU, another activation", lambda x: _rounded(torch.nn.functional.gelu(x))),
    ("silu", "x / (1 + exp(-1.702 x)), an approximation of GELU", lambda x: _rounded(x * torch.sigmoid(1.702 * x))),
    ("silu", "x · tanh(x): the sigmoid of x is (1 + tanh(x / 2)) / 2", lambda x: _rounded(x * x.tanh())),
    ("silu", "x · (1 + tanh(x)) / 2: the sigmoid of x has tanh(x / 2)", lambda x: _rounded(x * torch.sigmoid(2 * x))),
    ("silu", "x² times the sigmoid: there is one x too many", lambda x: _rounded(x * silu(x))),
)  # fmt: skip


def examine(case: Case, ran: Ran) -> Iterator[Finding]:
    """Follow the kernel's threads through its PTX; then compare what a GPU computed."""
    value = ran.value if isinstance(ran.value, dict) else {}
    ptx = value.get("ptx")
    if not isinstance(ptx, torch.Tensor) or ptx.dtype != torch.uint8:
        yield Finding("*", "no PTX came back")
        return
    text = ptx.numpy().tobytes().decode(errors="replace")
    sums = case.expected["sums"]
    try:
        found = follow(text, sums.numpy())
    except CannotFollow as error:
        text = f"the check follows the threads through the PTX, and cannot follow this epilogue: {error}."
        yield Finding("*", (text, "Arithmetic, comparisons and loops over the sums are enough"))
        return
    got = torch.from_numpy(found.bits.view(np.int16)).view(torch.bfloat16).double()
    got[torch.from_numpy(~found.stored)] = torch.nan
    yield from _compare(got, sums.double(), text)
    if found.local:
        text = (
            "the sums go to local memory, a part of global memory (st.local in the PTX). A register has no address, "
            "so a loop whose index is known only at run time cannot choose one.\nUse sums.load() for all of them, "
            "or cutlass.range_constexpr"
        )
        yield Finding("registers", text)
    if isinstance(value.get("c"), torch.Tensor):
        yield from _on_gpu(case, value["c"])


def _by_thread(tile: torch.Tensor) -> torch.Tensor:
    """A tile's elements as (thread, sum of the thread): wgmma's layout."""
    thread, i = torch.arange(2 * GROUP)[:, None], torch.arange(tile.numel() // (2 * GROUP))[None, :]
    row = thread // GROUP * 64 + thread % GROUP // 32 * 16 + thread % 32 // 4 + i // 2 % 2 * 8
    return tile[row, thread % 4 * 2 + i % 2 + i // 4 * 8]


def _compare(got: torch.Tensor, sums: torch.Tensor, ptx: str) -> Iterator[Finding]:
    """Findings on a wrong tile of C: in some threads, in some of a thread's sums, or in all."""
    right = got == _rounded(silu(sums))
    if right.all():
        return
    panels = [_panel(right, got)]
    by_thread = _by_thread(right)
    threads, places = by_thread.all(1), by_thread.all(0)
    mistake = _what(got[~right], sums[~right], ptx)
    if mistake[0] == "rounding":  # what is right is so by chance, whichever thread has it
        yield Finding("rounding", f"C has {mistake[1]}", panels)
    elif places.any() and not places.all():
        count, of = int((~places).sum()), len(places)
        text = f"{count} of a thread's {of} sums are not activated; in their place C has {mistake[1]}"
        yield Finding("shape", (text, "the number of sums depends on the tile: take it from the tensor"), panels)
    elif threads.any():
        groups = [int(each.sum()) for each in threads.view(2, GROUP)]
        if sorted(groups) == [0, GROUP]:
            text = f"only warp group {1 + groups.index(GROUP)} applies it; in the other's rows C has {mistake[1]}"
        else:
            text = f"only {sum(groups)} of {2 * GROUP} threads apply it; in the others C has {mistake[1]}"
        every = "each thread has sums of its own, so all of them have to apply it"
        yield Finding("threads", (text, every), panels)
    else:
        yield Finding(mistake[0], f"C has {mistake[1]}", panels)
        if mistake[0] == "silu":
            for check in (*_NUMBERS, "registers"):
                yield Finding(check, "not compared, since the function is not SiLU")


def _what(got: torch.Tensor, sums: torch.Tensor, ptx: str) -> tuple[str, str]:
    """The check that fails, and the contents of C at the wrong elements, in words."""
    if got.isnan().all():
        return "silu", "nothing: `rounded` was not filled"
    for check, what, function in _MISTAKES:
        # A GPU's exponential is not exact: next to a tie it may round the other way.
        if (got == function(sums)).double().mean() > 0.98:
            return check, what
    want = silu(sums)
    if ((got - want).abs() <= 0.02 * want.abs() + 1e-3).all():
        after = ptx[ptx.rfind("wgmma.mma_async") :]
        first, exp = (re.search(name, after) for name in (r"cvt\.rn\.bf16", r"ex2\.|tanh\."))
        order = ": in the PTX, a conversion to 16 bits comes before the exponential"
        early = first is not None and exp is not None and first.start() < exp.start()
        return "rounding", "SiLU, but not rounded once from float32" + order * early
    worst = int((got - want).abs().nan_to_num(torch.inf).argmax())
    at = float(sums[worst])
    return (
        "silu",
        f"another function: for the sum {at:.4g} it has {float(got[worst]):.4g}, and SiLU is {want[worst]:.4g}",
    )


def _panel(right: torch.Tensor, got: torch.Tensor) -> dict:
    """The tile of C in pieces of 16 rows, a warp's, and 16 columns."""
    pieces = [piece.split(16, 1) for piece in right.split(16)]
    empty = [piece.split(16, 1) for piece in got.isnan().split(16)]
    states = [
        [RIGHT if piece.all() else MISSING if none.all() else WRONG for piece, none in zip(*line)]
        for line in zip(pieces, empty)
    ]
    return table_panel("the tile of C: a row for each warp, 16 columns a cell", states)


def _on_gpu(case: Case, c: torch.Tensor) -> Iterator[Finding]:
    """Compare a GPU's product with the right one, within one unit of the last place of bfloat16."""
    want = silu(case.inputs["a"].double() @ case.inputs["b"].double().T)
    if c.shape != want.shape or not ((c.double() - want).abs() <= want.abs() / 128 + 1e-4).all():
        wrong = int((~((c.double() - want).abs() <= want.abs() / 128 + 1e-4)).sum()) if c.shape == want.shape else -1
        yield Finding("silu", f"the product is wrong in {wrong} of {want.numel()} elements")
