"""The page "Explore a schedule": its numbers are the library's, keys work, and its experiments show what they say."""

from __future__ import annotations

import json
import random
import re

import pytest

from browser import wait_for
from course_kernels import schedule
from places import ROOT

LOOP = "one_launch_per_problem"
PORT = (ROOT / "site" / "_static" / "schedule.js").read_text("utf-8")
EXPLORE = (ROOT / "site" / "_static" / "explore.js").read_text("utf-8")
PAGE = (ROOT / "site" / "explore.md").read_text("utf-8")
EXPERIMENTS = [json.loads(text) for text in re.findall(r"data-explore='([^']+)'", PAGE)]
DRAWS = 200


def simulated(problems, order, programs, block):
    if order == LOOP:
        return schedule.one_launch_per_problem(problems, programs, block)
    return schedule.simulate(problems, order, programs, block)


def draw(dice):
    """Arguments of a schedule: a few groups, some of them empty, tiles of any form, caches that are too small."""
    block = [dice.choice([16, 32, 48, 64, 128]) for _ in range(3)]
    extent = lambda most: dice.choice([0, 1, dice.randint(1, most), dice.randint(1, most), dice.randint(1, most)])  # noqa: E731
    problems = [[extent(400), extent(300), extent(1500)] for _ in range(dice.randint(0, 8))]
    order = dice.choice([*schedule.ORDERS, LOOP])
    return problems, order, dice.randint(1, 40), block, dice.choice([0, 10_000, 200_000, 60 << 20])


def of_python(problems, order, programs, block, cache):
    timeline = simulated(problems, order, programs, block)
    spans = [[[s.tile.problem, s.tile.m, s.tile.n, s.start, s.end] for s in line] for line in timeline.programs]
    traffic = schedule.bytes_moved(timeline, l2_bytes=cache)
    exact = [spans, list(traffic), timeline.makespan, timeline.lower_bounds.longest, timeline.tail_us, timeline.finish]
    return exact, [timeline.utilisation, timeline.lower_bounds.work]


OF_JAVASCRIPT = """(draws) => draws.map(([problems, order, programs, block, cache]) => {
    const t = Schedule.simulate(problems, order, programs, block), bytes = Schedule.bytesMoved(t, cache);
    const spans = t.programs.map((line) => line.map((s) => [s.tile.problem, s.tile.m, s.tile.n, s.start, s.end]));
    return [[spans, [bytes.requested, bytes.fromMemory, bytes.compulsory, bytes.written],
             t.makespan, t.bounds.longest, t.tail, t.finish], [t.utilisation, t.bounds.work]];
})"""


def test_the_numbers_are_those_of_the_library(page):
    dice = random.Random(1)
    draws = [draw(dice) for _ in range(DRAWS)]
    page.evaluate(f"{PORT}; 0")
    found = page.evaluate(f"({OF_JAVASCRIPT})({json.dumps(draws)})")
    assert len(found) == DRAWS
    for arguments, (exact, sums) in zip(draws, found, strict=True):
        wanted, wanted_sums = of_python(*arguments)
        assert exact == wanted, arguments
        assert sums == pytest.approx(wanted_sums, rel=1e-12), "Python adds with a correction"


def routing(name):
    """Tokens of a routing by its name in the page's script."""
    found = re.search(rf"\b{name}: \[\"[^\"]+\", (?:Array\(8\)\.fill\((\d+)\)|(\[[\d, ]+\]))", EXPLORE)
    return [int(found[1])] * 8 if found[1] else json.loads(found[2])


def timeline_of(state, **changed):
    state = {**state, **changed}
    block = [*map(int, state["tile"].split("x")), 64]
    problems = [(t, 512, 1024) if state["product"] == "forward" else (1024, 512, t) for t in routing(state["routing"])]
    return simulated(problems, state["order"], state["sms"], block)


def test_the_experiments_show_what_the_page_says():
    loop, one, smaller, big, longest_first = EXPERIMENTS
    assert timeline_of(loop).makespan > 3 * timeline_of(one).makespan
    counts = schedule.tile_counts([(t, 512, 1024) for t in routing("skewed")], 128, 256)
    assert all(count < loop["sms"] for count in counts)
    large = timeline_of(smaller, tile="256x256")
    assert (large.tile_count, smaller["sms"] - large.tile_count) == (32, 100)
    assert all(timeline_of(smaller).programs), "every SM has a tile"
    read = [schedule.bytes_moved(timeline_of(smaller, tile=tile)).requested for tile in ("64x128", "256x256")]
    assert read[0] > 2 * read[1]
    waiting = sum(line[-1].tile.problem == 5 for line in timeline_of(big).programs)
    assert waiting == big["sms"] / 2, "half of the SMs end with the big expert, the others wait"
    best = timeline_of(longest_first)
    assert best.makespan == best.lower_bounds.longest < 0.8 * timeline_of(big).makespan
    shorter = timeline_of(longest_first, tile="128x128").lower_bounds.longest
    assert shorter < best.lower_bounds.longest


