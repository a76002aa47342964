"""Exercise 16: the rows that each rank sends, once for each token and rank, and where their results return."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from functools import partial
from itertools import accumulate

import torch

from gemm_course.exercises.e16_the_splits.local_rows import Row, mistakes
from gemm_course.exercises.e16_the_splits.plans import BREAKS, Plan, owners_of, parts_of, plan_of
from gemm_course.judging.case import Case, Finding, Ran
from gemm_course.judging.cause_sentences import counted
from gemm_course.judging.causes import ABOVE, BELOW, Causes
from gemm_course.judging.panels import RIGHT, WRONG, table_panel

CHECKS = ("once", "experts", "splits", "back", "everyone", "strangers")


def draw(rng: random.Random) -> list[Case]:
    """Unequal batches with the first and the last expert, and two of one rank, not side by side; an id twice; all
    tokens on one rank; a rank without tokens; none at all; one rank; ids that are nobody's."""

    def case(each: int, ids: list, *checks: str) -> Case:
        top_k = next((len(line[0]) for line in ids if line), 2)
        tensors = [torch.tensor(line, dtype=torch.int64).reshape(-1, top_k) for line in ids]
        label = f"{each * len(ids)} experts, {counted(len(ids), 'rank')}, ids {ids}"
        return Case({"ids": tensors, "experts": each * len(ids)}, checks, label=label)

    def expert(rank: int, each: int) -> int:
        return rank * each + rng.randrange(
            1, each - 1
        )  # no rank's first one: its number there is 0, as many things are

    def apart(ranks: int, each: int) -> list[int]:
        return [expert(rank, each) for rank in rng.sample(range(ranks), 2)]

    def around(here: int, each: int) -> list[int]:
        there = rng.choice([rank for rank in range(3) if rank != here])  # between two experts of one rank
        return [expert(here, each), expert(there, each), (0, each, 3 * each - 1)[here]]

    def twice(each: int) -> list[int]:
        here, there = (expert(rank, each) for rank in rng.sample(range(3), 2))
        return rng.choice([[here, there, here], [here, here, there]])

    def mixed(each: int) -> list[int]:
        return [expert(rank, each) for rank in rng.sample(range(3), 3)]

    def ends(each: int) -> list[int]:
        return rng.sample([0, expert(1, each), 3 * each - 1], 3)  # the first and the last id of all, alone at a rank

    def batch(kinds, each: int) -> list:
        return [kind(each) for kind in rng.sample(kinds, len(kinds))]

    each = rng.choice([4, 5, 7])
    several = [
        batch([partial(around, here), ends] + [mixed] * more, each)
        for here, more in zip(rng.sample(range(3), 3), rng.sample(range(3), 3))
    ]
    again = [batch([twice, mixed] + [twice] * rng.randint(0, 1), 4) for _ in range(3)]
    goal = rng.randrange(1, 3)
    one_goal = [[[expert(goal, 5)] for _ in range(rows)] for rows in rng.sample(range(2, 6), 4)]
    empty = [[apart(4, 3) for _ in range(rows)] for rows in (3, 0, rng.randint(1, 2), 4)]
    strangers = [[apart(3, 4) for _ in range(rng.randint(3, 4))] for _ in range(3)]
    for line, (one, other) in zip(strangers, rng.sample([(-1, 12), (12, -1), (30, -1)], 3)):
        line[0][rng.randrange(2)] = one
        line[1][rng.randrange(2)] = other
    strangers[1].append([-1, 12])
    return [
        case(each, several, "once", "experts", "splits", "back"),
        case(4, again, "once", "experts"),
        case(5, one_goal, "splits"),
        case(3, empty, "everyone"),
        case(4, [[], [], []], "everyone"),
        case(6, [batch([lambda _: [1, 4], lambda _: [5, 2]], 6)], "back"),
        case(4, strangers, "strangers"),
    ]


