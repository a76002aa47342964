"""A model of time beside the record: expected and measured times of a layer, and what choices lose on each model."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from gemm_course.figures.shapes import canvas, canvas_grid, name_rows, ticks_at
from gemm_course.figures.style import BLACK, BLUE, CYCLE, FAINT, GREY, RED, drawing

Points = Sequence[tuple[float, float]]


@drawing
def expected_times(
    expected: Mapping[str, Points], measured: Mapping[str, Points], others: Points = (), chosen: Points = ()
) -> Figure:
    """Draw the times of a layer's product as its groups get more rows: lines as expected, dots as measured.

    Args:
        expected: configuration → (rows per group, µs), ascending; a line each.
        measured: configuration → (rows per group, µs); dots in the colour of its line.
        others: measured points of configurations without a line, drawn small and grey.
        chosen: measured points to put into a ring.
    """
    figure, axes = canvas(4.2)
    axes.plot([x for x, _ in others], [y for _, y in others], "o", color=GREY, alpha=0.5, ms=3, lw=0, gid="others")
    for color, (name, line) in zip(CYCLE, expected.items()):
        axes.plot(*zip(*line), color=color, lw=1.4, gid=f"expected {name}")
        if measured.get(name):
            axes.plot(*zip(*measured[name]), "o", color=color, ms=6.5, mec="white", mew=0.6, gid=f"measured {name}")
    for point in chosen:
        axes.plot([point[0]], [point[1]], "o", mfc="none", mec=BLACK, mew=1.6, ms=13, gid="chosen")
    xs = [x for line in (*expected.values(), *measured.values(), others) for x, _ in line]
    ys = [y for line in (*expected.values(), *measured.values(), others) for _, y in line]
    axes.set(xscale="log", yscale="log", xlabel="rows per group, on average", ylabel="µs",
             xlim=(min(xs) / 1.15, max(xs) * 1.15), ylim=(min(ys) / 1.25, max(ys) * 1.25))  # fmt: skip
    ticks_at(axes.xaxis, [2.0**i for i in range(20)], min(xs), max(xs), "{:,.0f}")
    ticks_at(axes.yaxis, [k * 10.0**i for i in range(7) for k in (1, 2, 5)], min(ys) / 1.25, max(ys) * 1.25, "{:,.0f}")
    handles = [Line2D([], [], color=color, marker="o", mec="white", label=name) for color, name in zip(CYCLE, expected)]
    if others:
        handles.append(Line2D([], [], color=GREY, alpha=0.5, marker="o", ms=3, lw=0, label="other configurations"))
    if chosen:
        handles.append(Line2D([], [], mfc="none", mec=BLACK, mew=1.6, marker="o", ms=11, lw=0, label="chosen"))
    axes.legend(handles=handles, loc="upper left", fontsize=9)
    return figure


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
