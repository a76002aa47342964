"""One launch per problem: how much of a GPU each launch fills, and where grouping pays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from gemm_course.figures.style import BLACK, BLUE, FAINT, RED, WIDTH, ink_on, styled

_SLOWER_FASTER = mpl.colors.LinearSegmentedColormap.from_list("ratio", [RED, "#F2C48D", "#FFFFFF", "#9CCBE8", BLUE])
_STRONGEST = 8.0  # a ratio of 8 has the strongest colour, so that 0.8 and 1.2 can still be told from 1


@styled()
def sm_fill(tiles: Mapping[str, int], sms: int) -> Figure:
    """Draw which share of a GPU's SMs a launch keeps busy, when every SM runs one tile at a time.

    Args:
        tiles: name of a launch → its number of tiles.
        sms: number of SMs.

    Returns:
        One bar per launch, as long as the share of the slots in its waves that hold a tile.

    Raises:
        ValueError: no launch, a launch without tiles, or no SM.
    """
    if not tiles or min(tiles.values()) < 1 or sms < 1:
        raise ValueError(f"tiles and sms must be positive, got {dict(tiles)} and {sms}")
    figure = Figure(figsize=(WIDTH, 0.42 * len(tiles) + 0.9))
    axes = figure.subplots()
    for row, count in enumerate(tiles.values()):
        waves = -(-count // sms)
        share = count / (waves * sms)
        axes.barh(row, 1.0, color=FAINT, height=0.7)
        axes.barh(row, share, color=BLUE, height=0.7)
        text = f"{count} tile{'s' * (count > 1)} in {waves} wave{'s' * (waves > 1)}: {share:.0%} of the slots"
        inside = share > 0.5
        axes.text(share - 0.01 if inside else share + 0.01, row, text, ha="right" if inside else "left", va="center",
                  fontsize=9, color="white" if inside else BLACK)  # fmt: skip
    axes.set_yticks(range(len(tiles)), list(tiles), color=BLACK)
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(len(tiles) - 0.5, -0.5)
    axes.set_xlim(0, 1)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    axes.spines["left"].set_visible(False)
    axes.set_title(f"{sms} SMs, one tile each at a time: blue works, grey waits")
    return figure


@styled()
def speedups(cells: Sequence[Mapping], provider: str, against: Sequence[str]) -> Figure:
    """Draw how many times faster a provider is than others, over the number of problems and their size.

    Args:
        cells: each {"count": G, "n": N, "us": {provider: microseconds}}, for G problems N × N × N.
        provider: whose speed is shown.
        against: providers to compare with, a panel each.

    Returns:
        A grid per panel with a number per cell: above 1 (blue) where ``provider`` is faster, below 1 (red) where it
        is slower.

    Raises:
        ValueError: no cells, nobody to compare with, or a cell without one of the providers.
    """
    if not cells or not against or any(name not in cell["us"] for cell in cells for name in (provider, *against)):
        raise ValueError(f"cells must have times of {provider!r} and of {list(against)}, one of which is not there")
    counts, sizes = sorted({cell["count"] for cell in cells}), sorted({cell["n"] for cell in cells})
    norm = mpl.colors.LogNorm(1 / _STRONGEST, _STRONGEST, clip=True)
    figure = Figure(figsize=(WIDTH, 0.36 * len(counts) + 1.1))
    panels = figure.subplots(1, len(against), sharey=True, squeeze=False)[0]
    for axes, other in zip(panels, against):
        for cell in cells:
            x, y = sizes.index(cell["n"]), counts.index(cell["count"])
            ratio = cell["us"][other] / cell["us"][provider]
            color = _SLOWER_FASTER(norm(ratio))
            axes.add_patch(Rectangle((x, y), 1, 1, facecolor=color, edgecolor="white", linewidth=1.5))
            text = f"{ratio:.{2 if ratio < 2 else 1 if ratio < 9.95 else 0}f}"
            axes.text(x + 0.5, y + 0.5, text, ha="center", va="center", fontsize=9, color=ink_on(color))
        axes.set_xlim(0, len(sizes))
        axes.set_ylim(len(counts), 0)
        axes.set_xticks([i + 0.5 for i in range(len(sizes))], [str(n) for n in sizes], fontsize=9)
        axes.set_yticks([i + 0.5 for i in range(len(counts))], [str(count) for count in counts])
        axes.tick_params(length=0, labelcolor=BLACK)
        axes.spines[:].set_visible(False)
        axes.set_xlabel("N, of N × N × N")
        axes.set_title(f"{provider} against {other}: times faster")
    panels[0].set_ylabel("problems")
    return figure
