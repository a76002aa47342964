"""The mistakes that exercises 11a, 11b and 14b explain: which tokens a wrong sum over a group has, and why."""

from __future__ import annotations

import random
from collections.abc import Iterable

import torch
from torch import Tensor

from gemm_course.judging import diagnosis
from gemm_course.judging.case import Ran, Written
from gemm_course.judging.causes import Event, Observed, Words

_END_FOR_SIZE = ": as many as `ends[g]` says, which is where the group ends and not how many tokens it has"


def group_sizes(rng: random.Random, block: int) -> list[int]:
    """Tokens of groups: none (first, last, in the middle), one, whole blocks, and partly filled last blocks.

    The longest group begins at no multiple of a block, and not in the first block. It does not end a block after its
    own number of tokens: there a mask that compares with this number takes just the first block.
    """
    first, second = rng.sample(range(3, block - 2), 2)
    return [0, block + first, 0, 2 * block + second, 1, 2 * block, part(rng, block), 0]


def part(rng: random.Random, block: int) -> int:
    """Tokens in a partly filled block: 3 or more are missing. With one missing, no mask would look like `<=`."""
    return rng.randint(3, block - 3)


def most_telling_first(groups: Iterable[int], bounds: list[tuple[int, int]]) -> list[int]:
    """Sort groups by how well their sums distinguish mistakes: first those not at token 0, and with many tokens."""
    return sorted(groups, key=lambda g: (bounds[g][0] > 0, bounds[g][1] - bounds[g][0]), reverse=True)


def explain_undefined(ran: Ran, wrong: bool) -> tuple[str, Observed] | None:
    """(what is undefined, cause) of a load without ``other=``, if the results are wrong: else other code mends it."""
    event = next((each for each in ran.events if each.kind == "undefined"), None)
    if event is None or not wrong:
        return None
    note = ". Group 0 starts at 0, and has no entry before its own" if event.matrix == "ends" else ""
    return event.matrix or "", Observed(event, note)


def explain_atomic(ran: Ran) -> Observed | None:
    """The first atomic update, and why a sum needs none; None if there is none."""
    note = ". Atomics add in the order in which programs arrive, and a float32 sum depends on that order: let one "
    event = next((each for each in ran.events if each.kind == "atomic"), None)
    return event and Observed(event, note + "program own each sum")


def explain_zeros(values: list[Tensor], bounds: list[tuple[int, int]], wrong: list[int], name: str) -> tuple | None:
    """("*" if nothing is right, "" otherwise; message) if all wrong groups hold zeros; else None."""
    if not all((values[g] == 0).all() for g in wrong):
        return None
    where = "the loop begins where the group before has ended, at ends[g - 1] (group 0: at 0), and ends at ends[g]"
    if len(wrong) == sum(start < end for start, end in bounds):
        return "*", f"{name} is 0 everywhere: nothing was added. For group g {where}"
    g = most_telling_first(wrong, bounds)[0]
    return "", f"nothing was added for group {g}, which has tokens {bounds[g][0]} to {bounds[g][1] - 1}: {where}"


def explain_table(event: Event) -> Observed:
    """A read outside of `ends`, and the likely mistake."""
    if event.place is not None and event.place[1] < 0:
        return Observed(event, ". Group 0 starts at 0, and no entry of `ends` says so")
    note = ". `ends` has as many entries as there are groups, and group g ends at `ends[g]`"
    return Observed(event, note, single=True)


