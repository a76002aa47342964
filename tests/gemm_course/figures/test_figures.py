"""Every figure, drawn as in its lesson: it has words, they are readable, and none covers another or is cut off."""

from __future__ import annotations

import importlib
import inspect
import pkgutil

import pytest
from matplotlib.figure import Figure

import figure_cases
from figure_words import overlaps, words_of
from gemm_course import figures
from gemm_course.figures.style import FAINT, ORANGE, WIDTH, drawing

SMALLEST = 8  # points
# Least contrast by WCAG 2.2, level AA: of words, and of words from 18 points on, or 14 where they are bold.
READABLE, READABLE_LARGE = 4.5, 3.0
SLACK = 1  # pixels


def all_figures() -> set[str]:
    """ "module.function" of every public function of a module of figures that returns a Figure."""
    found = set()
    for each in pkgutil.iter_modules(figures.__path__):
        module = importlib.import_module(f"{figures.__name__}.{each.name}")
        for name, function in inspect.getmembers(module, inspect.isfunction):
            own = function.__module__ == module.__name__ and not name.startswith("_")
            if own and function.__annotations__.get("return") in ("Figure", Figure):
                found.add(f"{each.name}.{name}")
    return found


def faults(figure: Figure) -> list[str]:
    """Whatever makes a figure hard to read."""
    words, found = words_of(figure), []
    if not figure.get_label():
        found.append("it has no label: decorate its function with `drawing`")
    if not words:
        found.append("it has no words")
    if figure.get_figwidth() > WIDTH:
        found.append(f"{figure.get_figwidth():.1f} inches are wider than a notebook")
    if figure.get_facecolor() != (1, 1, 1, 1):
        found.append("what is behind it shows through: a dark page")
    for word in words:
        box, page = word.box, figure.bbox
        if min(box.x0, box.y0) < -SLACK or box.x1 > page.width + SLACK or box.y1 > page.height + SLACK:
            found.append(f"{word.text!r} leaves the canvas")
        if word.points < SMALLEST:
            found.append(f"{word.text!r} has {word.points} points")
        large = word.points >= 18 or (word.bold and word.points >= 14)
        if word.contrast < (READABLE_LARGE if large else READABLE):
            found.append(f"{word.text!r} has a contrast of {word.contrast:.1f}")
    return found + [f"{one!r} and {other!r} overlap" for one, other in overlaps(words, SLACK)]


def test_every_figure_has_a_case():
    assert all_figures() == set(figure_cases.CASES)


@pytest.mark.parametrize("name", sorted(figure_cases.CASES))
def test_a_figure_is_readable(name):
    found = [fault for figure in figure_cases.draw(name) for fault in faults(figure)]
    assert not found, "\n".join(found)


@drawing
def broken(*texts, title: str = "a title") -> Figure:
    """Draw words, each (x, y, text, look), on a page of one by one."""
    figure = Figure(figsize=(4, 3))
    figure.set_layout_engine("none")
    axes = figure.add_axes((0, 0, 1, 0.9), title=title, xlim=(0, 1), ylim=(0, 1))
    axes.set_axis_off()
    axes.axhspan(0.6, 1, color=FAINT)
    for x, y, text, look in texts:
        axes.text(x, y, text, **look)
    return figure


@pytest.mark.parametrize(
    ("texts", "wanted"),
    [
        ([(0.1, 0.3, "one", {}), (0.5, 0.3, "two", {})], []),
        ([(0.1, 0.3, "one word", {}), (0.15, 0.3, "another", {})], ["'one word' and 'another' overlap"]),
        ([(0.9, 0.3, "far to the right", {})], ["'far to the right' leaves the canvas"]),
        ([(0.1, 0.3, "small print", {"fontsize": 6})], ["'small print' has 6.0 points"]),
        ([(0.1, 0.3, "pale", {"color": ORANGE})], ["'pale' has a contrast of 2.3"]),
        ([(0.1, 0.3, "faded", {"alpha": 0.4})], ["'faded' has a contrast of 2.8"]),
        ([(0.1, 0.7, "on grey", {"color": "#666666"})], ["'on grey' has a contrast of 4.2"]),
        ([(0.1, 0.7, "on its box", {"color": "#666666", "bbox": {"fc": "white", "ec": "none"}})], []),
        ([(0.1, 0.3, "large", {"color": "#888888", "fontsize": 20})], []),
    ],
)
def test_faults_are_found(texts, wanted):
    assert faults(broken(*texts)) == wanted


def test_a_figure_without_words_or_on_glass_is_found():
    figure = broken(title="")
    figure.set_facecolor("none")
    figure.set_size_inches(10, 3)
    assert faults(figure) == ["it has no words", "10.0 inches are wider than a notebook",
                              "what is behind it shows through: a dark page"]  # fmt: skip


def test_a_figure_describes_itself():
    assert broken().get_label() == "Words, each (x, y, text, look), on a page of one by one. a title"
    assert broken(title="").get_label() == "Words, each (x, y, text, look), on a page of one by one"
