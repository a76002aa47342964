"""One look for all figures: a colour-blind safe palette, sizes for a notebook column, no chart junk."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import matplotlib as mpl

# Okabe and Ito's palette, which people with any common colour blindness can tell apart. Order: the first four also
# differ in lightness, so they survive a black and white printer.
BLUE, ORANGE, GREEN, PINK = "#0072B2", "#E69F00", "#009E73", "#CC79A7"
SKY, RED, YELLOW, BLACK = "#56B4E9", "#D55E00", "#F0E442", "#222222"
CYCLE = (BLUE, ORANGE, GREEN, PINK, SKY, RED, YELLOW, "#999999")
GREY, FAINT = "#888888", "#DDDDDD"
WRONG = RED  # a write past the end, an unwritten tile
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
    "axes.prop_cycle": mpl.cycler(color=CYCLE),
    "legend.frameon": False,
    "hatch.linewidth": 0.6,
}


@contextlib.contextmanager
def styled() -> Iterator[None]:
    """Give figures made inside the course's look; also a decorator of figure functions."""
    with mpl.rc_context(_RC):
        yield


def color_of(index: int) -> str:
    """Colour of problem, group or program number ``index``; repeats after eight."""
    return CYCLE[index % len(CYCLE)]


def ink_on(color: str) -> str:
    """Black or white, whichever reads better on this colour."""
    red, green, blue = mpl.colors.to_rgb(color)
    return BLACK if 0.299 * red + 0.587 * green + 0.114 * blue > 0.55 else "white"
