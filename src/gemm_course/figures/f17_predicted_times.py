"""A model of time beside the record: expected and measured times of a layer, and what choices lose on each model."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from gemm_course.figures.shapes import canvas, canvas_grid, name_rows, ticks_at
from gemm_course.figures.style import BLACK, BLUE, CYCLE, FAINT, GREY, RED, drawing

Points = Sequence[tuple[float, float]]
_LONGEST = 2.0  # times the fastest; what takes longer is not drawn


@drawing
def expected_times(
    expected: Mapping[str, Points], measured: Mapping[str, Points], others: Points, chosen: Points
) -> Figure:
    """Draw how much longer than the fastest each configuration takes as a layer's groups get more rows.

    A line is over the fastest line at its rows, a dot over the fastest dot at its rows. What is more than twice as long
    is left out.

    Args:
        expected: configuration → (rows per group, µs), ascending; a line each.
        measured: configuration → (rows per group, µs); dots in the colour of its line.
        others: measured points of configurations without a line, drawn small and grey.
        chosen: measured points to put into a ring.
    """
    figure, axes = canvas(4.2)
    lines, dots = _fastest(*expected.values()), _fastest(*measured.values(), others)
    _draw_over(axes, dots, others, "o", color=GREY, alpha=0.5, ms=3, lw=0, gid="others")
    for color, (name, line) in zip(CYCLE, expected.items()):
        _draw_over(axes, lines, line, "-", color=color, lw=1.6, gid=f"expected {name}")
        _draw_over(axes, dots, measured.get(name, ()), "o", color=color, ms=6.5, mec="white", mew=0.6,
                   gid=f"measured {name}")  # fmt: skip
    _draw_over(axes, dots, chosen, "o", mfc="none", mec=BLACK, mew=1.6, ms=13, lw=0, gid="chosen")
    xs = [*lines, *dots]
    axes.set(xscale="log", xlabel="rows per group, on average", ylabel="time over the fastest",
             xlim=(min(xs) / 1.15, max(xs) * 1.15), ylim=(0.95, _LONGEST))  # fmt: skip
    ticks_at(axes.xaxis, [2.0**i for i in range(20)], min(xs), max(xs), "{:,.0f}")
    axes.axhline(1, color=GREY, lw=0.8, zorder=0)
    handles = [Line2D([], [], color=color, marker="o", mec="white", label=name) for color, name in zip(CYCLE, expected)]
    handles.append(Line2D([], [], color=GREY, alpha=0.5, marker="o", ms=3, lw=0, label="other configurations"))
    handles.append(Line2D([], [], mfc="none", mec=BLACK, mew=1.6, marker="o", ms=11, lw=0, label="chosen"))
    figure.legend(handles=handles, loc="outside lower center", ncols=3, fontsize=9)
    return figure


def _fastest(*lines: Points) -> dict[float, float]:
    """The least time at each number of rows."""
    least: dict[float, float] = {}
    for x, y in (point for line in lines for point in line):
        least[x] = min(y, least.get(x, y))
    return least


def _draw_over(axes, least: Mapping[float, float], points: Points, form: str, **look) -> None:
    """Draw points over the least time at their rows; those that are too long are gaps."""
    ratios = [(x, y / least[x]) for x, y in points]
    axes.plot([x for x, _ in ratios], [r if r <= _LONGEST else float("nan") for _, r in ratios], form, **look)


@drawing
def losses_by_model(panels: Mapping[str, Mapping[str, Mapping[str, Sequence[float]]]]) -> Figure:
    """Draw what two ways to choose lose against the best configuration, for the products of each published model.

    A dot is the geometric mean over the model's products, the end of its thin line the worst of them.

    Args:
        panels: title → model → way to choose → times over the best one's. Two ways, the same everywhere.

    Raises:
        ValueError: the ways are not two.
    """
    models = list(dict.fromkeys(model for rows in panels.values() for model in rows))
    ways = list(dict.fromkeys(way for rows in panels.values() for by_way in rows.values() for way in by_way))
    if len(ways) != 2:
        raise ValueError(f"panels must compare two ways, got {ways}")
    colors = dict(zip(ways, (RED, BLUE)))
    figure, axes = canvas_grid(0.29 * len(models) + 1.3, 1, len(panels), sharey=True)
    for ax, (title, rows) in zip(axes, panels.items()):
        heads = [title]
        for way, offset in zip(ways, (-0.17, 0.17)):
            every = [ratio for by_way in rows.values() for ratio in by_way[way]]
            mean, worst = statistics.geometric_mean(every) - 1, max(every) - 1
            heads.append(f"{way}: +{mean:.1%}, worst +{worst:.0%}")
            for model, by_way in rows.items():
                y = models.index(model) + offset
                mean, worst = (100 * (f(by_way[way]) - 1) for f in (statistics.geometric_mean, max))
                ax.plot([mean, worst], [y, y], color=colors[way], lw=1, alpha=0.6, gid="worst")
                ax.plot([mean], [y], "o", color=colors[way], ms=5.5, gid=f"{way} {model}")
        for y in range(len(models)):
            ax.axhline(y + 0.5, color=FAINT, lw=0.6, zorder=0)
        ax.set_title("\n".join(heads), fontsize=9)
        ax.set(xlim=(-1, None), xlabel="% over the best configuration")
        name_rows(ax, models, fontsize=9)
    handles = [Line2D([], [], color=color, marker="o", lw=1, label=way) for way, color in colors.items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=2, fontsize=9)
    return figure
