"""The words of a figure as they are drawn: their boxes, and the contrast of their ink with what is behind them."""

from __future__ import annotations

from typing import NamedTuple
from unittest import mock

import matplotlib as mpl
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import Bbox

_LINEAR = np.where((c := np.arange(256) / 255) <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)


class Word(NamedTuple):
    """Drawn text: its box in pixels from the lower left, its size in points, and the contrast by WCAG 2.2."""

    text: str
    box: Bbox
    points: float
    bold: bool
    contrast: float


def luminance(rgb: np.ndarray) -> np.ndarray:
    """Relative luminance of colours (..., 3) of 8 bits, as WCAG 2.2 defines it."""
    return _LINEAR[rgb] @ np.array([0.2126, 0.7152, 0.0722])


def contrast(one, other) -> float:
    """Contrast ratio of two colours of 8 bits, 1 to 21."""
    low, high = sorted((float(luminance(np.asarray(one))), float(luminance(np.asarray(other)))))
    return (high + 0.05) / (low + 0.05)


def words_of(figure: Figure) -> list[Word]:
    """Draw a figure without the glyphs of its text, and examine the pixels behind them."""
    drawn: list[tuple[Text, Bbox]] = []

    def note(self, renderer, *_, **__):
        if not self.get_visible() or not self.get_text().strip():
            return
        box = Text.get_window_extent(self, renderer)  # of the text alone, without an annotation's arrow
        if self.get_bbox_patch() is not None:
            self.update_bbox_position_size(renderer)
            self.get_bbox_patch().draw(renderer)
        drawn.append((self, box))

    canvas = FigureCanvasAgg(figure)
    with mock.patch.object(Text, "draw", note):
        canvas.draw()
    pixels = np.asarray(canvas.buffer_rgba())[::-1, :, :3]
    return [_look(text, box, pixels) for text, box in drawn]


def _look(text: Text, box: Bbox, pixels: np.ndarray) -> Word:
    height, width, _ = pixels.shape
    x0, x1 = (int(np.clip(round(x), 0, width - 1)) for x in (box.x0, box.x1))
    y0, y1 = (int(np.clip(round(y), 0, height - 1)) for y in (box.y0, box.y1))
    behind = pixels[y0 : y1 + 1, x0 : x1 + 1].reshape(-1, 3)
    codes, counts = np.unique(behind @ np.array([65536, 256, 1]), return_counts=True)
    code = int(codes[counts.argmax()])  # lines and hatches are thin
    ground = np.array([code >> 16, code >> 8 & 255, code & 255])
    ink, alpha = np.array(mpl.colors.to_rgb(text.get_color())) * 255, text.get_alpha()
    ink = (ink if alpha is None else ink * alpha + ground * (1 - alpha)).round().astype(int)
    bold = text.get_fontweight() in ("bold", "heavy", 700)
    return Word(text.get_text(), box, text.get_fontsize(), bold, contrast(ink, ground))


def overlaps(words: list[Word], slack: float = 1.0) -> list[tuple[str, str]]:
    """Pairs of texts whose boxes, each smaller by ``slack`` pixels on every side, share a pixel."""
    found = []
    for i, one in enumerate(words):
        for other in words[i + 1 :]:
            a, b = one.box, other.box
            if min(a.x1, b.x1) - max(a.x0, b.x0) > 2 * slack and min(a.y1, b.y1) - max(a.y0, b.y0) > 2 * slack:
                found.append((one.text, other.text))
    return found
