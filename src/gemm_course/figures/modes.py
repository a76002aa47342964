"""The four modes of grouped_mm by the dimension that the groups share out, and results whose tail is undefined."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from gemm_course.figures.style import BLACK, FAINT, GREY, WIDTH, WRONG, color_of, styled

__all__ = ["four_modes", "undefined_rows"]

_SIZES = (0.9, 0.5, 0.7)  # of three groups along the dimension that they share
_LONG = sum(_SIZES)
_M, _N, _K = 0.9, 1.1, 0.8
_FORMS = {
    # mode: of A, B and C: (rows, columns), of which a list is what the groups share out; "stack": one for each group
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
    """Draw a packed matrix or a stack of matrices around height y; returns its right edge."""
    if kind == "stack":
        step = 0.16
        for g in reversed(range(len(_SIZES))):
            axes.add_patch(Rectangle((x + g * step, y - rows / 2 - (g - 1) * step), cols, rows, fc=color_of(g),
                                     ec="white", gid=f"{gid} {g}"))  # fmt: skip
        return x + cols + 2 * step
    at = 0.0
    height, width = (_LONG if isinstance(v, tuple) else v for v in (rows, cols))
    for g, size in enumerate(_SIZES):
        if isinstance(rows, tuple):
            box = (x, y - height / 2 + at), width, size
        else:
            box = (x + at, y - height / 2), size, height
        axes.add_patch(Rectangle(*box, fc=color_of(g), ec="white", gid=f"{gid} {g}"))
        at += size
    return x + width


@styled()
def four_modes(captions: Mapping[str, str]) -> Figure:
    """Draw the operands and the result of each mode, three groups in three colours.

    Args:
        captions: what to say of each mode, by its name: "m", "n", "k" and "batch".

    Returns:
        A figure with a panel for each.

    Raises:
        ValueError: a name that is no mode.
    """
    if unknown := set(captions) - set(_FORMS):
        raise ValueError(f"captions must be of the modes {', '.join(_FORMS)}, got {', '.join(sorted(unknown))}")
    figure = Figure(figsize=(WIDTH, 4.6))
    panels = figure.subplots(2, 2).ravel()
    for axes, (mode, forms) in zip(panels, _FORMS.items()):
        x = 0.0
        for i, ((rows, cols, kind), shape) in enumerate(zip(forms, _SHAPES[mode])):
            right = _matrix(axes, x, 0, rows, cols, kind, f"{mode} {'ABC'[i]}")
            axes.text((x + right) / 2, 1.35, f"{'ABC'[i]} {shape}", ha="center", va="top", fontsize=8.5)
            if i < 2:
                axes.text(right + 0.4, 0, "×="[i], ha="center", va="center", fontsize=15)
            x = right + 0.8
        axes.set_title(f"{mode}: {captions.get(mode, '')}".rstrip(": "), fontsize=10)
        axes.set_xlim(-0.35, 7.2)
        axes.set_ylim(1.75, -1.25)
        axes.set_aspect("equal")
        axes.set_axis_off()
    return figure


@styled()
def undefined_rows(results: Mapping[str, Sequence], sizes: Sequence[int], names: Sequence[str]) -> Figure:
    """Draw which elements of some matrices are numbers, and which are undefined, with the end of the last group.

    Args:
        results: by whose they are, matrices (total, columns); NaN stands for undefined.
        sizes: rows of each group.
        names: of the matrices, the same for all.

    Returns:
        A figure with a panel for each matrix: undefined elements are red.
    """
    count = sum(len(matrices) for matrices in results.values())
    figure = Figure(figsize=(WIDTH, 2.9))
    panels = figure.subplots(1, count, squeeze=False, sharey=True)[0]
    used, at = sum(sizes), 0
    for owner, matrices in results.items():
        for name, matrix in zip(names, matrices, strict=True):
            axes = panels[at]
            values = np.asarray(matrix.detach().cpu().float())
            missing = np.isnan(values)
            for row in range(len(values)):
                bad = missing[row].any()
                color = WRONG if bad else FAINT if not values[row].any() else "#CDE8F7"
                axes.add_patch(Rectangle((0, row), 1, 1, fc=color, ec="white", lw=0.8, gid="bad" if bad else "good"))
            axes.axhline(used, color=BLACK, lw=1.5)
            note = f"{int(missing.any(1).sum())} rows undefined"
            axes.set_title(f"{owner}\n{name}\n{note}", fontsize=10, color=WRONG if missing.any() else BLACK)
            axes.set_xlim(0, 1)
            axes.set_ylim(len(values), 0)
            axes.set_xticks([])
            axes.spines[["left", "bottom"]].set_visible(False)
            at += 1
    panels[0].set_ylabel("row")
    key = "blue: numbers · grey: zeros · red: undefined · line: end of the last group"
    figure.supxlabel(key, fontsize=9, color=GREY)
    return figure
