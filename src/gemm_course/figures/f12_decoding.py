"""Decoding: few rows under the roof, packed beside masked rows, what padding costs, rows written, recorded rates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise

from matplotlib.figure import Figure
from matplotlib.patches import Patch

from gemm_course.figures.matrices import STATE_COLORS
from gemm_course.figures.shapes import bare, canvas_grid, centred, rectangle, spread_apart, ticks_at
from gemm_course.figures.style import BLACK, BLUE, FAINT, GREEN, GREY, ORANGE, PINK, SKY, color_of, drawing, ink_on
from gemm_course.lessons.canaries import STATES, row_states
from gemm_course.lessons.l12_decoding import Step, Work

_POWERS = [2**i for i in range(16)]


@drawing
def under_the_roof(
    steps: Mapping[str, Sequence[Step]],
    peaks: Mapping[str, float],
    tb_s: float,
    measured: Mapping[str, Sequence[tuple[int, float]]],
    named: Sequence[int] = (1, 16, 128),
) -> Figure:
    """Draw steps of 1 to many rows a group under the roof of each dtype, and the least time of each step.

    Args:
        steps: dtype → its steps, rows ascending; the first dtype's points are large.
        peaks: dtype → TFLOP/s.
        tb_s: bandwidth of the memory.
        measured: dtype → (rows, microseconds) of kernels, drawn as crosses.
        named: rows whose points are labelled.
    """
    figure, (roof, time) = canvas_grid(3.7, 1, 2, width_ratios=(1.15, 1))
    ends = [step.flops / step.moved for found in steps.values() for step in (found[0], found[-1])]
    low, high, top = min(ends) / 4, max(ends) * 1.6, max(peaks.values())
    for order, (name, found) in enumerate(steps.items()):
        peak, color = peaks[name], (BLUE, ORANGE)[order]
        ridge = peak / tb_s
        roof.plot([low, ridge, high], [low * tb_s, peak, peak], color=color, lw=1.6, zorder=2 - order)
        side = ("top", 0.5) if order == 0 else ("bottom", 1.12)
        roof.text(high, peak * side[1], f"{name}: {peak:,.0f} TFLOP/s", ha="right", va=side[0], fontsize=9)
        x = [step.flops / step.moved for step in found]
        y = [min(peak, intensity * tb_s) for intensity in x]
        roof.plot(x, y, "o", color=color, ms=6 - 2 * order, zorder=3, gid=f"roof {name}")
        for step, at, rate in zip(found, x, y):
            if order == 0 and step.rows in named:
                note = f"{step.rows} row" + "s" * (step.rows > 1)
                roof.annotate(note, (at, rate), (-9, 2), textcoords="offset points", fontsize=9, ha="right")
        time.plot([s.rows for s in found], [s.us for s in found], color=color, lw=2, gid=f"time {name}")
        time.text(11, found[0].us * 1.08, name, fontsize=9, va="bottom")
        time.plot(*zip(*measured[name]), "x", color=BLACK, ms=7, mew=1.6, zorder=4, gid=f"measured {name}")
    roof.text(0.03, 0.97, f"slope: memory, {tb_s:.2f} TB/s", transform=roof.transAxes, fontsize=9, va="top")
    roof.set(xscale="log", yscale="log", xlim=(low, high), ylim=(low * tb_s, top * 2))
    ticks_at(roof.xaxis, _POWERS[::2], low, high)
    ticks_at(roof.yaxis, _POWERS[::2], low * tb_s, top * 2)
    roof.set(
        xlabel="FLOP per byte that must move",
        ylabel="TFLOP/s at best",
        title="the most that memory and arithmetic allow",
    )
    rows = [step.rows for step in next(iter(steps.values()))]
    time.set(xscale="log", yscale="log", xlabel="rows of each group", ylabel="µs at least")
    time.set_title("the least time of a step")
    ticks_at(time.xaxis, _POWERS[::2], rows[0], rows[-1])
    low, high = time.get_ylim()
    ticks_at(time.yaxis, (1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000), low, high, "{:,.0f}")
    time.text(0.03, 0.97, "× recorded time of a kernel", transform=time.transAxes, fontsize=9, va="top")
    return figure


@drawing
def packed_and_masked(sizes: Sequence[int], max_m: int, group: int) -> Figure:
    """Draw the same groups packed one after the other, and in ``max_m`` slots each, to one scale.

    Args:
        sizes: rows of each group.
        max_m: slots of each group; at least the largest size.
        group: the group whose first row is pointed at, with what decides where it is.
    """
    if max(sizes) > max_m:
        raise ValueError(f"max_m must be at least the largest size, {max(sizes)}, got {max_m}")
    figure, (left, right) = canvas_grid(4.0, 1, 2, width_ratios=(1, 2.2))
    total, bounds = sum(sizes), list(pairwise([0, *accumulate(sizes)]))
    height = max(total, max_m + 14)
    for g, (start, end) in enumerate(bounds):
        for row in range(start, end):
            rectangle(left, 0, row, 2.6, 1, fc=color_of(g), ec="white", lw=0.7, gid=f"packed {g}")
        if start < end:
            left.text(-0.15, (start + end) / 2, f"group {g}", ha="right", va="center", fontsize=9)
    for (_, end), y in zip(bounds, spread_apart([end for _, end in bounds], 2.6)):
        left.text(3.2, y, f"{end}", va="center", fontsize=9)
        left.plot([2.65, 3.1], [end, y], color=GREY, lw=0.8)
    left.text(3.4, -1, "offs", va="bottom", ha="center", fontsize=10, fontweight="bold")
    left.set_title(f"packed: ({total}, K)", fontsize=10)
    bare(left, (-2.2, 5.2), (height + 1, -3))

    for g, size in enumerate(sizes):
        for slot in range(max_m):
            used = slot < size
            look = dict(fc=color_of(g), ec="white") if used else dict(fc="white", ec=FAINT, hatch="////")
            rectangle(right, 3 * g, slot, 2.6, 1, lw=0.7, gid=f"used {g}" if used else f"unused {g}", **look)
        rectangle(right, 3 * g, 0, 2.6, max_m, fill=False, ec=GREY, lw=0.8)
        box = dict(boxstyle="round,pad=0.3", fc=color_of(g), ec="none")
        centred(right, 3 * g + 1.3, max_m + 3, str(size), fontsize=10, color=ink_on(color_of(g)), bbox=box)
        right.text(3 * g + 1.3, -0.4, f"group {g}", ha="center", va="bottom", fontsize=9)
    right.text(-0.3, max_m + 3, "group_layout", ha="right", va="center", fontsize=10, fontweight="bold")
    right.text(-0.3, 0, "slot 0", ha="right", va="top", fontsize=9)
    right.text(-0.3, max_m, f"slot {max_m - 1}", ha="right", va="bottom", fontsize=9)
    notes = (
        f"{total} rows, {len(sizes) * max_m} slots.",
        f"Packed, group {group} starts at row {bounds[group][0]}: the sum of all sizes before it.",
        f"Masked, it starts at slot {group} × {max_m} = {group * max_m}, whatever the others hold.",
    )
    for line, text in enumerate(notes):
        right.text(-4.8, max_m + 8 + 4 * line, text, fontsize=9.5, va="center")
    right.set_title(f"masked: ({len(sizes)}, {max_m}, K)", fontsize=10)
    bare(right, (-5.2, 3 * len(sizes)), (height + 1, -3))
    return figure


@drawing
def waste(ways: Mapping[str, Mapping[str, Work]], formats: Mapping[str, str]) -> Figure:
    """Draw what each way costs, a panel per quantity: needed solid, wasted hatched.

    Args:
        ways: way → quantity → its `Work`; the same quantities in every way.
        formats: quantity → format of a number with its unit, as "{:.0f} MB".
    """
    quantities = list(formats)
    figure, panels = canvas_grid(0.42 * len(ways) + 1.2, 1, len(quantities), sharey=True)
    for axes, quantity in zip(panels, quantities):
        top = max(way[quantity].total for way in ways.values()) or 1.0
        for row, (name, way) in enumerate(ways.items()):
            needed, total = way[quantity]
            axes.barh(row, needed, height=0.62, color=BLUE, gid=f"needed {name}")
            axes.barh(row, total - needed, left=needed, height=0.62, color="white", edgecolor=ORANGE, hatch="////",
                      gid=f"wasted {name}")  # fmt: skip
            axes.text(total + top * 0.03, row, formats[quantity].format(total), va="center", fontsize=9)
        axes.set_title(quantity, fontsize=10)
        axes.set_xlim(0, top * 1.42)
        axes.set_xticks([])
        axes.spines["bottom"].set_visible(False)
        axes.tick_params(axis="y", length=0)
    panels[0].set_yticks(range(len(ways)), list(ways), color=BLACK)
    panels[0].set_ylim(len(ways) - 0.5, -0.5)
    handles = [Patch(fc=BLUE), Patch(fc="white", ec=ORANGE, hatch="////")]
    figure.legend(handles, ["needed", "wasted"], loc="outside lower right", ncols=2, fontsize=9)
    return figure


@drawing
def written_rows(runs: Mapping[str, tuple], canary: float) -> Figure:
    """Draw the slots of masked results, a panel per run: right, wrong, or untouched; a line where each group ends.

    Args:
        runs: name → (result, want, sizes), as `row_states` takes them.
        canary: the number that results were filled with.
    """
    figure, panels = canvas_grid(2.7, 1, len(runs))
    present = set()
    for axes, (name, (result, want, sizes)) in zip(panels, runs.items()):
        states = row_states(result, want, sizes, canary)
        groups, max_m = states.shape
        present |= set(states.ravel().tolist())
        for g, size in enumerate(sizes):
            for slot in range(max_m):
                color = STATE_COLORS[states[g, slot]]
                rectangle(axes, g, slot, 0.86, 1, fc=color, ec="white", lw=0.5, gid=STATES[states[g, slot]])
            axes.plot([g, g + 0.86], [min(size, max_m)] * 2, color=BLACK, lw=1.6, zorder=3)
            centred(axes, g + 0.43, max_m * 1.09, str(size), fontsize=9)
        axes.text(-0.25, max_m * 1.09, "rows", ha="right", va="center", fontsize=9)
        axes.set_title(name, fontsize=10)
        bare(axes, (-1.6, groups), (max_m * 1.16, -0.02 * max_m))
    handles = [Patch(fc=STATE_COLORS[state], ec=GREY, lw=0.5) for state in sorted(present)]
    figure.legend(handles, [STATES[state] for state in sorted(present)], loc="outside lower right",
                  ncols=len(present), fontsize=9)  # fmt: skip
    return figure


# Kinds of operands of the record "masked", and their titles.
_KINDS = {"float8": "float8, a scale per row and group", "float8 blocks": "float8, block scales"}
# Providers of the record "masked", ours first, in the order of the bars.
_PROVIDERS = {
    "cute": ("deepgemm (cute)", BLUE),
    "triton": ("deepgemm (triton)", SKY),
    "triton, shuffled": ("deepgemm (triton), shuffled weights", GREEN),
    "torch": ("deepgemm (torch loop)", GREY),
    "torch.bmm, all rows": ("torch.bmm, all slots", ORANGE),
    "torch grouped_mm, packed": ("torch's grouped product, packed", PINK),
    "torch scaled_grouped_mm, packed": ("torch's grouped product, packed", PINK),
}


@drawing
def masked_rates(results: Mapping, rows: int, unit: str) -> Figure:
    """Draw the rates of masked products with few rows a group, a panel for each kind of operands.

    Args:
        results: the record "masked".
        rows: expected rows of a group; the record's other cells are left out.
        unit: "tb_s", with the bandwidth of a copy as a line, or "tflops".
    """
    cells = [cell for cell in results["cells"].values() if cell["rows"] == rows]
    if not cells:
        known = sorted({cell["rows"] for cell in results["cells"].values()})
        raise ValueError(f"rows must be one of {known}, got {rows}")
    if unit not in ("tb_s", "tflops"):
        raise ValueError(f"unit must be 'tb_s' or 'tflops', got {unit!r}")
    kinds = list(cells[0]["kinds"])
    height = max(len(about["rates"]) for cell in cells for about in cell["kinds"].values()) + 2
    figure, panels = canvas_grid(0.17 * height * len(cells) + 1.2, 1, len(kinds), sharex=True)
    labels = {}
    for axes, kind in zip(panels, kinds):
        for top, cell in enumerate(cells):
            rates = cell["kinds"][kind]["rates"]
            axes.text(0, top * height, f"N {cell['N']}, K {cell['K']}", fontsize=9, va="center")
            for at, name in enumerate((name for name in _PROVIDERS if name in rates), top * height + 1):
                value, (label, color) = rates[name][unit], _PROVIDERS[name]
                labels[label] = color
                axes.barh(at, value, height=0.88, color=color, gid=name)
                number = f"{value:.2f} " if unit == "tb_s" else f"{value:.0f} "
                axes.text(value, at, number, fontsize=9, ha="right", va="center_baseline", color=ink_on(color))
        if unit == "tb_s":
            axes.axvline(results["copy_tb_s"], color=BLACK, lw=1, gid="copy")
        axes.set_ylim(height * len(cells) - 1, -1)
        axes.set_yticks([])
        axes.spines["left"].set_visible(False)
        axes.set_title(_KINDS.get(kind, kind), fontsize=10)
    handles = [Patch(fc=color) for color in labels.values()]
    figure.legend(handles, list(labels), loc="outside upper left", ncols=3, fontsize=9)
    what = (
        "TB/s, counting the bytes that must move; the line is a copy" if unit == "tb_s" else "TFLOP/s that are needed"
    )
    figure.supxlabel(f"{cells[0]['groups']} groups of about {rows} rows: {what}", fontsize=9)
    return figure
