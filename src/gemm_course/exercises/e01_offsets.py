"""Exercise 01: sizes of groups to their ends, and rows to their groups, without a host sync."""

from __future__ import annotations

import random
from collections.abc import Iterator

import torch

from gemm_course.judging.case import Case, Finding, Ran, expect_value
from gemm_course.judging.feedback import row_panel, sentence

SHOWN = 24


def draw(rng: random.Random) -> list[Case]:
    """Ordinary groups, empty ones in every position, no rows at all, rows after the last group."""

    def case(sizes, tail, *checks):
        inputs = {"sizes": torch.tensor(sizes, dtype=torch.int32), "total_m": sum(sizes) + tail}
        return Case(inputs, (*checks, "device"), label=f"sizes {sizes}, total_m {sum(sizes) + tail}")

    full = [rng.randint(1, 6) for _ in range(rng.randint(3, 6))]
    holes = [0, rng.randint(1, 5), 0, 0, rng.randint(2, 5), 0]
    short = [rng.randint(1, 4) for _ in range(rng.randint(2, 4))]
    return [
        case(full, 0, "ends", "rows"),
        case(holes, 0, "empty"),
        case([0] * rng.randint(2, 5), 0, "empty"),
        case(short, rng.randint(1, 4), "tail"),
        case([0] * rng.randint(2, 4), rng.randint(1, 4), "tail"),
    ]


def examine(case: Case, ran: Ran) -> Iterator[Finding]:
    """Compare with ends and groups counted in plain Python."""
    value, sizes = ran.value, case.inputs["sizes"].tolist()
    check = case.checks[0]
    if sync := next((event for event in ran.events if event["kind"] == "sync"), None):
        yield Finding("device", sentence(sync))
    if wrong := expect_value(value, list, "two tensors, `ends, group`"):
        yield Finding("*", wrong)
        return
    if len(value) != 2 or not all(isinstance(each, torch.Tensor) for each in value):
        yield Finding("*", "the function must return two tensors, `ends, group`")
        return
    ends = [sum(sizes[: g + 1]) for g in range(len(sizes))]
    rows = [next((g for g, end in enumerate(ends) if row < end), -1) for row in range(case.inputs["total_m"])]
    wrong = 0
    for name, got, want in (("ends", value[0], ends), ("group", value[1], rows)):
        message = _mistake(name, got, want, sizes)
        if not message:
            continue
        wrong += 1
        broken = ("ends" if name == "ends" else "rows") if check in ("ends", "rows") else check
        got = got.tolist()
        panels = [row_panel(got[:SHOWN], want[:SHOWN], f"your {name}")] if got and want else []
        yield Finding(broken, message, panels)
    if wrong == 2 and check == "ends":
        yield Finding("device", "not counted, since neither `ends` nor `group` is right where no group is empty")


def _mistake(name: str, got: torch.Tensor, want: list[int], sizes: list[int]) -> str | None:
    """What is wrong with `ends` or `group`; None if it is right."""
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
        return text + next((f"; {why}" for why, wrong in known.items() if got == wrong), "")
    if want[at] == -1:
        return f"row {at} lies behind the last group, and `group` says {got[at]}, not -1"
    ends = [sum(sizes[: g + 1]) for g in range(len(sizes))]
    text = f"row {at} belongs to group {want[at]}, and `group` says {got[at]}"
    if 0 <= got[at] < len(sizes) and sizes[got[at]] == 0:
        return f"{text}, which is empty"
    if at in ends and got[at] < want[at]:
        return f"{text}: that group ends at {at}, exclusive, so row {at} is no longer its own"
    return text
