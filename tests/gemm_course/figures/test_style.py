"""The look of figures: a palette that anybody can tell apart, and settings that end with the figure."""

from __future__ import annotations

import matplotlib as mpl
import pytest

from figure_words import contrast
from gemm_course.figures import style


def test_the_look_holds_inside_only():
    before = dict(mpl.rcParams)
    assert before["axes.spines.top"]
    with style.styled():
        assert not mpl.rcParams["axes.spines.top"]
        assert mpl.rcParams["axes.prop_cycle"].by_key()["color"] == list(style.CYCLE)
    assert dict(mpl.rcParams) == before

    @style.drawing
    def broken():
        """Draw nothing."""
        assert not mpl.rcParams["axes.spines.top"]
        raise ZeroDivisionError

    for _ in range(2):  # a decorated function can be called again
        with pytest.raises(ZeroDivisionError):
            broken()
        assert dict(mpl.rcParams) == before


def test_colours_differ_and_repeat_after_eight():
    assert len({style.color_of(i) for i in range(8)}) == 8
    assert [style.color_of(i) for i in (0, 8, 11)] == [style.BLUE, style.BLUE, style.PINK]


COLORS = [*style.CYCLE, style.YELLOW, style.GREY, style.FAINT, "white", "black"]


def contrast_of(*colors):
    return contrast(*([round(255 * part) for part in mpl.colors.to_rgb(color)] for color in colors))


@pytest.mark.parametrize("color", COLORS)
def test_words_are_readable_on_every_colour_and_in_every_colour(color):
    assert style.ink_on(color) in (style.BLACK, "white")
    assert contrast_of(style.ink_on(color), color) >= 4.5
    for ground in ("white", "#F9DCC9"):
        assert contrast_of(style.as_ink(color, ground), ground) >= 4.5


def test_ink_keeps_a_colour_that_is_dark_enough_and_its_hue():
    assert style.as_ink(style.BLUE) == style.BLUE.lower()
    red, green, blue = mpl.colors.to_rgb(style.as_ink(style.ORANGE))
    assert red > green > blue
    assert style.ink_on("white") == style.ink_on(style.YELLOW) == style.BLACK
    assert style.ink_on("black") == style.ink_on(style.BLUE) == "white"
