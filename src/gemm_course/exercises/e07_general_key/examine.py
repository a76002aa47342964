"""Exercise 07: the shape of a batch to the key under which its configuration is kept."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch

from gemm_course.judging.case import Case, Finding, Ran
from gemm_course.judging.causes import Words
from gemm_course.judging.panels import row_panel

JITTER = 0.1
ANY = 0  # the label of batches that may share keys with each other, or not
_LOGARITHMS = {"log2": math.log2, "log": math.log, "log10": math.log10}
_ROUNDINGS = {"round": round, "int": int, "math.ceil": math.ceil}
NEVER_FOUND = "not judged: a batch with one row more has another key, so it never finds an earlier choice"


def draw(rng: random.Random) -> list[Case]:
    """Batches around powers of two and between them; doubled rows; other layers; other types; hardly any rows.

    The numbers of groups are chosen so that a total is near an edge while the average is not. One of two centres is at
    an edge of keys as coarse as a factor of four. Each case has batches that must share a key and batches that must
    not, in random order and some of them twice. So a new key per call earns nothing, nor does one key for all.
    """
    N, K = rng.choice([(4096, 1024), (1024, 4096), (2048, 7168), (7168, 2048)])

    def groups():
        return rng.choice([5, 7, 10, 14])

    def case(check, batches, label):
        labels, calls = zip(*batches)
        order = [*range(len(calls)), *rng.choices(range(len(calls)), k=rng.randint(2, 4))]
        rng.shuffle(order)
        inputs = {"calls": [calls[i] for i in order]}
        return Case(inputs, (check,), {"calls": calls, "order": order, "labels": labels}, label)

    def shared(check, centres, others):
        count, found = groups(), []
        for label, centre in enumerate(centres, 1):
            spread = [1 - 0.93 * JITTER, 1 + 0.93 * JITTER, *(1 + rng.uniform(-0.9, 0.9) * JITTER for _ in range(10))]
            found += [(label, [round(centre * count * factor), count, N, K, "float16"]) for factor in spread]
        found += [(10 + other, [other * count, count, N, K, "float16"]) for other in sorted(others)]
        return case(check, found, f"{count} groups of about {' and '.join(map(str, centres))} rows")

    def apart(calls, near):
        """Batches that must not share a key; and some of those in `near` with a few rows more, which must share it."""
        batches = list(enumerate(calls, 1))
        more = [batches[i] for i in rng.sample(near, rng.randint(2, min(3, len(near))))]
        return [*batches, *((label, [total + row, *rest]) for label, (total, *rest) in more for row in (1, 2, 3))]

    # No rounding of an average or of a total has an edge near these numbers.
    base, count = rng.choice([17, 22, 23, 25, 26, 29, 30]), groups()
    doubled = [[(base << i) * count, count, N, K, "float16"] for i in range(12)]
    size = round(rng.uniform(1.04, 1.08) * 256)
    total = count * size * rng.choice([1, 16])
    layers = [
        [total, count, N, K, "float16"],
        [total, count, 2 * N, K, "float16"],
        [total, count, N, 2 * K, "float16"],
        [total, count, K, N, "float16"],
        # Written without anything between its numbers, each of these two has the same digits as the first one.
        [total, count, 100 * N + K // 100, K % 100, "float16"],
        [total // count * (100 * count + N // 100), 100 * count + N // 100, N % 100, K, "float16"],
        [2 * total, 2 * count, N, K, "float16"],
    ]
    types = [[total, count, N, K, name] for name in ("float16", "float32", "float8_e4m3fn")]
    types.append([total, count, N, 2 * K, "float16"])  # as many bytes in a row as with K in float32
    large = apart([[factor * size * count, count, N, K, "float16"] for factor in (1, 16)], range(2))
    small = [(ANY, [rows, count, N, K, "float16"]) for rows in (0, 1, count - 1)]
    # An answer may have the picture's centres, 1024, 1536 and 2048, as constants, so these are others.
    even = rng.choice([256, 4096])
    low, high = rng.choice([256, 4096]), rng.choice([512, 2048])
    return [
        shared("hits", (even, 512), {128, even * 4 if even > 512 else even // 4}),
        shared("between", (low * 3 // 2, high * 3 // 2), {low, 2 * low, high if high == 512 else 2 * high}),
        case("rows", apart(doubled, range(3, 12)), f"{count} groups of {base} rows, doubled eleven times"),
        case("layer", apart(layers, range(len(layers))), f"N = {N}, K = {K}"),
        case("types", apart(types, range(4)), f"float16, float32, float8_e4m3fn, K = {K}; float16, K = {2 * K}"),
        case("empty", [*small, *large], f"0, 1 and {count - 1} rows for {count} groups"),
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
                f"the function returned a {str(each.get('kind'))[:60]}: a key of a dict is a plain number, a plain "
                "string, or a tuple of numbers, strings and types",
            )
            return
    first: dict[int, object] = {}
    for i, each in zip(order, value):
        key = each.get("key")
        if first.setdefault(i, key) != key or key != key:
            text = f"asked twice for {_rows(calls[i])}, it gives the keys {_shown(first[i])} and {_shown(key)}"
            yield Finding(check, f"{text}: is anything kept from call to call?")
            return
    keys, labels = [first[i] for i in range(len(calls))], case.expected["labels"]
    why = _about_rounding(calls, keys) if check in ("hits", "between", "rows") else ""
    for label in sorted(set(labels) - {ANY}):
        edge = _edge(check, calls, keys, [i for i in range(len(calls)) if labels[i] == label])
        if edge is not None:
            yield replace(edge, cause=(edge.cause, why))
            return
    for i, j in itertools.combinations(range(len(calls)), 2):
        if labels[i] != labels[j] and keys[i] == keys[j]:
            cause = _shares(check, calls[i], calls[j], keys[i]), why
            yield Finding(check, cause, [_picture(keys, labels)])
            return


_CENTRES = [2**n * part // 2 for n in range(5, 20) for part in (2, 3)]


def _edge(check: str, calls: list, keys: list, alike: list[int]) -> Finding | None:
    """A finding if the batches with these numbers, all of about the same size, do not share a key."""
    order = sorted(alike, key=lambda i: calls[i][0])
    edge = next(((i, j) for i, j in itertools.pairwise(order) if keys[i] != keys[j]), None)
    if edge is None:
        return None
    if check not in ("hits", "between"):
        return Finding(check, NEVER_FOUND)
    different = [keys[i] for n, i in enumerate(order) if keys[i] not in [keys[j] for j in order[:n]]]
    i, j = edge
    text = (
        f"{len(order)} batches of about the same size have {len(different)} keys; the first edge is between"
        f"\n{_rows(calls[i])}: {_shown(keys[i])}, and\n{_rows(calls[j])}: {_shown(keys[j])}"
    )
    if len(different) == len({calls[i][0] for i in order}):
        text += "\nno batch finds the key of another: is an exact number of rows in it?"
    elif centre := next((c for c in _CENTRES if calls[i][0] < c * calls[i][1] <= calls[j][0]), None):
        text += f"\nan edge at {centre} itself splits the batches around it: rounding down puts it there"
    numbers = [different.index(keys[i]) for i in order]
    title = "number of the key, smallest batch on the left"
    return Finding(check, text, [row_panel(numbers, [0] * len(order), title)])


def _about_rounding(calls: list, keys: list) -> str:
    """The mistake in the rounded logarithm that these keys hold; empty without one."""
    numbers = [list(each) for each in zip(*(key if isinstance(key, list) else [key] for key in keys))]
    rows = {"rows": [max(total / groups, 1) for total, groups, *_ in calls], "total_m": [max(c[0], 1) for c in calls]}
    for of, log, factor, rounding in itertools.product(rows, _LOGARITHMS, (1, 2, 3, 4), _ROUNDINGS):
        found = [_ROUNDINGS[rounding](factor * _LOGARITHMS[log](each)) for each in rows[of]]
        if found not in numbers or len(set(found)) == 1:
            continue
        if log != "log2":
            why = f"for twice as many rows math.{log} is {_LOGARITHMS[log](2):.2g} more, where math.log2 is 1 more"
        elif of == "total_m":
            why = "the rows of all groups together, where total_m / groups is the average of a group"
        elif factor != 2:
            why = f"{factor} for each factor of two, where 1 and 1.5 times a power of two make 2"
        elif rounding != "round":
            why = f"{rounding} has an edge at each power of two, where `round` has the power between two edges"
        else:
            return ""
        times = f"{factor} * " if factor > 1 else ""
        return f"these keys hold {rounding}({times}math.{log}({of})): {why}"
    return ""


def _rows(call: list) -> str:
    total, groups = call[:2]
    return f"{total} rows over {groups} groups ({total / groups:.4g} each)"


def _shown(key) -> str:
    text = str(tuple(key) if isinstance(key, list) else key)
    return text if len(text) <= 60 else text[:57] + "..."


def _shares(check: str, one: list, other: list, key) -> Words:
    if check == "types" and one[3] != other[3]:
        return Words(
            f"{one[4]} with K = {one[3]} and {other[4]} with K = {other[3]} share the key {_shown(key)}",
            because="their rows have equally many bytes, but another number of elements; the key needs both, the size "
            "of an element and K",
        )
    if check == "types":
        sizes = [getattr(torch, call[4]).itemsize for call in (one, other)]
        return Words(
            f"{one[4]} and {other[4]} share the key {_shown(key)}, and their elements have {sizes[0]} and {sizes[1]} "
            "bytes",
            because="what fits into shared memory for one may not fit for the other",
        )
    if check != "layer":
        text = f"{_rows(one)} and\n{_rows(other)} share the key {_shown(key)}"
        if check in ("hits", "between"):
            return Words(f"{text}: it does not depend on the rows, or too little")
        largest = check == "rows" and one[0] >= 2048 * one[1]
        return Words(text + (": is there a largest number of rows, above which all are alike?" if largest else ""))
    names = [f"{name} = {a} and {b}" for name, a, b in zip(("groups", "N", "K"), one[1:4], other[1:4]) if a != b]
    text = f"two layers share the key {_shown(key)}; they differ in {', '.join(names)}"
    if "".join(map(str, one[1:4])) == "".join(map(str, other[1:4])):
        rule = "in a row their digits are the same, so put something between the numbers, or return a tuple"
        return Words(text, because=rule)
    return Words(text)


def _picture(keys: list, labels: Sequence[int]) -> dict:
    """The number of each batch's key; a number that another kind of batch has, too, is marked."""
    distinct = [key for i, key in enumerate(keys) if key not in keys[:i]]
    numbers = [distinct.index(key) for key in keys]
    first = [next(labels[j] for j in range(len(keys)) if keys[j] == key) for key in keys]
    want = [number if label == own else -1 for number, label, own in zip(numbers, first, labels)]
    return row_panel(numbers, want, "number of each batch's key")
