"""Exercise 07: the shape of a batch to the key under which its configuration is kept."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

import torch

from gemm_course.judging.case import Case, Finding, Ran
from gemm_course.judging.feedback import row_panel

JITTER = 0.1


def draw(rng: random.Random) -> list[Case]:
    """Batches around a power of two and between two; doubled rows; other layers; other types; hardly any rows.

    With these numbers of groups a total is near an edge where the average is not. Batches come in a drawn order, and
    some of them twice, so that nobody answers by counting the calls.
    """
    N, K = rng.choice([(4096, 1024), (1024, 4096), (2048, 7168), (7168, 2048)])

    def groups():
        return rng.choice([5, 7, 10, 14])

    def case(check, calls, label):
        order = [*range(len(calls)), *rng.choices(range(len(calls)), k=rng.randint(2, 4))]
        rng.shuffle(order)
        return Case({"calls": [calls[i] for i in order]}, (check,), {"calls": calls, "order": order}, label)

    def shared(check, centre, other):
        count = groups()
        spread = [1 - 0.93 * JITTER, 1 + 0.93 * JITTER, *(1 + rng.uniform(-0.9, 0.9) * JITTER for _ in range(10))]
        totals = [round(centre * count * factor) for factor in spread]
        rng.shuffle(totals)
        calls = [[total, count, N, K, "float16"] for total in [*totals, other * count]]
        return case(check, calls, f"{count} groups of about {centre} rows")

    base, count = rng.randint(17, 30), groups()
    doubled = [[(base << i) * count, count, N, K, "float16"] for i in range(12)]
    total = count * rng.randint(200, 900)
    layers = [
        [total, count, N, K, "float16"],
        [total, count, 2 * N, K, "float16"],
        [total, count, N, 2 * K, "float16"],
        [total, count, K, N, "float16"],
        [2 * total, 2 * count, N, K, "float16"],
    ]
    types = [[total, count, N, K, name] for name in ("float16", "float32", "float8_e4m3fn")]
    types.append([total, count, N, 2 * K, "float16"])  # as many bytes in a row as with K in float32
    small = [[rows, count, N, K, "float16"] for rows in (0, 1, count - 1)] + [[total, count, N, K, "float16"]]
    # An answer may have the picture's centres, 1024, 1536 and 2048, as constants, so these are others.
    power, half = 1 << rng.choice([8, 9, 12]), 1 << rng.choice([7, 8, 10, 11])
    return [
        shared("hits", power, 4 * power),
        shared("between", 3 * half, 2 * half),
        case("rows", doubled, f"{count} groups of {base} rows, doubled eleven times"),
        case("layer", layers, f"N = {N}, K = {K}"),
        case("types", types, f"float16, float32, float8_e4m3fn, K = {K}; float16, K = {2 * K}"),
        case("empty", small, f"0, 1 and {count - 1} rows for {count} groups"),
    ]


def examine(case: Case, ran: Ran) -> Iterator[Finding]:
    """Compare the keys that should be equal, and those that should differ."""
    calls, order, check = case.expected["calls"], case.expected["order"], case.checks[0]
    value = ran.value
    if not isinstance(value, list) or len(value) != len(order) or not all(isinstance(each, dict) for each in value):
        yield Finding("*", "there must be one key for each batch")
        return
    for each in value:
        if each.get("kind") == "NoneType":
            yield Finding("*", "the function returned None: is there a `return`?")
            return
        if each.get("hashes") is not True:
            yield Finding(
                "*",
                f"the function returned a {str(each.get('kind'))[:40]}: a key of a dict is a number, a string, or a "
                "tuple of numbers, strings and types",
            )
            return
    first: dict[int, object] = {}
    for i, each in zip(order, value):
        key = each.get("key")
        if first.setdefault(i, key) != key or key != key:
            text = f"asked twice for {_rows(calls[i])}, it gives the keys {_shown(first[i])} and {_shown(key)}"
            yield Finding(check, f"{text}: is anything kept from call to call?")
            return
    keys = [first[i] for i in range(len(calls))]
    if check in ("hits", "between"):
        yield from _hits(check, calls, keys, len(calls) - 1)
        return
    if check == "empty":
        for call, key in list(zip(calls, keys))[:-1]:
            if key == keys[-1]:
                yield Finding(check, f"{_rows(call)} and {_rows(calls[-1])} share the key {_shown(key)}")
                return
        return
    for j, later in enumerate(keys):
        for i in range(j):
            if keys[i] == later:
                yield Finding(check, _shares(check, calls[i], calls[j], later), [_picture(keys, calls)])
                return


def _hits(check: str, calls: list, keys: list, count: int) -> Iterator[Finding]:
    """Whether the first `count` batches share a key, and the last one, of another size, has another."""
    order = sorted(range(count), key=lambda i: calls[i][0])
    edge = next(((i, j) for i, j in itertools.pairwise(order) if keys[i] != keys[j]), None)
    different = [keys[i] for n, i in enumerate(order) if keys[i] not in [keys[j] for j in order[:n]]]
    if edge is None:
        if keys[-1] == keys[0]:
            text = f"{_rows(calls[order[0]])} and\n{_rows(calls[-1])} share the key {_shown(keys[0])}"
            yield Finding(check, f"{text}: it does not depend on the rows, or too little")
        return
    i, j = edge
    text = (
        f"{count} batches of about the same size have {len(different)} keys; the first edge is between"
        f"\n{_rows(calls[i])}: {_shown(keys[i])}, and\n{_rows(calls[j])}: {_shown(keys[j])}"
    )
    if len(different) == len({call[0] for call in calls[:count]}):
        text += "\nno batch finds the key of another: is an exact number of rows in it?"
    numbers = [different.index(keys[i]) for i in order]
    yield Finding(check, text, [row_panel(numbers, [0] * count, "number of the key, smallest batch on the left")])


def _rows(call: list) -> str:
    total, groups = call[:2]
    return f"{total} rows over {groups} groups ({total / groups:.4g} each)"


def _shown(key) -> str:
    text = str(tuple(key) if isinstance(key, list) else key)
    return text if len(text) <= 60 else text[:57] + "..."


def _shares(check: str, one: list, other: list, key) -> str:
    if check == "types" and one[3] != other[3]:
        return (
            f"{one[4]} with K = {one[3]} and {other[4]} with K = {other[3]} share the key {_shown(key)}:\ntheir rows "
            "have equally many bytes, but another number of elements; the key needs both, the size of an element and K"
        )
    if check == "types":
        sizes = [getattr(torch, call[4]).itemsize for call in (one, other)]
        return (
            f"{one[4]} and {other[4]} share the key {_shown(key)}, and their elements have {sizes[0]} and {sizes[1]} "
            "bytes:\nwhat fits into shared memory for one may not fit for the other"
        )
    if check == "rows":
        text = f"{_rows(one)} and\n{_rows(other)} share the key {_shown(key)}"
        return text + (
            ": is there a largest number of rows, above which all are alike?" if one[0] >= 2048 * one[1] else ""
        )
    names = [f"{name} = {a} and {b}" for name, a, b in zip(("groups", "N", "K"), one[1:4], other[1:4]) if a != b]
    return f"two layers share the key {_shown(key)}; they differ in {', '.join(names)}"


def _picture(keys: list, calls: list) -> dict:
    """The number of each batch's key; repeated numbers are marked."""
    numbers, seen = [], []
    for key in keys:
        if key not in seen:
            seen.append(key)
        numbers.append(seen.index(key))
    return row_panel(numbers, list(range(len(calls))), "number of each batch's key")