@pytest.fixture
def explore(page, tmp_path):
    """The page's own part, from a file: without the theme, which test_site.py looks at."""
    body = re.search(r"(?s)<div id=\"explore\".*?</script>\n.*?</script>", PAGE)[0]
    buttons = "".join(re.findall(r"<button[^>]*data-explore.*?</button>", PAGE))
    head = '<!doctype html><meta charset="utf-8"><link rel="stylesheet" href="_static/site.css">'
    (tmp_path / "explore.html").write_text(f"{head}{body}{buttons}", "utf-8")
    (tmp_path / "_static").symlink_to(ROOT / "site" / "_static")
    page.command("Page.enable")
    page.command("Runtime.enable")
    page.command("Page.navigate", url=(tmp_path / "explore.html").as_uri())
    wait_for("the summary", lambda: page.evaluate(SUMMARY), 10)
    return page


SUMMARY = "document.querySelector('.explore-summary')?.textContent"
BAR = "document.querySelectorAll('[role=slider]')[2]"


def press(page, key):
    for kind in ("keyDown", "keyUp"):
        page.command("Input.dispatchKeyEvent", type=kind, key=key, code=key)


def test_bars_are_sliders_and_the_summary_speaks(explore):
    before = explore.evaluate(SUMMARY)
    assert before.startswith("4,096 tokens give")
    assert explore.evaluate("document.querySelector('.explore-summary').getAttribute('aria-live')") == "polite"
    explore.evaluate(f"{BAR}.focus()")
    first = int(explore.evaluate(f"{BAR}.getAttribute('aria-valuenow')"))
    for key, step in [("ArrowUp", 32), ("ArrowRight", 32), ("ArrowDown", -32), ("PageUp", 256), ("PageDown", -256)]:
        press(explore, key)
        first += step
        assert explore.evaluate(f"{BAR}.getAttribute('aria-valuetext')") == f"{first} tokens", key
    press(explore, "End")
    assert explore.evaluate(f"{BAR}.getAttribute('aria-valuenow') === {BAR}.getAttribute('aria-valuemax')")
    press(explore, "Home")
    assert explore.evaluate(f"[{BAR}.getAttribute('aria-valuenow'), {BAR}.getAttribute('aria-label')]") == [
        "0",
        "Tokens of expert 2",
    ]
    wait_for("another summary", lambda: explore.evaluate(SUMMARY) != before, 5)
    assert (
        explore.evaluate("[...document.querySelectorAll('select, input')].filter((e) => !e.labels.length).length") == 0
    )


def test_a_bar_can_be_dragged(explore):
    before = numbers(explore)
    box = explore.evaluate(f"({BAR}.scrollIntoView(), {BAR}.getBoundingClientRect().toJSON())")
    values = []
    for kind, part in [("mousePressed", 0.25), ("mouseMoved", 0.75), ("mouseReleased", 0.75), ("mouseMoved", 0.1)]:
        at = dict(x=box["left"] + box["width"] / 2, y=box["bottom"] - part * box["height"])
        held = dict(button="left", buttons=int(kind != "mouseReleased"))
        explore.command("Input.dispatchMouseEvent", type=kind, **held, **at)
        values.append(int(explore.evaluate(f"{BAR}.getAttribute('aria-valuenow')")))
    most = int(explore.evaluate(f"{BAR}.getAttribute('aria-valuemax')"))
    assert values == [most // 4] + [most // 4 * 3] * 3, "it moves as long as it is held"
    assert all(one != other for one, other in zip(before, numbers(explore))), "all numbers change at once"


def numbers(page):
    """Time, utilisation, bytes that tiles read, and bytes that memory delivers, as the page shows them."""
    return page.evaluate("[...document.querySelectorAll('.explore-numbers dd')].map((each) => each.textContent)")


def test_each_experiment_sets_the_page(explore):
    for i, state in enumerate(EXPERIMENTS):
        explore.evaluate(f"document.querySelectorAll('button[data-explore]')[{i}].click()")
        timeline = timeline_of(state)
        traffic = schedule.bytes_moved(timeline, l2_bytes=int(state["cache"]))
        moved = [each / 1e6 for each in (traffic.requested, traffic.from_memory)]
        wanted = timeline.makespan
        assert numbers(explore) == [
            f"{wanted:.{1 if wanted < 99.95 else 0}f} µs",
            f"{100 * timeline.utilisation:.0f} %",
            *(f"{each:.{1 if each < 9.95 else 0}f} MB" for each in moved),
        ]
    errors = [event for event in explore.events if event["method"] == "Runtime.exceptionThrown"]
    assert errors == []