def examine(case: Case, ran: Ran) -> Iterator[Finding]:
    """Compare what each rank plans with its ids: first the calls, then rows, splits, experts and the way back."""
    ids, experts = [each.tolist() for each in case.inputs["ids"]], case.inputs["experts"]
    found: dict[str, Causes] = {}
    calls = [each["given"] for each in ran.value]
    waiting = [rank for rank, given in enumerate(calls) if given]
    if waiting and len(waiting) < len(calls):
        found["everyone"] = _dead_lock(calls, ids)
        for check in case.checks:
            found.setdefault(check, BELOW)
        yield from (Finding(check, why) for check, why in found.items())
        return
    if not waiting and len(ids) > 1:
        found["everyone"] = "no rank calls `exchange`: a rank does not know what the others send it"
    elif len(waiting) and max(map(len, calls)) > 1:
        rank = next(rank for rank, given in enumerate(calls) if len(given) > 1)
        text = (
            f"rank {rank} calls `exchange` {len(calls[rank])} times: each call makes all ranks wait, and one is enough"
        )
        found["everyone"] = text
    answers = []
    for rank, each in enumerate(ran.value):
        parts, wrong = parts_of(each["value"], len(ids[rank]), ids[rank], len(ids))
        if "*" in wrong:
            yield Finding("*", wrong["*"])
            return
        for name, text in wrong.items():
            found.setdefault(BREAKS[name], f"{text} (rank {rank})")
        answers.append(plan_of(rank, ids, experts, each["given"], parts))
    if not any(answer.tokens for answer in answers) and any(any(answer.goals) for answer in answers):
        text = "`tokens` is empty at every rank: nothing is sent"
        if len(ids) == 1:
            text = f"`tokens` is empty, and the only rank has all experts: the rank of an expert is id // {experts}"
        yield Finding("*", text)
        return
    if any(None in (answer.tokens, answer.sent) for answer in answers):
        first = min(CHECKS.index(check) for check in found)
        for check in {"once", "experts", "splits", "back", "strangers"} & set(case.checks):
            found.setdefault(check, ABOVE if CHECKS.index(check) > first else BELOW)
        yield from (Finding(check, why) for check, why in found.items())
        return
    for answer in answers:
        for check, why in _mistakes(answer, experts, answers).items():
            found.setdefault(check, why)
    if isinstance(found.get("once"), str) and not any(_some_right(answer, experts // len(ids)) for answer in answers):
        yield Finding("*", found["once"], [_picture(answers)])
        return
    yield from (Finding(check, why, [_picture(answers)]) for check, why in found.items())


def _some_right(answer: Plan, each: int) -> bool:
    """Whether some row has a token for one of its ranks, with all that is computed there; or `sent` alone is right."""
    parts = _cut(answer.tokens, answer.sent)
    if parts is None:
        return any(answer.sent) and answer.sent == [len(goal) for goal in answer.goals]
    rows = [(r, token) for r, part in enumerate(parts) for token in part]
    for (r, token), got in zip(rows, answer.local or []):
        if r < len(answer.goals) and token in answer.goals[r]:
            ids, owners = answer.ids[token], answer.owners[token]
            if got == [e - r * each if owner == r else -1 for e, owner in zip(ids, owners)]:
                return True
    return False


def _dead_lock(calls: list, ids: list) -> str:
    """The ranks that wait for one that does not call."""
    silent = next(rank for rank, given in enumerate(calls) if not given)
    others = next(rank for rank, given in enumerate(calls) if given)
    has = "has no tokens, and" if not ids[silent] else ""
    return (
        f"rank {silent} {has}{' ' * bool(has)}does not call `exchange`. Rank {others} does, and waits for it until its "
        "time is up:\nevery rank calls, also one that sends nothing"
    )


def _mistakes(answer: Plan, experts: int, answers: list) -> dict[str, Causes]:
    """Check → the first mistake of one rank."""
    found: dict[str, Causes] = {}
    sizes = [len(goal) for goal in answer.goals]
    ranks = len(sizes)
    parts = _cut(answer.tokens, answer.sent)
    if parts is None or _as_sets(parts) != _as_sets(answer.goals):
        by_goal = _cut(answer.tokens, sizes)
        if by_goal and _as_sets(by_goal) == _as_sets(answer.goals):
            found["splits"], parts = _wrong_sent(answer, sizes), by_goal
    if parts is None:
        if answer.sent == sizes:
            has = f"`tokens` of rank {answer.rank} has {counted(len(answer.tokens), 'row')}, and it sends {sum(sizes)}"
            return {"once": f"{has}: a token that goes to two ranks is there twice", "experts": ABOVE, "back": ABOVE}
        choices = [sum(line.count(r) for line in answer.owners) for r in range(ranks)]
        parts = _cut(answer.tokens, choices)
        found["splits"] = _wrong_sent(answer, sizes)
    if parts is None:
        return found | {"once": BELOW, "experts": BELOW, "back": ABOVE}
    rows = [(r, token) for r, part in enumerate(parts) for token in part]
    if wrong := _wrong_rows(answer, experts, parts, rows):
        found[wrong[0]] = wrong[1]
    inside = all(0 <= token < len(answer.ids) for token in answer.tokens)
    follows = wrong is not None
    local = _wrong_local(answer, experts // ranks, rows) if inside else ("experts", ABOVE)
    back = _wrong_back(answer, parts, rows) if inside else ABOVE
    if local and not (follows and wrong[0] == "strangers"):
        found[local[0]] = ABOVE if follows else local[1]
    if back and not (follows and wrong[0] == "strangers"):
        found["back"] = ABOVE if follows else back
    if text := _wrong_received(answer, answers):
        found.setdefault("splits", text)
    return found


def _cut(tokens: list[int], sizes: list[int]) -> list[list[int]] | None:
    """The tokens of each rank; None if the sizes are those of other rows."""
    if sum(sizes) != len(tokens) or min(sizes, default=0) < 0:
        return None
    ends = list(accumulate(sizes))
    return [tokens[end - size : end] for end, size in zip(ends, sizes)]


def _as_sets(parts: list) -> list[Counter]:
    return [Counter(part) for part in parts]


def _wrong_sent(answer: Plan, sizes: list[int]) -> str:
    """The mistake in `sent`, where the rows are right or of another number."""
    text = f"rank {answer.rank} has {counted(len(answer.tokens), 'row')} in `tokens`, and `sent` is {answer.sent}"
    choices = [sum(line.count(r) for line in answer.owners) for r in range(len(sizes))]
    if answer.received == sizes and answer.given[:1] == [sizes]:
        return f"{text}: `sent` and `received` are exchanged"
    if answer.sent == list(accumulate(sizes)):
        return f"{text}: these are ends of the ranks' rows, and their numbers are {sizes}"
    if answer.sent == choices:
        return f"{text}: these are choices. A token that has two at one rank travels once, so the rows are {sizes}"
    return f"{text}: {sizes} of them are for each rank"


def _wrong_rows(answer: Plan, experts: int, parts: list, rows: list) -> tuple[str, str] | None:
    """The check that wrong rows break, and why; None if each token goes once to each of its ranks."""
    if _as_sets(parts) == _as_sets(answer.goals):
        return None
    count, top_k = len(answer.ids), len(answer.ids[0]) if answer.ids else 1
    outside = [token for token in answer.tokens if not 0 <= token < count]
    if outside:
        text = f"`tokens` of rank {answer.rank} has {outside[0]}, and its tokens are 0 to {count - 1}"
        if 0 <= outside[0] < count * top_k:
            text += f": these are numbers of choices. Choice c is of token c // k, with k = {top_k}"
        return "once", text
    sizes = [len(goal) for goal in answer.goals]
    ordered = Counter(answer.tokens) == Counter(t for goal in answer.goals for t in goal) and answer.sent == sizes
    if ordered:
        strays = (
            f"row {i} of rank {answer.rank} is of token {token} and travels with the rows for rank {r}, which has none "
            "of its experts"
            for i, (r, token) in enumerate(rows)
            if token not in answer.goals[r]
        )
        text = next(strays, f"`tokens` of rank {answer.rank} is {answer.tokens}")
        why = "the tokens are right, and their order is not: all rows for rank 0 come first, then those for rank 1"
        return "once", f"{text}\n{why}"
    rules = {"// ranks": lambda e: e // len(sizes), "% ranks": lambda e: e % len(sizes)}
    for name, rule in rules.items():
        owners = owners_of(answer.ids, experts, len(sizes), rule)
        goals = [{t for t, line in enumerate(owners) if r in line} for r in range(len(sizes))]
        if goals == [set(goal) for goal in answer.goals]:
            continue  # both rules send these tokens to the same ranks, as with one rank, so another mistake is there
        if [set(part) for part in parts] == goals and any(goals):
            each = experts // len(sizes)
            text = (
                f"rank {answer.rank} sends tokens to the ranks id {name}. A rank has {each} experts, so the rank of an "
            )
            return "once", f"{text}expert is id // {each}"
    return _first_row(answer, experts, parts)


def _first_row(answer: Plan, experts: int, parts: list) -> tuple[str, str]:
    """The first token that is sent too rarely, too often, or where it has nothing to do."""
    for r, (part, goal) in enumerate(zip(parts, answer.goals)):
        times = Counter(part)
        for token in sorted(times.keys() | set(goal)):
            about, strange = answer.about(token), answer.strange(token)
            if token not in goal and strange:
                text = f"{about} is sent to rank {r}, which has none of its experts: {strange[0]} is nobody's id"
                if r == 0 and _sent_for_ids_below_0(answer, parts):
                    quotient = f"{min(strange)} / {experts // len(answer.goals)}, rounded towards zero, is 0"
                    text += f". {quotient}: leave out ids below 0 before you divide"
                return "strangers", text
            if token not in goal:
                return "once", f"{about} is sent to rank {r}, which has none of its experts"
            here = [e for e, owner in zip(answer.ids[token], answer.owners[token]) if owner == r]
            if not times[token]:
                text = f"{about} is not sent to rank {r}, which has its expert {here[0]}"
                if strange:
                    return "strangers", f"{text}: only {strange[0]} is nobody's"
                return "once", text + _taken_for_nobodys(answer, experts, parts)
            if times[token] > 1:
                text = f"{about} is sent to rank {r} {times[token]} times: it has {here} there, and one row is enough"
                return "once", f"{text}\nthe rank adds the results of its experts, and returns one sum"
    raise AssertionError("rows that are right")


def _sent_for_ids_below_0(answer: Plan, parts: list) -> bool:
    """Whether the rows too many are those for rank 0 of all tokens that have an id below 0."""
    more = [set(part) - set(goal) for part, goal in zip(parts, answer.goals)]
    below = {token for token, ids in enumerate(answer.ids) if min(ids) < 0}
    return not any(more[1:]) and more[0] == below - set(answer.goals[0])


def _taken_for_nobodys(answer: Plan, experts: int, parts: list) -> str:
    """The reason if all rows that lack are of the first expert of all, or of the last; else ""."""
    lack = [
        [e for e, owner in zip(answer.ids[token], answer.owners[token]) if owner == r]
        for r, (part, goal) in enumerate(zip(parts, answer.goals))
        for token in goal
        if token not in part
    ]
    if all(set(here) == {0} for here in lack):
        return "\nexpert 0 is taken for nobody's: ids count from 0"
    last = experts - 1
    taken = all(set(here) == {last} for here in lack)
    return f"\nexpert {last} is taken for nobody's, and it is the last of {experts}" if taken else ""


def _wrong_local(answer: Plan, each: int, rows: list) -> tuple[str, str] | None:
    """The check that wrong experts break, and why: the mistake that all wrong rows have."""
    wrong = []
    for i, ((r, token), got) in enumerate(zip(rows, answer.local or [])):
        ids, owners = answer.ids[token], answer.owners[token]
        want = [e - r * each if owner == r else -1 for e, owner in zip(ids, owners)]
        if got != want:
            wrong.append(Row(i, r, token, got, want, ids, owners))
    if not wrong:
        return None
    # At rank 0 an expert's number is its id, so a row for another rank shows more.
    row = min(wrong, key=lambda row: (row.owners[row.column] >= 0, row.rank == 0))
    text = f"row {row.number} of rank {answer.rank} is of token {row.token}, with ids {row.ids}, and goes to rank "
    text += f"{row.rank}: local[{row.number}] is {row.got}, and {row.want} is right"
    if row.owners[row.column] < 0:
        return "strangers", f"{text}: {row.ids[row.column]} is nobody's id"
    why = next((why(row) for why, has in mistakes(each, len(answer.goals)) if all(map(has, wrong))), "")
    return "experts", f"{text}\n{why}" if why else text


def _wrong_received(answer: Plan, answers: list) -> str | None:
    """The mistake in `received`, or in what was exchanged for it."""
    if answer.given and answer.given[0] != answer.sent:
        return (
            f"rank {answer.rank} gives {answer.given[0]} to `exchange`, and `sent` is {answer.sent}: give it "
            "`sent`, so that the other ranks know how many rows arrive"
        )
    if answer.received is None:
        return None
    want = [(each.given[0] if each.given else each.sent)[answer.rank] for each in answers]
    if answer.received == want:
        return None
    text = f"`received` of rank {answer.rank} is {answer.received}, and the ranks send it {want}"
    if answer.received == answer.sent:
        return f"{text}: this is `sent`. `exchange` returns what arrives"
    return f"{text}: these are ends" if answer.received == list(accumulate(want)) else text


def _wrong_back(answer: Plan, parts: list, rows: list) -> str | None:
    """The first mistake in where results return."""
    starts = [0, *accumulate(len(part) for part in parts)]
    given = [(token, at) for token, line in enumerate(answer.back or []) for at in line if at != -1]
    for token, line in enumerate(answer.back or []):
        for r, at in enumerate(line):
            places = [i for i, row in enumerate(rows) if row == (r, token)]
            if at in places or (at == -1 and not places):
                continue
            text = f"back[{token}, {r}] of rank {answer.rank} is {at}"
            if not places:
                return f"{text}: nothing of token {token} is at rank {r}, so it is -1"
            text += f", and token {token} returns from rank {r} in row {places[0]}"
            if at == -1:
                return f"{text}: this result gets lost"
            numbers, anew = all(each == number for each, number in given), r and at == places[0] - starts[r]
            if numbers and any(number for _, number in given):
                text += "\nthese are the numbers of tokens: `back` has the rows of `tokens`, in the order sent"
                text += " (or rows counted anew for each rank:" if anew else ""
                before = f" the rows of earlier ranks come before, {starts[r]} of them)"
                return text + before * bool(anew)
            if anew:
                text += f"\nthis counts from the first row of rank {r}: the rows of earlier ranks come before,"
                return f"{text} {starts[r]} of them"
            if all(one == i + 1 for i, (q, t) in enumerate(rows) if (one := answer.back[t][q]) != -1):
                return f"{text}\nthe first row is row 0"
            if 0 <= at < len(rows):
                text += f"\nrow {at} is of token {rows[at][1]} and comes from rank {rows[at][0]}: results return in the"
                return f"{text} order in which the rows were sent"
            return f"{text}: there are rows 0 to {len(rows) - 1}"
    return None


def _picture(answers: list[Plan]) -> dict:
    """The matrix of rows from rank to rank, as `sent` has it."""
    states = [[RIGHT if one == len(goal) else WRONG for one, goal in zip(a.sent, a.goals)] for a in answers]
    title = "sent: rows from rank (down) to rank (across)"
    return table_panel(title, states, [[str(each) for each in answer.sent] for answer in answers])
