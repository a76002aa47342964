"""The look of figures: a palette that anybody can tell apart, and settings that end with the figure."""

from __future__ import annotations

import matplotlib as mpl
import pytest

from gemm_course.figures import style


def luminance(color):
    """Relative luminance, as WCAG defines it for contrast."""
    parts = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in mpl.colors.to_rgb(color)]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), parts))


def test_the_look_holds_inside_only():
    before = dict(mpl.rcParams)
    assert before["axes.spines.top"]
    with style.styled():
        assert not mpl.rcParams["axes.spines.top"]
        assert mpl.rcParams["axes.prop_cycle"].by_key()["color"] == list(style.CYCLE)
    assert dict(mpl.rcParams) == before

    @style.styled()
    def broken():
        assert not mpl.rcParams["axes.spines.top"]
        raise ZeroDivisionError

    for _ in range(2):  # a decorated function can be called again
        with pytest.raises(ZeroDivisionError):
            broken()
        assert dict(mpl.rcParams) == before


def test_colours_differ_and_repeat_after_eight():
    assert len({style.color_of(i) for i in range(8)}) == 8
    assert [style.color_of(i) for i in (0, 8, 11)] == [style.BLUE, style.BLUE, style.PINK]


@pytest.mark.parametrize("color", [*style.CYCLE, style.YELLOW, style.FAINT, "white", "black"])
def test_words_are_readable_on_every_colour(color):
    ink = style.ink_on(color)
    assert ink in (style.BLACK, "white")
    low, high = sorted((luminance(ink), luminance(color)))
    assert (high + 0.05) / (low + 0.05) > 2.8


def test_ink_is_dark_on_light_and_light_on_dark():
    assert [style.ink_on(color) for color in ("white", style.YELLOW, style.SKY)] == [style.BLACK] * 3
    assert [style.ink_on(color) for color in ("black", style.BLUE, style.GREEN)] == ["white"] * 3
