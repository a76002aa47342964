"""Exercise 09: pick the operator for a product from descriptions, and lay out the operands that it takes."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator

import torch

from gemm_course.exercises.e09_pick_operator.operators import (
    BLACKWELL,
    HOPPER,
    MISTAKES,
    MORE_MISTAKES,
    best,
    block,
    computed,
    reuse,
    rounded,
    score,
)
from gemm_course.exercises.e09_pick_operator.run import ALIGNMENT_BYTES, ALONG_K, ALONG_N, Operator, from_plain
from gemm_course.judging.case import Case, Finding, Ran
from gemm_course.judging.causes import BELOW
from gemm_course.judging.panels import row_panel

# The mistakes that each case is drawn to tell apart; those of the last, of operators that compute the same.
IN_ORDER = (("first", "total", "fetched", "clusters"), ("tile", "pair"), ("exchanged", "columns"), ("empty", "rest"))
EQUAL = ("first", "small", "area", "alone")
# So that each mistake costs the same in every draw: in the second case these pick a wrong operator, too, and so do
# answers that look at the target or the dtype alone; in the case of whole blocks, these and no more.
ALSO, ALSO_EQUAL = ("alone", "depth"), ("tile", "pair", "exchanged", "depth")


def draw(rng: random.Random) -> list[Case]:
    """Four products with groups or columns that end inside a block; one of whole blocks; two without an operator."""
    cases = []
    # Operators; dtype; K modulo 16; the dimension in which the operators want B's stride 1; whether B has it in the
    # other one; the dtype of offsets that the case has, and the one that the operators want.
    plans = [
        # K is a multiple of 8 and not of 16: whoever pads to 16 copies operands that are right already.
        (HOPPER, "bfloat16", 8, rng.choice((ALONG_K, ALONG_N)), False, "int32", "int64"),
        (BLACKWELL, "bfloat16", 0, ALONG_K, True, "int64", "int64"),
        (BLACKWELL, "float8_e4m3fn", 8, ALONG_K, False, "int32", "int32"),
        (BLACKWELL, "float16", 0, ALONG_N, True, "int64", "int32"),
    ]
    for at, (family, dtype, rest, b_stride, turned, offsets, wanted) in enumerate(plans):
        later = [name for names in IN_ORDER[at + 1 :] for name in names]
        found, sizes, columns = _problem(rng, family, IN_ORDER[at], later, ALSO if at == 1 else ())
        rule = {"dtype": getattr(torch, dtype), "b_stride": b_stride, "divisibility": 16 if "8" in dtype else 8}
        rule["offsets"] = getattr(torch, wanted)
        fitting = [each._replace(**rule) for each in found]
        K = 16 * rng.randint(2, 4) + rest
        cases.append(_case(rng, fitting, sizes, columns, K, turned, offsets, IN_ORDER[at], better=at == 1 or None))
    rest = [name for name in MISTAKES if name not in EQUAL + ALSO_EQUAL]
    found, sizes, columns = _problem(rng, BLACKWELL, EQUAL, rest, ALSO_EQUAL, whole=True)
    rule = {"b_stride": rng.choice((ALONG_K, ALONG_N))}
    K = 8 * rng.randint(4, 7) + rng.choice((1, 2, 3, 5, 6, 7))  # 4 over a multiple is as many as it lacks
    fitting = [each._replace(**rule) for each in found]
    cases.append(_case(rng, fitting, sizes, columns, K, True, "int64", EQUAL, better=False))
    for target, dtype in (("90", "bfloat16"), ("90a", "float32")):
        found = rng.sample(HOPPER, 4)
        sizes = [rng.randint(20, 90) for _ in range(3)]
        cases.append(_case(rng, found, sizes, 128, 64, False, "int32", (), target=target, dtype=dtype))
    return cases


def _problem(rng: random.Random, family, wanted, later, also, whole: bool = False):
    """Operators, sizes and columns that tell mistakes apart.

    Each wanted mistake picks another operator, none of them right; `also` are mistakes that pick a wrong one, which may
    be the same; mistakes for later cases pick a right one. If whole, all operators compute equally much; if not, every
    wrong one computes more.
    """
    while True:
        found = rng.sample(family, 6)
        if whole:
            sizes, columns = [512 * rng.randint(1, 2) for _ in range(rng.randint(2, 3))], 1024
        else:
            sizes = [rng.randint(20, 900) for _ in range(rng.randint(3, 5))]
            if "empty" in wanted:
                sizes = [size if rng.random() < 0.5 else 0 for size in sizes]
            columns = 64 * rng.randint(3, 20)
        if any(sizes) and _tells_apart(found, sizes, columns, wanted, later, also, whole):
            return found, sizes, columns


def _tells_apart(found, sizes, columns, wanted, later, also, whole: bool) -> bool:
    """True if operators, sizes and columns suit `_problem`. Few do, so the quick tests come first."""
    scores = [score(each, sizes, columns) for each in found]
    least = min(scores)
    right = [each for each, its in zip(found, scores) if its == least]
    if sum(area == least[0] for area, _ in scores) != (len(found) if whole else len(right)):
        return False

    def pick(name: str) -> Operator:
        return min(found, key=lambda each: MISTAKES[name][0](each, sizes, columns))

    wrong = set(itertools.takewhile(lambda each: each not in right, map(pick, wanted)))
    if len(wrong) < len(wanted) or any(pick(name) in right for name in also):
        return False
    return all(pick(name) in right for name in later) and (not also or whole or _may_be_better(found, sizes, columns))


def _may_be_better(found, sizes, columns) -> bool:
    """True if both families have operators that are better than the best that was found."""
    least = min(score(each, sizes, columns) for each in found)
    return all(any(score(each, sizes, columns) < least for each in family) for family in (HOPPER, BLACKWELL))


def _case(
    rng, fitting, sizes, columns, K, turned, offsets, likely, target=None, dtype=None, better: bool | None = None
) -> Case:
    """A product, the operators that fit it, and three each for another GPU and for another dtype.

    `better`: True if both others must have a better operator, False if none as good; None: no condition.
    """
    rule = fitting[0]
    name = dtype or str(rule.dtype).removeprefix("torch.")
    least = min(score(each, sizes, columns) for each in fitting)

    def three_of(family) -> list[Operator]:
        while True:
            found = rng.sample(family, 3)
            best_of_them = min(score(each, sizes, columns) for each in found)
            if better is None or (best_of_them < least if better else best_of_them > least):
                return found

    others = [
        each._replace(**{f: getattr(rule, f) for f in ("dtype", "b_stride", "divisibility", "offsets")})
        for each in three_of(BLACKWELL if "90a" in rule.targets else HOPPER)
    ]
    other = torch.float16 if rule.dtype is torch.bfloat16 else torch.bfloat16
    more = three_of(BLACKWELL if "100f" in rule.targets else HOPPER)
    others += [each._replace(dtype=other, b_stride=rule.b_stride) for each in more]
    catalogue = list(fitting)
    for each in others:
        catalogue.insert(rng.randint(0, len(catalogue)), each)
    target = target or rng.choice(rule.targets)
    generator = torch.Generator().manual_seed(rng.randrange(1 << 30))

    def integers(*shape):
        return torch.randint(-8, 9, shape, generator=generator).to(getattr(torch, name))

    inputs = {
        "catalogue": [_plain(each) for each in catalogue], "target": target, "sizes": list(sizes),
        "mat_a": integers(sum(sizes), K), "mat_b": integers(len(sizes), K, columns),
        "along_k": (rule.b_stride == ALONG_K) != turned, "offsets": offsets,
    }  # fmt: skip
    checks = ["target"]
    if likely:
        checks += ["reuse" if likely == EQUAL else "waste", "layout", "aligned", "offsets"]
    label = f"{target}, {name}, groups of {', '.join(map(str, sizes))} rows, N = {columns}, K = {K}"
    return Case(inputs, checks, {"likely": likely}, label)


def _plain(each: Operator) -> list:
    return [str(part).removeprefix("torch.") if isinstance(part, torch.dtype) else part for part in each]


def examine(case: Case, ran: Ran) -> Iterator[Finding]:
    """Look for a better operator, and compare the returned operands with this one."""
    inputs, value = case.inputs, ran.value
    catalogue, target, dtype = from_plain(inputs["catalogue"]), inputs["target"], inputs["mat_a"].dtype
    fitting = [each for each in catalogue if target in each.targets and each.dtype == dtype]
    name = str(dtype).removeprefix("torch.")
    if value is None:
        if fitting:
            numbers = ", ".join(str(catalogue.index(each)) for each in fitting)
            text = f"the function returned None; operators {numbers} are for {target} and {name}: is there a `return`?"
            yield Finding("*", text)
        return
    if "form" in value:
        text = f"the function must return four things, an operator, mat_a, mat_b and offs; got {value['form'][:40]}"
        yield Finding("*", text)
        return
    if type(value["at"]) is not int:
        text = f"the first thing returned must be one of the catalogue's operators, got: {value['kind'][:40]}"
        yield Finding("*", text)
        return
    if value["changed"]:
        name = "catalogue" if value["changed"] == "catalogue" else "sizes"
        yield Finding(
            "target",
            f"the caller's list `{name}` was changed: .sort(), .remove() and .pop() work on it itself; sorted() and a "
            "list of your own do not",
        )
    picked = catalogue[value["at"]]
    if picked not in fitting:
        yield Finding("target", _not_for(catalogue, picked, fitting, target, name))
        if not fitting:
            return
        for check in {"waste", "reuse"} & set(case.checks):
            yield Finding(check, "not compared, since the operator is not for this product")
    else:
        yield from _compared(case, catalogue, picked, fitting)
    yield from _operands(inputs, picked, value["operands"])


def _named(catalogue: list[Operator], each: Operator) -> str:
    tile, cluster = "×".join(map(str, each.tile[:2])), "×".join(map(str, each.cluster))
    pair = ", 2 CTAs to a tile" if each.ctas == 2 else ""
    return f"operator {catalogue.index(each)} (tile {tile}, cluster {cluster}{pair})"


def _not_for(catalogue, picked, fitting, target, name) -> str:
    wants = f"{' and '.join(picked.targets)}, {str(picked.dtype).removeprefix('torch.')}"
    text = f"{_named(catalogue, picked)} is for {wants}; the product is for {target}, {name}"
    if not fitting:
        text += "\nnobody has an operator for that, and the answer is None"
        if any(target in each for each in picked.targets):
            text += f': "{target}" is part of the name {picked.targets[0]}, and another target'
    return text


def _compared(case: Case, catalogue: list[Operator], picked: Operator, fitting: list[Operator]) -> Iterator[Finding]:
    """Findings if another operator computes or fetches less."""
    sizes, columns = case.inputs["sizes"], case.inputs["mat_b"].shape[2]
    right = best(fitting, sizes, columns)
    if picked in right:
        return
    rows, across = computed(picked, sizes, columns)
    least_rows, least_across = computed(right[0], sizes, columns)
    drawn = [MISTAKES[name] for name in dict.fromkeys((*case.expected["likely"], *MISTAKES))]
    why, more = (
        [text for rule, text in rules if min(fitting, key=lambda each: rule(each, sizes, columns)) == picked]
        for rules in (drawn, MORE_MISTAKES)
    )
    why = why[:2] + more[:1]
    reason = f"\nit would be the one if {', or if '.join(why)}" if why else ""
    down = [block(each) for each in (picked, right[0])]
    if rows * across == least_rows * least_across:
        text = (
            f"{_named(catalogue, picked)} and\n{_named(catalogue, right[0])} both compute {rows} × {across}\n"
            f"for each element that is fetched, one computes {reuse(*down[0]):.0f} products, the other "
            f"{reuse(*down[1]):.0f}"
        )
        yield Finding("reuse", text + reason)
        return
    share = 1 - sum(sizes) * columns / (rows * across)
    text = (
        f"{_named(catalogue, picked)} computes {rows} × {across} of C, in blocks of {down[0][0]} × {down[0][1]},\n"
        f"where there are {sum(sizes)} × {columns}: {share:.0%} wasted\n{_named(catalogue, right[0])} computes "
        f"{least_rows} × {least_across}, in blocks of {down[1][0]} × {down[1][1]}"
    )
    each = [[rounded(size, unit) for size in sizes] for unit, _ in down]
    more = max(range(len(sizes)), key=lambda g: each[0][g] - each[1][g])
    if each[0][more] > each[1][more]:
        text += f"\nfor group {more}, of {sizes[more]} rows, that is {each[0][more]} rows in place of {each[1][more]}"
    yield Finding("waste", text + reason, [row_panel(*each, "rows computed for each group; in orange, not the least")])
    if "reuse" in case.checks:
        yield Finding("reuse", "not compared, since another operator computes less")


def _operands(inputs: dict, picked: Operator, operands: list) -> Iterator[Finding]:
    """Findings if an operator does not take the operands, or their numbers have changed."""
    mat_a, mat_b = inputs["mat_a"], inputs["mat_b"]
    for name, given in zip(("mat_a", "mat_b", "offs"), operands):
        if wrong := _no_tensor(name, given):
            for check in ("layout", "aligned", "offsets"):
                yield Finding(check, wrong)
            return
    a, b, offs = (torch.as_strided(each["flat"], each["shape"], each["stride"]) for each in operands)
    short = -mat_a.shape[1] % picked.divisibility
    as_it_was = short == 0 and (picked.b_stride == ALONG_K) == inputs["along_k"]
    longer = as_it_was and b.dim() == 3 and b.shape[1] > mat_b.shape[1]  # of which "aligned" says more
    if wrong := _not_b(mat_b, b) or _wrong_stride(picked, operands[1], operands[1]["kept"] or not as_it_was):
        yield Finding("layout", BELOW if longer and not _not_b(mat_b, b) else wrong)
    if wrong := _unaligned(picked, mat_a, mat_b, a, b, operands, operands[0]["kept"] or short > 0):
        yield Finding("aligned", wrong)
    ends = torch.tensor(list(itertools.accumulate(inputs["sizes"])))
    if offs.dtype != picked.offsets:
        wants, got = (str(each).removeprefix("torch.") for each in (picked.offsets, offs.dtype))
        yield Finding("offsets", f"offs must be {wants}, got {got}: such an order finds no operator")
    elif offs.shape != ends.shape or not torch.equal(offs.long(), ends):
        yield Finding("offsets", f"offs must still be the groups' ends, {ends.tolist()}, got {offs.tolist()[:8]}")
    elif inputs["offsets"] == str(picked.offsets).removeprefix("torch.") and not operands[2]["kept"]:
        yield Finding("offsets", "offs has the dtype that the operator needs, and was copied all the same")


def _no_tensor(name: str, given: dict) -> str | None:
    """A message if an operand is no usable tensor."""
    if given["kind"] != "Tensor":
        return f"{name} must be a tensor on the same device, got {str(given['kind'])[:40]}"
    shape, strides = given["shape"], given["stride"]
    if math.prod(shape) > given["flat"].numel():
        return (
            f"{name} must have memory for each of its elements; got shape {tuple(shape)} with strides {tuple(strides)}"
        )
    return None


def _not_b(was: torch.Tensor, now: torch.Tensor) -> str | None:
    """A message if mat_b has other numbers than before; it may have more of K."""
    G, K, N = was.shape
    if now.dtype != was.dtype or now.dim() != 3 or (now.shape[0], now.shape[2]) != (G, N) or now.shape[1] < K:
        got = f"{tuple(now.shape)}, {str(now.dtype).removeprefix('torch.')}"
        text = f"mat_b was (G, K, N) = {(G, K, N)} and must be that, or have more of K; got {got}"
        if now.dim() == 3 and now.shape[:2] == (G, K) and now.shape[2] > N:
            return f"{text}: N was padded, and it has to be K. pad counts dimensions from the last one"
        turned = now.dim() == 3 and now.shape[1] == N
        return text + (": .mT alone turns B itself, and the product is another" if turned else "")
    other = (now[:, :K].double() != was.double()).nonzero()
    if len(other):
        g, k, n = other[0].tolist()
        return (
            f"mat_b has other numbers than before: in group {g} at ({k}, {n}) there is {float(now[g, k, n]):g}, not "
            f"{float(was[g, k, n]):g}\nits strides can change without that: turn it, copy it, and turn it back"
        )
    return None


def _wrong_stride(picked: Operator, given: dict, kept: bool) -> str | None:
    """A message if mat_b has not stride 1 where an operator wants it, or was copied without need."""
    along = picked.b_stride.index(1)
    if given["stride"][along] == 1:
        return None if kept else "mat_b has the layout that the operator needs, and was copied all the same"
    names = ("G", "K", "N")
    has = [name for name, step in zip(names, given["stride"]) if step == 1]
    return (
        f"mat_b must have stride 1 along {names[along]}, where the operator has b_stride {picked.b_stride}; got "
        f"strides {tuple(given['stride'])}" + (f", 1 along {has[0]}" if has else "")
    )


def _unaligned(picked, mat_a, mat_b, a, b, operands: list, kept: bool) -> str | None:
    """A message if rows do not start at multiples of 16 bytes, have gaps, or if the product over K changed."""
    (total, K), unit = mat_a.shape, picked.divisibility
    if a.dtype != mat_a.dtype or a.dim() != 2 or a.shape[0] != total:
        return f"mat_a was {tuple(mat_a.shape)}, {mat_a.dtype}, and may have more of K; got {tuple(a.shape)}, {a.dtype}"
    if a.shape[1] < K:
        return f"mat_a has lost columns {a.shape[1]} to {K - 1} of K = {K}: the product is another"
    other = (a[:, :K].double() != mat_a.double()).nonzero()
    if len(other):
        return f"mat_a has other numbers than before, first in row {int(other[0][0])}, column {int(other[0][1])}"
    if b.dim() != 3 or a.shape[1] != b.shape[1]:
        return f"mat_a has K = {a.shape[1]}, and mat_b (G, K, N) has shape {tuple(b.shape)}: pad both alike"
    for name, given in zip(("mat_a", "mat_b"), operands):
        shape, strides = given["shape"], given["stride"]
        odd = [step for step in strides if step != 1 and step % unit]
        if odd:
            size, more = unit * mat_a.element_size(), K % unit
            over = f". K = {K} lacks {-K % unit} of a multiple, and {more} were added, what is over one"
            return (
                f"{name}'s strides beside 1 must be multiples of {unit} elements, {size} bytes; got strides "
                f"{tuple(strides)} for shape {tuple(shape)}: pad K" + over * (a.shape[1] == K + more > K)
            )
        if given["past"]:
            return f"{name} must start at a multiple of {ALIGNMENT_BYTES} bytes, and starts {given['past']} past one"
        packed = 1
        for extent, step in sorted(zip(shape, strides), key=lambda each: each[1]):
            if step != packed:
                gaps = f"{name} must be packed, without gaps; got shape {tuple(shape)} with strides {tuple(strides)}"
                return gaps + ": columns of zeros belong to K"
            packed *= extent
    if bool((a[:, K:].double() != 0).any()) or bool((b[:, K:].double() != 0).any()):
        return f"columns {K} to {a.shape[1] - 1} of mat_a, and such rows of mat_b, must be 0: they count in the product"
    if a.shape[1] > K and K % unit == 0:
        return f"K = {K} is a multiple of {unit} already, and {a.shape[1] - K} more were added: -K % {unit} is 0"
    return None if kept else f"K = {K} is a multiple of {unit}, so mat_a can be taken as it is, and it was copied"
