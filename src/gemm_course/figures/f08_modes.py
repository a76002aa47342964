"""The four modes of grouped_mm, by the dimension that the groups divide, and results whose tail is undefined."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from gemm_course.figures.shapes import bare, canvas_grid, centred, rectangle
from gemm_course.figures.style import BLACK, DIM, FAINT, WRONG, as_ink, color_of, drawing
from gemm_course.lessons.canaries import numbers

_SIZES = (0.9, 0.5, 0.7)  # of three groups along the dimension that they divide
_LONG = sum(_SIZES)
_M, _N, _K = 0.9, 1.1, 0.8
_FORMS = {
    # mode: (rows, columns) of A, B and C; a tuple is the dimension that the groups divide; "stack": one for each group
    "m": ((_SIZES, _K, ""), (_K, _N, "stack"), (_SIZES, _N, "")),
    "n": ((_M, _K, "stack"), (_K, _SIZES, ""), (_M, _SIZES, "")),
    "k": ((_M, _SIZES, ""), (_SIZES, _N, ""), (_M, _N, "stack")),
    "batch": ((_M, _K, "stack"), (_K, _N, "stack"), (_M, _N, "stack")),
}
_SHAPES = {
    "m": ("(total_m, K)", "(G, K, N)", "(total_m, N)"),
    "n": ("(G, M, K)", "(K, total_n)", "(M, total_n)"),
    "k": ("(M, total_k)", "(total_k, N)", "(G, M, N)"),
    "batch": ("(G, M, K)", "(G, K, N)", "(G, M, N)"),
}


def _matrix(axes, x: float, y: float, rows, cols, kind: str, gid: str) -> float:
    """Draw a packed matrix or a stack of matrices around height y; return its right edge."""
    if kind == "stack":
        step = 0.16
        for g in reversed(range(len(_SIZES))):
            rectangle(axes, x + g * step, y - rows / 2 - (g - 1) * step, cols, rows, fc=color_of(g), ec="white",
                      gid=f"{gid} {g}")  # fmt: skip
        return x + cols + 2 * step
    at = 0.0
    height, width = (_LONG if isinstance(v, tuple) else v for v in (rows, cols))
    for g, size in enumerate(_SIZES):
        top = y - height / 2
        box = (x, top + at, width, size) if isinstance(rows, tuple) else (x + at, top, size, height)
        rectangle(axes, *box, fc=color_of(g), ec="white", gid=f"{gid} {g}")
        at += size
    return x + width


@drawing
def four_modes(captions: Mapping[str, str]) -> Figure:
    """Draw the operands and the result of each mode in a panel, titled by its caption, with a colour per group."""
    if unknown := set(captions) - set(_FORMS):
        raise ValueError(f"captions must be of the modes {', '.join(_FORMS)}, got {', '.join(sorted(unknown))}")
    figure, panels = canvas_grid(4.6, 2, 2)
    for axes, (mode, forms) in zip(panels, _FORMS.items()):
        x = 0.0
        for i, ((rows, cols, kind), shape) in enumerate(zip(forms, _SHAPES[mode])):
            right = _matrix(axes, x, 0, rows, cols, kind, f"{mode} {'ABC'[i]}")
            axes.text((x + right) / 2, 1.35, f"{'ABC'[i]} {shape}", ha="center", va="top", fontsize=9)
            if i < 2:
                centred(axes, right + 0.4, 0, "×="[i], fontsize=15)
            x = right + 0.8
        axes.set_title(f"{mode}: {captions.get(mode, '')}".rstrip(": "), fontsize=10)
        bare(axes, (-0.35, 7.2), (1.75, -1.25), equal=True)
    return figure


@drawing
def undefined_rows(results: Mapping[str, Sequence], sizes: Sequence[int], names: Sequence[str]) -> Figure:
    """Draw the rows of some matrices, a panel each: those with an undefined element are orange, those of zeros grey.

    A line is at the end of the last group.

    Args:
        results: owner → matrices (total, columns), where NaN is undefined.
        sizes: rows of each group.
        names: of each owner's matrices.
    """
    drawn = [(owner, *pair) for owner, found in results.items() for pair in zip(names, found, strict=True)]
    figure, panels = canvas_grid(2.9, 1, len(drawn), sharey=True)
    for axes, (owner, name, matrix) in zip(panels, drawn):
        values = numbers(matrix)
        missing = np.isnan(values).any(1)
        for row, bad in enumerate(missing):
            color = WRONG if bad else FAINT if not values[row].any() else "#CDE8F7"
            rectangle(axes, 0, row, 1, 1, fc=color, ec="white", lw=0.8, gid="bad" if bad else "good")
        axes.axhline(sum(sizes), color=BLACK, lw=1.5)
        title = f"{owner}\n{name}\n{missing.sum()} rows undefined"
        axes.set_title(title, fontsize=10, color=as_ink(WRONG) if missing.any() else BLACK)
        axes.set(xlim=(0, 1), ylim=(len(values), 0), xticks=[])
        axes.spines[["left", "bottom"]].set_visible(False)
    panels[0].set_ylabel("row")
    key = "blue: numbers · grey: zeros · orange: undefined · line: end of the last group"
    figure.supxlabel(key, fontsize=9, color=DIM)
    return figure
