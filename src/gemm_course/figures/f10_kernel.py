"""The Hopper kernel in pictures: its warps' roles, its ring of stages, its two schedules, and recorded gains.

Sizes come from a configuration, times from a small model, `lessons.l10_ring.simulate`; only `gains` shows
measurements.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from course_kernels.kernels.cute_sm90.config import COOPERATIVE, MMA_ROWS, PINGPONG, WARP_GROUP, CuteConfig
from gemm_course.figures.shapes import bare, canvas_grid, centred, rectangle, ticks_at
from gemm_course.figures.style import BLACK, BLUE, DIM, GREEN, GREY, ORANGE, SKY, color_of, drawing, ink_on
from gemm_course.lessons.l10_ring import Step, Store, busy

_REGISTERS = 64 * 1024  # of an SM
_CONSUMERS = (ORANGE, GREEN)


@drawing
def roles(configs: Sequence[CuteConfig], loading: int, multiplying: int) -> Figure:
    """Draw a CTA's three warp groups with their threads' registers, and the rows of C that each one computes.

    Areas are registers, the full parts of the columns are sums. Tiles of C have one scale.

    Args:
        loading, multiplying: registers per thread of the first warp group, and of the other two.
    """
    figure, panels = canvas_grid(2.75 * len(configs), len(configs), 2, width_ratios=(1.6, 1))
    across = max((3 - config.sharing_groups) * config.tile_n for config in configs)
    high = max(config.tile_m for config in configs)
    for left, right, config in zip(panels[::2], panels[1::2], configs):
        _registers(left, config, loading, multiplying)
        for tile in range(3 - config.sharing_groups):
            for i in range(config.tile_m // MMA_ROWS):
                group = i % 2 if config.schedule == COOPERATIVE else tile
                rectangle(right, tile * (config.tile_n + 12), i * MMA_ROWS, config.tile_n, MMA_ROWS,
                          fc=_CONSUMERS[group], ec="white", lw=1, gid=f"rows of {group + 1}")  # fmt: skip
        what = f"one tile, {MMA_ROWS} rows for each" if config.schedule == COOPERATIVE else "a tile each"
        right.set_title(f"{what}: {config.tile_m} × {config.tile_n} of C", fontsize=10)
        bare(right, (-4, across + 16), (high + 4, -4), equal=True)
    return figure


def _registers(axes, config: CuteConfig, loading: int, multiplying: int) -> None:
    sums = config.tile_m * config.tile_n // (WARP_GROUP * config.sharing_groups)
    columns = ((BLUE, loading, 0), *((color, multiplying, sums) for color in _CONSUMERS))
    for group, (color, registers, full) in enumerate(columns):
        x = group * (WARP_GROUP + 12)
        rectangle(axes, x, 0, WARP_GROUP, registers, fc=color, alpha=0.35, gid="registers")
        if full:
            rectangle(axes, x, 0, WARP_GROUP, full, fc=color, gid="sums")
            text = f"{full} of a thread's {registers}\nare sums"
            centred(axes, x + WARP_GROUP / 2, full / 2, text, fontsize=9, color=ink_on(color))
        else:
            centred(axes, x + WARP_GROUP / 2, registers / 2, str(registers), fontsize=9)
    for words, x, width in (("loads", 0, 32), ("write zeros", 32, 96)):
        axes.text(x + width / 2, loading + 6, words, ha="center", va="bottom", fontsize=9, color=BLACK)
    axes.plot([32, 32], [0, loading], color="white", lw=1.5)
    share = _REGISTERS // (len(columns) * WARP_GROUP) // 8 * 8
    end = 3 * WARP_GROUP + 24
    axes.plot([0, end], [share, share], color=BLACK, lw=1.2, ls="--", gid="share")
    axes.text(0, share + 4, f"an equal share: {share}", fontsize=9, va="bottom", color=BLACK)
    names = ["1 warp and 3 warps", *["multiply, store"] * 2]
    axes.set_xticks([i * (WARP_GROUP + 12) + WARP_GROUP / 2 for i in range(3)], names, fontsize=9, color=BLACK)
    axes.tick_params(length=0)
    axes.set(xlim=(0, end), ylim=(0, 1.08 * max(multiplying, sums)), yticks=[])
    axes.spines["left"].set_visible(False)
    name = {PINGPONG: "ping-pong"}.get(config.schedule, config.schedule)
    axes.set_title(f"{name}: registers of a CTA's 3 × {WARP_GROUP} threads", fontsize=10)


def _name_lanes(axes, places: Mapping[str, float], size: float) -> None:
    axes.set_yticks(list(places.values()), list(places), fontsize=size)
    axes.tick_params(left=False, labelcolor=BLACK)
    axes.spines["left"].set_visible(False)


@drawing
def ring(runs: Mapping[str, tuple[Sequence[Step], Sequence[Store]]]) -> Figure:
    """Draw the states of every stage over time: empty, on its way, full, multiplied, given back.

    ``runs`` has what `simulate` returns. A panel has a line for each stage, and one for the warp groups.
    """
    lines = [max(step.stage for step in steps) + 2 for steps, _ in runs.values()]
    last = max(store.end for _, stores in runs.values() for store in stores)
    height = 0.36 * sum(lines) + 0.45 * len(runs) + 0.7
    figure, panels = canvas_grid(height, len(runs), 1, sharex=True, height_ratios=lines)
    for axes, (name, (steps, stores)), count in zip(panels, runs.items(), lines):
        for step in steps:
            parts = (("on its way", step.asked, step.full, SKY), ("full", step.full, step.start, BLUE),
                     ("multiplied", step.start, step.end, GREEN), ("kept", step.end, step.free, GREEN))  # fmt: skip
            for kind, start, end, color in parts:
                if end > start:
                    alpha = {"on its way": 0.45, "kept": 0.35}.get(kind, 1.0)
                    rectangle(axes, start, step.stage, end - start, 0.82, fc=color, alpha=alpha, ec="none", gid=kind)
            look = dict(va="center_baseline", fontsize=9)
            centred(axes, (step.start + step.end) / 2, step.stage + 0.41, str(step.block), color=ink_on(GREEN), **look)
            rectangle(axes, step.start, count - 0.85, step.end - step.start, 0.82, fc=GREEN, gid="product")
            axes.plot(step.full, step.stage + 0.08, marker="v", color=BLACK, ms=4, gid="full barrier")
            axes.plot(step.free, step.stage + 0.08, marker="v", mfc="white", mec=BLACK, ms=4, zorder=3,
                      gid="empty barrier")  # fmt: skip
        for store in stores:
            width = store.end - store.start
            rectangle(axes, store.start, count - 0.85, width, 0.82, fc=ORANGE, gid="store")
            centred(axes, store.start + width / 2, count - 0.44, "store", va="center_baseline", fontsize=9)
        lanes = {f"stage {i}": i + 0.41 for i in range(count - 1)} | {"warp groups": count - 0.44}
        _name_lanes(axes, lanes, 8.5)
        axes.set(xlim=(0, last + 0.3), ylim=(count + 0.05, -0.1))
        axes.set_title(f"{name}: the last tile is stored after {stores[-1].end:g}", fontsize=10)
    panels[-1].set_xlabel("time (the product of one block = 1)", fontsize=9, color=DIM)
    looks = ((SKY, 0.45), (BLUE, 1), (GREEN, 1), (GREEN, 0.35))
    handles = [Rectangle((0, 0), 1, 1, fc=color, alpha=alpha) for color, alpha in looks]
    marks = [panels[0].plot([], [], marker="v", ls="", mfc=fill, mec=BLACK, ms=4)[0] for fill in (BLACK, "white")]
    words = ["on its way", "full, waits", "multiplied", "kept", "“full” is reported", "“empty” is reported"]
    figure.legend([*handles, *marks], words, loc="outside upper left", ncols=6, fontsize=9, columnspacing=1.2)
    return figure


@drawing
def warp_group_turns(runs: Mapping[str, tuple[Sequence[Step], Sequence[Store]]]) -> Figure:
    """Draw the work of two warp groups over time, and of the tensor cores that they share.

    ``runs`` has what `simulate` returns. A tile has one colour, paler while it is stored.
    """
    last = max(store.end for _, stores in runs.values() for store in stores)
    figure, panels = canvas_grid(1.6 * len(runs) + 0.3, len(runs), 1, sharex=True)
    for axes, (name, (steps, stores)) in zip(panels, runs.items()):
        for store in stores:
            groups = (0, 1) if store.group is None else (store.group,)
            mine = [step for step in steps if step.tile == store.tile]
            color = color_of(store.tile)
            for step in mine:
                rectangle(axes, step.start, 2.2, step.end - step.start, 0.9, fc=color, gid="product")
            for group in groups:
                y, start, end = 1.0 * group, mine[0].start, mine[-1].end
                rectangle(axes, start, y, end - start, 0.9, fc=color, gid=f"multiplies {group + 1}")
                centred(axes, (start + end) / 2, y + 0.45, f"tile {store.tile}", fontsize=9, color=ink_on(color))
                rectangle(axes, store.start, y, store.end - store.start, 0.9, fc=color, alpha=0.35, gid="store")
                if store.end - store.start > 0.045 * last:  # else there is no room for the word
                    centred(axes, (store.start + store.end) / 2, y + 0.45, "store", fontsize=9)
        _name_lanes(axes, {"warp group 1": 0.45, "warp group 2": 1.45, "tensor cores": 2.65}, 9)
        axes.set(xlim=(0, last + 0.3), ylim=(3.2, -0.1))
        axes.set_title(f"{name}: the tensor cores multiply {busy(steps):.0%} of the time", fontsize=10)
    panels[-1].set_xlabel("time (the product of one block = 1)", fontsize=9, color=DIM)
    return figure


@drawing
def gains(found: Mapping[str, Sequence[tuple[float, float]]]) -> Figure:
    """Draw how much faster each change made each recorded product: a strip of all products, sorted, with the median.

    ``found`` has what `ratios` returns: (K, time before / time after). A darker dot is a deeper product.
    """
    figure, panels = canvas_grid(0.75 * len(found) + 1.2, len(found), 1, sharex=True)
    depths = [depth for points in found.values() for depth, _ in points]
    shade = mpl.colors.LogNorm(min(depths), max(max(depths), 2 * min(depths)))
    colors = mpl.colors.LinearSegmentedColormap.from_list("depth", [SKY, BLUE, BLACK])
    for axes, (name, points) in zip(panels, found.items()):
        ordered = sorted(points, key=lambda point: point[1])
        factors = [factor for _, factor in ordered]
        middle = statistics.median(factors)
        places = [(i + 0.5) / len(ordered) for i in range(len(ordered))]
        dots = axes.scatter(factors, places, s=16, c=[depth for depth, _ in ordered], cmap=colors, norm=shade, lw=0,
                            gid="rows", zorder=3)  # fmt: skip
        axes.axvline(1, color=GREY, lw=1)
        axes.axvline(middle, color=ORANGE, lw=1.8, gid="median")
        axes.set(ylim=(-0.05, 1.05), yticks=[])
        axes.set_title(f"{name}: median {middle:.2f}, {len(points)} products", fontsize=9.5)
    panels[-1].set_xlabel("time before / time after: right of 1 (grey) it is faster; each panel is sorted", fontsize=9)
    bar = figure.colorbar(dots, ax=list(panels), pad=0.01, aspect=12 * len(found))
    ticks_at(bar.ax.yaxis, [4**i for i in range(9)], min(depths), max(depths))
    bar.ax.set_ylabel("K", fontsize=9)
    return figure
