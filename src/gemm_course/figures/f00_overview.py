"""The picture of the whole course: tokens, a router, experts of unequal size, and one launch for all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, PathPatch
from matplotlib.path import Path

from course_kernels import schedule
from gemm_course.figures.shapes import centred, rectangle
from gemm_course.figures.style import BLACK, DIM, GREY, WIDTH, color_of, drawing

# All in inches. Rows are drawn to scale: one token is one row.
_HEIGHT, _HEADINGS, _BOTTOM = 5.0, 0.58, 0.12
_TOKENS_X, _TOKEN_W = 0.12, 0.3
_A_X, _K, _W_X, _C_X, _N = 2.3, 0.4, 3.0, 4.1, 0.8
_LAUNCH_X = 6.2
_COLUMNS = 6  # tiles side by side in an output: the weights' N, the same whatever the router did
_MAX_ROW = _K / 4  # so that a few tokens do not become rows higher than wide


class _Page(NamedTuple):
    """What changes with the height of the figure: the upper edge of the drawing, a weight's height, which shrinks more
    so that the groups keep room, and the gap between groups."""

    top: float
    weight: float
    gap: float

    @classmethod
    def of(cls, height: float) -> _Page:
        share = height / _HEIGHT
        return cls(height - _HEADINGS, _K * share**2, 0.09 * share)

    def needed(self, sizes: Sequence[int], unit: float) -> float:
        """Inches of all groups; a small one is as high as its weight matrix."""
        return sum(max(size * unit, self.weight) for size in sizes) + self.gap * (len(sizes) - 1)


@drawing
def overview(
    expert_of: Sequence[int], experts: int = 8, programs: int = 10, block: int = 4, height: float = _HEIGHT
) -> Figure:
    """Draw how tokens become a grouped GEMM: routed to experts, multiplied, cut into tiles, dealt to processors.

    The rows of all groups have one scale. Each tile is on the processor that `schedule.walk` gives it to.

    Args:
        expert_of: the expert of each token, in the order of the tokens; a (tokens,) tensor or a list.
        programs: processors (SMs) that share the tiles of the one launch, round-robin.
        block: edge of a square tile, in tokens.
        height: of the figure, in inches.
    """
    expert_of = [int(expert) for expert in expert_of]
    sizes = [expert_of.count(g) for g in range(experts)]
    page = _Page.of(height)
    unit = min((page.top - _BOTTOM) / max(len(expert_of), 1), _MAX_ROW)
    while page.needed(sizes, unit) > page.top - _BOTTOM and unit > 1e-3:
        unit *= 0.99
    figure = Figure(figsize=(WIDTH, height), dpi=100)
    figure.set_layout_engine("none")
    ax = figure.add_axes((0, 0, 1, 1), xlim=(0, WIDTH), ylim=(0, height))
    ax.axis("off")
    tops = _draw_groups(ax, page, sizes, unit, block * unit)
    _draw_routes(ax, page, expert_of, tops, unit)
    _draw_launch(ax, page, sizes, programs, block)
    return figure


def _heading(ax, page: _Page, x: float, title: str, note: str) -> None:
    ax.text(x, page.top + 0.38, title, fontsize=12, fontweight="bold", color=BLACK, va="center")
    ax.text(x, page.top + 0.17, note, fontsize=9, color=DIM, va="center")


def _draw_groups(ax, page: _Page, sizes: Sequence[int], unit: float, tile: float) -> list[float]:
    """A, the weights and the tiled C of each expert; return the upper edge of each group."""
    _heading(ax, page, _A_X, f"{len(sizes)} experts", "a matrix product each, every one of its own size")
    tops, top = [], page.top
    for g, size in enumerate(sizes):
        color, height = color_of(g), size * unit
        slot = max(height, page.weight)
        middle = top - slot / 2
        upper = middle + height / 2
        tops.append(upper)
        rectangle(ax, _A_X, upper - height, _K, height, color=color, lw=0, gid=f"A{g}")
        centred(ax, (_A_X + _K + _W_X) / 2, middle, "×", fontsize=11, color=DIM)
        rectangle(ax, _W_X, middle - page.weight / 2, _N, page.weight, fc=_pale(color), ec=color, lw=1)
        centred(ax, _W_X + _N / 2, middle, f"weights {g}", fontsize=8, color=BLACK)
        centred(ax, (_W_X + _N + _C_X) / 2, middle, "=", fontsize=11, color=DIM)
        _draw_tiles(ax, g, upper, height, tile)
        rows = f"{size} token" + ("" if size == 1 else "s")
        ax.text(_C_X + _N + 0.08, middle, rows, ha="left", va="center", fontsize=8, color=DIM)
        top -= slot + page.gap
    return tops


def _draw_tiles(ax, g: int, upper: float, height: float, tile: float) -> None:
    y, width = upper, _N / _COLUMNS
    while y > upper - height + 1e-9:
        lower = max(y - tile, upper - height)
        for column in range(_COLUMNS):
            x = _C_X + column * width
            rectangle(ax, x, lower, width, y - lower, fc=color_of(g), ec="white", lw=0.8, gid=f"C{g}")
        y = lower


def _pale(color: str) -> tuple[float, float, float]:
    return tuple(0.75 + 0.25 * int(color[i : i + 2], 16) / 255 for i in (1, 3, 5))


def _draw_routes(ax, page: _Page, expert_of: Sequence[int], tops: Sequence[float], unit: float) -> None:
    """Tokens in their order, and a curve from each to its row of its expert's A."""
    _heading(ax, page, _TOKENS_X, "tokens", "as they come")
    _heading(ax, page, 1.12, "router", "one expert each")
    step = (page.top - _BOTTOM) / max(len(expert_of), 1)
    used = [0] * len(tops)
    for position, g in enumerate(expert_of):
        y = page.top - (position + 0.5) * step
        rectangle(ax, _TOKENS_X, y - 0.4 * step, _TOKEN_W, 0.8 * step, color=color_of(g), lw=0, gid=f"token{position}")
        end = tops[g] - (used[g] + 0.5) * unit
        used[g] += 1
        x0, x1 = _TOKENS_X + _TOKEN_W + 0.04, _A_X - 0.04
        path = Path([(x0, y), (x0 + 1.0, y), (x1 - 1.0, end), (x1, end)], [Path.MOVETO] + [Path.CURVE4] * 3)
        ax.add_patch(PathPatch(path, fc="none", ec=color_of(g), lw=1.0))


