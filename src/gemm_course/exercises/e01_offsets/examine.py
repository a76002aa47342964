"""Exercise 01: sizes of groups to their ends, and rows to their groups, without a host sync."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import accumulate

import torch

from gemm_course.judging.case import Case, Finding, Ran, expect_value
from gemm_course.judging.causes import Cause, MadeOnCPU, Observed, Words
from gemm_course.judging.panels import row_panel

SHOWN = 24
MADE_THERE = MadeOnCPU("sizes.device")


def draw(rng: random.Random) -> list[Case]:
    """Ordinary groups, empty ones in every position, no rows at all, rows after the last group, more than a short
    number counts."""

    def case(sizes, tail, *checks):
        inputs = {"sizes": torch.tensor(sizes, dtype=torch.int32), "total_m": sum(sizes) + tail}
        return Case(inputs, (*checks, "device"), label=f"sizes {sizes}, total_m {sum(sizes) + tail}")

    # Two rows at least in the first group: else its first row is its last one, and two mistakes give the same.
    full = [rng.randint(2, 6), *(rng.randint(1, 6) for _ in range(rng.randint(2, 5)))]
    holes = [0, rng.randint(1, 5), 0, 0, rng.randint(2, 5), 0, rng.randint(1, 5), 0]
    # Odd ends over 2,048, which float16 rounds, and one over 32,767; some rows are left in between for int8 to show.
    large = [2 * rng.randint(40, 63), 2 * rng.randint(25, 40) + 1, 0]
    large += [2 * rng.randint(1100, 1500), 2 * rng.randint(15200, 15600)]
    short = [rng.randint(1, 4) for _ in range(rng.randint(2, 4))]
    return [
        case(full, 0, "ends", "rows"),
        case(holes, 0, "empty"),
        case([0] * rng.randint(2, 5), 0, "empty"),
        case(short, rng.randint(1, 4), "tail"),
        case([0] * rng.randint(2, 4), rng.randint(1, 4), "tail"),
        case(large, 0, "ends"),
    ]


def examine(case: Case, ran: Ran) -> Iterator[Finding]:
    """Compare with ends and groups counted in plain Python."""
    value, sizes = ran.value, case.inputs["sizes"].tolist()
    check = case.checks[0]
    if waits := _waits(case, ran):
        yield Finding("device", waits)
    if wrong := expect_value(value, list, "two tensors, `ends, group`"):
        yield Finding("*", wrong)
        return
    if len(value) != 2 or not all(isinstance(each, torch.Tensor) for each in value):
        yield Finding("*", "the function must return two tensors, `ends, group`")
        return
    ends = list(accumulate(sizes))
    rows = [g for g, size in enumerate(sizes) for _ in range(size)]
    rows += [-1] * (case.inputs["total_m"] - len(rows))
    if len(ends) != len(rows) and [list(each.shape) for each in value] == [[len(rows)], [len(ends)]]:
        text = "the first tensor has a number for each row, and the second for each group: return `ends, group`"
        yield Finding("*", f"{text}, in this order")
        return
    wrong = 0
    for name, got, want in (("ends", value[0], ends), ("group", value[1], rows)):
        message = _mistake(name, got, want, sizes)
        if not message:
            continue
        wrong += 1
        follows = name == "group" and wrong == 2 and value[0].dim() == 1
        if follows and got.tolist() == _groups_of(value[0].tolist(), len(rows)):
            message = "wrong because `ends` is wrong: these are the groups that follow from your ends"
        broken = ("ends" if name == "ends" else "rows") if check in ("ends", "rows") else check
        got = got.tolist() if got.dim() == 1 else []
        panels = [row_panel(got[:SHOWN], want[:SHOWN], f"your {name}")] if got and want else []
        yield Finding(broken, message, panels)
    if wrong == 2 and check == "ends" and all(sizes):
        yield Finding("device", "not judged, since neither `ends` nor `group` is right, even without empty groups")


def _groups_of(ends: list[int], total: int) -> list[int]:
    """The group of each row, by these ends."""
    group = torch.searchsorted(torch.tensor(ends), torch.arange(total), right=True)
    return torch.where(group < len(ends), group, -1).tolist()


def _waits(case: Case, ran: Ran) -> Cause | None:
    """Steps that make the CPU wait or run on it; None if there are none."""
    first = {event.kind: event for event in reversed(ran.events)}
    if sync := first.get("sync"):
        return Observed(sync)
    if mixed := first.get("devices"):
        text = f"{mixed.what}() gets a tensor on the CPU and one on the GPU, which is an error there"
        return Words(text, mixed.line, MADE_THERE)
    if host := first.get("host"):
        return Words(f"`{host.what}` is on the CPU, and `sizes` is on a GPU", because=MADE_THERE)
    total = case.inputs["total_m"]
    for event in ran.events:
        if event.kind == "calls" and event.count >= total // 2:
            text = f"{event.count} calls of torch's functions for {total} rows: a loop over rows launches at least one "
            return Words(f"{text}kernel for each row", int(event.what))
    return None


def _mistake(name: str, got: torch.Tensor, want: list[int], sizes: list[int]) -> str | None:
    """The first mistake in `ends` or `group`; None if it is right."""
    if got.dtype == torch.bool or got.is_floating_point():
        return f"`{name}` must hold integers, and it is {got.dtype}"
    if got.shape != (len(want),):
        per = "group" if name == "ends" else "row"
        return f"`{name}` must have one number for each of {len(want)} {per}s; its shape is {tuple(got.shape)}"
    got = got.tolist()
    if got == want:
        return None
    at = next(i for i, (g, w) in enumerate(zip(got, want)) if g != w)
    if name == "ends":
        text = f"group {at} ends at {want[at]}, and `ends` says {got[at]}"
        known = {
            "these are the sizes: an end also counts the rows of all groups before": sizes,
            "these are the rows at which groups start": [end - size for end, size in zip(want, sizes)],
            "these are the last rows themselves: an exclusive end is one further": [end - 1 for end in want],
        }
        return text + next((f"; {why}" for why, wrong in known.items() if got == wrong), _too_short(got, want, sizes))
    if known := _known_groups(got, want, sizes):
        return f"row {at} belongs to group {want[at]}, and `group` says {got[at]}; {known}"
    if want[at] == -1:
        return f"row {at} is after the last group, so its group is -1, and `group` says {got[at]}"
    ends = list(accumulate(sizes))
    text = f"row {at} belongs to group {want[at]}, and `group` says {got[at]}"
    if got[at] == -1:
        return f"{text}: only rows after the last group have -1, and these begin at {ends[-1]}"
    if 0 <= got[at] < len(sizes) and sizes[got[at]] == 0:
        return f"{text}, which is empty"
    if at in ends and got[at] < want[at]:
        return f"{text}: that group ends at {at}, exclusive, so row {at} is not in it"
    return text


def _known_groups(got: list[int], want: list[int], sizes: list[int]) -> str:
    """A likely mistake that gives these groups, where no row is after the last one; "" if none does."""
    if -1 in want or len(set(want)) < 2:
        return ""
    if got == _groups_of(sizes, len(want)):
        return "this searches in `sizes`: a row's group follows from `ends`"
    if got[:-1] == want[1:] and got[-1] not in want:
        return "these are the groups of rows 1 and on: the first row is row 0"
    if got == [group + 1 for group in want]:
        return "groups are counted from 0, and here from 1"
    ends = list(accumulate(sizes))
    for marked, more in ((ends, 0), ([0, *ends[:-1]], -1)):
        if got == [len({mark for mark in marked if mark <= row}) + more for row in range(len(want))]:
            return "an empty group ends where the one before it does, and groups that end at one row count once here"
    return ""


def _too_short(got: list[int], want: list[int], sizes: list[int]) -> str:
    """A type that cannot hold these ends, after "; ", if sums in it give what was returned; else empty."""
    for dtype in (torch.int8, torch.uint8, torch.int16, torch.float16, torch.bfloat16):
        sums = torch.tensor(sizes).cumsum(0, dtype=dtype), torch.tensor(want).to(dtype)
        if any(torch.equal(each.long(), torch.tensor(got)) for each in sums):
            name = str(dtype).removeprefix("torch.")
            if dtype.is_floating_point:
                exact = 2 ** (11 if dtype == torch.float16 else 8)
                return f"; these are sums in {name}, which holds every whole number only up to {exact}"
            return f"; these are sums in {name}, whose largest number is {torch.iinfo(dtype).max}"
    return ""
