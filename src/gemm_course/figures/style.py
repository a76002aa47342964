"""One look for all figures: a colour-blind safe palette, sizes for a notebook column, no chart junk."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator

import matplotlib as mpl
from matplotlib.figure import Figure

# Okabe and Ito's palette, which people with any common colour blindness can tell apart. Order: the first four also
# differ in lightness, so they survive a black and white printer.
BLUE, ORANGE, GREEN, PINK = "#0072B2", "#E69F00", "#009E73", "#CC79A7"
SKY, RED, YELLOW, BLACK = "#56B4E9", "#D55E00", "#F0E442", "#111111"
CYCLE = (BLUE, ORANGE, GREEN, PINK, SKY, RED, YELLOW, "#999999")
GREY, FAINT = "#888888", "#DDDDDD"
DIM = "#555555"  # words that step back
WRONG = RED  # a write past the end, an unwritten tile
READABLE = 4.5  # least contrast of words with the colour behind them, by WCAG 2.2, level AA
WIDTH = 9.0  # inches: a notebook column at 100 dpi

_RC = {
    "figure.dpi": 100,
    "figure.constrained_layout.use": True,
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": GREY,
    "axes.labelcolor": BLACK,
    "xtick.color": GREY,
    "ytick.color": GREY,
    "xtick.labelcolor": DIM,
    "ytick.labelcolor": DIM,
    "figure.facecolor": "white",  # also on a dark page
    "axes.prop_cycle": mpl.cycler(color=CYCLE),
    "legend.frameon": False,
    "hatch.linewidth": 0.6,
}


@contextlib.contextmanager
def styled() -> Iterator[None]:
    """Give figures made inside the course's look."""
    with mpl.rc_context(_RC):
        yield


def drawing(draw: Callable[..., Figure]) -> Callable[..., Figure]:
    """Decorate a function that draws a figure: it has the course's look, and a label for readers who cannot see it.

    The label (``figure.get_label()``) is the first sentence of the function's docstring, which must begin with "Draw",
    followed by the figure's titles.
    """
    sentence = " ".join(draw.__doc__.split("\n\n")[0].removeprefix("Draw ").split()).partition(". ")[0].rstrip(".")

    @functools.wraps(draw)
    def drawn(*args, **kwargs) -> Figure:
        with styled():
            figure = draw(*args, **kwargs)
        titles = "; ".join(" ".join(title.split()) for title in _titles(figure))
        figure.set_label(f"{sentence[0].upper()}{sentence[1:]}{'. ' * bool(titles)}{titles}")
        return figure

    return drawn


def _titles(figure: Figure) -> list[str]:
    places = [axes.get_title(side) for axes in figure.axes for side in ("left", "center", "right")]
    return [title for title in (figure.get_suptitle(), *places) if title]


def color_of(index: int) -> str:
    """Colour of problem, group or program number ``index``; repeats after eight."""
    return CYCLE[index % len(CYCLE)]


def ink_on(color: str) -> str:
    """Black or white, whichever reads better on this colour."""
    return max((BLACK, "white"), key=lambda ink: _contrast(ink, color))


def as_ink(color: str, ground: str = "white") -> str:
    """This colour, darkened until words in it are readable on ``ground``."""
    parts = mpl.colors.to_rgb(color)
    shades = (mpl.colors.to_hex([part * (1 - step / 50) for part in parts]) for step in range(51))
    return next(shade for shade in shades if _contrast(shade, ground) >= READABLE)


def _contrast(one: str, other: str) -> float:
    low, high = sorted((_luminance(one), _luminance(other)))
    return (high + 0.05) / (low + 0.05)


def _luminance(color: str) -> float:
    """Relative luminance, 0 to 1, as WCAG defines it."""
    parts = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in mpl.colors.to_rgb(color)]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), parts))
