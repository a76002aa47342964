"""Costs of a training step from the records, and of a copy that transposes the weight gradient."""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.figure import Figure

from gemm_course.figures.shapes import canvas, name_rows
from gemm_course.figures.style import BLACK, BLUE, FAINT, ORANGE, drawing


@drawing
def copied_gradients(step_us: Mapping[str, Mapping[str, float]]) -> Figure:
    """Draw the time of each row's products in a training step, and of a copy of its weight gradient after them.

    Args:
        step_us: row title → part → µs; the part "copy" is drawn in another colour and its share is written.
    """
    figure, axes = canvas(0.4 * len(step_us) + 1.3)
    looks = {"forward": FAINT, "dA": "#A6CEE3", "dB": BLUE, "copy": ORANGE}
    labels = {
        "forward": "forward",
        "dA": "gradient of x",
        "dB": "gradient of W",
        "copy": "copy of W's gradient (computed)",
    }
    for y, parts in enumerate(step_us.values()):
        whole = sum(us for part, us in parts.items() if part != "copy")
        left = 0.0
        for part, us in parts.items():
            axes.barh(y, us / whole, left=left, height=0.7, color=looks[part], gid=part)
            left += us / whole
        axes.text(left + 0.01, y, f"+{parts['copy'] / whole:.0%}", va="center", fontsize=9, color=BLACK)
    name_rows(axes, [title.replace(", N ", "\nN ") for title in step_us], fontsize=9)
    axes.axvline(1.0, color=BLACK, lw=1.0)
    axes.set_xlabel("time (1 = the three products)")
    handles = [axes.barh([0], [0], color=color) for color in looks.values()]
    figure.legend(handles, list(labels.values()), loc="outside upper left", ncols=4, fontsize=9)
    return figure
