"""Exercise 16: the form of what a rank plans, and what it has to plan."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch

from gemm_course.judging.case import expect_value
from gemm_course.judging.cause_sentences import counted

NAMES = ("tokens", "local", "sent", "received", "back")
BREAKS = dict(zip(NAMES, ("once", "experts", "splits", "splits", "back")))  # the check that a malformed part breaks
WANTED = f"five things, `{', '.join(NAMES)}`"


class Plan(NamedTuple):
    """One rank's tokens, what it has to send, and its answer."""

    rank: int
    ids: list[list[int]]
    owners: list[list[int]]  # the rank of each choice; -1: nobody's
    goals: list[list[int]]  # the tokens that each rank has to get
    given: list[list[int]]  # to each exchange
    tokens: list[int]
    local: list[list[int]] | None
    sent: list[int]
    received: list[int] | None
    back: list[list[int]] | None

    def strange(self, token: int) -> list[int]:
        """A token's ids that are nobody's."""
        return [e for e, owner in zip(self.ids[token], self.owners[token]) if owner < 0]

    def about(self, token: int) -> str:
        """A token in words."""
        return f"token {token} of rank {self.rank}, with ids {self.ids[token]},"


def parts_of(value, tokens: int, ids: list, ranks: int) -> tuple[list, dict[str, str]]:
    """The five parts as lists, and messages about those that are malformed, by name; "*": all. These are None."""
    if wrong := expect_value(value, list, WANTED):
        return [], {"*": wrong}
    if len(value) != len(NAMES):
        return [], {"*": f"the function must return {WANTED}, and it returned {counted(len(value), 'thing')}"}
    top_k = len(ids[0]) if ids else 0
    parts, wrong = [], {}
    for name, part in zip(NAMES, value):
        numbers, shape = _numbers(part)
        if numbers is None:
            wrong[name] = f"`{name}` must hold integers, and it is {shape}"
        parts.append(numbers)
        rows = len(parts[0]) if parts[0] is not None else 0
        wanted = {"tokens": (rows,), "local": (rows, top_k), "back": (tokens, ranks)}.get(name, (ranks,))
        if name in wrong or shape == wanted or (not numbers and 0 in wanted and name != "tokens"):
            continue
        if name in ("sent", "received"):
            text = f"`{name}` has one number for each of {counted(ranks, 'rank')}, and yours has the shape {shape}"
            wrong[name] = f"{text}: a rank that gets nothing has a 0, too"
        else:
            local = f"a row of k = {top_k} columns for each of the {rows} entries of `tokens`"
            form = {"tokens": "one number for each row", "local": local}
            form = form.get(name, f"a row for each of {tokens} tokens and a column for each of {ranks} ranks")
            wrong[name] = f"`{name}` has {form}, and yours has the shape {shape}"
            if name == "local" and len(numbers) > rows == len(set(parts[0] or ())):
                wrong[name] += ": a token that goes to two ranks is in `tokens` twice"
        parts[-1] = None
    return parts, wrong


def _numbers(part) -> tuple[list | None, object]:
    """A part as lists of integers, and its shape; None, and what it is, of anything else."""
    if isinstance(part, list):
        flat = [each for line in part for each in (line if isinstance(line, list) else [line])]
        widths = {len(line) if isinstance(line, list) else -1 for line in part}
        if not all(type(each) is int for each in flat) or len(widths) > 1:
            return None, "a list of other things"
        return part, (len(part), *(width for width in widths if width >= 0))
    if not isinstance(part, torch.Tensor):
        return None, f"a {part['not'] if isinstance(part, dict) and 'not' in part else type(part).__name__}"
    if part.is_floating_point() or part.dtype == torch.bool:
        return None, f"a tensor of {part.dtype}"
    return (part.tolist() if part.dim() else [part.item()]), tuple(part.shape)


def plan_of(rank: int, ids: list, experts: int, given: list, parts: list) -> Plan:
    """One rank's answer beside what it has to send."""
    owners = owners_of(ids[rank], experts, len(ids))
    goals = [[t for t, line in enumerate(owners) if r in line] for r in range(len(ids))]
    return Plan(rank, ids[rank], owners, goals, given, *parts)


def owners_of(ids: list, experts: int, ranks: int, rule: Callable[[int], int] | None = None) -> list[list[int]]:
    """The rank of each choice, by a rule other than that of the exercise where one is given; -1 if it is nobody's."""
    rule = rule or (lambda e: e // (experts // ranks))
    return [[rule(e) if 0 <= e < experts else -1 for e in line] for line in ids]
