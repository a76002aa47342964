"""Recorded MoE layers beside their peers, and on several GPUs."""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from gemm_course.figures.shapes import canvas_grid, name_rows, ticks_at
from gemm_course.figures.style import BLACK, BLUE, FAINT, GREEN, GREY, ORANGE, PINK, SKY, WIDTH, drawing

_WAYS = {"this library": BLUE, "Liger": ORANGE, "transformers": GREEN}
_PRODUCTS = "its products alone"
# The colours of lesson 16.
_TRAVELS = {"by hand": PINK, "all_to_all": SKY, "symmetric": BLUE, "symmetric, in a graph": GREEN}


def _titled(axes: Axes, title: str) -> None:
    """A title, and faint lines behind the data."""
    axes.set_title(title, fontsize=10)
    axes.grid(axis="y", color=FAINT, lw=0.6)
    axes.set_axisbelow(True)


@drawing
def rates(panels: Mapping[str, Mapping[str, Mapping[int, float]]]) -> Figure:
    """Draw how fast layers compute, over the number of tokens. The dashed line is the products of the layer alone.

    Args:
        panels: title → way → tokens → TFLOP/s, as from ``layer_records.rates``.
    """
    figure, axes_of = canvas_grid(3.3, 1, len(panels), sharey=True)
    for axes, (title, ways) in zip(axes_of, panels.items(), strict=True):
        for name, by_tokens in ways.items():
            look = dict(ls="--", color=BLACK, lw=1.4) if name == _PRODUCTS else dict(marker="o", color=_WAYS[name])
            axes.plot(list(by_tokens), list(by_tokens.values()), label=name, gid=f"{title} {name}", **look)
        every = sorted({tokens for by_tokens in ways.values() for tokens in by_tokens})
        axes.set(xscale="log", xlabel="tokens", ylim=(0, None))
        ticks_at(axes.xaxis, every, every[0], every[-1], "{:,.0f}")
        _titled(axes, title)
    axes_of[0].set_ylabel("TFLOP/s")
    axes_of[0].legend(loc="upper left", fontsize=9)
    return figure


@drawing
def beside_peers(
    panels: Mapping[str, Mapping[str, Mapping[str, float]]], label: str, width: float = WIDTH, row: float = 0.36
) -> Figure:
    """Draw how many times as fast as transformers' operations a layer is in this library, and in others.

    A bar is a library; a black mark shows how fast the products alone are.

    Args:
        panels: title → layer → way → ratio, as from ``layer_records.beside_peers``. A layer that a panel has not got
            leaves its place empty there.
        label: of the horizontal axis, after "times as fast as transformers".
        width: in inches.
        row: inches of a layer.
    """
    layers = list(dict.fromkeys(layer for rows in panels.values() for layer in rows))
    measured = {way for rows in panels.values() for ways in rows.values() for way in ways}
    shown = [way for way in ("this library", "Liger") if way in measured]
    figure = Figure(figsize=(width, 1.0 + row * len(layers)))
    axes_of = figure.subplots(1, len(panels), sharey=True, squeeze=False).ravel()
    for axes, (title, rows) in zip(axes_of, panels.items(), strict=True):
        for layer, ways in rows.items():
            y = layers.index(layer)
            for i, way in enumerate(shown):
                if way in ways:
                    at = y + 0.36 * (i - (len(shown) - 1) / 2)
                    axes.barh(at, ways[way], height=0.36, color=_WAYS[way], gid=f"{title} {layer} {way}")
            best = max(ways.get(each, 0) for each in (_PRODUCTS, *shown))
            if _PRODUCTS in ways:
                axes.plot(
                    [ways[_PRODUCTS]] * 2, [y - 0.38, y + 0.38], color=BLACK, lw=2, gid=f"{title} {layer} products"
                )
            axes.annotate(f"{ways['this library']:.1f} ×", (best, y), (5, 0), textcoords="offset points", va="center",
                          fontsize=9, color=_WAYS["this library"])  # fmt: skip
        axes.axvline(1, color=GREY, lw=1)
        axes.set_title(title, fontsize=10)
        axes.set_xlim(0, 1.2 * max(max(ways.values()) for ways in rows.values()))
        axes.tick_params(axis="y", length=0)
    name_rows(axes_of[0], layers, fontsize=9)
    for axes in axes_of[1:]:
        axes.spines["left"].set_visible(False)
    figure.supxlabel(f"times as fast as transformers' operations {label}", fontsize=10)
    mark = Line2D([], [], marker="|", markersize=10, lw=0, markeredgewidth=2, color=BLACK, label=_PRODUCTS)
    handles = [*(Patch(color=_WAYS[way], label=way) for way in shown), mark]
    figure.legend(handles=handles, loc="outside upper right", ncols=len(handles), fontsize=9)
    return figure


@drawing
def scaling(panels: Mapping[str, Mapping[str, Mapping[int, float]]]) -> Figure:
    """Draw how many tokens a second several GPUs compute, over those of one. On the dashed line none waits for others.

    Args:
        panels: title → way → GPUs → ratio, as from ``layer_records.weak_scaling``.
    """
    figure, axes_of = canvas_grid(3.3, 1, len(panels), sharey=True)
    for axes, (title, ways) in zip(axes_of, panels.items(), strict=True):
        every = sorted({gpus for ratios in ways.values() for gpus in ratios})
        ideal = dict(label="GPUs that do not exchange", gid=f"{title} ideal")
        axes.plot(every, every, color=BLACK, ls="--", lw=1.4, **ideal)
        for name, ratios in ways.items():
            axes.plot(list(ratios), list(ratios.values()), marker="o", color=_TRAVELS[name], label=name,
                      gid=f"{title} {name}")  # fmt: skip
        axes.set(xlabel="GPUs", ylim=(0, None))
        ticks_at(axes.xaxis, every, every[0], every[-1])
        ticks_at(axes.yaxis, range(9), 0, every[-1] + 1)
        _titled(axes, title)
    axes_of[0].set_ylabel("tokens a second,\nover those of one GPU")
    axes_of[0].legend(loc="upper left", fontsize=9)
    return figure