def _draw_launch(ax, page: _Page, sizes: Sequence[int], programs: int, block: int) -> None:
    problems = [(size, _COLUMNS * block, block) for size in sizes]
    lanes = schedule.walk(problems, "round_robin", programs, (block, block))
    steps = max(map(len, lanes), default=0)
    count = sum(map(len, lanes))
    _heading(ax, page, _LAUNCH_X, "one launch", f"{count} tiles, shared out over {programs} processors")
    style = "simple,head_width=14,head_length=12,tail_width=5"
    y = 0.45 * (page.top + _HEADINGS)
    ax.add_patch(FancyArrowPatch((5.55, y), (_LAUNCH_X - 0.2, y), arrowstyle=style, fc="#BBBBBB", lw=0))
    left, right, low = _LAUNCH_X + 0.44, WIDTH - 0.15, _BOTTOM + 0.2
    lane, width = (page.top - low) / programs, (right - left) / max(steps, 1)
    for program, lane_tiles in enumerate(lanes):
        y = page.top - (program + 1) * lane
        ax.text(left - 0.06, y + lane / 2, f"SM {program}", ha="right", va="center", fontsize=8, color=DIM)
        for position, tile in enumerate(lane_tiles):
            x, color = left + position * width, color_of(tile.problem)
            rectangle(ax, x, y + 0.08 * lane, width, 0.84 * lane, fc=color, ec="white", lw=1.2, gid=f"SM{program}")
    ends = ((left, low - 0.06), (right, low - 0.06))
    ax.add_patch(FancyArrowPatch(*ends, arrowstyle="->", mutation_scale=10, color=GREY))
    centred(ax, (left + right) / 2, low - 0.17, "time", fontsize=8, color=DIM)
