"""Schedules without timelines: waves, reuse of operands, memory traffic, and model against record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.collections import PatchCollection
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from course_kernels.schedule import tiles
from gemm_course.figures.shapes import bare, canvas, canvas_grid, name_rows, rectangle
from gemm_course.figures.style import BLACK, BLUE, FAINT, GREEN, GREY, ORANGE, PINK, as_ink, drawing


@drawing
def waves(programs: int, marks: Sequence[int]) -> Figure:
    """Draw the best utilisation of equal tiles over their number: tiles / (waves × programs), a saw-tooth.

    ``marks`` are numbers of tiles to mark and label.
    """
    longest = 8  # waves on the axis
    counts = list(range(1, longest * programs + 1))
    best = [count / (-(-count // programs) * programs) for count in counts]
    figure, ax = canvas(2.6)
    ax.plot(counts, best, color=BLUE, lw=1.2)
    for count in marks:
        share = count / (-(-count // programs) * programs)
        ax.plot([count], [share], "o", color=ORANGE, ms=6)
        # Above the teeth: in the first wave at the axis, later towards the nearer side of a full wave.
        left = count > programs and count % programs > programs / 2
        start = 0.02 * programs if count <= programs else count
        ax.plot([count, count], [share, 1.1], color=ORANGE, lw=0.8, zorder=1)
        height = 1.12 if count > programs else 1.3
        ax.plot([count, count], [1.1, height - 0.02], color=ORANGE, lw=0.8, zorder=1)
        ax.text(start, height, f"{count} tiles: {share:.0%}", fontsize=9, ha="right" if left else "left")
    for wave in range(1, longest + 1):
        ax.axvline(wave * programs, color=FAINT, lw=0.8, zorder=0)
    ax.set_xticks([wave * programs for wave in range(longest + 1)])
    ax.set(xlim=(0, longest * programs * 1.02), ylim=(0, 1.48))
    ax.set_yticks([0, 0.5, 1], ["0", "50%", "100%"])
    ax.set_xlabel(f"tiles of equal cost on {programs} programs")
    ax.set_title("Best possible utilisation: a wave that is not full costs as much as a full one")
    return figure


@drawing
def working_set(problem: Sequence[int], block: Sequence[int], programs: int, group_ms: Sequence[int]) -> Figure:
    """Draw the tiles of one problem that run first, and the panels of A (left) and B (above) that they read.

    Args:
        problem, block: (M, N, K) and (BLOCK_M, BLOCK_N, ...).
        programs: tiles in the first wave.
        group_ms: tile rows per strip of the order, a panel for each.
    """
    figure, axes = canvas_grid(3.5, 1, len(group_ms))
    rows, cols = -(-problem[0] // block[0]), -(-problem[1] // block[1])
    high, wide = block[0] / block[1], 1.0  # in units of BLOCK_N, so that tiles keep their shape
    margin = 0.06 * cols * wide
    for ax, group_m in zip(axes, group_ms, strict=True):
        first = tiles([problem], block[0], block[1], group_m)[:programs]
        used_m, used_n = sorted({tile.m for tile in first}), sorted({tile.n for tile in first})
        rectangle(ax, 0, 0, cols * wide, rows * high, fc="white", ec=GREY, lw=0.8)
        for name, color, boxes in (
            ("C", BLUE, [Rectangle((tile.n * wide, tile.m * high), wide, high) for tile in first]),
            ("A", ORANGE, [Rectangle((-margin * 1.3, m * high), margin, high) for m in used_m]),
            ("B", GREEN, [Rectangle((n * wide, -margin * 1.3), wide, margin) for n in used_n]),
        ):
            ax.add_collection(PatchCollection(boxes, facecolor=color, edgecolor="white", lw=0.3, label=name))
        read = (len(used_m) * block[0] + len(used_n) * block[1]) * problem[2] * 2
        text = f"group_m = {group_m}: {read / 1e6:.0f} MB of A and B\n"
        text += f"{len(used_m)} row panels, {len(used_n)} column panels"
        ax.text(-margin * 2.6, -margin * 3.4, text, fontsize=9, va="bottom")
        ax.text(
            -margin * 1.7, len(used_m) * high / 2, "A", color=as_ink(ORANGE), ha="right", va="center", weight="bold"
        )
        ax.text(
            len(used_n) * wide / 2, -margin * 1.5, "B", color=as_ink(GREEN), ha="center", va="bottom", weight="bold"
        )
        bare(ax, (-margin * 3, cols * wide * 1.02), (rows * high * 1.02, -margin * 6), equal=True)
    return figure


@drawing
def traffic(rows: Mapping[str, Mapping[str, float]], *, compulsory: float) -> Figure:
    """Draw bytes read from memory as bars in MB, several estimates or measurements per row.

    Args:
        rows: row label → name → bytes; the same names in every row, at most three. The last has the darkest colour.
        compulsory: bytes that any order must read, drawn as a line.
    """
    names = list(next(iter(rows.values())))
    colors = dict(zip(names, (FAINT, "#BBBBBB", BLUE)[-len(names) :], strict=True))
    figure, ax = canvas(1.05 * len(rows) + 0.8)
    step = 0.8 / len(names)
    for row, values in enumerate(rows.values()):
        for position, name in enumerate(names):
            at = row - 0.4 + (position + 0.5) * step
            size = values[name] / 1e6
            ax.barh(at, size, height=step * 0.92, color=colors[name])
            ax.text(size, at, f" {size:,.0f} MB   {name}", va="center", fontsize=9, color=BLACK)
    ax.axvline(compulsory / 1e6, color=BLACK, lw=1, ls="--")
    ax.text(compulsory / 1e6, -0.52, " each operand read once", fontsize=9, va="bottom")
    ax.set_yticks(range(len(rows)), list(rows))
    ax.set_ylim(len(rows) - 0.5, -0.75)
    ax.set_xlim(0, max(max(values.values()) for values in rows.values()) / 1e6 * 1.25)
    ax.set_xlabel("MB read from memory")
    return figure


@drawing
def model_against_record(rows: Mapping[str, tuple[float, ...]], names: Sequence[str]) -> Figure:
    """Draw one or two predicted times per row over the recorded one, as dots joined by a line; 1 is the record.

    The last of ``names`` is the record, in microseconds; its times are beside the rows' names.
    """
    figure, ax = canvas(0.28 * len(rows) + 1.0)
    styles = ((GREY, "o", "white"), (PINK, "s", PINK))
    most = least = 1.0
    for row, (label, times) in enumerate(rows.items()):
        if len(times) != len(names):
            raise ValueError(f"rows[{label!r}] is {times}; want {len(names)} times, for {', '.join(names)}")
        ratios = [time / times[-1] for time in times[:-1]]
        least, most = min(least, *ratios), max(most, *ratios)
        ax.plot([min(1, *ratios), max(1, *ratios)], [row, row], color=FAINT, lw=3, zorder=1)
        for ratio, name, (color, marker, face) in zip(ratios, names, styles):
            ax.plot([ratio], [row], marker, ms=7, mec=color, mfc=face, zorder=3, label=name if row == 0 else "_")
    ax.axvline(1, color=BLUE, lw=1.5, zorder=2, label=names[-1])
    name_rows(ax, [f"{label}   ({times[-1]:.0f} µs)" for label, times in rows.items()])
    room = 0.05 * (most - least)
    ax.set_xlim(least - room, most + 6 * room)
    ax.grid(axis="x", color=FAINT, lw=0.6)
    ax.set_axisbelow(True)
    ax.set_xlabel(f"time over that of the {names[-1]} (its µs in brackets)")
    ax.legend(loc="lower right", fontsize=9, frameon=True, edgecolor="none")
    return figure


@drawing
def tile_times(recorded: Sequence[tuple[int, float]], lines: Mapping[str, tuple[float, float]]) -> Figure:
    """Draw the time of recorded tiles over their length, and models as straight lines.

    Args:
        recorded: (steps of BLOCK_K, microseconds) of each tile.
        lines: name → (microseconds per tile, microseconds per step).
    """
    figure, ax = canvas(2.8)
    # Tiles of one problem all have the same length: spread them a little, always in the same way.
    xs = [steps + (i * 0.618 % 1 - 0.5) * 0.8 for i, (steps, _) in enumerate(recorded)]
    ax.plot(xs, [us for _, us in recorded], ".", ms=7, color=BLUE, alpha=0.5, mew=0, label="recorded")
    longest = max(steps for steps, _ in recorded)
    _, lowest = min(recorded, key=lambda tile: (-tile[0], tile[1]))
    below = {"xytext": (0, -10), "textcoords": "offset points", "ha": "center", "va": "top"}
    ax.annotate("recorded tiles", (longest, lowest), color=BLUE, fontsize=9, **below)
    for (name, (fixed, per_step)), color in zip(lines.items(), (GREY, ORANGE, GREEN)):
        end = fixed + longest * per_step
        ax.plot([0, longest], [fixed, end], color=color, lw=1.5, label=name)
        label = f" {name}: {fixed:.1f} µs\n + {per_step:.2f} µs per step"
        ax.text(longest * 1.015, end, label, color=as_ink(color), fontsize=9, va="center")
    ax.set_ylim(bottom=0)
    ax.set(xlim=(0, longest * 1.24), xlabel="steps of the loop over K", ylabel="µs per tile")
    return figure