def explain_nan(ran: Ran, bounds: list[tuple[int, int]], nan: Iterable[int], block: int) -> Words | None:
    """The load outside of a matrix behind NaN in groups that no row of the tail can reach; None if there is none.

    One past the last token is none: then a loop or a mask takes too many, which other words explain.
    """
    total = bounds[-1][1]
    apart = any(start - (start - end) // block * block <= total for start, end in (bounds[g] for g in nan))
    tokens = {"A": "columns", "B": "rows", "grad": "rows"}
    loads = [e for e in ran.events if e.kind == "load" and e.matrix in tokens and e.side != tokens[e.matrix]]
    return Words(f"NaN was read outside of {loads[0].matrix}", because=Observed(loads[0])) if apart and loads else None


def held_before(written: Written) -> Tensor:
    """The places at which an output was stored and is still NaN: bool. NaN plus a number may keep all of its bits."""
    return torch.isnan(written.values) & (~written.missing | (written.counts > 0))


def explain_empty(result: Written, parts: Tensor, start: int, block: int, name: str, in_loop: bool) -> str:
    """The mistake in the result of an empty group at token `start`; "" if it is zero.

    Args:
        parts: the part that each token adds, as for `range_of_sum`.
        block: tokens of one iteration of the loop.
        name: the name of the group, with which the sentence begins.
        in_loop: whether other results were stored several times.
    """
    text = f"{name} is empty, and {result.name}"
    if (lost := result.missing & (result.counts == 0)).any():
        if not lost.all() and not in_loop:
            return f"{text} was written only in part: zeros have to be stored up to its last column"
        text += " was never written: it holds whatever was in memory"
        if in_loop:
            return f"{text}. The store is in the loop, and for this group the loop never runs"
        return f"{text}. Its sum is zero: zeros have to be stored, too"
    if (result.values == 0).all():
        return ""
    if torch.isnan(result.values).all():
        return f"{text} is NaN, not zero"
    if (found := range_of_sum(result.values, parts)) is None:
        return f"{text} is not zero"
    text += f" is not zero but the sum over {_tokens(*found)}"
    if found == (start, 2 * start):
        return text + _END_FOR_SIZE
    added = found == (start, start + block)
    return f"{text}: is a block added before the loop checks whether there is one?" if added else text


def range_of_sum(got: Tensor, parts: Tensor) -> tuple[int, int] | None:
    """The tokens (first, stop) whose parts sum to a result, rounded to its type; None if no range does.

    Args:
        got: the result, of any shape.
        parts: (tokens, *shape of got) float64, the part that each token adds.
    """
    flat, got = parts.flatten(1), got.flatten()
    sums = torch.cat([flat.new_zeros(1, flat.shape[1]), flat.cumsum(0)])
    # One element leaves few ranges to compare in full.
    some = len(got) // 2
    fitting = ((sums[None, :, some] - sums[:, None, some]).to(got.dtype) == got[some]).triu()
    for first, stop in fitting.nonzero().tolist():
        if torch.equal((sums[stop] - sums[first]).to(got.dtype), got):
            return (first, stop) if first < stop else (0, 0)
    return None


def explain_step(got: Tensor, parts: Tensor, block: int, others: dict[str, int]) -> str:
    """The wrong step of the loop, or the wrong number of tokens in a turn, that leads to a result; "" if none does.

    Args:
        got: the result, of any shape.
        parts: (tokens of the group, *shape of got) float64, the part that each token adds.
        block: tokens of one iteration.
        others: names of the other blocks, and their extents.
    """

    def total(step: int, width: int) -> Tensor:
        return sum(parts[first : first + width].sum(0) for first in range(0, len(parts), step))

    wrong = {f"{name} tokens further on": (size, block) for name, size in others.items()}
    wrong["one token further on, as `range` does without a step"] = (1, block)
    for text, (step, width) in wrong.items():
        if torch.equal(total(step, width).to(got.dtype), got):
            return f"a turn of the loop adds BLOCK_M = {block} tokens, and the next one begins {text}"
    for name, size in others.items():
        if torch.equal(total(block, size).to(got.dtype), got):
            return (
                f"a turn of the loop adds {name} = {size} tokens, and the next one begins BLOCK_M = {block} further on"
            )
    return ""


def explain_rounding(got: Tensor, blocks: list[Tensor]) -> str:
    """Explain a result whose sum was rounded after each block, to bfloat16 or float16; "" if it was not.

    Args:
        got: the result, of any shape.
        blocks: the sum of each block, float64 of the same shape.
    """
    for dtype in (torch.bfloat16, torch.float16):
        ways = [torch.zeros_like(blocks[0])] * len(diagnosis.roundings(blocks[0], dtype))
        for block in blocks:
            ways = [diagnosis.roundings(way + block, dtype)[i] for i, way in enumerate(ways)]
        if any(torch.equal(got, way.to(got.dtype)) for way in ways):
            name = str(dtype).removeprefix("torch.")
            return f"the sum was rounded to {name} after each block: `acc` has to stay float32 until the store"
    return ""


def explain_range(found: tuple[int, int], bounds: list[tuple[int, int]], g: int, block: int) -> tuple[bool, str]:
    """Return whether only the group's last block is wrong, and a sentence with the range and a likely mistake.

    Args:
        found: the range, from `range_of_sum`.
        bounds: (start, end) of every group; `g`, which has tokens, is the one with the wrong sum.
        block: tokens of one iteration of the loop.
    """
    (first, stop), (start, end) = found, bounds[g]
    if first == stop:
        return False, f"this is 0, and group {g} has {_tokens(start, end)}: does the loop run at all?"
    text = f"group {g} has {_tokens(start, end)}, and this is the sum over {_tokens(first, stop)}"
    last = start + (end - start - 1) // block * block  # first token of its last block
    if (first, stop) == (0, end - start):
        return False, f"{text}: as many as the group has, but the first of all. Is `start` added?"
    if first == start and end < stop:
        if stop == start + end:
            return False, text + _END_FOR_SIZE
        return True, text + _too_far(stop, end, last + block, bounds)
    if first == start:
        return stop >= last or stop == end - start, text + _too_short(stop, end, last, start, block)
    if stop == end:
        return False, text + _other_start(first, start, end, block)
    if (first, stop) == (0, last + block - start):
        return False, f"{text}: as many blocks as the group needs, but the first of all. Is `start` added?"
    if found in bounds:
        return False, f"{text}. That is group {bounds.index(found)}: `ends[g]` is where group g ends"
    return False, text


def _too_far(stop: int, end: int, whole: int, bounds: list) -> str:
    if stop == whole and stop > end + 1:
        return f": the whole last block is summed, with {stop - end} of the next tokens. Mask them"
    if stop == end + 1:
        return ": one too many, as `<=` in place of `<` gives"
    if stop == bounds[-1][1]:
        return ": the loads are masked where the last group ends, not where this one does"
    return ": the mask along the tokens has to compare with `end`"


def _too_short(stop: int, end: int, last: int, start: int, block: int) -> str:
    if stop == last:
        return f": the last block is left out; {end - last} of its {block} tokens are the group's"
    if stop == end - 1:
        return ": one is missing at the end. `end` is exclusive"
    if stop == start + block:
        return ": only the first block. Does the loop go on to the end, and do masks compare with `end` in each turn?"
    if stop == end - start:
        return f": {stop} is the group's number of tokens, and the mask has to compare with where it ends"
    return ": the mask along the tokens has to compare with `end`"


def _other_start(first: int, start: int, end: int, block: int) -> str:
    if first == 0:
        return ": is `start` used?"
    if first == end - start:
        return f": {first} is the group's number of tokens, and the loop has to begin where the group does"
    if first == start + (end - start - 1) // block * block:
        return ": only the last block. Is each block added to `acc`?"
    if first == start + 1:
        return ": one is missing at the beginning"
    if first == start // block * block:
        return f": a group starts anywhere, and this begins at a multiple of {block}"
    return ""


def _tokens(first: int, stop: int) -> str:
    return f"tokens {first} to {stop - 1}" if stop - first > 1 else f"token {first} alone"
