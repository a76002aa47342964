"""One launch per problem: the share of a GPU that each launch fills, and the gain of grouping."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib as mpl
from matplotlib.figure import Figure

from gemm_course.figures.shapes import canvas, canvas_grid, centred, name_rows, percent, rectangle
from gemm_course.figures.style import BLACK, BLUE, FAINT, RED, drawing, ink_on

_SLOWER_FASTER = mpl.colors.LinearSegmentedColormap.from_list("ratio", [RED, "#F2C48D", "#FFFFFF", "#9CCBE8", BLUE])
_STRONGEST = 8.0  # a ratio of 8 has the strongest colour, so that 0.8 and 1.2 still differ from 1


@drawing
def sm_fill(tiles: Mapping[str, int], sms: int) -> Figure:
    """Draw the share of a GPU's SMs that each launch keeps busy, where every SM runs one tile at a time.

    A bar is as long as the share of the slots in its waves that hold a tile. ``tiles`` has the number of each launch.
    """
    if not tiles or min(tiles.values()) < 1 or sms < 1:
        raise ValueError(f"tiles and sms must be positive, got {dict(tiles)} and {sms}")
    figure, axes = canvas(0.42 * len(tiles) + 0.9)
    for row, count in enumerate(tiles.values()):
        waves = -(-count // sms)
        share = count / (waves * sms)
        axes.barh(row, 1.0, color=FAINT, height=0.7)
        axes.barh(row, share, color=BLUE, height=0.7)
        text = f"{count} tile{'s' * (count > 1)} in {waves} wave{'s' * (waves > 1)}: {share:.0%} of the slots"
        inside = share > 0.5
        axes.text(share - 0.01 if inside else share + 0.01, row, text, ha="right" if inside else "left", va="center",
                  fontsize=9, color="white" if inside else BLACK)  # fmt: skip
    name_rows(axes, list(tiles))
    axes.set_xlim(0, 1)
    percent(axes.xaxis)
    axes.set_title(f"{sms} SMs, one tile each at a time: blue works, grey waits")
    return figure


@drawing
def speedups(cells: Sequence[Mapping], provider: str, against: Sequence[str]) -> Figure:
    """Draw how many times faster a provider is than others, over the number of problems and their size.

    A number above 1 (blue) means that ``provider`` is faster, one below 1 (orange) that it is slower.

    Args:
        cells: each {"count": G, "n": N, "us": {provider: microseconds}}, for G problems N × N × N.
        provider, against: the provider whose speed is shown, and those to compare with, a panel each.
    """
    if not cells or not against or any(name not in cell["us"] for cell in cells for name in (provider, *against)):
        raise ValueError(f"cells must have times of {provider!r} and of {list(against)}, one of which is not there")
    counts, sizes = sorted({cell["count"] for cell in cells}), sorted({cell["n"] for cell in cells})
    norm = mpl.colors.LogNorm(1 / _STRONGEST, _STRONGEST, clip=True)
    figure, panels = canvas_grid(0.36 * len(counts) + 1.1, 1, len(against), sharey=True)
    for axes, other in zip(panels, against):
        for cell in cells:
            x, y = sizes.index(cell["n"]), counts.index(cell["count"])
            ratio = cell["us"][other] / cell["us"][provider]
            color = _SLOWER_FASTER(norm(ratio))
            rectangle(axes, x, y, 1, 1, fc=color, ec="white", lw=1.5)
            text = f"{ratio:.{2 if ratio < 2 else 1 if ratio < 9.95 else 0}f}"
            centred(axes, x + 0.5, y + 0.5, text, fontsize=9, color=ink_on(color))
        axes.set(xlim=(0, len(sizes)), ylim=(len(counts), 0))
        axes.set_xticks([i + 0.5 for i in range(len(sizes))], [str(n) for n in sizes], fontsize=9)
        axes.set_yticks([i + 0.5 for i in range(len(counts))], [str(count) for count in counts])
        axes.tick_params(length=0, labelcolor=BLACK)
        axes.spines[:].set_visible(False)
        axes.set_xlabel("N, of N × N × N")
        axes.set_title(f"{provider} against {other}: times faster")
    panels[0].set_ylabel("problems")
    return figure
